"""Many different requests at once, over both protocols, give what each gives in a file: token for token, and every
log-probability to the last bit."""
import concurrent.futures
import contextlib
import random
import struct
import unittest

from model_support import rows, run
from requests_support import ADAPTERS, BASE, as_lines
from serve_grpc_support import Client, grpc
from serve_support import Server

COUNT, AT_ONCE = 200, 24
NAMES = sorted(p.name for p in ADAPTERS.iterdir() if (p / "adapter_config.json").exists())
STACKS = (["lora", "ia3"], ["ia3", "lora"], ["prefix", "adapter_par_bn"], ["prompt", "lora", "adapter_seq_bn"],
          ["prefix", "prompt", "rslora", "adapter_par_bn"])
WORDS = ("--adapter-root", ADAPTERS, "--precision", "fp32")
TENSOR, PIPELINE, FIRST = (f"--parallel.{name}" for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size",
                                                                "decoder_first_pipeline_num_layers"))
LAYOUTS = ((), ("--ranks", 2, TENSOR, 2), ("--ranks", 2, PIPELINE, 2, FIRST, 1))


def draw_request(number, draw):
    """A request of a file. What its prompt begins with is shared by many, so that pages are."""
    length = draw.randrange(1, 16)
    prompt = [3 + i % 40 for i in range(length)] if draw.random() < 0.4 else [draw.randrange(3, 43) for _ in range(length)]
    adapters = draw.choice([[], [draw.choice(NAMES)], [draw.choice(NAMES)], draw.choice(STACKS)])
    request = {"id": number, "prompt": prompt, "adapters": adapters, "seed": number, "n": draw.choice([1, 1, 1, 2, 3]),
               "max_tokens": draw.randrange(1, 12), "logprobs": draw.choice([0, 1, 5])}
    for name, values in (("temperature", (0, 0.3, 1, 2)), ("top_k", (0, 1, 7)), ("top_p", (0.3, 1)), ("min_p", (0, 0.05)),
                         ("repetition_penalty", (1, 1.3)), ("presence_penalty", (0, 0.7)), ("frequency_penalty", (0, -0.4)),
                         ("ignore_eos", (True, False)), ("min_tokens", (0, 1)), ("stop_token_ids", ([], [11, 12])),
                         ("logit_bias", ({}, {"9": 1.5, "10": -3}))):
        if draw.random() < 0.4:
            request[name] = draw.choice(values)
    if draw.random() < 0.25:
        request["prompt_logprobs"] = request["logprobs"]
    return request


def as_completion(request):
    """The same for the HTTP API, whose echo is what asks for the log-probabilities of a prompt."""
    body = {key: value for key, value in request.items() if key not in ("id", "prompt_logprobs")}
    return body | {"return_token_ids": True, "echo": "prompt_logprobs" in request}


def fp32(number):
    """The number that its nine digits, or its bits in a double, stand for."""
    return None if number is None else struct.unpack("f", struct.pack("f", number))[0]


def as_message(request):
    """The same for gRPC."""
    body = {key: request[key] for key in ("adapters", "n", "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "logprobs",
                                          "prompt_logprobs") if key in request}
    sampling = {key: request[key] for key in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                                              "frequency_penalty", "seed") if key in request}
    bias = [{"id": int(key), "bias": value} for key, value in request.get("logit_bias", {}).items()]
    return body | {"tokens": {"ids": request["prompt"]}, "sampling": sampling | {"logit_bias": bias}}


def from_message(answer):
    outputs = sorted(answer.outputs, key=lambda output: output.index)
    ends = sorted(answer.finished, key=lambda end: end.index)
    number = lambda token: token.logprob if token.HasField("logprob") else None
    return {"tokens": [list(output.token_ids) for output in outputs],
            "reasons": [{1: "stop", 2: "length"}[end.reason] for end in ends],
            "numbers": [[number(token) for token in output.logprobs] for output in outputs],
            "tops": [[sorted(top.logprob for top in token.top) for token in output.logprobs] for output in outputs],
            "prompt": [number(token) for token in answer.started.prompt_logprobs] or None,
            "counts": (answer.started.prompt_tokens, sum(end.completion_tokens for end in ends))}


def from_file(answer):
    """The common contents of both forms: the tokens of each text and their numbers, and those of the prompt."""
    prompt = answer["prompt_logprobs"]
    return {"tokens": [choice["tokens"] for choice in answer["choices"]],
            "reasons": [choice["finish_reason"] for choice in answer["choices"]],
            "numbers": [[fp32(token["logprob"]) for token in choice["logprobs"]] for choice in answer["choices"]],
            "tops": [[sorted(fp32(top["logprob"]) for top in token["top"]) for token in choice["logprobs"]] for choice in answer["choices"]],
            "prompt": prompt and [fp32(token["logprob"]) for token in prompt], "counts": (answer["prompt_tokens"], answer["completion_tokens"])}


class Mixed(unittest.TestCase):
    def compare(self, request, expected, answer):
        expected, skipped = from_file(expected), len(request["prompt"]) if "prompt_logprobs" in request else 0
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        self.assertEqual([choice["token_ids"] for choice in choices], expected["tokens"], request)
        self.assertEqual([choice["finish_reason"] for choice in choices], expected["reasons"], request)
        for choice, numbers, tops in zip(choices, expected["numbers"], expected["tops"]):
            told = [fp32(number) for number in choice["logprobs"]["token_logprobs"]]
            if skipped:
                self.assertEqual(told[:skipped], expected["prompt"], request)
            # An id that ends a completion is listed here and not in a file.
            self.assertEqual(told[skipped:skipped + len(numbers)], numbers, request)
            self.assertLessEqual(len(told) - skipped - len(numbers), 1, request)
            if request["logprobs"]:
                likeliest = [sorted(map(fp32, top.values())) for top in choice["logprobs"]["top_logprobs"][skipped:]]
                self.assertEqual([top[-len(t):] for top, t in zip(likeliest, tops)], tops, request)
        usage = answer["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]), expected["counts"], request)

    def check(self, layout):
        draw = random.Random(7)
        requests = [draw_request(i, draw) for i in range(COUNT)]
        output, _ = run("generate", "--model", BASE, "--requests", "-", *WORDS, *layout, input=as_lines(requests))
        with Server(*WORDS, *layout, "--adapter-memory", "256K", model=BASE) as server, \
                concurrent.futures.ThreadPoolExecutor(AT_ONCE) as clients, contextlib.ExitStack() as stack:
            client = grpc and stack.enter_context(Client(server.addresses["data"]))
            if client:
                client.learn()

            def ask(request):
                if client and request["id"] % 2:
                    return from_message(client.call("GenerateOnce", **as_message(request)))
                return server.ask("POST", "/v1/completions", as_completion(request))

            for request, expected, answer in zip(requests, rows(output), list(clients.map(ask, requests))):
                if isinstance(answer, dict):
                    self.assertEqual(answer, from_file(expected), request)
                    continue
                self.assertEqual(answer.status, 200, (request, answer.body))
                self.compare(request, expected, answer.json)

    def test_one_rank(self):
        self.check(LAYOUTS[0])

    def test_two_tensor_ranks(self):
        self.check(LAYOUTS[1])

    def test_two_stages(self):
        self.check(LAYOUTS[2])


if __name__ == "__main__":
    unittest.main()
