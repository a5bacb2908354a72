"""Many different requests at once give what each gives in a file: token for token, and every log-probability to the last digit."""
import concurrent.futures
import random
import unittest

from model_support import rows, run
from requests_support import ADAPTERS, BASE, as_lines
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


def from_file(answer):
    """What both forms tell: the tokens of each text and their numbers, and those of the prompt."""
    prompt = answer["prompt_logprobs"]
    return {"tokens": [choice["tokens"] for choice in answer["choices"]],
            "reasons": [choice["finish_reason"] for choice in answer["choices"]],
            "numbers": [[token["logprob"] for token in choice["logprobs"]] for choice in answer["choices"]],
            "tops": [[sorted(top["logprob"] for top in token["top"]) for token in choice["logprobs"]] for choice in answer["choices"]],
            "prompt": prompt and [token["logprob"] for token in prompt], "counts": (answer["prompt_tokens"], answer["completion_tokens"])}


class Mixed(unittest.TestCase):
    def compare(self, request, expected, answer):
        expected, skipped = from_file(expected), len(request["prompt"]) if "prompt_logprobs" in request else 0
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        self.assertEqual([choice["token_ids"] for choice in choices], expected["tokens"], request)
        self.assertEqual([choice["finish_reason"] for choice in choices], expected["reasons"], request)
        for choice, numbers, tops in zip(choices, expected["numbers"], expected["tops"]):
            told = choice["logprobs"]["token_logprobs"]
            if skipped:
                self.assertEqual(told[:skipped], expected["prompt"], request)
            # An id that ends a text is told of here and not in a file.
            self.assertEqual(told[skipped:skipped + len(numbers)], numbers, request)
            self.assertLessEqual(len(told) - skipped - len(numbers), 1, request)
            if request["logprobs"]:
                likeliest = [sorted(top.values()) for top in choice["logprobs"]["top_logprobs"][skipped:]]
                self.assertEqual([top[-len(t):] for top, t in zip(likeliest, tops)], tops, request)
        usage = answer["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]), expected["counts"], request)

    def check(self, layout):
        draw = random.Random(7)
        requests = [draw_request(i, draw) for i in range(COUNT)]
        output, _ = run("generate", "--model", BASE, "--requests", "-", *WORDS, *layout, input=as_lines(requests))
        with Server(*WORDS, *layout, "--adapter-memory", "256K", model=BASE) as server, \
                concurrent.futures.ThreadPoolExecutor(AT_ONCE) as clients:
            answers = list(clients.map(lambda r: server.ask("POST", "/v1/completions", as_completion(r)), requests))
            for request, expected, answer in zip(requests, rows(output), answers):
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
