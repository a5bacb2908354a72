"""Adapters are swapped while streams run: nobody's request fails, no text is of two generations, and memory does not grow."""
import contextlib
import json
import pathlib
import random
import tempfile
import threading
import time
import unittest

from model_support import SANITIZED
from mpi_support import MPIRUN, needs_mpirun
from pretrain_support import LONG
from requests_support import BASE
from serve_grpc_support import Client, grpc
from serve_ranks_support import RankServer
from serve_support import PATIENCE, Answer, Server
from serve_swap_support import (CONTENTS, LEAVING, METHODS, PIECES, REQUESTS, ROAMING, STACKS, Book, Expected, damaged,
                                write_contents)

STREAMS = 32
CYCLES = 2000 if LONG else 200
TENSOR = ("--parallel.tensor_model_parallel_size", 2)
KINDS = [(), *[(name,) for name in METHODS], *STACKS, *[(ROAMING,)] * 3, *[(name,) for name in LEAVING] * 2]


class Fleet:
    """Streams that ask without a pause, each over a connection of its own, and write down what came."""

    def __init__(self, server, book):
        self.server, self.book, self.records, self.failures = server, book, [], []
        self.has_more, self.is_over = threading.Condition(), False
        asks = [self.ask_streamed, self.ask_whole, self.ask_whole]
        if grpc:
            asks.append(self.ask_grpc)
        self.threads = [threading.Thread(target=self.work, args=(i, asks[i % len(asks)])) for i in range(STREAMS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        for thread in self.threads:
            thread.join()

    def work(self, number, ask):
        draw = random.Random(number)
        try:
            with contextlib.ExitStack() as opened:
                client = opened.enter_context(Client(self.server.addresses["data"]) if ask == self.ask_grpc
                                              else contextlib.closing(self.server.connect()))
                while not self.is_over:
                    names, line = draw.choice(KINDS), draw.randrange(len(REQUESTS))
                    least, sent = self.book.least(names), self.book.moment()
                    answer = ask(client, REQUESTS[line], names)
                    with self.has_more:
                        self.records.append((names, line, least, sent, self.book.moment(), answer))
                        self.has_more.notify_all()
        except Exception as error:  # of a thread, which unittest does not see
            with self.has_more:
                self.failures.append(f"stream {number}: {error!r}")
                self.has_more.notify_all()

    def await_more(self, count):
        with self.has_more:
            wanted = len(self.records) + count
            assert self.has_more.wait_for(lambda: len(self.records) >= wanted or self.failures, PATIENCE), "nobody answers"
            assert not self.failures, self.failures

    # ---- an answer is its status, and ([(name, generation)], [(tokens, log-probabilities)])

    def ask_whole(self, connection, request, names):
        answer = Answer(self.server.send(connection, "POST", "/v1/completions",
                                         request | {"adapters": names, "return_token_ids": True}, None, None))
        if answer.status != 200:
            return answer.code, None
        told = answer.json
        return 200, ([(a["name"], a["generation"]) for a in told["adapters"]],
                     [(c["token_ids"], c["logprobs"]["token_logprobs"]) for c in sorted(told["choices"], key=lambda c: c["index"])])

    def ask_streamed(self, connection, request, names):
        body = request | {"adapters": names, "return_token_ids": True, "stream": True}
        response = self.server.send(connection, "POST", "/v1/completions", body, None, None)
        if response.status != 200:
            return Answer(response).code, None
        chunks = [line[6:] for line in response.read().decode().split("\n") if line.startswith("data: ")]
        assert chunks.pop() == "[DONE]"
        chunks = [json.loads(chunk) for chunk in chunks]
        texts = [([], []) for _ in range(request.get("n", 1))]
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]][0].extend(choice["token_ids"])
                texts[choice["index"]][1].extend(choice["logprobs"]["token_logprobs"])
        return 200, ([(a["name"], a["generation"]) for a in chunks[0]["adapters"]], texts)

    def ask_grpc(self, client, request, names):
        more = {key: value for key, value in request.items() if key not in ("prompt", "temperature", "seed")}
        try:
            answer = client.call("GenerateOnce", tokens={"ids": request["prompt"]}, adapters=names,
                                 sampling={"temperature": request["temperature"], "seed": request["seed"]}, **more)
        except grpc.RpcError as error:
            return {"NOT_FOUND": "adapter_not_found"}.get(error.code().name, error.details()), None
        texts = [([], []) for _ in range(request.get("n", 1))]
        for output in answer.outputs:
            texts[output.index][0].extend(output.token_ids)
            texts[output.index][1].extend(token.logprob for token in output.logprobs)
        return 200, ([(a.name, a.generation) for a in answer.started.adapters], texts)

    def check(self, test, expected):
        """Every answer against what the contents that it was of say in a file."""
        test.assertFalse(self.failures)
        for record in self.records:
            self.check_one(test, expected, record)

    def check_one(self, test, expected, record):
        names, line, least, sent, answered, (status, told) = record
        if status != 200:
            test.assertEqual(status, "adapter_not_found", record)
            test.assertTrue(any(self.book.may_be(name, False, sent, answered) for name in names), record)
            return
        test.assertTrue(all(self.book.may_be(name, True, sent, answered) for name in names), record)
        adapters, texts = told
        test.assertEqual(tuple(name for name, _ in adapters), names)
        for (name, generation), at_least in zip(adapters, least):
            test.assertGreaterEqual(generation, at_least, record)  # a change that was answered is seen by all that come then
            test.assertEqual(self.book.contents[generation][0], name, record)
        contents = tuple(self.book.contents[generation][1] for _, generation in adapters)
        test.assertEqual(as_floats(texts), as_floats(expected[line, contents]), (record, contents))


def as_floats(texts):
    """As many digits as tell one fp32 from another: each form prints as many as it likes."""
    return [(tokens, [float(f"{number:.9g}") for number in numbers]) for tokens, numbers in texts]


def resident(pids):
    """KiB."""
    total = 0
    for pid in pids:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        total += int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    return total


class Changes:
    """Whoever swaps: one change after the other, each of which must end as it should. Where memory is tight, texts may hold so
    much of it for a moment that a change is refused, and changes nothing: it is asked for again."""

    def __init__(self, test, server, book, bad, is_tight=False):
        self.test, self.server, self.book, self.bad, self.draw = test, server, book, bad, random.Random(5)
        self.there, self.is_tight = {}, is_tight

    def ask(self, method, path, body, status):
        answer, end = self.server.ask(method, path, body, listener="control"), time.monotonic() + PATIENCE
        while self.is_tight and answer.status == 507 and time.monotonic() < end:
            self.test.assertEqual(answer.code, "adapter_memory_full")
            answer = self.server.ask(method, path, body, listener="control")
        self.test.assertEqual(answer.status, status, (method, path, body, answer.body))
        return answer

    def load(self, name, content):
        asked = self.book.moment()
        told = self.ask("POST", "/v1/adapters", {"name": name, "path": content}, 200).json
        self.book.told(name, told["generation"], content)
        self.book.lived(name, asked, True)
        self.there[name] = told

    def replace(self, name, content):
        told = self.ask("PUT", f"/v1/adapters/{name}", {"path": content, "if_generation": self.book.latest[name]}, 200).json
        self.book.told(name, told["generation"], content)

    def replace_as_vllm_does(self, name, content):
        self.ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": content, "load_inplace": True}, 200)
        told = next(a for a in self.ask("GET", "/v1/adapters", None, 200).json["adapters"] if a["name"] == name)
        self.book.told(name, told["generation"], content)

    def unload(self, name):
        asked = self.book.moment()
        self.ask("DELETE", f"/v1/adapters/{name}", None, 200)
        self.book.lived(name, asked, False)
        del self.there[name]

    def fail(self, name):
        """Changes nothing."""
        bad = self.draw.choice(sorted(self.bad))
        status, part = self.bad[bad]
        if self.draw.random() < 0.3:  # nor does a name come of it
            answer = self.ask("POST", "/v1/adapters", {"name": "never", "path": bad}, status)
        else:
            answer = self.ask("PUT", f"/v1/adapters/{name}", {"path": bad}, status)
        self.test.assertIn(part, answer.json["error"]["message"])
        self.ask("PUT", f"/v1/adapters/{name}", {"path": PIECES[0], "if_generation": 1 << 40}, 409)
        self.ask("POST", "/v1/adapters", {"name": name, "path": PIECES[0]}, 409)

    def one(self):
        draw = self.draw
        what = draw.randrange(8)
        if what < 3:
            method = draw.choice(METHODS)
            self.replace(method, f"{method}.{draw.choice(CONTENTS)}")
        elif what == 3:
            self.replace(ROAMING, draw.choice(PIECES))
        elif what == 4:
            self.replace_as_vllm_does(ROAMING, draw.choice(PIECES))
        elif what == 5:
            self.fail(draw.choice(METHODS))
        else:
            name = draw.choice(LEAVING)
            if name in self.there:
                self.unload(name)
            else:
                self.load(name, draw.choice(PIECES))


class Swap(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name) / "root"
        self.root.mkdir()
        write_contents(self.root)
        self.top = pathlib.Path(temporary.name)
        self.bad = damaged(self.root, pathlib.Path(temporary.name) / "outside")

    def swap(self, *words, processes=1, cycles=CYCLES):
        book, layout = Book(), ("--max-batch-size", 16, "--precision", "fp32", *words)
        expected = Expected(self.root, *layout, launcher=(*MPIRUN, "-n", processes) if processes > 1 else ())
        layout = ("--adapter-root", self.root, *layout)
        with RankServer(processes, *layout, model=BASE) if processes > 1 else Server(*layout, model=BASE) as server:
            pids = server.ranks.values() if processes > 1 else [server.process.pid]
            changes = Changes(self, server, book, self.bad)
            for method in METHODS:
                changes.load(method, f"{method}.a")
            changes.load(ROAMING, PIECES[0])
            with Fleet(server, book) as fleet:
                for cycle in range(cycles):
                    changes.one()
                    fleet.await_more(2)
                    if cycle == cycles // 3:
                        before = resident(pids)
                after = resident(pids)
            fleet.check(self, expected)
            seen = {name: generation for *_, (status, told) in fleet.records if status == 200 for name, generation in told[0]}
            self.assertGreater(len(seen), len(METHODS))
            if not SANITIZED:
                self.assertLess(after - before, 4096, "KiB that the server has grown by")
            self.after(server, fleet, book)

    def after(self, server, fleet, book):
        """Everything was given back, and the names are those that the changes left."""
        server.await_metric("vllm:num_requests_running", 0)
        server.await_metric("vllm:kv_cache_usage_perc", 0)
        listed = {a["name"]: a for a in server.ask("GET", "/v1/adapters", listener="control").json["adapters"]}
        self.assertNotIn("never", listed)
        for name in (*METHODS, ROAMING):
            self.assertEqual((listed[name]["generation"], listed[name]["running"], listed[name]["waiting"]), (book.latest[name], 0, 0))
        self.assertEqual({name for name in LEAVING if name in listed}, {name for name in LEAVING if book.lives.get(name, [(0, 0, False)])[-1][2]})

    def test_under_load(self):
        self.swap()

    def test_two_ranks(self):
        self.swap("--ranks", 2, *TENSOR, cycles=CYCLES // 2)

    @needs_mpirun
    def test_two_processes(self):
        self.swap(*TENSOR, processes=2, cycles=CYCLES // 4)


if __name__ == "__main__":
    unittest.main()
