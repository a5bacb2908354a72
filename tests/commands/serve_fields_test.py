"""Fields of the OpenAI API that this server lacks. One that would change an answer is refused, with the nearest name;
the others are ignored and named in the answer. The template sees the tools."""
import json
import pathlib
import tempfile
import unittest

from model_support import write_byte_model
from serve_support import Server

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
HISTORY = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
           {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]}]
TEMPLATE = ("{% if tools %}T:{{ tools[0].function.name }};{% endif %}{% for m in messages %}{{ m.role }}:"
            "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}({{ m.tool_calls[0].function.arguments.city }})"
            "{% else %}{{ m.content }}{% endif %};{% endfor %}")


class Fields(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        (directory / "template").write_text(TEMPLATE)
        write_byte_model(directory / "model", n_positions=200, n_embd=32, n_head=2)
        cls.server = Server("--chat-template", directory / "template", model=directory / "model")
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def post(self, path, **body):
        return self.server.ask("POST", path, {"max_tokens": 1, "seed": 1} | body)

    def complete(self, **body):
        return self.post("/v1/completions", prompt="a", **body)

    def chat(self, **body):
        return self.post("/v1/chat/completions", **{"messages": [{"role": "user", "content": "a"}]} | body)

    def refused(self, answer, param, *parts):
        self.assertEqual(answer.status, 400, answer.body)
        error = answer.json["error"]
        self.assertEqual(error["param"], param)
        for part in parts:
            self.assertIn(part, error["message"])

    def test_what_would_change_the_answer_is_refused(self):
        for name, value in (("guided_whatever", 1), ("structured_outputs", {}),
                            ("structural_tag", "x"), ("use_beam_search", True), ("bad_words", ["x"]), ("allowed_token_ids", [1]),
                            ("reasoning_effort", "low"), ("skip_special_tokens", False), ("length_penalty", 2),
                            ("logits_processors", []), ("functions", [])):
            for ask in (self.complete, self.chat):
                self.refused(ask(**{name: value}), name, name)

    def test_the_same_with_values_that_change_nothing(self):
        for name, value in (("guided_json", None), ("use_beam_search", False), ("bad_words", []), ("skip_special_tokens", True),
                            ("length_penalty", 1.0), ("structured_outputs", None), ("modalities", ["text"])):
            for ask in (self.complete, self.chat):
                answer = ask(**{name: value})
                self.assertEqual(answer.status, 200, answer.body)
                self.assertNotIn("ignored", answer.json)
        self.assertEqual(self.complete(add_special_tokens=True).status, 200)
        self.assertEqual(self.chat(add_special_tokens=False, echo=False).status, 200)
        self.refused(self.chat(add_special_tokens=True), "add_special_tokens")
        self.assertEqual(self.chat(parse_special=False).status, 200)
        self.refused(self.chat(parse_special=True), "parse_special")

    def test_a_near_miss_is_refused_with_the_nearest_name(self):
        for name, meant in (("temperatur", "temperature"), ("Temperature", "temperature"), ("max-tokens", "max_tokens"),
                            ("maxTokens", "max_tokens"), ("topp", "top_p"), ("stop_token_id", "stop_token_ids"),
                            ("frequence_penalty", "frequency_penalty"), ("logitbias", "logit_bias"), ("steam", "stream")):
            self.refused(self.complete(**{name: 1}), name, f"did you mean {meant}?")
        self.refused(self.chat(top_logprob=1, logprobs=True), "top_logprob", "did you mean top_logprobs?")
        self.refused(self.chat(add_generation_promt=True), "add_generation_promt", "did you mean add_generation_prompt?")
        self.assertEqual(self.complete(temperatur=None).status, 200)  # null is absent

    def test_fields_of_the_other_kind_are_refused(self):
        self.refused(self.chat(prompt="b"), "prompt", "completions")
        self.refused(self.chat(echo=True), "echo", "completions")
        self.refused(self.complete(messages=[]), "messages", "chats")
        self.refused(self.complete(tools=TOOLS), "tools", "chats")

    def test_the_rest_is_ignored_and_named(self):
        stock = {"more": 1, "foo": 2, "x": 3, "user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto"}
        for ask in (self.complete, self.chat):
            plain = ask()
            self.assertNotIn("ignored", plain.json)
            answer = ask(**stock, best_colour="blue", **{"x\ny": 1, "é" * 40: 2})
            self.assertEqual(answer.status, 200, answer.body)
            self.assertEqual(sorted(answer.json["ignored"]),
                             sorted(["more", "foo", "x", "store", "metadata", "service_tier", "best_colour", "x\ny", "é" * 32]))
            self.assertEqual(answer.json["choices"], plain.json["choices"])
        self.refused(self.complete(**{f"unheard_{i}_of": 1 for i in range(65)}), None, "64")

    def test_a_stream_names_them_in_its_first_chunk(self):
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": HISTORY[:1]})):
            with self.server.stream(path, body | {"max_tokens": 2, "best_colour": 1, "stream_options": {"include_usage": True}}) as stream:
                events = list(stream)
            self.assertEqual([event.get("ignored") for event in events], [["best_colour"]] + [None] * (len(events) - 1))
            if "messages" in body:
                self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})

    def prompt(self, **body):
        answer = self.chat(return_token_ids=True, **body)
        self.assertEqual(answer.status, 200, answer.body)
        return bytes(answer.json["prompt_token_ids"]).decode()

    def test_histories_with_calls_of_tools_are_rendered(self):
        text = "user:Weather?;assistant:get_weather(Oslo);tool:rain;"
        self.assertEqual(self.prompt(messages=HISTORY), text)
        for choice in ("none", "auto", None):
            self.assertEqual(self.prompt(messages=HISTORY, tools=TOOLS, tool_choice=choice), "T:get_weather;" + text)
        self.assertEqual(self.prompt(messages=HISTORY, tools=[]), text)
        self.assertEqual(self.prompt(messages=HISTORY, tools=None, tool_choice="none"), text)

    def test_choices_that_cannot_be(self):
        name = {"type": "function", "function": {"name": "get_weather"}}
        for choice, part in (("any", "expected"), ({}, "expected"), ({"type": "function"}, "expected"), ({"type": "allowed_tools"}, "mode"),
                             ({"type": "function", "function": {"name": "x"}}, 'no tool "x"'),
                             ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "at least one"),
                             ({"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [name]}}, "mode"),
                             ({"type": "allowed_tools", "mode": "auto", "tools": [name, {"type": "function", "name": "y"}]}, 'no tool "y"')):
            self.refused(self.chat(tools=TOOLS, tool_choice=choice), "tool_choice", part)
        for choice in ("required", name):
            self.refused(self.chat(tool_choice=choice), "tool_choice", "no tool")
        self.refused(self.chat(tools=TOOLS, parallel_tool_calls=1), "parallel_tool_calls")
        for choice in ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [name]}},
                       {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}):
            self.assertEqual(self.chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False).status, 200)

    def test_tools_that_cannot_be(self):
        def tool(**function):
            return {"type": "function", "function": function}
        for tools, part in (([tool(name="a b")], "tool 1: expected a name"), ([tool(name="")], "name"), ([tool(name="a" * 65)], "name"),
                            ([tool(name="a"), tool(name="b"), tool(name="a")], 'two tools "a"'), ([tool(name="a", parameters=[])], "parameters"),
                            ([tool(name="a", strict="yes")], "strict"), ([tool(name=f"f{i}") for i in range(4097)], "4096")):
            self.refused(self.chat(tools=tools), "tools", part)
        self.assertEqual(self.chat(tools=[tool(name="a.b-C_1", parameters=None, strict=None), tool(name="a" * 64, strict=True)]).status, 200)

    def test_histories_and_tools_that_cannot_be(self):
        for tools in ({}, [1], [{"type": "function"}], [{"type": "magic", "function": {"name": "a"}}], [{"function": {"name": "a"}}]):
            self.refused(self.chat(tools=tools), "tools")
        bad_calls = [[1], [{}], {}, [{"function": {"arguments": "{}"}}], [{"type": "magic", "function": {"name": "a"}}],
                     [CALL | {"function": {"name": "a", "arguments": "[" * 100 + "]" * 100}}]]
        histories = [[HISTORY[0], HISTORY[1] | {"tool_calls": calls}, HISTORY[2]] for calls in bad_calls]
        histories += [HISTORY[:2], [HISTORY[0] | {"tool_calls": [CALL]}], [{"role": "function", "name": "a", "content": "b"}]]
        for history in histories:
            self.refused(self.chat(messages=history), "messages")

    def test_the_template_decides_about_the_order_of_messages(self):
        said, system = {"role": "assistant", "content": "b"}, {"role": "system", "content": "s"}
        for history, text in (([HISTORY[0], HISTORY[2]], "user:Weather?;tool:rain;"), ([HISTORY[2]], "tool:rain;"),
                              ([HISTORY[0], said, said, HISTORY[0]], "user:Weather?;assistant:b;assistant:b;user:Weather?;"),
                              ([HISTORY[0], system, HISTORY[0]], "user:Weather?;system:s;user:Weather?;"),
                              ([HISTORY[0], {"role": "assistant", "content": None}, HISTORY[0]], "user:Weather?;assistant:;user:Weather?;"),
                              ([HISTORY[0], {"role": "assistant"}, HISTORY[2]], "user:Weather?;assistant:;tool:rain;"),
                              ([HISTORY[0], HISTORY[1] | {"tool_calls": [CALL | {"function": {"name": "a", "arguments": "{"}}]}, HISTORY[2]],
                               "user:Weather?;assistant:a();tool:rain;")):
            self.assertEqual(self.prompt(messages=history), text)


if __name__ == "__main__":
    unittest.main()
