"""Everything at once for a while: both protocols, adapters that are swapped, clients that cancel, die, do not read and ask for
nonsense. Memory and descriptors stay as they are, every text is right, and the counts are exact."""
import contextlib
import json
import os
import pathlib
import random
import statistics
import tempfile
import threading
import time
import unittest

from model_support import SANITIZED
from pretrain_support import LONG
from requests_support import BASE
from serve_grpc_support import Client, grpc
from serve_support import Server
from serve_swap_support import METHODS, PIECES, REQUESTS, ROAMING, Book, Expected, damaged, write_contents
from serve_swap_test import Changes, Fleet, resident

SECONDS = 20 if SANITIZED else 600 if LONG else 25
GROWTH = 6144 if LONG else 2048  # KiB; some hundred are usual
# The answers that a client may get that wants much and reads little.
LARGE = {"prompt": [3, 4, 5], "n": 40, "max_tokens": 28, "logprobs": 20, "ignore_eos": True}
BAD = ({"prompt": [99]}, {"prompt": []}, {"prompt": [3], "temperature": -1}, {"prompt": [3], "max_tokens": 1000}, {"prompt": [3], "n": 129},
       {"prompt": [3], "model": "nobody"}, {"prompt": [3], "adapters": ["nobody"]}, {"prompt": "no tokenizer"})


def steady_growth(sizes):
    """Returns the KiB of a leak, which grows in each quarter. An allocator takes an arena only once."""
    quarter = len(sizes) // 4
    medians = [statistics.median(sizes[i * quarter : (i + 1) * quarter]) for i in range(4)]
    return 3 * min(after - before for before, after in zip(medians, medians[1:]))


class Rabble:
    """Clients that behave in other ways; what they were given is counted."""

    def __init__(self, server):
        self.server, self.is_over, self.lock, self.failures = server, False, threading.Lock(), []
        self.texts = self.prompts = self.prompt_tokens = self.least = self.refused = 0
        kinds = [self.leave_early, self.leave_early, self.read_slowly, self.read_nothing, self.ask_nonsense]
        if grpc:
            kinds += [self.cancel_a_call, self.cancel_a_call]
        self.threads = [threading.Thread(target=self.work, args=(kind, number)) for number, kind in enumerate(kinds)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        for thread in self.threads:
            thread.join()

    def work(self, kind, number):
        draw = random.Random(number)
        try:
            while not self.is_over:
                kind(draw)
        except Exception as error:  # of a thread, which unittest does not see
            self.failures.append(f"{kind.__name__}: {error!r}")

    def count(self, request, tokens):
        with self.lock:
            self.texts += request.get("n", 1)
            self.prompts += 1
            self.prompt_tokens += len(request["prompt"])
            self.least += tokens

    def stream_some(self, request, chunks, pause=0.0):
        with self.server.stream("/v1/completions", request | {"return_token_ids": True}) as stream:
            tokens = 0
            for _, chunk in zip(range(chunks), stream):
                tokens += sum(len(choice["token_ids"]) for choice in chunk["choices"])
                time.sleep(pause)
            self.count(request, tokens)

    def leave_early(self, draw):
        self.stream_some(draw.choice(REQUESTS), draw.randrange(1, 5))

    def read_slowly(self, draw):
        self.stream_some(LARGE, draw.choice((50, 10_000)), 0.001)

    def read_nothing(self, draw):
        self.stream_some(LARGE, 1, 0.1)

    def ask_nonsense(self, draw):
        answer = self.server.ask("POST", "/v1/completions", draw.choice(BAD))
        assert answer.status in (400, 404), (answer.status, answer.body)
        self.refused += 1

    def cancel_a_call(self, draw):
        request = draw.choice(REQUESTS)
        with Client(self.server.addresses["data"]) as client:
            call = client.call("Generate", tokens={"ids": request["prompt"]}, max_tokens=request["max_tokens"], ignore_eos=True,
                               n=request.get("n", 1), adapters=[draw.choice(PIECES)])
            tokens = 0
            for event in call:
                tokens += len(event.output.token_ids)
                if tokens > 2:
                    break
            call.cancel()
            self.count(request, tokens)


class Growth(unittest.TestCase):
    def test_a_leak_is_told_from_an_arena(self):
        leak = [1000 + i * 8 for i in range(400)]
        self.assertGreater(steady_growth(leak), 2048)
        self.assertEqual(steady_growth([1000] * 150 + [9000] * 250), 0)


class Soak(unittest.TestCase):
    def test_everything_at_once(self):
        with contextlib.ExitStack() as opened:
            top = pathlib.Path(opened.enter_context(tempfile.TemporaryDirectory()))
            root = top / "root"
            root.mkdir()
            write_contents(root)
            layout = ("--max-batch-size", 16, "--precision", "fp32", "--adapter-memory", "160K")
            expected = Expected(root, *layout)
            bad = damaged(root, top / "outside")
            server = opened.enter_context(Server("--adapter-root", root, *layout, model=BASE))
            self.soak(server, expected, bad)

    def soak(self, server, expected, bad):
        book, pid = Book(), server.process.pid
        changes = Changes(self, server, book, bad, is_tight=True)
        for method in METHODS:
            changes.load(method, f"{method}.a")
        changes.load(ROAMING, PIECES[0])
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        begin, sizes = time.monotonic(), []
        with Fleet(server, book) as fleet, Rabble(server) as rabble:
            while time.monotonic() < begin + SECONDS and not rabble.failures:
                changes.one()
                fleet.await_more(5)
                if time.monotonic() > begin + SECONDS / 3:
                    sizes.append(resident([pid]))
        self.assertEqual(rabble.failures, [])
        fleet.check(self, expected)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            server.await_metric(name, 0)
        end = time.monotonic() + 10
        while len(os.listdir(f"/proc/{pid}/fd")) > descriptors:
            self.assertLess(time.monotonic(), end, "descriptors are still open")
        if not SANITIZED:
            self.assertLess(steady_growth(sizes), GROWTH, f"KiB that the server grows by: {sizes[:: len(sizes) // 20 + 1]}")
        self.check_counts(server.metrics(), fleet, rabble, changes)

    def check_counts(self, told, fleet, rabble, changes):
        texts, prompts, prompt_tokens, tokens = rabble.texts, rabble.prompts, rabble.prompt_tokens, rabble.least
        for names, line, *_, (status, answer) in fleet.records:
            if status == 200:
                texts += REQUESTS[line].get("n", 1)
                prompts += 1
                prompt_tokens += len(REQUESTS[line]["prompt"])
                tokens += sum(len(ids) for ids, _ in answer[1])
        ends = sum(value for key, value in told.items() if key.startswith("vllm:request_success_total"))
        self.assertEqual(ends, texts)
        self.assertEqual(told["vllm:prompt_tokens_total"], prompt_tokens)
        self.assertGreaterEqual(told["vllm:generation_tokens_total"], tokens)
        # Virtual tokens, and those of texts that made room for others, are computed beside.
        self.assertGreaterEqual(told["vllm:iteration_tokens_total_sum"] - told["vllm:generation_tokens_total"],
                                prompt_tokens - told.get("vllm:prompt_tokens_cached_total", 0))


if __name__ == "__main__":
    unittest.main()
