"""`cambium serve` with the libraries of agents: the clients of OpenAI and Anthropic, LangChain, litellm, openai-agents and
pydantic-ai. The model recites a text with reasoning and a call, so that each library must find them."""
import asyncio
import importlib.util
import os
import pathlib
import tempfile
import unittest

from model_support import write_reciting_model
from serve_support import Server

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a list of prices
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
TEXT = '<think>\nWell.\n</think>\n\nWait. <tool_call>\n{"name": "now", "arguments": {"zone": "Rome"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"], "additionalProperties": False}
RESULT = "It is noon."


def needs(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"{package} is not installed: PyPI did not give it")


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="cambium-interop-")))
        write_reciting_model(root / "model", list(TEXT.encode()), positions=len(TEXT) + 200)
        (root / "template").write_text("{# tools <tool_call> <think> #}p")
        cls.server = cls.enterClassContext(Server("--model-name", "org/tiny", "--chat-template", root / "template", model=root / "model"))
        cls.url = f"http://{cls.server.addresses['data']}"


@needs("openai")
class OpenAI(Served):
    tools = [{"type": "function", "name": "now", "description": "The time.", "parameters": SCHEMA}]
    body = {"model": "org/tiny", "input": "Hi", "temperature": 0, "tools": tools}

    @property
    def client(self):
        import openai
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def check(self, response):
        self.assertEqual(response.status, "completed")
        self.assertEqual([item.type for item in response.output], ["reasoning", "message", "function_call"])
        self.assertEqual(response.output_text.strip(), "Wait.")
        self.assertEqual((response.output[2].name, response.output[2].arguments), ("now", '{"zone": "Rome"}'))
        self.assertEqual(type(response).model_validate(response.model_dump(exclude={"adapters", "seed"})).id, response.id)

    def test_a_response_has_the_types_of_the_client(self):
        self.check(self.client.responses.create(**self.body, store=False, metadata={"a": "b"}))

    def test_a_stream_is_gathered(self):
        with self.client.responses.stream(**self.body) as stream:
            events = list(stream)
            self.check(stream.get_final_response())
        for event in events:  # strictly by its type, without what the client adds
            type(event).model_validate(event.model_dump())
        self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta").strip(), "Wait.")

    def test_a_loop_of_a_tool(self):
        response = self.client.responses.create(**self.body)
        items = [{"role": "user", "content": "Hi"}, *(item.model_dump(exclude_none=True) for item in response.output),
                 {"type": "function_call_output", "call_id": response.output[2].call_id, "output": RESULT}]
        self.check(self.client.responses.create(**self.body | {"input": items}))

    def test_errors(self):
        import openai
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client.responses.create(**self.body, previous_response_id="resp_1")
        self.assertEqual(raised.exception.param, "previous_response_id")
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(**self.body | {"model": "none"})


@needs("anthropic")
class Anthropic(Served):
    body = {"model": "org/tiny", "max_tokens": 150, "extra_body": {"temperature": 0}, "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"name": "now", "description": "The time.", "input_schema": SCHEMA}]}

    def client(self, **key):
        import anthropic
        return anthropic.Anthropic(base_url=self.url, max_retries=0, **(key or {"api_key": "none"}))

    def check(self, message):
        self.assertEqual([block.type for block in message.content], ["thinking", "text", "tool_use"])
        self.assertEqual((message.content[2].name, message.content[2].input), ("now", {"zone": "Rome"}))
        self.assertEqual((message.stop_reason, message.stop_sequence), ("tool_use", None))

    def test_a_message_has_the_types_of_the_client(self):
        message = self.client().messages.create(**self.body)
        self.check(message)
        type(message).model_validate(message.model_dump())
        self.check(self.client(auth_token="none").messages.create(**self.body))

    def test_a_stream_is_gathered(self):
        with self.client().messages.stream(**self.body) as stream:
            events = list(stream)
            self.check(stream.get_final_message())
        self.assertEqual("".join(event.text for event in events if event.type == "text").strip(), "Wait.")

    def test_a_loop_of_a_tool(self):
        message = self.client().messages.create(**self.body)
        messages = [*self.body["messages"], {"role": "assistant", "content": [block.model_dump() for block in message.content]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": message.content[2].id, "content": RESULT}]}]
        self.check(self.client().messages.create(**self.body | {"messages": messages}))

    def test_tokens_are_counted(self):
        body = {name: value for name, value in self.body.items() if name not in ("max_tokens", "extra_body")}
        usage = self.client().messages.create(**self.body).usage
        self.assertEqual(self.client().messages.count_tokens(**body).input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_errors(self):
        import anthropic
        with self.assertRaises(anthropic.BadRequestError) as raised:
            self.client().messages.create(**self.body | {"extra_body": {"temperature": -1}})
        self.assertEqual(raised.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.NotFoundError):
            self.client().messages.create(**self.body | {"model": "none"})


@needs("langchain_openai")
class LangChain(Served):
    def test_tools_are_called_through_responses(self):
        from langchain_openai import ChatOpenAI
        tools = [{"type": "function", "function": {"name": "now", "description": "The time.", "parameters": SCHEMA}}]
        for through in (True, False):
            chat = ChatOpenAI(base_url=f"{self.url}/v1", api_key="none", model="org/tiny", temperature=0, max_retries=0,
                              use_responses_api=through).bind_tools(tools)
            whole, joined = chat.invoke("Hi"), None
            for piece in chat.stream("Hi"):
                joined = piece if joined is None else joined + piece
            for answer in (whole, joined):
                self.assertEqual([(call["name"], call["args"]) for call in answer.tool_calls], [("now", {"zone": "Rome"})])


@needs("litellm")
class LiteLLM(Served):
    def test_messages_and_responses(self):
        import litellm
        answer = litellm.completion(model="anthropic/org/tiny", api_base=self.url, api_key="none", messages=[{"role": "user", "content": "Hi"}],
                                    max_tokens=150, temperature=0, num_retries=0, tools=[
                                        {"type": "function", "function": {"name": "now", "description": "", "parameters": SCHEMA}}])
        self.assertEqual(answer.choices[0].message.tool_calls[0].function.name, "now")
        response = litellm.responses(model="openai/org/tiny", api_base=f"{self.url}/v1", api_key="none", input="Hi", temperature=0)
        self.assertEqual(response.status, "completed")


@needs("agents")
class Agents(Served):
    def test_a_tool_is_called(self):
        import openai
        from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, StopAtTools, function_tool
        seen = []

        @function_tool
        def now(zone: str) -> str:
            """The time."""
            seen.append(zone)
            return RESULT

        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)
        agent = Agent(name="a", instructions="Be brief.", model=OpenAIResponsesModel("org/tiny", client), tools=[now],
                      tool_use_behavior=StopAtTools(stop_at_tool_names=["now"]), model_settings=ModelSettings(temperature=0))
        result = asyncio.run(Runner.run(agent, "Hi", run_config=RunConfig(tracing_disabled=True)))
        self.assertEqual((seen, result.final_output), (["Rome"], RESULT))


@needs("pydantic_ai")
class PydanticAI(Served):
    def test_a_tool_is_called(self):
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider
        from pydantic_ai.usage import UsageLimits
        from pydantic_ai.exceptions import UsageLimitExceeded
        seen = []
        agent = Agent(OpenAIResponsesModel("org/tiny", provider=OpenAIProvider(base_url=f"{self.url}/v1", api_key="none")))

        @agent.tool_plain
        def now(zone: str) -> str:
            """The time."""
            seen.append(zone)
            return RESULT

        with self.assertRaises(UsageLimitExceeded):  # the model recites the call again and again
            agent.run_sync("Hi", usage_limits=UsageLimits(request_limit=2), model_settings={"temperature": 0})
        self.assertEqual(seen, ["Rome"] * 2)


if __name__ == "__main__":
    unittest.main()
