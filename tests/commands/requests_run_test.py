"""generate --requests: the order of answers, runs that resume after the written answers, interruptions, ranks."""
import json
import os
import pathlib
import pty
import random
import re
import signal
import subprocess
import tempfile
import time
import unittest

from model_ranks_test import layout, launched
from model_support import CAMBIUM, EXPECTED, TINY, SANITIZED, rows, run, without_notices, write_byte_model, write_reciting_model
from mpi_support import HAS_MPIRUN
from requests_support import ADAPTERS, BASE, as_lines, ask, tokens


def mixed(count, seed=1, **more):
    """Requests of unequal lengths."""
    r = random.Random(seed)
    return [{"id": i, "prompt": [r.randrange(300) for _ in range(r.choice((1, 2, 5, 17, 40)))], "seed": i,
             "max_tokens": r.choice((1, 2, 9, 20)), "ignore_eos": True, "n": r.choice((1, 1, 3)), "priority": r.randrange(3)} | more
            for i in range(count)]


class Order(unittest.TestCase):
    def test_answers_come_in_the_order_of_the_requests(self):
        requests = mixed(60)
        whole = ask(requests)
        self.assertEqual([a["id"] for a in whole], list(range(60)))
        for words in (("--max-batch-size", 1), ("--max-batch-size", 5, "--max-batch-tokens", 7), ("--prefix-cache", "off"),
                      ("--kv-cache-memory", "100K"), ("--prefill-stretch", 1)):
            self.assertEqual(ask(requests, *words), whole, words)
        alone = [ask([request])[0] for request in requests[:12]]
        self.assertEqual(alone, whole[:12])

    def test_prompts_that_begin_alike_are_computed_once(self):
        requests = [{"prompt": [*range(40), i], "max_tokens": 1, "seed": i} for i in range(50, 54)]

        def tokens_of_prompts(count, *words):
            done = subprocess.run([CAMBIUM, "generate", "--model", TINY, "--requests", "-", "--max-batch-size", "1", *words],
                                  input=as_lines(requests[:count]), capture_output=True, timeout=120)
            said = re.search(rb"^cambium: (\d+) tokens of prompts, (\d+) of them from the prefix cache$", done.stderr, re.MULTILINE)
            return tuple(map(int, said.groups()))
        once, twice, whole = (tokens_of_prompts(count) for count in (1, 2, 4))
        self.assertEqual((once, twice[0], whole[0]), ((41, 0), 82, 164))
        self.assertGreater(twice[1], 0)
        self.assertEqual(whole[1], 3 * twice[1])
        self.assertEqual(tokens_of_prompts(4, "--prefix-cache", "off"), (164, 0))

    def test_a_cache_that_is_too_small_is_told(self):
        (answer,) = ask([{"prompt": [1], "max_tokens": 60}], "--kv-cache-memory", "20K", expect=1)
        self.assertEqual(answer["field"], "max_tokens")
        self.assertRegex(answer["error"], r"^1 tokens and 60 to be written: the KV cache holds \d+$")
        _, errors = run("generate", "--model", TINY, "--requests", "-", "--kv-cache-memory", 1, expect=2)
        self.assertIn("a KV cache of 1 bytes: a page of", errors)

    def test_blank_lines_and_a_mark_are_no_requests(self):
        text = b'\xef\xbb\xbf{"prompt":[1],"max_tokens":1,"seed":1}\r\n\n  \n{"x":1}\n\r\n{"prompt":[1],"max_tokens":1,"seed":1}'
        output, _ = run("generate", "--model", TINY, "--requests", "-", input=text, expect=1)
        answers = rows(output)
        self.assertEqual((len(answers), answers[1]["line"], answers[0]["choices"]), (3, 4, answers[2]["choices"]))
        self.assertEqual(run("generate", "--model", TINY, "--requests", "-", input=b"")[0], b"")

    def test_each_answer_comes_as_soon_as_it_can(self):
        """Somebody may write a request, and wait for its answer before the next one."""
        with subprocess.Popen([CAMBIUM, "generate", "--model", TINY, "--requests", "-"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            for number in range(3):
                process.stdin.write(as_lines([{"id": number, "prompt": [1], "max_tokens": 3}]))
                process.stdin.flush()
                self.assertEqual(json.loads(process.stdout.readline())["id"], number)
            process.stdin.close()
            self.assertEqual((process.wait(), without_notices(process.stderr.read().decode())), (0, ""))

    def test_inputs_and_outputs_that_are_no_files(self):
        for words, part in ((("--requests", "/nowhere/x"), "cannot open /nowhere/x"), (("--requests", "/"), "/: Is a directory"),
                            (("--requests", "-", "--output", "/nowhere/x"), "cannot make /nowhere/x")):
            _, errors = run("generate", "--model", TINY, *words, expect=1)
            self.assertEqual(errors.count("\n"), 1, errors)
            self.assertIn(part, errors)
        with open("/dev/full", "wb") as full:
            done = subprocess.run([CAMBIUM, "generate", "--model", TINY, "--requests", "-"], input=as_lines(mixed(3)), stdout=full,
                                  stderr=subprocess.PIPE, timeout=120)
        self.assertEqual((done.returncode, without_notices(done.stderr.decode())),
                         (1, "cambium: error: cannot write to standard output: No space left on device\n"))

    def test_progress_is_for_terminals(self):
        with tempfile.TemporaryDirectory() as temporary:
            path = pathlib.Path(temporary, "in.jsonl")
            path.write_bytes(as_lines(mixed(20)))
            ours, its = pty.openpty()
            command = [CAMBIUM, "generate", "--model", TINY, "--requests", path, "--output", f"{temporary}/out.jsonl"]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=its) as process:
                os.close(its)
                shown = b""
                try:
                    while piece := os.read(ours, 4096):
                        shown += piece
                except OSError:  # the other side is closed
                    pass
                self.assertEqual(process.wait(), 0)
            os.close(ours)
            self.assertRegex(shown.decode(), r"generating 100% \[=+ ?\] 20 requests, [0-9.e+]+ tokens/s  0s left")
            _, errors = run("generate", "--model", TINY, "--requests", path)
            self.assertEqual(errors, "")


class GoingOn(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.root = pathlib.Path(temporary.name)
        cls.input, cls.output = cls.root / "in.jsonl", cls.root / "out.jsonl"

    def setUp(self):
        self.output.unlink(missing_ok=True)

    def generate(self, *words, expect=0, model=TINY):
        return run("generate", "--model", model, "--requests", self.input, "--output", self.output, *words, expect=expect)

    def test_an_output_is_gone_on_with_from_every_cut(self):
        requests = mixed(8) + [b"nonsense", {"prompt": [1], "seed": 3, "max_tokens": 3}, {"prompt": [1], "id": "x", "nonsense": 1}]
        self.input.write_bytes(as_lines(requests) + b"\n\n")
        _, errors = self.generate(expect=1)
        self.assertIn("2 of 11 requests were refused", errors)
        whole = self.output.read_bytes()
        ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
        cuts = {0, 1, 50, ends[0] - 1, ends[0], ends[0] + 1, ends[4] - 1, ends[7], ends[8] - 1, ends[8], ends[9], len(whole) - 1, len(whole)}
        for cut in sorted(cuts):
            self.output.write_bytes(whole[:cut])
            _, errors = self.generate("--resume", expect=1)  # the refused ones still count, whoever wrote them
            self.assertIn("2 of 11 requests were refused", errors)
            self.assertEqual(self.output.read_bytes(), whole, cut)
            kept = max([end for end in [0, *ends] if end <= cut])
            self.assertEqual(self.output.read_bytes()[:kept], whole[:kept])
        self.output.unlink()
        self.generate("--resume", expect=1)
        self.assertEqual(self.output.read_bytes(), whole)

    def test_an_output_is_never_written_over(self):
        self.input.write_bytes(as_lines(mixed(3)))
        self.generate()
        before = self.output.read_bytes()
        _, errors = self.generate(expect=2)
        self.assertEqual(errors, f"cambium: error: --output {self.output} exists: continue it with --resume, or name another\n")
        self.assertEqual(self.output.read_bytes(), before)

    def test_what_is_no_output_of_the_input_is_refused_and_stays(self):
        requests = mixed(3)
        self.input.write_bytes(as_lines(requests))
        self.generate()
        good = self.output.read_bytes().splitlines(keepends=True)
        for lines, part in (([good[0], good[2]], "out.jsonl:2: not the answer to"), ([*good, good[2]], "out.jsonl:4: there are more answers"),
                            ([good[0], b"nonsense\n"], "out.jsonl:2: not the line of an answer"), ([b"\n"], "out.jsonl:1: not the line"),
                            ([*as_lines(requests).splitlines(keepends=True)[:2]], "out.jsonl:1: not the answer to"),
                            ([b'{"id":0,"line":2,"field":null,"error":"a"}\n'], "out.jsonl:1: not the answer to"),
                            ([good[0].replace(b'"id":0', b'"id":"0"', 1)], "out.jsonl:1: not the answer to")):
            self.output.write_bytes(b"".join(lines))
            _, errors = self.generate("--resume", expect=1)
            self.assertEqual(errors.count("\n"), 1)
            self.assertIn(part, errors)
            self.assertEqual(self.output.read_bytes(), b"".join(lines))

    def long_run(self):
        """Requests that take a while: (the answers of an undisturbed run)."""
        self.input.write_bytes(as_lines([{"id": i, "prompt": [i % 60] * 20, "seed": i, "max_tokens": 200, "ignore_eos": True}
                                         for i in range(200)]))
        model = self.root / "model"
        if not model.exists():
            write_byte_model(model, n_layer=2, n_head=2, n_embd=32, n_positions=256)
            self.generate("--max-batch-size", 8, model=model)
            type(self).expected = self.output.read_bytes()
            self.output.unlink()
        return model

    def start(self, model, *launcher, words=(), size=5000):
        """A run that has written this number of bytes more."""
        process = subprocess.Popen([*launcher, CAMBIUM, "generate", "--model", model, "--requests", self.input, "--output", self.output,
                                    "--max-batch-size", "8", "--resume", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        before = self.output.stat().st_size if self.output.exists() else 0
        end = time.monotonic() + 60
        while not (self.output.exists() and self.output.stat().st_size > before + size) and process.poll() is None:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)
        return process

    def check_end(self, model):
        self.generate("--resume", model=model)
        self.assertEqual(self.output.read_bytes(), self.expected)

    def test_a_run_that_was_killed_goes_on(self):
        model = self.long_run()
        killed = 0
        for _ in range(4):
            with self.start(model) as process:
                process.kill()
                process.wait()
                killed += process.returncode == -signal.SIGKILL
        self.assertGreater(killed, 1)
        self.check_end(model)

    def test_a_resumed_run_writes_the_bytes_of_an_uninterrupted_one(self):
        """Adapters that go and come back, seeds that no line has, errors, and kills at random places."""
        names = ["lora", "ia3", "prompt", "prefix", "adapter_par_bn", "rslora"]
        r = random.Random(8)
        requests = [{"id": i, "prompt": [r.randrange(40) for _ in range(r.choice((2, 9)))], "max_tokens": r.choice((3, 12)), "n": r.choice((1, 3)),
                     "logprobs": 1, "adapters": r.sample(names, 1 + i % 5 // 4)} for i in range(200)]
        requests[60::50] = [{"id": "x", "prompt": [1], "nothing": i} for i in range(len(requests[60::50]))]
        self.input.write_bytes(as_lines(requests))
        words = ("--adapter-root", ADAPTERS, "--adapter-memory", "128K", "--max-batch-size", 8)
        self.generate(*words, model=BASE, expect=1)
        whole = self.output.read_bytes()
        for adapter in json.loads(whole.splitlines()[4])["adapters"]:
            self.assertRegex(adapter["digest"], "^[0-9a-f]{64}$")
        self.output.unlink()
        kept = []
        for _ in range(3):
            wanted = r.randrange(len(whole) // 4)
            with self.start(BASE, words=map(str, words), size=wanted) as process:
                process.kill()
            kept.append(self.output.stat().st_size)
        self.generate(*words, "--resume", model=BASE, expect=1)
        self.assertEqual(self.output.read_bytes(), whole)
        self.assertTrue(any(0 < size < len(whole) for size in kept), kept)

    def test_the_seed_of_a_run_gives_lines_theirs(self):
        self.input.write_bytes(as_lines([{"prompt": [1, 2], "max_tokens": 9}, {"prompt": [1, 2], "max_tokens": 9}, {"prompt": [1], "seed": 5, "max_tokens": 2}]))
        answers = {}
        for words in ((), ("--seed", 0), ("--seed", 7)):
            answers[words] = rows(run("generate", "--model", TINY, "--requests", self.input, *words)[0])
        self.assertEqual(answers[()], answers["--seed", 0])
        seeds = [a["seed"] for found in (answers[()], answers["--seed", 7]) for a in found]
        self.assertEqual((len(set(seeds)), seeds[2], seeds[5]), (5, 5, 5))
        self.assertEqual(answers[()][2], answers["--seed", 7][2])

    def test_an_interrupted_run_leaves_whole_lines(self):
        model = self.long_run()
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.start(model) as process:
                process.send_signal(number)
                errors = without_notices(process.stderr.read().decode())
            count = len(rows(self.output.read_bytes()))
            self.assertEqual(self.output.read_bytes()[-1:], b"\n")
            self.assertEqual((process.returncode, errors), (
                1, f"cambium: error: interrupted by {number.name} after {count} answers: --resume answers the rest\n"))
        self.check_end(model)

    def test_an_interruption_ends_a_wait_for_requests(self):
        with subprocess.Popen([CAMBIUM, "generate", "--model", TINY, "--requests", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            process.stdin.write(as_lines(mixed(1)))
            process.stdin.flush()
            process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(without_notices(process.stderr.read().decode()), "cambium: error: interrupted by SIGTERM after 1 answers\n")

    def test_two_runs_do_not_share_an_output(self):
        model = self.long_run()
        with self.start(model) as process:
            _, errors = self.generate("--resume", model=model, expect=1)
            self.assertIn("out.jsonl", errors)
            process.kill()


class Ranks(unittest.TestCase):
    def assert_alike(self, ours, expected):
        """Everything but the last digits of log-probabilities."""
        def close(a, b):
            if isinstance(a, float) and isinstance(b, float):
                return abs(a - b) <= 2e-5 * max(1, abs(b))
            if isinstance(a, list) and isinstance(b, list):
                return len(a) == len(b) and all(map(close, a, b))
            if isinstance(a, dict) and isinstance(b, dict):
                return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
            return a == b
        for a, b in zip(ours, expected, strict=True):
            self.assertTrue(close(a, b), f"{a}\n{b}")

    def test_answers_are_those_of_one_rank(self):
        requests = mixed(10, logprobs=2, prompt_logprobs=1) + [b"nonsense", {"prompt": "The cat", "seed": 1, "max_tokens": 9}]
        expected = ask(requests, expect=1)
        for cut in ((2, 2), (4, 4), (2, 1, 2), (4, 2, 2)):
            self.assert_alike(ask(requests, *layout(*cut), expect=1), expected)

    def test_adapters_are_those_of_one_rank(self):
        names = ("lora", "ia3", "prompt", "prefix", "adapter_par_bn")
        requests = [{"prompt": [3, i], "adapters": [name], "seed": i, "max_tokens": 6, "logprobs": 1} for i, name in enumerate(names)]
        words = ("--adapter-root", ADAPTERS)
        expected = ask(requests, *words, model=BASE)
        for cut in ((2, 2), (2, 1, 2, "--parallel.decoder_first_pipeline_num_layers", 1)):
            self.assert_alike(ask(requests, *words, *layout(*cut[:3]), *cut[3:], model=BASE), expected)

    @unittest.skipUnless(HAS_MPIRUN, "there is no mpirun, or a sanitizer that would report its leaks")
    def test_processes_answer_like_one(self):
        requests = mixed(5, logprobs=0) + [b"nonsense"]
        expected = ask(requests, expect=1)
        for name in ("tensor", "pipeline"):
            output, errors = launched(2, "generate", "--model", TINY, "--requests", "-", f"--parallel.{name}_model_parallel_size", 2,
                                      input=as_lines(requests), expect=1)
            self.assert_alike(rows(output), expected)
            self.assertEqual(errors.count("cambium: error: 1 of 6 requests were refused"), 1)


if __name__ == "__main__":
    unittest.main()
