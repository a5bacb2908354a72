"""Calls of tools and reasoning in answers: whole, streamed, in batches and in lines. The model recites what a model of a
format writes."""
import json
import pathlib
import re
import shutil
import tempfile
import unittest

from model_support import write_reciting_model
from requests_support import ask
from serve_support import Server

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
         {"type": "function", "function": {"name": "now"}}]
HELLO = [{"role": "user", "content": "Hi"}]
CALLS = [("get_weather", '{"city": "Zürich", "days": 3}'), ("now", "{}")]
TEXTS = {
    "mistral-v11": ("[ARGS]", "[TOOL_CALLS]get_weather[ARGS]%s[TOOL_CALLS]now[ARGS]%s"),
    "mistral": ("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "get_weather", "arguments": %s}, {"name": "now", "arguments": %s}]'),
    "deepseek": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n%s\n```"
                 "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n%s\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    "phi4": ("<|tool_call|>", '<|tool_call|>[{"name": "get_weather", "arguments": %s}, {"name": "now", "arguments": %s}]<|/tool_call|>'),
    "hermes": ("<tool_call>", '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>\n'
               '<tool_call>\n{"name": "now", "arguments": %s}\n</tool_call>'),
    "llama3": ('"parameters" <|python_tag|>', '{"name": "get_weather", "parameters": %s}; {"name": "now", "parameters": %s}'),
}
XML = ("<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n"
       "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>")


def written(format):
    return XML if format == "qwen3-xml" else TEXTS[format][1] % (CALLS[0][1], CALLS[1][1])


def calls_of(message):
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]


class Calls(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.model, self.template = self.root / "model", self.root / "template"

    def recite(self, text, finds, specials=()):
        """The model writes `text` after a prompt of one token, which the template makes of any chat."""
        ids = []
        for part in re.split("(" + "|".join(map(re.escape, specials)) + ")", text) if specials else [text]:
            ids += [257 + specials.index(part)] if part in specials else part.encode()
        shutil.rmtree(self.model, ignore_errors=True)
        write_reciting_model(self.model, ids, positions=len(ids) + 4, specials=specials)
        self.template.write_text("{# tools " + finds + " #}p")

    def serve(self, *words):
        return Server("--chat-template", self.template, *words, model=self.model)

    def chat(self, server, **body):
        answer = server.ask("POST", "/v1/chat/completions", {"messages": HELLO, "temperature": 0, "tools": TOOLS, "seed": 5} | body)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def stream(self, server, **body):
        """The deltas of each choice, joined as clients join them, and the finish reason."""
        request = {"messages": HELLO, "temperature": 0, "tools": TOOLS, "seed": 5} | body
        choices = [{"content": "", "reasoning_content": "", "tool_calls": []} for _ in range(body.get("n", 1))]
        with server.stream("/v1/chat/completions", request) as stream:
            for event in stream:
                for part in event["choices"]:
                    choice, delta = choices[part["index"]], part["delta"]
                    self.assertNotIn("finish_reason", choice)
                    for key in ("content", "reasoning_content"):
                        choice[key] += delta.get(key, "")
                    for call in delta.get("tool_calls", []):
                        if "id" in call:
                            self.assertEqual((call["index"], call["function"]["arguments"]), (len(choice["tool_calls"]), ""))
                            choice["tool_calls"].append(call)
                        else:
                            self.assertEqual(call["index"], len(choice["tool_calls"]) - 1)
                            self.assertEqual(set(call), {"index", "function"})
                            choice["tool_calls"][-1]["function"]["arguments"] += call["function"]["arguments"]
                    if part["finish_reason"]:
                        self.assertEqual(delta, {})
                        choice["finish_reason"] = part["finish_reason"]
        return choices


class Formats(Calls):
    def test_calls_of_each_format(self):
        for format in [*TEXTS, "qwen3-xml"]:
            text, ids = written(format), set()
            for specials in ((), tuple(sorted(set(re.findall(r"<\|?/?tool_call\|?>|\[[A-Z_]+\]|<｜[^｜]*｜>", text))))):
                with self.subTest(format, specials=specials):
                    self.recite(text, TEXTS[format][0] if format in TEXTS else "<function=", specials)
                    with self.serve() as server:
                        self.assertEqual([model["tool_format"] for model in server.ask("GET", "/v1/models").json["data"]], [format])
                        answer = self.chat(server)
                        self.check_whole(answer, ids)
                        (streamed,) = self.stream(server)
                        self.assertEqual(streamed["content"], "")
                        self.assertEqual(calls_of(streamed), CALLS)
                        self.assertEqual(streamed["finish_reason"], "tool_calls")
                        self.assertEqual([call["id"] for call in streamed["tool_calls"]],
                                         [call["id"] for call in answer["choices"][0]["message"]["tool_calls"]])
                        for body in ({"tool_choice": "none"}, {"tools": None}):
                            message = self.chat(server, **body)["choices"][0]["message"]
                            self.assertEqual((message["content"], "tool_calls" in message), (text, False))
                        once = self.chat(server, parallel_tool_calls=False)["choices"][0]["message"]
                        self.assertEqual(calls_of(once), CALLS[:1])
            self.assertEqual(len(ids), 2)  # the same in the same request

    def check_whole(self, answer, ids):
        (choice,) = answer["choices"]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (None, "tool_calls"))
        self.assertEqual(calls_of(choice["message"]), CALLS)
        for call in choice["message"]["tool_calls"]:
            self.assertRegex(call["id"], r"^(call_[a-zA-Z0-9]{24}|[a-zA-Z0-9]{9})$")
            ids.add(call["id"])

    def test_a_format_is_named(self):
        self.recite(written("llama3"), "")
        with self.serve("--tool-format", "llama3") as server:
            self.assertEqual(server.ask("GET", "/v1/models").json["data"][0]["tool_format"], "llama3")
            self.assertEqual(calls_of(self.chat(server)["choices"][0]["message"]), CALLS)

    def test_a_template_that_writes_otherwise_is_told(self):
        self.recite("x", "<tool_call>")
        self.template.write_text("{{ messages[0].content }}{% for m in messages %}{% for c in m.tool_calls %}<tool_call>"
                                 "{{ c.function.name }}{{ tools }}</tool_call>{% endfor %}{% endfor %}")
        with self.serve() as server:
            (line,) = [line for line in server.lines if "calls of tools" in line]
            self.assertIn('writes calls of tools as "<tool_call>get_weather', line)
            self.assertIn('and the format hermes as "<tool_call>\\n{\\"name\\": \\"get_weather\\"', line)


class Parts(Calls):
    def test_text_around_calls(self):
        self.recite("Let me see.\n" + written("hermes"), "<tool_call>")
        with self.serve() as server:
            (choice,) = self.chat(server)["choices"]
            self.assertEqual((choice["message"]["content"], calls_of(choice["message"])), ("Let me see.\n", CALLS))
            (streamed,) = self.stream(server)
            self.assertEqual((streamed["content"], calls_of(streamed)), ("Let me see.\n", CALLS))

    def test_no_call_stays_text(self):
        for text in ("<tool_cal", "<tool_call\n{\"name\": \"now\", \"arguments\": {}}", "\n\n"):
            self.recite(text, "<tool_call>")
            with self.serve() as server:
                (choice,) = self.chat(server)["choices"]
                self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (text, "stop"))
                self.assertNotIn("tool_calls", choice["message"])
                (streamed,) = self.stream(server)
                self.assertEqual((streamed["content"], streamed["finish_reason"]), (text, "stop"))

    def test_a_mark_that_is_spelled_is_text_where_the_mark_is_a_token(self):
        self.recite(written("hermes"), "<tool_call>")
        write_reciting_model(self.model, [*written("hermes").encode()], positions=300, specials=("<tool_call>", "</tool_call>"))
        with self.serve() as server:
            message = self.chat(server)["choices"][0]["message"]
            self.assertEqual((message["content"][:10], calls_of(message)), ("<tool_call", []))

    def test_a_call_that_is_cut_keeps_what_was_written(self):
        self.recite(written("hermes"), "<tool_call>")
        begin = len('<tool_call>\n{"name": "get_weather", "arguments": ')
        with self.serve() as server:
            for length in (3, begin - 1, begin + 1, begin + 10):
                (choice,) = self.chat(server, max_tokens=length)["choices"]
                (streamed,) = self.stream(server, max_tokens=length)
                self.assertEqual((choice["finish_reason"], streamed["finish_reason"]), ("length", "length"))
                arguments = CALLS[0][1].encode()[:length - begin].decode() if length > begin else None
                expected = [("get_weather", arguments)] if arguments else []
                self.assertEqual((calls_of(choice["message"]), calls_of(streamed)), (expected, expected))
                if not expected:
                    self.assertEqual(choice["message"]["content"], written("hermes")[:length])

    def test_tokens_and_log_probabilities_are_all_there(self):
        self.recite(written("hermes"), "<tool_call>")
        request = {"messages": HELLO, "temperature": 0, "tools": TOOLS, "logprobs": True, "return_token_ids": True}
        with self.serve() as server:
            whole = self.chat(server, logprobs=True, return_token_ids=True)["choices"][0]
            ids, logprobs = [], []
            with server.stream("/v1/chat/completions", request) as stream:
                for event in stream:
                    for choice in event["choices"]:
                        ids += choice.get("token_ids", [])
                        logprobs += (choice["logprobs"] or {"content": []})["content"]
            self.assertEqual((ids, logprobs), (whole["token_ids"], whole["logprobs"]["content"]))
            self.assertEqual(bytes(ids).decode(), written("hermes"))

    def test_several_choices(self):
        self.recite("a" + written("hermes"), "<tool_call>")
        with self.serve() as server:
            whole = [choice["message"] for choice in self.chat(server, n=3)["choices"]]
            streamed = self.stream(server, n=3)
            for one, other in zip(whole, streamed):
                self.assertEqual((calls_of(one), calls_of(other), other["content"]), (CALLS, CALLS, "a"))
                self.assertEqual([call["id"] for call in one["tool_calls"]], [call["id"] for call in other["tool_calls"]])
            self.assertEqual(len({call["id"] for one in whole for call in one["tool_calls"]}), 6)


class Constraints(Calls):
    """The model writes what it likes, and the constraint makes calls of it."""
    ONE = [{"type": "function", "function": {"name": "pick", "parameters": {
        "type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"], "additionalProperties": False}}}]

    def check(self, message, name="pick"):
        ((found, arguments),) = calls_of(message)
        self.assertEqual(found, name)
        self.assertIn(json.loads(arguments), ([{"colour": "red"}, {"colour": "blue"}] if name == "pick" else [{}]))

    def test_required_and_named_calls_come_in_each_format(self):
        tools = self.ONE + [TOOLS[1]]
        for format in [*TEXTS, "qwen3-xml"]:
            self.recite("No, I will not call anything." + " " * 200, TEXTS[format][0] if format in TEXTS else "<function=")
            with self.subTest(format), self.serve() as server:
                for choice, name in (({"type": "function", "function": {"name": "pick"}}, "pick"),
                                     ({"type": "function", "function": {"name": "now"}}, "now"),
                                     ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                                         {"type": "function", "function": {"name": "now"}}]}}, "now")):
                    more = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
                    (whole,), (streamed,) = self.chat(server, **more)["choices"], self.stream(server, **more)
                    self.assertEqual((whole["message"]["content"], whole["finish_reason"]), (None, "tool_calls"))
                    self.check(whole["message"], name)
                    self.assertEqual((streamed["content"], streamed["finish_reason"]), ("", "tool_calls"))
                    self.assertEqual(calls_of(streamed), calls_of(whole["message"]))
                (whole,) = self.chat(server, tools=tools, tool_choice="required", parallel_tool_calls=False)["choices"]
                self.assertIn(calls_of(whole["message"])[0][0], ("pick", "now"))

    def test_what_begins_as_a_call_becomes_one(self):
        for text in ('<tool_call>\n{"name": "other", "arguments": {"colour": "green"}}', '<tool_call>{"arguments": ]]', "So: <tool_call>" + " " * 80):
            self.recite(text + "x" * 100, "<tool_call>")
            with self.serve() as server:
                (choice,) = self.chat(server, tools=self.ONE, parallel_tool_calls=False)["choices"]
                self.check(choice["message"])
                self.assertEqual(choice["finish_reason"], "tool_calls")

    def test_arguments_come_in_pieces(self):
        self.recite(written("hermes"), "<tool_call>")
        with self.serve() as server, server.stream("/v1/chat/completions", {"messages": HELLO, "temperature": 0, "tools": TOOLS}) as stream:
            deltas = [choice["delta"] for event in stream for choice in event["choices"]]
        pieces = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", []) if call["index"] == 0]
        self.assertGreater(len(pieces), 5)

    def test_reasoning_comes_before_a_required_call_and_a_format(self):
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": self.ONE[0]["function"]["parameters"]}}
        for prompt, think in (("p", "<think>"), ("<think>", "")):
            self.recite(think + "Hm.</think>\n\nRed!" + " " * 200, "<think> <tool_call>")
            if prompt != "p":
                write_reciting_model(self.model, [*b"~" * (len(prompt) - 1), *("Hm.</think>\n\nRed!" + " " * 200).encode()])
                self.template.write_text("{# tools <tool_call> <think> #}" + prompt)
            with self.serve() as server:
                (choice,) = self.chat(server, tools=self.ONE, tool_choice="required", parallel_tool_calls=False)["choices"]
                self.assertEqual((choice["message"]["reasoning_content"], choice["finish_reason"]), ("Hm.", "tool_calls"))
                self.check(choice["message"])
                (choice,) = self.chat(server, tools=None, response_format=schema)["choices"]
                self.assertEqual((choice["message"]["reasoning_content"], choice["finish_reason"]), ("Hm.", "stop"))
                self.assertIn(json.loads(choice["message"]["content"])["colour"], ("red", "blue"))

    def test_a_format_beside_tools_is_the_format_or_calls(self):
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
        for text, content, calls in (("12", "12", []), (written("hermes"), None, CALLS)):
            self.recite(text, "<tool_call>")
            with self.serve() as server:
                message = self.chat(server, response_format=schema)["choices"][0]["message"]
                self.assertEqual((message["content"], calls_of(message)), (content, calls))

    def test_keywords_that_cannot_be_kept(self):
        """Each tool by itself, and each message and name with its place in the request."""
        parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}
        def tool(name, strict, parameters=parameters):
            return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}
        self.recite("x", "<tool_call>")
        with self.serve() as server:
            request = {"messages": HELLO, "temperature": 0, "max_tokens": 3}
            answer = server.ask("POST", "/v1/chat/completions", request | {"tools": [tool("f", False), tool("g", True)]})
            self.assertEqual((answer.status, answer.json["error"]["param"], answer.code), (400, "tools", "constraint_unsupported"))
            self.assertIn("tools: $[1].function.parameters.properties.a.pattern: ", answer.json["error"]["message"])
            answer = server.ask("POST", "/v1/chat/completions", request | {"tools": [tool("f", False), tool("g", True, {})]})
            self.assertEqual(answer.status, 200, answer.body)
            self.assertEqual(answer.json["ignored"], ["tools: /0/function/parameters/properties/a/pattern"])
            schema = {"type": "json_schema", "json_schema": {"schema": {"$ref": "x"}}}
            answer = server.ask("POST", "/v1/chat/completions", request | {"tools": [tool("f", False)], "response_format": schema})
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "response_format"))
            self.assertIn("response_format: $.$ref: ", answer.json["error"]["message"])
            for path, tools, place in (("messages", {"name": "f", "input_schema": parameters, "strict": True}, "input_schema"),
                                       ("responses", {"type": "function", "name": "f", "parameters": parameters, "strict": True}, "parameters")):
                body = {"max_tokens": 3, "messages": HELLO} if path == "messages" else {"max_output_tokens": 3, "input": "Hi"}
                answer = server.ask("POST", "/v1/" + path, body | {"tools": [tools]})
                self.assertEqual(answer.status, 400, answer.body)
                self.assertIn(f"tools: $[0].{place}.properties.a.pattern: ", answer.json["error"]["message"])


class Reasoning(Calls):
    TEXT = "<think>\nHm.\n</think>\n\n"

    def test_it_comes_apart_from_the_text(self):
        self.recite(self.TEXT + "Yes." , "<think>")
        with self.serve() as server:
            answer = self.chat(server, tools=None)
            message = answer["choices"][0]["message"]
            self.assertEqual((message["reasoning_content"], message["content"]), ("Hm.", "Yes."))
            self.assertEqual(answer["usage"]["completion_tokens_details"], {"reasoning_tokens": len("\nHm.\n</think>") + 1})
            (streamed,) = self.stream(server, tools=None)
            self.assertEqual((streamed["reasoning_content"], streamed["content"], streamed["finish_reason"]), ("Hm.", "Yes.", "stop"))
        with self.serve("--reasoning", "none") as server:
            answer = self.chat(server)
            self.assertEqual(answer["choices"][0]["message"]["content"], self.TEXT + "Yes.")
            self.assertNotIn("completion_tokens_details", answer["usage"])

    def test_the_prompt_says_where_the_answer_begins(self):
        for end, text, expected in (("<think>", "\nHm.\n</think>\nYes.", ("Hm.", "Yes.")), ("</think>", "<think>x</think>", (None, "<think>x</think>"))):
            write_reciting_model(self.model, [*b"~" * (len(end) - 1), *text.encode()], positions=len(end + text) + 4)
            self.template.write_text("{# <think> #}{{ '%s' }}" % end)
            with self.serve() as server:
                message = self.chat(server, tools=None)["choices"][0]["message"]
                self.assertEqual((message.get("reasoning_content"), message["content"]), expected)

    def test_calls_follow_it(self):
        self.recite(self.TEXT + written("hermes"), "<think> <tool_call>")
        with self.serve() as server:
            (choice,) = self.chat(server)["choices"]
            self.assertEqual((choice["message"]["reasoning_content"], choice["message"]["content"]), ("Hm.", None))
            self.assertEqual(calls_of(choice["message"]), CALLS)


class Lines(Calls):
    def test_lines_of_both_forms_have_calls(self):
        self.recite("<think>Hm.</think>" + written("hermes"), "<think> <tool_call>")
        line = {"id": "a", "messages": HELLO, "tools": TOOLS, "temperature": 0, "seed": 5}
        batch = {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions",
                 "body": {"messages": HELLO, "tools": TOOLS, "temperature": 0, "seed": 5}}
        plain, batched, free = ask([line, batch, line | {"tool_choice": "none"}], "--chat-template", self.template, model=self.model)
        (choice,) = plain["choices"]
        self.assertEqual((choice["text"], choice["reasoning"], choice["finish_reason"], calls_of(choice)), ("", "Hm.", "tool_calls", CALLS))
        message = batched["response"]["body"]["choices"][0]["message"]
        self.assertEqual((message["content"], message["reasoning_content"], calls_of(message)), (None, "Hm.", CALLS))
        self.assertEqual([call["id"] for call in choice["tool_calls"]], [call["id"] for call in message["tool_calls"]])
        self.assertEqual(free["choices"][0]["text"], written("hermes"))
        for field, value in (("tools", [{"type": "function"}]), ("tool_choice", "any"), ("parallel_tool_calls", 1)):
            (answer,) = ask([line | {field: value}], "--chat-template", self.template, model=self.model, expect=1)
            self.assertEqual(answer["field"], field)
        (text,) = ask([line], "--chat-template", self.template, "--reasoning", "none", "--tool-format", "llama3", model=self.model)
        self.assertEqual(text["choices"][0]["text"], "<think>Hm.</think>" + written("hermes"))


if __name__ == "__main__":
    unittest.main()
