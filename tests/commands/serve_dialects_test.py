"""The dialects of agents, /v1/responses and /v1/messages: requests become chats, and answers have their form, whole and
streamed. All answers and events are held against /openapi.json, as everywhere (serve_support)."""
import json
import pathlib
import tempfile
import unittest

from model_support import write_reciting_model
from requests_support import ask
from serve_support import Server

CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "Zürich"}}\n</tool_call>'
THOUGHT = "<think>\nWell.\n</think>\n\n"
SCHEMA = {"type": "object", "properties": {"zone": {"type": "string"}}}
# A template that writes all that it gets, and then a mark after which the model recites.
ECHO = ("{# tools <tool_call> <think> #}{% for t in tools or [] %}{{ t.function.name }}:{{ t.function.parameters | tojson }};{% endfor %}"
        "{% for m in messages %}[{{ m.role }}|{{ m.content or '' }}|{{ m.reasoning_content or '' }}|{{ m.tool_call_id or '' }}|"
        "{% for c in m.tool_calls or [] %}{{ c.id }}={{ c.function.name }}={{ c.function.arguments.zone }},{% endfor %}]"
        "{% endfor %}{{ reasoning_effort or '' }}")


def events_of(text):
    """Events of a stream of bytes: pairs of a name and its data, which has the same type."""
    found = []
    for block in text.decode().split("\n\n")[:-1]:
        if not block.startswith(":"):
            name, data = block.split("\n")
            value = json.loads(data.removeprefix("data: "))
            assert name == "event: " + value["type"], block
            found.append(value)
    return found


class Dialect(unittest.TestCase):
    text = THOUGHT + "Wait. " + CALL

    @classmethod
    def setUpClass(cls):
        root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        ids = list(cls.text.encode())
        write_reciting_model(root / "model", ids, positions=len(ids) + 120)
        (root / "template").write_text("{# tools <tool_call> <think> #}p")
        (root / "keys").write_text("alice sk-a\n")
        cls.model, cls.template, cls.keys = root / "model", root / "template", root / "keys"
        cls.server = Server("--chat-template", cls.template, model=cls.model)
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def whole(self, **body):
        answer = self.server.ask("POST", self.path, self.base | body)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def refused(self, name, path=None, **body):
        answer = self.server.ask("POST", path or self.path, self.base | body)
        self.assertEqual(answer.status, 400, answer.body)
        self.assertIn(name, answer.json["error"]["message"])
        return answer.json["error"]

    def stream(self, **body):
        with self.server.stream(self.path, self.base | body) as stream:
            found = list(stream)
            self.assertFalse(stream.is_done)  # no [DONE]
        return found

    def same(self, one, other):
        """Two answers differ only in ids and times."""
        hide = lambda value: {key: hide(item) for key, item in value.items() if key not in ("id", "created_at")} \
            if isinstance(value, dict) else [hide(item) for item in value] if isinstance(value, list) else value
        self.assertEqual(hide(one), hide(other))


class Responses(Dialect):
    path = "/v1/responses"
    base = {"input": "Hi", "temperature": 0, "seed": 5, "tools": [{"type": "function", "name": "now", "parameters": SCHEMA}]}

    def test_a_whole_answer_has_items(self):
        answer = self.whole(metadata={"a": "b"}, instructions="Be brief.", store=True, include=[], service_tier="auto")
        reasoning, message, call = answer["output"]
        self.assertEqual((answer["status"], answer["incomplete_details"], answer["error"]), ("completed", None, None))
        self.assertEqual(reasoning["content"], [{"type": "reasoning_text", "text": "Well."}])
        self.assertEqual(message["content"][0]["text"].strip(), "Wait.")
        self.assertEqual((call["name"], json.loads(call["arguments"])), ("now", {"zone": "Zürich"}))
        self.assertRegex(call["call_id"], "^call_[a-zA-Z0-9]{24}$")
        self.assertEqual([item["id"].split("_")[0] for item in answer["output"]], ["rs", "msg", "fc"])
        self.assertEqual((answer["metadata"], answer["instructions"]), ({"a": "b"}, "Be brief."))
        self.assertEqual(answer["tools"], self.base["tools"])
        usage = answer["usage"]
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
        self.assertGreater(usage["output_tokens_details"]["reasoning_tokens"], 0)
        self.assertNotIn("ignored", answer)

    def test_a_stream_has_the_answer(self):
        events = self.stream()
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        self.assertEqual([event["type"] for event in events[:2]], ["response.created", "response.in_progress"])
        final = events[-1]
        self.assertEqual(final["type"], "response.completed")
        self.same(final["response"], self.whole())
        names = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}
        for index, item in enumerate(final["response"]["output"]):
            own = [event for event in events if event.get("output_index") == index]
            name, is_call = names[item["type"]], item["type"] == "function_call"
            text = item["arguments"] if is_call else item["content"][0]["text"]
            deltas = [event for event in own if event["type"] == f"response.{name}.delta"]
            self.assertEqual("".join(event["delta"] for event in deltas), text)
            part = [] if is_call else ["content_part"]
            order = ["output_item.added", *(f"{one}.added" for one in part), *[f"{name}.delta"] * len(deltas), f"{name}.done",
                     *(f"{one}.done" for one in part), "output_item.done"]
            self.assertEqual([event["type"] for event in own], ["response." + one for one in order])
            self.assertEqual(own[-1]["item"], item)
            self.assertEqual({event["item_id"] for event in own if "item_id" in event}, {item["id"]})
            self.assertEqual(own[0]["item"]["status"], "in_progress")
        self.assertEqual({event["response"]["id"] for event in events if "response" in event}, {final["response"]["id"]})

    def test_an_answer_that_is_cut_is_incomplete(self):
        answer, events = self.whole(max_output_tokens=3), self.stream(max_output_tokens=3)
        self.assertEqual((answer["status"], answer["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
        self.assertEqual(events[-1]["type"], "response.incomplete")
        self.same(events[-1]["response"], answer)

    def test_log_probabilities(self):
        answer = self.whole(tools=[], top_logprobs=2, max_output_tokens=2)
        for item in answer["output"]:
            for part in item["content"]:
                self.assertEqual([len(token["top_logprobs"]) for token in part["logprobs"]], [2] * len(part["logprobs"]))

    def test_what_needs_state_is_refused_by_name(self):
        for name, value in (("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True), ("prompt", {"id": "a"}),
                            ("truncation", "auto")):
            self.assertEqual(self.refused(name, **{name: value})["param"], name)
        self.whole(background=False, previous_response_id=None, truncation="disabled")
        self.assertIn("web_search", self.refused("tools", tools=[{"type": "web_search"}])["message"])
        self.assertIn("item_reference", self.refused("input", input=[{"type": "item_reference", "id": "a"}])["message"])
        self.assertEqual(self.refused("input", input=[{"role": "user", "content": [{"type": "input_image"}]}])["param"], "input")
        self.assertEqual(self.refused("input", input=[{"role": "cook", "content": "a"}])["param"], "input")
        self.assertEqual(self.refused("tool_choice", tool_choice={"type": "function", "name": "then"})["param"], "tool_choice")
        self.refused("input", input=[])
        self.refused("temperature", temperature=-1)

    def test_an_error_is_refused_before_a_stream(self):
        answer = self.server.ask("POST", self.path, self.base | {"stream": True, "model": "none"})
        self.assertEqual((answer.status, answer.code), (404, "model_not_found"))

    def test_with_and_without_v1(self):
        self.same(self.server.ask("POST", "/responses", self.base).json, self.whole())


class Messages(Dialect):
    path = "/v1/messages"
    base = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "temperature": 0, "seed": 5,
            "tools": [{"name": "now", "input_schema": SCHEMA}]}

    def test_a_whole_answer_has_blocks(self):
        answer = self.whole(metadata={"user_id": "a"}, service_tier="auto")
        thinking, text, use = answer["content"]
        self.assertEqual(thinking, {"type": "thinking", "thinking": "Well.", "signature": ""})
        self.assertEqual(text["text"].strip(), "Wait.")
        self.assertEqual((use["name"], use["input"]), ("now", {"zone": "Zürich"}))
        self.assertRegex(use["id"], "^toolu_[a-zA-Z0-9]{24}$")
        self.assertEqual((answer["stop_reason"], answer["stop_sequence"]), ("tool_use", None))
        self.assertTrue(answer["id"].startswith("msg_"))

    def test_a_stream_has_the_answer(self):
        events, whole = self.stream(), self.whole()
        self.assertEqual((events[0]["type"], events[-2]["type"], events[-1]["type"]), ("message_start", "message_delta", "message_stop"))
        self.assertEqual((events[0]["message"]["content"], events[0]["message"]["stop_reason"]), ([], None))
        blocks = []
        for event in events[1:-2]:
            if event["type"] == "content_block_start":
                self.assertEqual(event["index"], len(blocks))
                blocks.append(event["content_block"] | {"json": ""})
                continue
            self.assertEqual(event["index"], len(blocks) - 1)
            if event["type"] == "content_block_delta":
                name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "json"}
                delta = event["delta"]
                blocks[-1][name[delta["type"]]] += delta.get("partial_json", delta.get(name[delta["type"]]))
        stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
        self.assertEqual(stops, list(range(len(blocks))))
        for block in blocks:
            written = block.pop("json")
            if block["type"] == "tool_use":
                self.assertEqual(block["input"], {})
                block["input"] = json.loads(written)
        self.assertEqual(blocks, whole["content"])
        self.assertEqual(events[-2]["delta"], {"stop_reason": "tool_use", "stop_sequence": None})
        self.assertEqual(events[-2]["usage"]["output_tokens"], whole["usage"]["output_tokens"])
        used = lambda usage: usage["input_tokens"] + usage["cache_read_input_tokens"]
        self.assertEqual(used(events[0]["message"]["usage"]), used(whole["usage"]))

    def test_reasons_of_the_end(self):
        self.assertEqual(self.whole(max_tokens=3)["stop_reason"], "max_tokens")
        answer = self.whole(tools=[], stop_sequences=["zzz", "it."])
        self.assertEqual((answer["stop_reason"], answer["stop_sequence"]), ("stop_sequence", "it."))
        self.assertEqual(self.whole(tools=[])["stop_reason"], "end_turn")
        events = self.stream(tools=[], stop_sequences=["it."])
        self.assertEqual(events[-2]["delta"], {"stop_reason": "stop_sequence", "stop_sequence": "it."})

    def test_thinking_that_is_disabled_is_dropped(self):
        kinds = lambda answer: [block["type"] for block in answer["content"]]
        self.assertEqual(kinds(self.whole(thinking={"type": "enabled", "budget_tokens": 1024})), ["thinking", "text", "tool_use"])
        self.assertEqual(kinds(self.whole(thinking={"type": "disabled"})), ["text", "tool_use"])
        self.assertNotIn("thinking_delta", json.dumps(self.stream(thinking={"type": "disabled"})))

    def test_errors_have_the_form(self):
        body = {name: value for name, value in self.base.items() if name != "max_tokens"}
        answer = self.server.ask("POST", self.path, body)
        self.assertEqual((answer.status, answer.code), (400, "invalid_request_error"))
        self.assertIn("max_tokens", answer.json["error"]["message"])
        self.assertEqual(self.server.ask("POST", self.path, self.base | {"model": "none", "stream": True}).code, "not_found_error")
        self.assertEqual(self.server.ask("GET", self.path).code, "invalid_request_error")
        self.assertEqual(self.server.ask("POST", self.path + "/none", {}).code, "not_found_error")
        self.refused("tool_choice", tool_choice={"type": "tool", "name": "then"})
        self.refused("computer", tools=[{"type": "computer_20250124", "name": "computer"}])
        self.refused("image", messages=[{"role": "user", "content": [{"type": "image"}]}])
        self.refused("role", messages=[{"role": "system", "content": "a"}])
        self.refused("mcp_servers", mcp_servers=[])

    def test_keys_of_both_headers(self):
        with Server("--chat-template", self.template, "--api-key-file", self.keys, model=self.model) as server:
            version = {"anthropic-version": "2023-06-01"}
            answers = [server.ask("POST", self.path, self.base, headers=version | fields) for fields in
                       ({}, {"x-api-key": "sk-b"}, {"x-api-key": "sk-a"}, {"authorization": "Bearer sk-a"})]
            self.assertEqual([answer.status for answer in answers], [401, 401, 200, 200])
            self.assertEqual(answers[0].code, "authentication_error")

    def test_tokens_are_counted(self):
        body = {name: self.base[name] for name in ("messages", "tools")}
        answer = self.server.ask("POST", "/v1/messages/count_tokens", body)
        usage = self.whole()["usage"]
        self.assertEqual(answer.json, {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]})
        self.assertEqual(self.server.ask("POST", "/messages/count_tokens", body | {"stream": True}).status, 200)
        self.refused("messages", "/v1/messages/count_tokens", messages=[])


class Translations(unittest.TestCase):
    """The text that the template writes, read from the ids of the prompt: the model has a token for each byte."""

    @classmethod
    def setUpClass(cls):
        root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        write_reciting_model(root / "model", list(b"ok"), positions=2048)
        (root / "template").write_text(ECHO)
        cls.server = Server("--chat-template", root / "template", model=root / "model")
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def ids(self, path, body):
        answer = self.server.ask("POST", path, body | {"max_tokens": 1, "return_token_ids": True, "seed": 1})
        self.assertEqual(answer.status, 200, answer.body)
        return bytes(answer.json["prompt_token_ids"]).decode()

    def test_items_become_messages(self):
        items = [{"role": "developer", "content": "D"}, {"role": "user", "content": [{"type": "input_text", "text": "Q"}]},
                 {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
                 {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                  "content": [{"type": "output_text", "text": "A", "annotations": []}]},
                 {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "now", "arguments": '{"zone": "Z"}'},
                 {"type": "function_call", "call_id": "c2", "name": "now", "arguments": '{"zone": "Y"}'},
                 {"type": "function_call_output", "call_id": "c1", "output": "1"},
                 {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
                 {"role": "user", "content": "More"}]
        tools = [{"type": "function", "name": "now", "parameters": {}, "strict": False}]
        text = self.ids("/v1/responses", {"input": items, "instructions": "S", "tools": tools, "reasoning": {"effort": "low"}})
        self.assertEqual(text, "now:{};[system|S|||][system|D|||][user|Q|||][assistant|A|R||c1=now=Z,c2=now=Y,]"
                               "[tool|1||c1|][tool|2||c2|][user|More|||]low")

    def test_blocks_become_messages(self):
        use = {"type": "tool_use", "id": "toolu_abc", "name": "now", "input": {"zone": "Z"}, "cache_control": {"type": "ephemeral"}}
        messages = [{"role": "user", "content": [{"type": "text", "text": "Q", "cache_control": {"type": "ephemeral"}}]},
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": "R", "signature": ""}, {"type": "text", "text": "A"}, use]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_abc", "content": [{"type": "text", "text": "1"}]},
                                                 {"type": "text", "text": "More"}]}]
        tools = [{"name": "now", "description": "N", "input_schema": {}}]
        text = self.ids("/v1/messages", {"messages": messages, "system": [{"type": "text", "text": "S"}], "tools": tools})
        self.assertEqual(text, "now:{};[system|S|||][user|Q|||][assistant|A|R||call_abc=now=Z,][tool|1||call_abc|][user|More|||]")

    def test_a_last_message_of_the_assistant_is_continued(self):
        text = self.ids("/v1/messages", {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]})
        self.assertEqual(text, "[user|Q|||]A")


class Batches(Dialect):
    def test_lines_of_batches(self):
        lines = [{"custom_id": "r", "method": "POST", "url": "/v1/responses", "body": Responses.base},
                 {"custom_id": "m", "method": "POST", "url": "/v1/messages", "body": Messages.base},
                 {"custom_id": "e", "method": "POST", "url": "/v1/messages", "body": {"messages": []}}]
        answers = ask(lines, "--chat-template", self.template, model=self.model, expect=1)
        bodies = [answer["response"]["body"] for answer in answers]
        self.path, self.base = Responses.path, Responses.base
        self.same(bodies[0]["output"], self.whole()["output"])
        self.path, self.base = Messages.path, Messages.base
        self.same(bodies[1]["content"], self.whole()["content"])
        self.assertEqual((answers[2]["response"]["status_code"], bodies[2]["error"]["type"]), (400, "invalid_request_error"))


del Dialect
if __name__ == "__main__":
    unittest.main()
