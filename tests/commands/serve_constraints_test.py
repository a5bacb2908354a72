"""Constraints of requests: answers that follow them, alone and together, refusals, and constraints that are too large."""
import concurrent.futures
import json
import pathlib
import re
import tempfile
import unittest

from model_support import SANITIZED, write_byte_model
from requests_support import ask
from serve_support import Server

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": ["small", "large"]},
                                           "count": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "size", "count"], "additionalProperties": False}
CHOICES = ["red", "red green", "blue"]
PATTERN = "(ab|cd){2,5}x?"
PLAIN = {"prompt": "a", "max_tokens": 120, "temperature": 1}
BOMB = "(" * 200 + "a" + "{1,200}b?)" * 3 + "{1,200})" * 197


def follows(request, text):
    """Whether a completion that was not cut is what its constraint allows."""
    if "guided_json" in request:
        value = json.loads(text)
        return list(value) == list(SCHEMA["required"]) and value["size"] in ("small", "large") and 0 <= value["count"] <= 99
    if "guided_regex" in request:
        return re.fullmatch(PATTERN, text) is not None
    return "guided_choice" not in request or text in CHOICES


def requests():
    kinds = [{"guided_choice": CHOICES}, {"guided_regex": PATTERN}, {"guided_json": SCHEMA}, {}]
    return [PLAIN | kinds[i % 4] | {"seed": i, "n": 1 + i % 2, "max_tokens": 40 if i % 4 == 3 else 250,
                                    "logprobs": i % 3 if i % 5 == 0 else None} for i in range(32)]


class Constraints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.model = directory / "model"
        write_byte_model(cls.model, n_positions=300, n_embd=32, n_head=2)

    def check(self, request, choices):
        for choice in choices:
            if request.keys() & {"guided_choice", "guided_regex", "guided_json"}:
                self.assertEqual(choice["finish_reason"], "stop", choice)
            self.assertTrue(follows(request, choice["text"]), choice)

    def test_requests_in_a_file_follow_their_constraints_alone_and_together(self):
        all_requests = [{key: value for key, value in r.items() if value is not None} for r in requests()]
        together = ask(all_requests, model=self.model)
        alone = ask(all_requests, "--max-batch-size", 1, model=self.model)
        for request, one, other in zip(all_requests, together, alone):
            self.assertEqual(one["choices"], other["choices"])
            self.check(request, one["choices"])

    def test_a_file_answers_what_is_refused(self):
        answers = ask([PLAIN | {"guided_regex": "a(b"}, PLAIN | {"guided_choice": CHOICES, "ignore_eos": True},
                       PLAIN | {"guided_choice": CHOICES}], model=self.model, expect=1)
        self.assertIn("guided_regex", answers[0]["error"]["message"] if isinstance(answers[0]["error"], dict) else answers[0]["error"])
        self.assertIn("error", answers[1])
        self.check({"guided_choice": CHOICES}, answers[2]["choices"])

    def test_a_server_gives_each_the_same_beside_others(self):
        with Server("--max-batch-size", 8, model=self.model) as server:
            one_by_one = [server.complete(**r)["choices"] for r in requests()]
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                together = list(pool.map(lambda r: server.complete(**r)["choices"], requests()))
            for request, one, other in zip(requests(), one_by_one, together):
                self.assertEqual(one, other)
                self.check(request, one)
            stream = server.stream("/v1/completions", PLAIN | {"guided_json": SCHEMA, "seed": 2})
            with stream:
                text = "".join(event["choices"][0]["text"] for event in stream if event["choices"])
            self.assertTrue(follows({"guided_json": SCHEMA}, text), text)
            metrics = server.metrics()
            self.assertEqual(metrics["cambium_constraint_cache_misses_total"], 3)
            self.assertGreater(metrics["cambium_constraint_cache_hits_total"], 40)
            self.assertEqual(metrics["cambium_constraint_compile_seconds_count"], 3)
            self.assertGreater(metrics["cambium_constraint_mask_seconds_count"], 100)
            self.assertGreater(metrics["cambium_constraint_cache_bytes"], 1000)

    def test_what_is_refused_names_the_field(self):
        with Server(model=self.model) as server:
            for fields, param, code in (({"guided_regex": "a(b"}, "guided_regex", "constraint_invalid"),
                                        ({"guided_json": {"type": 3}}, "guided_json", "constraint_invalid"),
                                        ({"guided_grammar": "root ::= x"}, "guided_grammar", "constraint_invalid"),
                                        ({"guided_choice": CHOICES, "ignore_eos": True}, "ignore_eos", None)):
                for stream in (False, True):
                    answer = server.ask("POST", "/v1/completions", PLAIN | fields | {"stream": stream})
                    self.assertEqual((answer.status, answer.json["error"]["param"], answer.code), (400, param, code), answer.body)
                    self.assertIn(param, answer.json["error"]["message"])
            answer = server.ask("POST", "/v1/completions", PLAIN | {"response_format": {"type": "json_schema", "json_schema": {
                "name": "x", "strict": False, "schema": {"type": "integer", "format": "int64", "minimum": 1, "maximum": 9}}}})
            self.assertEqual(answer.status, 200, answer.body)
            self.assertEqual(answer.json["ignored"], ["response_format: /format: int64"])

    def test_bombs_hold_nobody(self):
        with Server("--grammar-timeout", 0.3, "--grammar-memory", "64M", model=self.model) as server:
            size = lambda: int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{server.process.pid}/status").read_text())[1]) << 10
            server.complete(**PLAIN)
            before = size()
            bombs = [PLAIN | ({"guided_regex": BOMB + str(i)} if i % 2 else {"guided_json": {"type": "array", "items": {
                "type": "string", "pattern": f"^(a?){{{3000 + i}}}a{{{3000 + i}}}$"}, "uniqueItems": True}}) for i in range(32)]
            with concurrent.futures.ThreadPoolExecutor(33) as pool:
                answers = [pool.submit(server.ask, "POST", "/v1/completions", bomb | {"max_tokens": 4}) for bomb in bombs]
                for _ in range(5):
                    self.assertEqual(server.ask("GET", "/health").status, 200)
                    server.complete(**PLAIN | {"max_tokens": 20})
                for answer in answers:
                    answer = answer.result()
                    self.assertIn(answer.status, (200, 400), answer.body)
                    if answer.status == 400:
                        self.assertIn(answer.code, ("constraint_too_large", "constraint_unsupported", "constraint_invalid"))
            if not SANITIZED:
                self.assertLess(size() - before, 224 << 20)
            self.assertTrue(follows({"guided_choice": 1}, server.complete(**PLAIN | {"guided_choice": CHOICES})["choices"][0]["text"]))


if __name__ == "__main__":
    unittest.main()
