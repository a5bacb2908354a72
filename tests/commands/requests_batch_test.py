"""generate --requests with lines of OpenAI's batches: the answers that HTTP gives, in the form of a batch's output."""
import pathlib
import tempfile
import unittest

from model_support import rows, run
from requests_support import ADAPTERS, BASE, as_lines, ask, ask_one
from serve_support import Server

CHAT = "{% for m in messages %}{{ m.content }}{% endfor %}"
FORM = {"custom_id", "id", "response", "error"}


def line(custom_id, body, url="/v1/completions", **more):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body} | more


def without_names(body):
    """All that two answers to one body share: their ids, times and hits in the cache differ."""
    return {key: value for key, value in body.items() if key not in ("id", "created", "system_fingerprint", "usage")} | {
        "usage": {key: value for key, value in body["usage"].items() if key != "prompt_tokens_details"}}


class Batch(unittest.TestCase):
    def test_answers_are_those_of_http(self):
        chat = {"messages": [{"role": "user", "content": "The cat"}], "seed": 3, "max_tokens": 6}
        requests = [
            line("text", {"prompt": "The cat sat", "seed": 5, "max_tokens": 8, "n": 2, "logprobs": 3}),
            line("echo", {"prompt": [7, 8, 9], "seed": 5, "max_tokens": 4, "echo": True, "logprobs": 1, "return_token_ids": True}),
            line("prompt", {"prompt": [7], "seed": 5, "max_tokens": 0, "prompt_logprobs": 2}),
            line("stop", {"prompt": "a", "seed": 5, "max_tokens": 12, "stop": ["e"], "no_such_field": 1}),
            line("chat", chat | {"logprobs": True, "top_logprobs": 2}, "/v1/chat/completions"),
            line("go on", chat | {"messages": chat["messages"] + [{"role": "assistant", "content": " sat"}], "add_generation_prompt": False,
                                  "continue_final_message": True}, "/v1/chat/completions"),
            line("none", chat | {"messages": []}, "/v1/chat/completions"),
            line("high", {"prompt": "a", "temperature": 101}),
            line("name", {"prompt": "a", "model": "nobody"}),
            line("long", {"prompt": "a", "max_tokens": 10 ** 6}),
        ]
        with tempfile.TemporaryDirectory() as directory:
            template = pathlib.Path(directory, "chat.jinja")
            template.write_text(CHAT)
            answers = ask(requests, "--chat-template", template, "--model-name", "tiny", expect=1)
            with Server("--chat-template", template, "--model-name", "tiny") as server:
                asked = [server.ask("POST", request["url"], request["body"]) for request in requests]
        for number, (request, answer, http) in enumerate(zip(requests, answers, asked, strict=True), 1):
            with self.subTest(request["custom_id"]):
                response = answer["response"]
                self.assertEqual((answer.keys(), answer["custom_id"], answer["error"]), (FORM, request["custom_id"], None))
                self.assertEqual((answer["id"], response["request_id"]), (f"batch_req_{number}", f"req_{number}"))
                self.assertEqual(response["status_code"], http.status, (response, http.json))
                if http.status == 200:
                    self.assertEqual(without_names(response["body"]), without_names(http.json))
                    self.assertEqual(response["body"]["system_fingerprint"], http.json["system_fingerprint"])
                else:
                    self.assertEqual(response["body"]["error"]["type"], http.json["error"]["type"])
                    self.assertEqual(response["body"]["error"]["param"], http.json["error"]["param"])

    def test_an_adapter_is_a_model(self):
        plain = {"prompt": [5, 6], "adapters": ["lora"], "seed": 1, "max_tokens": 4, "logprobs": 1}
        body = plain | {"return_token_ids": True}
        words = ("--adapter", f"lora={ADAPTERS / 'lora'}")
        expected, named, listed = ask([plain, line("a", {key: body[key] for key in body if key != "adapters"} | {"model": "lora"}),
                                       line("b", body)], *words, model=BASE)
        for answer, model in (named, "lora"), (listed, BASE.name):
            body = answer["response"]["body"]
            self.assertEqual((body["model"], body["adapters"]), (model, [{"name": "lora", "generation": 1}]))
            self.assertEqual(body["choices"][0]["token_ids"], expected["choices"][0]["tokens"])

    def test_faulty_lines_are_named(self):
        good = line("a", {"prompt": "a", "max_tokens": 1})
        for change, status, param in (({"custom_id": 1}, 400, "custom_id"), ({"method": "GET"}, 405, "method"), ({"url": "/v1/embeddings"}, 404, "url"),
                                      ({"body": []}, 400, "body"), ({"seed": 1}, 400, "seed"), ({"body": {"prompt": ["a", "b"]}}, 400, "prompt"),
                                      ({"body": {"prompt": "a", "stream": True}}, 400, "stream"), ({"body": {}}, 400, "prompt")):
            answer = ask_one(good | change, expect=1)
            self.assertEqual((answer["response"]["status_code"], answer["response"]["body"]["error"]["param"]), (status, param), change)
            self.assertEqual(answer["custom_id"], None if "custom_id" in change else "a")

    def test_a_resumed_run_keeps_both_forms(self):
        requests = [line("a", {"prompt": "a", "max_tokens": 2}), {"id": 7, "prompt": "a", "max_tokens": 2}, line("b", {"prompt": "a", "n": 0}),
                    line("c", {"prompt": "c", "max_tokens": 2})]
        with tempfile.TemporaryDirectory() as directory:
            source, output = pathlib.Path(directory, "in"), pathlib.Path(directory, "out")
            source.write_bytes(as_lines(requests))
            words = ("generate", "--model", BASE, "--requests", source, "--output", output)
            run(*words, expect=1)
            whole = output.read_bytes()
            output.write_bytes(b"".join(whole.splitlines(True)[:3]) + b"{")
            run(*words, "--resume", expect=1)
            self.assertEqual([row.get("custom_id", row["id"]) for row in rows(output.read_bytes())], ["a", 7, "b", "c"])
            self.assertEqual(output.read_bytes().splitlines()[:3], whole.splitlines()[:3])
            first = whole.splitlines(True)[0]
            for wrong in first.replace(b"batch_req_1", b"batch_req_2"), first.replace(b'"custom_id":"a"', b'"custom_id":"b"'):
                output.write_bytes(wrong)
                self.assertIn("not the answer to", run(*words, "--resume", expect=1)[1])


if __name__ == "__main__":
    unittest.main()
