"""The OpenAI API of `cambium serve`: answers equal those of generate --requests and score to the last bit, and every
byte of a stream is as its readers expect it."""
import http.client
import json
import pathlib
import shutil
import socket
import tempfile
import unittest

from model_support import EXPECTED, SOURCE, TINY, gpt2_config, rows, run, write_byte_model, write_model, write_reciting_model
from requests_support import ADAPTERS, BASE, ask, ask_one
from serve_support import Server, write_prompt

TEXT = b"The quick brown fox"
PROMPT = [41, 84, 270, 261]


def ids_of(choice):
    return choice["token_ids"]


def repaired(answer):
    return [choice["text"] for choice in answer["choices"]]


class Served(unittest.TestCase):
    """Tests of one server."""
    words, model = (), TINY

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.words, model=cls.model)
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def post(self, path, body, status=200, **more):
        answer = self.server.ask("POST", path, body, **more)
        self.assertEqual(answer.status, status, answer.body)
        self.assertTrue(answer.headers["x-request-id"])
        return answer

    def complete(self, **body):
        return self.post("/v1/completions", body).json

    def chat(self, **body):
        return self.post("/v1/chat/completions", body).json

    def refused(self, path, body, status, param, code=None):
        for stream in (False, True):  # before a stream's head as well
            answer = self.post(path, body | {"stream": stream} if stream else body, status)
            self.assertEqual(answer.headers["content-type"], "application/json")
            error = answer.json["error"]
            self.assertEqual((error["param"], error["code"]), (param, code), body)
            self.assertIsInstance(error["message"], str)
        return error

    def events(self, path, body):
        """The chunks of a stream, whose bytes are checked."""
        answer = self.post(path, body | {"stream": True})
        self.assertEqual(answer.headers["content-type"], "text/event-stream; charset=utf-8")
        *events, end, rest = answer.body.split(b"\n\n")
        self.assertEqual((end, rest), (b"data: [DONE]", b""))
        self.assertNotIn(b"\r", answer.body)
        for event in events:
            self.assertTrue(event.startswith(b"data: {") and b"\n" not in event, event)
        return [json.loads(event[6:]) for event in events]

    def joined(self, body):
        """Choices of a streamed completion, as one answer would have them; and the chunks."""
        chunks, choices = self.events("/v1/completions", body), {}
        for chunk in chunks:
            self.assertEqual({chunk[key] for chunk in chunks for key in ("id",)}, {chunk["id"]})
            self.assertEqual(chunk["object"], "text_completion")
            for part in chunk["choices"]:
                choice = choices.setdefault(part["index"], {"index": part["index"], "text": "", "finish_reason": None,
                                                            "logprobs": None, "token_ids": []})
                self.assertIsNone(choice["finish_reason"])  # nothing follows it
                choice["finish_reason"] = part["finish_reason"]
                choice["text"] += part["text"]
                choice["token_ids"] += part.get("token_ids", [])
                if part["logprobs"]:
                    lists = choice["logprobs"] = choice["logprobs"] or {key: [] for key in part["logprobs"]}
                    for key, values in part["logprobs"].items():
                        lists[key] += values
        return [choices[i] for i in sorted(choices)], chunks


class Completions(Served):
    def test_texts_are_those_of_generate(self):
        asked = [{"prompt": "It was the", "max_tokens": 7, "seed": 3, "n": 3},
                 {"prompt": PROMPT, "max_tokens": 12, "temperature": 0},
                 {"prompt": "", "max_tokens": 3, "seed": 1},
                 {"prompt": "It was ", "max_tokens": 3, "seed": 1, "stop": ["\0a"]},
                 {"prompt": "a\u00e9\U0001f600 \ud7ff", "max_tokens": 9, "seed": 4, "top_k": 9, "top_p": 0.9, "min_p": 0.01},
                 {"prompt": PROMPT, "max_tokens": 9, "seed": 5, "repetition_penalty": 1.3, "presence_penalty": 0.4,
                  "frequency_penalty": 0.3, "logit_bias": {"5": 3, "7": -100}, "ignore_eos": True},
                 {"prompt": PROMPT, "max_tokens": 20, "seed": 6, "stop": ["e", "a"], "min_tokens": 2},
                 {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "stop_token_ids": [280]},
                 {"prompt": PROMPT, "max_tokens": 5, "seed": -2**63, "top_k": -1, "suffix": ""},
                 {"prompt": PROMPT, "max_tokens": 5, "seed": -2, "top_p": 0, "temperature": 50}]
        for request, expected in zip(asked, ask(asked)):
            answer = self.complete(**request, return_token_ids=True, logprobs=3)
            logprobs = [choice["logprobs"]["token_logprobs"] for choice in answer["choices"]]
            whole = ask_one(request | {"logprobs": 3})
            self.assertEqual(repaired(answer), repaired(expected), request)
            self.assertEqual([ids_of(c) for c in answer["choices"]], [c["tokens"] for c in expected["choices"]])
            self.assertEqual([values[:len(c["tokens"])] for values, c in zip(logprobs, expected["choices"])],
                             [[token["logprob"] for token in c["logprobs"]] for c in whole["choices"]])
            self.assertEqual([c["finish_reason"] for c in answer["choices"]], [c["finish_reason"] for c in expected["choices"]])
            self.assertEqual([c["index"] for c in answer["choices"]], list(range(request.get("n", 1))))
            usage = answer["usage"]
            self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]),
                             (expected["prompt_tokens"], expected["completion_tokens"]))
            self.assertEqual(usage["total_tokens"], sum(expected[key] for key in ("prompt_tokens", "completion_tokens")))
            if "seed" in request:
                self.assertEqual(answer["seed"], request["seed"])

    def test_an_answer_has_all_its_fields(self):
        answer = self.complete(prompt="a", max_tokens=1, model="model")
        self.assertEqual(sorted(answer), ["adapters", "choices", "created", "id", "model", "object", "seed", "system_fingerprint", "usage"])
        self.assertEqual((answer["object"], answer["model"], answer["adapters"]), ("text_completion", "model", []))
        self.assertRegex(answer["system_fingerprint"], "^b[0-9a-f]{12}$")
        self.assertEqual(sorted(answer["choices"][0]), ["finish_reason", "index", "logprobs", "text"])
        self.assertIsNone(answer["choices"][0]["logprobs"])
        again = self.complete(prompt="a", max_tokens=1, seed=answer["seed"])  # a seed that was drawn can be given
        self.assertEqual(again["choices"], answer["choices"])
        self.assertEqual(self.complete(prompt="a", ignore_eos=True)["usage"]["completion_tokens"], 16)

    def test_prompts_in_all_forms(self):
        texts, ids = ["It was", "the best", ""], [PROMPT, PROMPT[:2], [5]]
        plain = {"max_tokens": 4, "temperature": 0, "return_token_ids": True}
        for prompts in (texts, ids):
            answer = self.complete(prompt=prompts, n=2, **plain)
            alone = [self.complete(prompt=prompt, n=2, **plain) for prompt in prompts]
            self.assertEqual([c["index"] for c in answer["choices"]], list(range(6)))
            self.assertEqual([ids_of(c) for c in answer["choices"]], [ids_of(c) for a in alone for c in a["choices"]])
            self.assertEqual([c["prompt_token_ids"] for c in answer["choices"]],
                             [c["prompt_token_ids"] for a in alone for c in a["choices"]])
            self.assertEqual(answer["usage"]["prompt_tokens"], sum(a["usage"]["prompt_tokens"] for a in alone))
        self.assertEqual(ids_of(self.complete(prompt=ids, **plain)["choices"][1]),
                         ids_of(self.complete(prompt=ids[1], **plain)["choices"][0]))

    def scored(self, ids):
        output, _ = run("score", "--model", TINY, "--input", "-", input=json.dumps({"tokens": ids}).encode() + b"\n")
        return rows(output)[0]["logprobs"]

    def test_an_echo_is_scored_as_by_score(self):
        prompts = [PROMPT, list(range(1, 60)), [7], [3, 3, 3]]
        scores = [self.scored(ids) for ids in prompts]
        for _ in range(2):  # the second time the prefix cache has them
            answer = self.complete(prompt=prompts, max_tokens=1, logprobs=1, echo=True, temperature=0, seed=1234)
            self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            for ids, score, choice in zip(prompts, scores, answer["choices"]):
                lists = choice["logprobs"]
                self.assertEqual({len(values) for values in lists.values()}, {len(ids) + 1})
                self.assertEqual(lists["token_logprobs"][:-1], score)
                self.assertIsNone(lists["top_logprobs"][0])
                for own, name, tops in list(zip(lists["token_logprobs"], lists["tokens"], lists["top_logprobs"]))[1:]:
                    self.assertEqual(tops[name], own)  # the same digits in both places
                    self.assertLessEqual(len(tops), 2)
                self.assertEqual(max(lists["top_logprobs"][-1].values()), lists["token_logprobs"][-1])  # greedy
        answer = self.complete(prompt=prompts, max_tokens=0, logprobs=0, echo=True)
        for ids, score, choice in zip(prompts, scores, answer["choices"]):
            self.assertEqual(choice["logprobs"]["token_logprobs"], score)
            self.assertEqual([len(tops) for tops in choice["logprobs"]["top_logprobs"][1:]], [1] * (len(ids) - 1))
            self.assertEqual(choice["finish_reason"], "length")
        self.assertEqual(answer["usage"]["completion_tokens"], 0)

    def test_an_echo_repeats_the_text(self):
        text = "It was \u00e9\U0001f600 the"
        plain = {"prompt": text, "max_tokens": 6, "temperature": 0, "n": 2}
        written = repaired(self.complete(**plain))
        answer = self.complete(**plain, echo=True, logprobs=2)
        self.assertEqual(repaired(answer), [text + more for more in written])
        for choice in answer["choices"]:
            offsets = choice["logprobs"]["text_offset"]
            self.assertEqual(offsets, sorted(offsets))
            for name, begin in zip(choice["logprobs"]["tokens"], offsets):
                if not name.startswith("bytes:"):
                    self.assertEqual(choice["text"][begin:begin + len(name)], name)
        for _ in range(2):  # the second time the prefix cache would have it
            told = self.complete(**plain | {"prompt": text * 4}, echo=True)
            self.assertEqual(told["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(repaired(self.complete(**plain, echo=True)), repaired(answer))
        ids = self.post("/tokenize", {"prompt": text}).json["tokens"]
        self.assertEqual(repaired(self.complete(**plain | {"prompt": ids}, echo=True)), repaired(answer))

    def test_prompt_logprobs_are_those_of_generate(self):
        request = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "prompt_logprobs": 3}
        expected = ask_one(request)["prompt_logprobs"]
        for more in ({}, {"echo": True, "logprobs": 5}, {"echo": True, "logprobs": 0}):
            answer = self.complete(**request, **more)
            self.assertEqual(answer["choices"][0]["prompt_logprobs"], expected)
        _, chunks = self.joined(request)
        self.assertEqual(chunks[0]["choices"][0]["prompt_logprobs"], expected)

    def test_the_prefix_cache_is_told_of(self):
        prompt = [(i * 7) % 250 for i in range(48)]
        self.complete(prompt=prompt, max_tokens=1)
        self.assertGreater(self.complete(prompt=prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        for salt in ("a", "b"):
            answer = self.complete(prompt=prompt, max_tokens=1, cache_salt=salt)
            self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_streams_say_the_same(self):
        for request in ({"prompt": "It was the", "max_tokens": 9, "seed": 3, "n": 3, "logprobs": 2},
                        {"prompt": [PROMPT, [7, 8]], "max_tokens": 5, "temperature": 0, "echo": True, "logprobs": 1},
                        {"prompt": "a", "max_tokens": 30, "seed": 8, "stop": ["e"]},
                        {"prompt": "a", "max_tokens": 0, "echo": True}):
            whole = self.complete(**request, return_token_ids=True)
            choices, chunks = self.joined(request | {"return_token_ids": True, "stream_options": {"include_usage": True}})
            for choice in whole["choices"]:
                choice.pop("prompt_token_ids")
            self.assertEqual(choices, whole["choices"])
            self.assertEqual(chunks[-1]["choices"], [])
            usage = lambda answer: {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}
            self.assertEqual(usage(chunks[-1]), usage(whole))
            self.assertEqual({chunk["usage"] for chunk in chunks[:-1]}, {None})
            self.assertEqual((chunks[0]["adapters"], chunks[0]["seed"]), ([], whole["seed"]) if "seed" in request else
                             (chunks[0]["adapters"], chunks[0]["seed"]))
            if not request.get("n") and request["max_tokens"] and isinstance(request["prompt"], str):
                self.assertTrue(chunks[-2]["choices"][0]["finish_reason"])
        _, chunks = self.joined({"prompt": "a", "max_tokens": 2})
        self.assertNotIn("usage", chunks[-1])

    def test_the_end_of_a_stream_is_one_write(self):
        body = json.dumps({"prompt": "a", "max_tokens": 3, "stream": True}).encode()
        with socket.create_connection(self.server.addresses["data"].rsplit(":", 1)) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                               b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        head, rest = received.split(b"\r\n\r\n", 1)
        self.assertIn(b"transfer-encoding: chunked", head)
        self.assertTrue(rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), rest[-100:])

    def test_bad_values_name_their_field(self):
        context = self.refused("/v1/completions", {"prompt": [1] * 65, "max_tokens": 1}, 400, "prompt", "context_length_exceeded")
        self.assertTrue("64" in context["message"] and "65" in context["message"], context)
        self.refused("/v1/completions", {"prompt": "a" * 7000000}, 400, "prompt", "context_length_exceeded")
        self.post("/tokenize", {"prompt": "a" * (1 << 20)})
        self.assertEqual(self.post("/tokenize", {"prompt": "a" * (1 << 20) + "a"}, 400).json["error"]["param"], "prompt")
        self.refused("/v1/completions", {"prompt": [1] * 60, "max_tokens": 6}, 400, "max_tokens", "context_length_exceeded")
        self.assertEqual(self.complete(prompt=[1] * 63, max_tokens=1)["usage"]["completion_tokens"], 1)
        for more, param in (({"temperature": -1}, "temperature"), ({"max_tokens": -1}, "max_tokens"), ({"n": 0}, "n"),
                            ({"n": 129}, "n"), ({"logprobs": 21}, "logprobs"), ({"stop": [""]}, "stop"),
                            ({"stop": ["x"] * 65}, "stop"), ({"stop": "x" * 1025}, "stop"), ({"seed": 1.5}, "seed"), ({"top_p": -0.1}, "top_p"),
                            ({"prompt": [300]}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"logit_bias": {"300": 1}}, "logit_bias"),
                            ({"stop_token_ids": [300]}, "stop_token_ids"), ({"tools": []}, "tools"), ({"suffix": "a"}, "suffix"),
                            ({"functions": []}, "functions"),
                            ({"best_of": 2}, "best_of"), ({"model": "../tiny"}, "model"), ({"max_tokens": 4, "min_tokens": 5}, "min_tokens")):
            self.refused("/v1/completions", {"prompt": "a"} | more, 400, param)
        self.refused("/v1/completions", {"prompt": "a", "model": "other"}, 404, "model", "model_not_found")
        self.refused("/v1/completions", {"prompt": "a", "adapters": ["other"]}, 404, "adapters", "adapter_not_found")
        self.post("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}}, 400)
        for body in (b"", b"{", b'{"prompt":"\xff"}', b'{"prompt":"a","temperature":NaN}',
                     b'{"prompt":"a","prompt":"b"}', b'{"a":' * 65 + b"1" + b"}" * 65):
            self.post("/v1/completions", body, 400, headers={"content-type": "application/json"})
        self.post("/v1/completions", b"prompt=a", 415, headers={"content-type": "application/x-www-form-urlencoded"})
        self.post("/v1/completions", b'{"prompt":"' + b"a" * (9 << 20) + b'"}', 413, headers={"content-type": "application/json"})

    def test_unknown_fields_are_told_in_the_log(self):
        self.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "best_colour": "blue", "x\ny": 1}, headers={"x-request-id": "odd"})
        self.assertIn("best_colour", self.server.wait_line("ignored .*id=odd"))
        line = self.server.wait_line("request id=odd ")
        self.assertRegex(line, "status=200 .*prompt_tokens=1 .*completion_tokens=1")

    def test_a_request_may_have_its_own_time(self):
        answer = self.post("/v1/completions", {"prompt": [1], "max_tokens": 60, "n": 128, "ignore_eos": True}, 504, headers={"x-request-timeout": "0.001"})
        self.assertEqual((answer.code, answer.headers["x-should-retry"]), ("deadline", "false"))
        self.post("/v1/completions", {"prompt": "a"}, 400, headers={"x-request-timeout": "soon"})

    def test_a_client_that_leaves_ends_its_texts(self):
        for stream in (True, False):
            body = {"prompt": "a", "max_tokens": 60, "n": 64, "ignore_eos": True, "stream": stream}
            connection = self.server.connect()
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            if stream:
                connection.getresponse().readline()
            connection.close()
            self.server.await_metric("vllm:num_requests_running", 0)
            self.server.await_metric("vllm:kv_cache_usage_perc", 0)

    def test_tokens_and_texts(self):
        for text in ("", "It was", "It\0was\0", "\u00e9\U0001f600", "x" * 10000, "<|endoftext|>"):
            answer = self.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json
            self.assertEqual(answer["count"], len(answer["tokens"]))
            self.assertEqual(answer["max_model_len"], 64)
            if text:
                self.assertEqual(self.post("/v1/detokenize", {"tokens": answer["tokens"]}).json, {"prompt": text})
        # The harness finds the id of what ends a text by its name.
        about = self.server.ask("GET", "/tokenizer_info").json
        name = about["eos_token"]
        self.assertIsNone(about["chat_template"])
        self.assertEqual(self.post("/tokenize", {"prompt": name}).json["tokens"], [EXPECTED["eos"]])
        for text, counts in ((name, (1, 13)), (name + "x", (2, 14))):
            for special, count in zip((None, False), counts):
                self.assertEqual(self.post("/tokenize", {"prompt": text, "parse_special": special}).json["count"], count)
                usage = self.post("/v1/completions", {"prompt": text, "parse_special": special, "max_tokens": 1}).json["usage"]
                self.assertEqual(usage["prompt_tokens"], count)
        for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 1}), ("/tokenize", {"prompt": "a", "add_special_tokens": 1}),
                           ("/tokenize", {"prompt": "a", "parse_special": "no"}),
                           ("/detokenize", {"tokens": "a"}), ("/detokenize", {"tokens": [300]}), ("/detokenize", {"tokens": [1.0]})):
            self.post(path, body, 400)


class Ends(unittest.TestCase):
    def test_an_end_of_text_is_counted_and_scored_but_not_written(self):
        with tempfile.TemporaryDirectory() as directory:
            write_reciting_model(directory, TEXT, positions=40)
            with Server(model=directory) as server:
                ask = lambda **more: server.complete([0], temperature=0, max_tokens=len(TEXT) + 1, **more)
                plain, told = ask(return_token_ids=True), ask(logprobs=1)
                self.assertEqual(plain["choices"][0]["text"], TEXT.decode())
                self.assertEqual(plain["choices"][0]["token_ids"], list(TEXT))
                self.assertEqual(plain["choices"][0]["finish_reason"], "stop")
                self.assertEqual(plain["usage"]["completion_tokens"], len(TEXT) + 1)
                lists = told["choices"][0]["logprobs"]
                self.assertEqual(lists["tokens"], [*TEXT.decode(), "<|endoftext|>"])
                self.assertEqual({len(values) for values in lists.values()}, {len(TEXT) + 1})
                # The harness drops the last entry, and must not drop one of the prompt's.
                prompt = [0, *TEXT]
                lists = server.complete(prompt, temperature=0, max_tokens=1, echo=True, logprobs=1)["choices"][0]["logprobs"]
                self.assertEqual(len(lists["token_logprobs"]), len(prompt) + 1)


class Framed(unittest.TestCase):
    """The tokens that a tokenizer's template puts around a text. The golden ids are those of `tokenizers`, which
    transformers uses. The names of special tokens are text here, so texts with them are left out."""

    def check(self, shape, begin, end):
        golden = SOURCE / "tests/text/golden"
        cases = [json.loads(line) for line in (golden / f"{shape}.jsonl").read_text().splitlines()]
        cases = [case for case in cases if "special" not in case and "text" in case and case["text"] is not None]
        with tempfile.TemporaryDirectory() as model:
            write_model(model, gpt2_config(vocab_size=1000))
            shutil.copy(golden / shape / "tokenizer.json", model)
            with Server(model=model) as server:
                for case in cases:
                    text = bytes.fromhex(case["hex"]).decode()
                    ask = lambda **more: server.ask("POST", "/tokenize", {"prompt": text} | more).json["tokens"]
                    self.assertEqual(case["whole"], begin + case["ids"] + end)
                    self.assertEqual(ask(), case["whole"], text)
                    self.assertEqual(ask(add_special_tokens=True), case["whole"], text)
                    self.assertEqual(ask(add_special_tokens=False), case["ids"], text)
        return len(cases)

    def test_one_token_before_a_text(self):
        self.assertGreater(self.check("llama2", [1], []), 200)

    def test_one_before_and_two_after(self):
        self.assertGreater(self.check("llama3_framed", [700], [701, 702]), 20)


class Chats(Served):
    words = ("--chat-template", "chatml", "--model-name", "org/tiny", "tiny")
    TALK = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi \u00e9"}]

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.model = directory.name
        write_byte_model(directory.name, n_positions=200)
        super().setUpClass()

    def test_the_template_is_told(self):
        self.assertIn("<|im_start|>", self.server.ask("GET", "/tokenizer_info").json["chat_template"])

    def test_texts_are_those_of_generate(self):
        request = {"messages": self.TALK, "seed": 3, "n": 2}
        expected = rows(run("generate", "--model", self.model, "--requests", "-", "--chat-template", "chatml",
                            input=json.dumps(request | {"max_tokens": 5, "logprobs": 2}).encode())[0])[0]
        for more in ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 50, "max_completion_tokens": 5}):
            answer = self.chat(**request, **more, logprobs=True, top_logprobs=2)
            self.assertEqual([c["message"]["content"] for c in answer["choices"]], repaired(expected))
            self.assertEqual([[t["logprob"] for t in c["logprobs"]["content"]] for c in answer["choices"]],
                             [[t["logprob"] for t in c["logprobs"]] for c in expected["choices"]])
            for choice in answer["choices"]:
                self.assertEqual({len(t["top_logprobs"]) for t in choice["logprobs"]["content"]}, {2})
                self.assertEqual(b"".join(bytes(t["bytes"]) for t in choice["logprobs"]["content"]).decode(errors="replace"),
                                 choice["message"]["content"])
        self.assertEqual((answer["object"], answer["model"]), ("chat.completion", "org/tiny"))
        self.assertEqual({c["message"]["role"] for c in answer["choices"]}, {"assistant"})
        parts = [self.TALK[0], {"role": "user", "content": [{"type": "text", "text": "Hi \u00e9"}]}]
        for messages in (parts, [self.TALK[0] | {"role": "developer"}, self.TALK[1]]):
            again = self.chat(**request | {"messages": messages}, max_tokens=5)
            self.assertEqual([c["message"]["content"] for c in again["choices"]], repaired(expected))

    def test_a_stream_begins_with_roles_and_ends_with_nothing(self):
        request = {"messages": self.TALK, "seed": 4, "n": 2, "max_tokens": 4, "logprobs": True, "top_logprobs": 1, "model": "tiny"}
        whole = self.chat(**request)
        chunks = self.events("/v1/chat/completions", request)
        self.assertEqual([(c["choices"][0]["index"], c["choices"][0]["delta"]) for c in chunks[:2]],
                         [(i, {"role": "assistant", "content": ""}) for i in range(2)])
        texts, entries, ends = ["", ""], [[], []], [None, None]
        for chunk in chunks[2:]:
            self.assertEqual((chunk["object"], chunk["model"]), ("chat.completion.chunk", "org/tiny"))
            (choice,) = chunk["choices"]
            if choice["finish_reason"]:
                self.assertEqual(choice["delta"], {})
                ends[choice["index"]] = choice["finish_reason"]
                continue
            self.assertIsNone(ends[choice["index"]])
            texts[choice["index"]] += choice["delta"]["content"]
            entries[choice["index"]] += choice["logprobs"]["content"]
        self.assertEqual(texts, [c["message"]["content"] for c in whole["choices"]])
        self.assertEqual(entries, [c["logprobs"]["content"] for c in whole["choices"]])
        self.assertEqual(ends, [c["finish_reason"] for c in whole["choices"]])

    def test_a_stream_without_a_text_has_an_empty_one(self):
        request = {"messages": self.TALK, "n": 2, "logit_bias": {"256": 100}, "logprobs": True}  # its first token ends it
        chunks = self.events("/v1/chat/completions", request)
        for i in range(2):
            told = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == i]
            self.assertEqual([c["delta"] for c in told], [{"role": "assistant", "content": ""}, {"content": ""}, {}])
            self.assertEqual([c["finish_reason"] for c in told], [None, None, "stop"])
            self.assertEqual(told[1]["logprobs"]["content"], [])

    def test_messages_may_end_without_a_head(self):
        def prompt(messages, **more):
            ids = self.chat(messages=messages, max_tokens=1, return_token_ids=True, **more)["prompt_token_ids"]
            return self.post("/detokenize", {"tokens": ids}).json["prompt"]
        talk = [{"role": "user", "content": "Hi"}]
        self.assertEqual(prompt(talk), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        self.assertEqual(prompt(talk, add_generation_prompt=False), "<|im_start|>user\nHi<|im_end|>\n")
        talk.append({"role": "assistant", "content": "So"})
        self.assertEqual(prompt(talk, continue_final_message=True),
                         "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSo")

    def test_bad_chats_name_their_field(self):
        one, mine = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
        for body, param in (({"messages": []}, "messages"), ({"messages": [one, {"role": "system", "content": "x"}]}, "messages"),
                            ({"messages": [one, mine]}, "messages"), ({"messages": [{"role": "user"}]}, "messages"),
                            ({"messages": [one], "top_logprobs": 1}, "top_logprobs"),
                            ({"messages": [one], "continue_final_message": True}, "continue_final_message"),
                            ({"messages": [one], "tools": [{}]}, "tools")):
            self.refused("/v1/chat/completions", body, 400, param)
        self.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 200}]}, 400, "messages", "context_length_exceeded")

    def test_models_by_all_their_names(self):
        answer = self.server.ask("GET", "/v1/models").json
        self.assertEqual([m["id"] for m in answer["data"]], ["org/tiny", "tiny"])
        for path in ("/v1/models/org%2Ftiny", "/models/tiny"):
            self.assertEqual(self.server.ask("GET", path).json["parent"], None)
        self.assertEqual(self.server.ask("GET", "/v1/models/org%2Fother").status, 404)

    def test_without_a_template_there_are_no_chats(self):
        with Server() as server:
            answer = server.ask("POST", "/v1/chat/completions", {"messages": self.TALK})
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "messages"))


class Adapters(Served):
    words, model = ("--adapter-root", ADAPTERS), BASE

    def test_adapters_by_list_and_by_model(self):
        request = {"prompt": [3, 7], "seed": 5, "max_tokens": 5, "ignore_eos": True, "logprobs": 1}
        for names in (["lora"], ["ia3"], ["prefix"], ["prompt"], ["lora", "ia3"], ["prompt", "lora", "adapter_seq_bn"]):
            (expected,) = rows(run("generate", "--model", BASE, "--requests", "-", "--adapter-root", ADAPTERS,
                                   input=json.dumps(request | {"adapters": names}).encode())[0])
            answers = [self.complete(**request, adapters=names, return_token_ids=True)]
            if len(names) == 1:
                answers.append(self.complete(**request, model=names[0], return_token_ids=True))
                self.assertEqual(answers[-1]["model"], names[0])
            for answer in answers:
                self.assertEqual(ids_of(answer["choices"][0]), expected["choices"][0]["tokens"], names)
                self.assertEqual(answer["choices"][0]["logprobs"]["token_logprobs"],
                                 [token["logprob"] for token in expected["choices"][0]["logprobs"]])
                self.assertEqual([a["name"] for a in answer["adapters"]], names)
                self.assertEqual(answer["usage"]["prompt_tokens"], 2)
                self.assertTrue(all(a["generation"] > 0 for a in answer["adapters"]))

    def test_a_virtual_token_predicts_the_first_of_an_echo(self):
        for name, is_told in (("prompt", True), ("prefix", False)):
            lists = self.complete(prompt=[1, 2], model=name, max_tokens=0, echo=True, logprobs=1)["choices"][0]["logprobs"]
            self.assertEqual(lists["token_logprobs"][0] is not None, is_told, name)
            self.assertEqual(lists["top_logprobs"][0] is not None, is_told, name)

    def test_adapters_are_models(self):
        models = self.server.ask("GET", "/v1/models").json["data"]
        names = sorted(p.name for p in ADAPTERS.iterdir() if (p / "adapter_config.json").exists())
        self.assertEqual(sorted(m["id"] for m in models if m["parent"]), names)
        self.assertEqual({m["parent"] for m in models}, {None, models[0]["id"]})
        self.assertEqual(self.server.ask("GET", "/v1/models/lora").json["parent"], models[0]["id"])
        self.refused("/v1/completions", {"prompt": [1], "model": "lora", "adapters": ["ia3"]}, 400, "adapters")
        self.refused("/v1/completions", {"prompt": [1], "adapters": list("abcde")}, 400, "adapters")

    def test_a_model_without_a_tokenizer_says_so(self):
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]}),
                           ("/v1/completions", {"prompt": [1], "stop": "a"})):
            self.assertIn("tokenizer", self.post(path, body, 400).json["error"]["message"])
        answer = self.complete(prompt=[1, 2], max_tokens=2, echo=True, logprobs=1, ignore_eos=True)
        self.assertRegex(" ".join(answer["choices"][0]["logprobs"]["tokens"]), r"^(token_id:\d+ ?){4}$")

    def test_control_loads_replaces_and_unloads(self):
        with tempfile.TemporaryDirectory() as top:
            root = pathlib.Path(top)
            write_reciting_model(root / "model", TEXT)
            for name, tokens in (("one", 1), ("two", 2), ("three", 3)):
                write_prompt(root / "root" / name, tokens)
            with Server("--adapter-root", root / "root", model=root / "model") as server:
                control = lambda method, path, body=None: server.ask(method, path, body, listener="control")
                recites = lambda name: server.complete([0], model=name, temperature=0, max_tokens=4)["choices"][0]["text"].encode()
                listed = control("GET", "/v1/adapters").json["adapters"]
                self.assertEqual([a["name"] for a in listed], ["one", "three", "two"])
                self.assertEqual(recites("one"), TEXT[1:5])
                loaded = control("POST", "/v1/adapters", {"name": "new", "path": "two", "pinned": True})
                self.assertEqual((loaded.status, loaded.json["state"], loaded.json["virtual_tokens"], loaded.json["pinned"]),
                                 (200, "resident", 2, True))
                self.assertEqual(loaded.json["methods"], ["prompt"])
                self.assertEqual(recites("new"), TEXT[2:6])
                again = control("POST", "/v1/adapters", {"name": "new", "path": "two"})
                self.assertEqual((again.status, again.code), (409, "adapter_exists"))
                generation = loaded.json["generation"]
                raced = control("PUT", "/v1/adapters/new", {"path": "three", "if_generation": generation + 1000})
                self.assertEqual((raced.status, raced.code), (409, "generation_changed"))
                replaced = control("PUT", "/v1/adapters/new", {"path": "three", "if_generation": generation})
                self.assertEqual(replaced.status, 200, replaced.body)
                self.assertGreater(replaced.json["generation"], generation)
                self.assertEqual(recites("new"), TEXT[3:7])
                self.assertEqual(control("DELETE", "/v1/adapters/new").status, 200)
                self.assertEqual(control("DELETE", "/v1/adapters/new").status, 404)
                self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": [0], "model": "new"}).status, 404)
                for path in ("../root/one", "/etc", "nowhere", "."):
                    self.assertGreaterEqual(control("POST", "/v1/adapters", {"name": "bad", "path": path}).status, 400, path)
                self.assertEqual(control("POST", "/v1/adapters", {"name": ".x"}).status, 400)
                # As vLLM has it.
                load = lambda **body: control("POST", "/v1/load_lora_adapter", body)
                first = load(lora_name="v", lora_path="one")
                self.assertEqual((first.status, first.body), (200, b"Success: LoRA adapter 'v' added successfully."))
                self.assertEqual([load(lora_name="v", lora_path="two").status, load(lora_name="v").status, load(lora_path="one").status,
                                  load(lora_name="model", lora_path="one").status], [400] * 4)
                self.assertEqual(load(lora_name="v", lora_path="two", load_inplace=True).status, 200)
                self.assertEqual(recites("v"), TEXT[2:6])
                gone = [control("POST", "/v1/unload_lora_adapter", {"lora_name": "v"}) for _ in range(2)]
                self.assertEqual(([a.status for a in gone], gone[0].body), ([200, 404], b"Success: LoRA adapter 'v' removed successfully."))

    def test_a_stream_that_fails_says_so_and_has_no_end(self):
        with tempfile.TemporaryDirectory() as directory:
            write_byte_model(directory, n_positions=2000)
            with Server(model=directory) as server:
                body = {"prompt": [1], "max_tokens": 1999, "n": 64, "ignore_eos": True}
                with server.stream("/v1/completions", body) as stream:
                    next(stream)
                    self.assertEqual(server.ask("POST", "/v1/drain", {"timeout_s": 0}, listener="control").status, 200)
                    with self.assertRaises(http.client.IncompleteRead) as raised:  # no final chunk
                        stream.response.read()
                error = json.loads(raised.exception.partial.split(b"\n\n")[-2].strip().removeprefix(b"data: "))
                self.assertEqual(error["error"]["code"], "draining")
                self.assertEqual(server.wait(), 0)

    def test_who_does_not_read_is_waited_for_and_then_dropped(self):
        body = json.dumps({"prompt": [1], "max_tokens": 1999, "n": 64, "logprobs": 5, "ignore_eos": True, "stream": True}).encode()
        with tempfile.TemporaryDirectory() as directory, socket.socket() as slow:
            write_byte_model(directory, n_positions=2000)
            with Server("--limits.write_timeout", "1", model=directory) as server:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                host, port = server.addresses["data"].rsplit(":", 1)
                slow.connect((host, int(port)))
                slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                             b"x-request-id: slow\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                server.wait_line("request id=slow .*end=broken.*error=slow_reader")
                self.assertEqual(server.complete("a", max_tokens=2)["usage"]["completion_tokens"], 2)
                server.await_metric("vllm:num_requests_running", 0)
                self.assertLess(server.metrics()["vllm:generation_tokens_total"], 1999 * 64)
                server.await_metric('cambium:requests_cancelled_total{reason="slow_reader"}', 1)
                self.assertEqual(server.metrics()['cambium:requests_cancelled_total{reason="cancelled"}'], 0)

    def test_drain_ends_the_server(self):
        with Server(model=BASE) as server:
            self.assertEqual(server.ask("POST", "/v1/drain", {"timeout_s": 5}, listener="control").status, 200)
            self.assertEqual(server.wait(), 0)


class Keys(unittest.TestCase):
    def test_keys_of_both_listeners_stand_apart(self):
        with tempfile.TemporaryDirectory() as top:
            files = [pathlib.Path(top, name) for name in ("data", "control")]
            for file, key in zip(files, ("sesame", "mellon")):
                file.write_text(f"ann {key}\n")
            with Server("--api-key-file", files[0], "--control-key-file", files[1]) as server:
                status = lambda path, key, listener: server.ask("GET", path, key=key, listener=listener).status
                for listener, right, wrong in (("data", "sesame", "mellon"), ("control", "mellon", "sesame")):
                    self.assertEqual([status("/v1/models", key, listener) for key in (None, "", wrong, right)], [401, 401, 401, 200])
                    self.assertEqual([status(path, None, listener) for path in ("/", "/health", "/ready")], [200] * 3)
                    self.assertEqual(status("/nowhere", None, listener), 401)
                self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": "a"}).code, "invalid_api_key")
                self.assertEqual(server.complete("a", key="sesame")["object"], "text_completion")
                self.assertNotIn("sesame", "\n".join(server.lines))


if __name__ == "__main__":
    unittest.main()
