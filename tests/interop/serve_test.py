"""`cambium serve` with the clients that people use: openai, the EleutherAI harness, and requests as vLLM's benchmark
sends them."""
import asyncio
import codecs
import json
import os
import unittest
import urllib.request

import openai
from interop_support import SEED, Case, random_gpt2, score
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from model_support import TINY, write_byte_tokenizer
from requests_support import ADAPTERS, BASE
from serve_support import Server

TEXTS = [("It was", " the best of times."), ("", "a"), ("caf\u00e9 \U0001f332", " \u6625\u7720"), ("It was the worst of", " tim")]


class Served(Case):
    def serve(self, *words, **more):
        server = Server(*words, **more)
        self.addCleanup(server.__exit__, None, None, None)
        return server, f"http://{server.addresses['data']}"


class OpenAI(Served):
    def setUp(self):
        super().setUp()
        self.server, self.url = self.serve("--model-name", "org/tiny", "--chat-template", "plain")
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def test_completions(self):
        asked = {"model": "org/tiny", "prompt": "It was", "max_tokens": 6, "seed": SEED, "logprobs": 2, "n": 2}
        answer = self.client.completions.create(**asked)
        self.assertEqual(answer.object, "text_completion")
        chunks = list(self.client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        texts = ["", ""]
        for chunk in chunks[:-1]:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(texts, [choice.text for choice in answer.choices])
        self.assertEqual((chunks[-1].choices, chunks[-1].usage), ([], answer.usage.model_copy(update={
            "prompt_tokens_details": chunks[-1].usage.prompt_tokens_details})))
        for choice in answer.choices:
            type(choice).model_validate(choice.model_dump(), strict=True)
            self.assertEqual(len(choice.logprobs.tokens), len(choice.logprobs.top_logprobs))

    def test_chats(self):
        asked = {"model": "org/tiny", "messages": [{"role": "user", "content": "It was"}], "max_completion_tokens": 6,
                 "seed": SEED, "logprobs": True, "top_logprobs": 2}
        answer = self.client.chat.completions.create(**asked)
        with self.client.chat.completions.stream(**asked) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            whole = stream.current_completion_snapshot  # the final one is an error where the length ended it
        self.assertEqual("".join(deltas), answer.choices[0].message.content)
        self.assertEqual(whole.choices[0].message.content, answer.choices[0].message.content)
        self.assertEqual(whole.choices[0].logprobs.content, answer.choices[0].logprobs.content)
        self.assertEqual(whole.choices[0].finish_reason, answer.choices[0].finish_reason)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["org/tiny"])
        self.assertEqual(self.client.models.retrieve("org/tiny").id, "org/tiny")

    def test_errors_are_its_exceptions(self):
        create = lambda **more: self.client.completions.create(**{"model": "org/tiny", "prompt": "a"} | more)
        for kind, more, code, param in ((openai.BadRequestError, {"temperature": -1}, None, "temperature"),
                                        (openai.BadRequestError, {"prompt": [1] * 65}, "context_length_exceeded", "prompt"),
                                        (openai.BadRequestError, {"suffix": "b"}, None, "suffix"),
                                        (openai.NotFoundError, {"model": "none"}, "model_not_found", "model")):
            for stream in (False, True):
                with self.assertRaises(kind) as raised:
                    create(**more, stream=stream)
                self.assertEqual((raised.exception.code, raised.exception.param), (code, param))
                self.assertTrue(raised.exception.request_id)
        with self.assertRaises(openai.InternalServerError) as raised:
            create(n=128, prompt=[1], max_tokens=60, extra_headers={"x-request-timeout": "0.001"})
        self.assertEqual(raised.exception.code, "deadline")

    def test_a_base_url_without_v1(self):
        client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)
        self.assertTrue(client.completions.create(model="org/tiny", prompt="a", max_tokens=2).choices)

    def test_many_at_once(self):
        async def ask():
            async with openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0) as client:
                one = lambda seed: client.completions.create(model="org/tiny", prompt="It was", max_tokens=20, seed=seed)
                return [a.choices[0].text for a in await asyncio.gather(*(one(seed % 8) for seed in range(32)))]
        texts = asyncio.run(ask())
        self.assertEqual(texts, texts[:8] * 4)

    def test_keys(self):
        file = self.directory / "keys"
        file.write_text("ann sesame\n")
        _, url = self.serve("--api-key-file", file)
        for key, works in (("sesame", True), ("wrong", False)):
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
            if works:
                self.assertTrue(list(client.models.list()))
            else:
                self.assertRaises(openai.AuthenticationError, client.models.list)

    def test_adapters_are_models(self):
        _, url = self.serve("--adapter-root", ADAPTERS, model=BASE)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        answer = client.completions.create(model="lora", prompt=[3, 7], max_tokens=3, extra_body={"ignore_eos": True})
        self.assertEqual((answer.model, answer.adapters[0]["name"]), ("lora", "lora"))


class Harness(Served):
    """local-completions: its score of a text is that of `cambium score`, to the last digit."""

    def harness(self, url, model="model", **more):
        os.environ.setdefault("OPENAI_API_KEY", "none")
        return LocalCompletionsAPI(base_url=f"{url}/v1/completions", model=model, **{"max_length": 63} | more)

    def loglikelihoods(self, lm, pairs):
        return lm.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)], disable_tqdm=True)

    def expected(self, lm, directory, pairs, **more):
        split = [lm._encode_pair(*pair) if pair[0] else ([lm.prefix_token_id], lm.tok_encode(pair[1])) for pair in pairs]
        scores = score(self, directory, [context + rest for context, rest in split])
        return [sum(logprobs[len(context):]) for (context, _), logprobs in zip(split, scores)]

    def test_scores_are_those_of_score(self):
        server, url = self.serve()
        for more in ({}, {"batch_size": 4}, {"num_concurrent": 4}):
            lm = self.harness(url, **more)
            self.assertEqual(lm.tokenizer_backend, "remote")
            ours = self.loglikelihoods(lm, TEXTS)
            self.assertEqual([value for value, _ in ours], self.expected(lm, TINY, TEXTS))
        # Its token of a document's beginning is the model's own.
        self.assertEqual(lm.prefix_token_id, json.loads((TINY / "config.json").read_text())["eos_token_id"])

    def test_what_is_greedy(self):
        directory = self.directory / "model"
        random_gpt2(7, vocab_size=257, n_positions=64, eos_token_id=256).save_pretrained(directory)
        write_byte_tokenizer(directory)
        server, url = self.serve(model=directory)
        lm = self.harness(url)
        ids = server.complete("It was", max_tokens=8, temperature=0, ignore_eos=True, return_token_ids=True,
                              logit_bias={str(i): -100 for i in (256, *range(128, 256))})["choices"][0]["token_ids"]
        greedy = bytes(ids).decode()
        plain = server.complete("It was", max_tokens=8, temperature=0, return_token_ids=True)["choices"][0]["token_ids"]
        (value, is_greedy), (other, is_other) = self.loglikelihoods(lm, [("It was", greedy), ("It was", greedy[:-1] + chr(ids[-1] ^ 1))])
        self.assertEqual((is_greedy, is_other), (ids == plain, False))
        self.assertEqual([value, other], self.expected(lm, directory, [("It was", greedy), ("It was", greedy[:-1] + chr(ids[-1] ^ 1))]))

    def test_texts_it_has_written(self):
        server, url = self.serve()
        lm = self.harness(url)
        asked = [Instance("generate_until", {}, (text, {"until": ["e", "\n"], "max_gen_toks": 12}), i)
                 for i, (text, _) in enumerate(TEXTS) if text]
        for request, text in zip(asked, lm.generate_until(asked, disable_tqdm=True), strict=True):
            answer = server.complete(request.args[0], max_tokens=12, temperature=0, seed=1234, stop=["e", "\n", "<|endoftext|>"])
            self.assertEqual(text, answer["choices"][0]["text"])

    def test_rolling_scores(self):
        server, url = self.serve()
        lm = self.harness(url)
        (value,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("It was the best of times.",), 0)],
                                            disable_tqdm=True)
        ids = [lm.prefix_token_id, *lm.tok_encode("It was the best of times.")]
        (logprobs,) = score(self, TINY, [ids])
        self.assertEqual(value, sum(logprobs[1:]))


class Benchmark(Served):
    """As `vllm bench serve` asks, and reads."""

    def ask(self, url, path, body, **headers):
        request = urllib.request.Request(url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json", "Authorization": "Bearer ", **headers})
        decode, buffer, messages = codecs.getincrementaldecoder("utf-8")().decode, "", []
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.assertEqual(answer.headers["x-request-id"], headers["x-request-id"])
            while part := answer.read(7):  # cut anywhere
                buffer += decode(part)
                while "\n\n" in buffer:
                    message, buffer = buffer.split("\n\n", 1)
                    if message.strip() and not message.startswith(":"):
                        messages.append(message.strip().removeprefix("data: "))
        self.assertEqual(messages.pop(), "[DONE]")
        return [json.loads(message) for message in messages]

    def test_completions(self):
        _, url = self.serve()
        body = {"model": "model", "prompt": "It was the", "repetition_penalty": 1.0, "max_tokens": 20, "logprobs": None,
                "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        chunks = self.ask(url, "/v1/completions", body, **{"x-request-id": "bench-0"})
        counted = [chunk for chunk in chunks if chunk["choices"]]
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 20)
        self.assertLessEqual(len(counted), 20)  # tokens that are no whole character come with the next
        self.assertEqual(counted[-1]["choices"][0]["finish_reason"], "length")

    def test_chats(self):
        _, url = self.serve("--chat-template", "plain")
        body = {"model": "model", "messages": [{"role": "user", "content": [{"type": "text", "text": "It was"}]}],
                "max_completion_tokens": 10, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        chunks = self.ask(url, "/v1/chat/completions", body, **{"x-request-id": "bench-1"})
        texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"]]
        self.assertEqual((texts[0], texts[-1]), ("", None))
        self.assertTrue(all(isinstance(text, str) for text in texts[1:-1]))
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 10)


if __name__ == "__main__":
    unittest.main()
