"""The peers of bench: stand-ins for the libraries and the Python that a user would have. They are written here, so that
the interface is tested where none of these is installed."""
import json
import os
import pathlib
import statistics
import sys
import tempfile
import unittest

from model_support import PRECISIONS, TINY, gpt2_config, rows, run, write_model

TIKTOKEN = '''
__version__ = "1.2"
class Encoding:
    def __init__(self, name, pat_str, mergeable_ranks, special_tokens):
        assert all(bytes([b]) in mergeable_ranks for b in range(256)) and len(mergeable_ranks) > 256
    def encode_ordinary(self, text):
        return list(text.split())
'''
TOKENIZERS = '''
import pathlib
__version__ = "3.4"
class Encoded:
    def __init__(self, ids):
        self.ids = ids
class Tokenizer:
    def __init__(self, model=None):
        self.entries = 0
    @staticmethod
    def from_file(path):
        assert pathlib.Path(path).exists()
        return Tokenizer()
    def encode(self, text, add_special_tokens):
        return Encoded(list(text))
    def train(self, files, trainer):
        assert pathlib.Path(files[0]).exists()
        self.entries = trainer["vocab_size"]
    def get_vocab_size(self):
        return self.entries
class models:
    BPE = dict
class trainers:
    BpeTrainer = dict
class pre_tokenizers:
    class ByteLevel:
        def __init__(self, add_prefix_space):
            pass
        @staticmethod
        def alphabet():
            return []
'''
# Reads what it is told to measure, and says that each step takes longer than the one before. It would not end by itself.
TRANSFORMERS = f'''#!{sys.executable}
import json, os, pathlib, sys, time
assert sys.argv[1] == "-c" and "get_peft_model" in sys.argv[2]
o = json.loads(sys.argv[3])
base = json.loads(pathlib.Path(o["directory"], "config.json").read_text())
file = pathlib.Path(o["directory"], "peer/adapter_config.json")
adapter = json.loads(file.read_text()) if file.exists() else None
words = []
print(json.dumps({{"torch": "0", "process": os.getpid(), "told": o, "width": base["n_embd"], "adapter": adapter}}), flush=True)
for number, line in enumerate(sys.stdin):
    words.append(line.strip())
    memory = words[-1] == "memory"
    print(json.dumps({{"peak_rss_bytes": (1 << 30) + len(words)}} if memory else {{"seconds": 0.5 + number}}), flush=True)
time.sleep(60)
'''


class Peers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(temporary.cleanup)
        cls.root = pathlib.Path(temporary.name)
        (cls.root / "text.txt").write_text("the cat sat on the mat, 12 times\n" * 500)
        write_model(cls.root / "model", gpt2_config(n_layer=1, n_embd=32, n_head=4, vocab_size=300, n_positions=64))

    def script(self, name, text):
        path = self.root / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def tokenizer(self, python, modules=(), steps=3):
        libraries = self.root / "-".join(["modules", *(name for name, _ in modules)])
        libraries.mkdir(exist_ok=True)
        for name in ("tiktoken", "tokenizers"):  # those of this machine are not meant
            (libraries / f"{name}.py").write_text(dict(modules).get(name, "raise ImportError"))
        output, _ = run("bench", "tokenizer", "--tokenizer", TINY, "--input", self.root / "text.txt", "--steps", steps,
                        "--peer-python", python, env=dict(os.environ, PYTHONPATH=str(libraries)))
        *lines, summary = rows(output)
        self.assertEqual(len(lines), steps)
        train = summary["train"]
        self.assertEqual(train["seconds"], statistics.median(line["train_seconds"] for line in lines))
        self.assertGreater(train["vocab_size"], 256)
        return lines, summary

    def test_tokenizers_that_are_installed_are_measured_in_turn(self):
        lines, summary = self.tokenizer(sys.executable, (("tiktoken", TIKTOKEN), ("tokenizers", TOKENIZERS)))
        text = (self.root / "text.txt").read_text()
        for name, version, tokens in (("tiktoken", "1.2", len(text.split())), ("tokenizers", "3.4", len(text))):
            peer = summary[name]
            self.assertEqual((peer["version"], peer["tokens"]), (version, tokens))
            self.assertEqual(peer["seconds"], statistics.median(line[f"{name}_seconds"] for line in lines))
            self.assertAlmostEqual(peer["our_speed_over_it"] * summary["seconds"] / peer["seconds"], 1, delta=1e-4)
            self.assertAlmostEqual(peer["bytes_per_s"] * peer["seconds"] / len(text), 1, delta=1e-4)
        train = summary["train"]
        self.assertEqual(train["tokenizers_seconds"], statistics.median(line["tokenizers_train_seconds"] for line in lines))
        self.assertAlmostEqual(train["our_speed_over_tokenizers"] * train["seconds"] / train["tokenizers_seconds"], 1, delta=1e-4)

    def test_tokenizers_that_are_not_are_null(self):
        lines, summary = self.tokenizer(sys.executable, (("tiktoken", TIKTOKEN),))
        self.assertIsNotNone(summary["tiktoken"])
        for python in (sys.executable, self.root / "no-python", self.script("ends", "#!/bin/sh\nexit 3\n")):
            lines, summary = self.tokenizer(python)
            self.assertEqual((summary["tiktoken"], summary["tokenizers"]), (None, None))
            self.assertEqual((summary["train"]["tokenizers_seconds"], summary["train"]["our_speed_over_tokenizers"]), (None, None))
            self.assertEqual(set(lines[0]), {"step", "seconds", "train_seconds"})

    def beside(self, what, python, *words, expect=0):
        scratch = self.root / "scratch"
        scratch.mkdir(exist_ok=True)
        output, errors = run("bench", what, "--model", self.root / "model", "--steps", 3, "--peer", "--peer-python", python, *words,
                             expect=expect, env=dict(os.environ, TMPDIR=str(scratch)))
        self.assertEqual(list(scratch.iterdir()), [])
        return rows(output) if expect == 0 else errors

    def finetune(self, python, *words, expect=0):
        return self.beside("finetune", python, "--seq-length", 32, "--baseline=false", *words, expect=expect)

    def test_peft_takes_steps_in_turn(self):
        python = self.script("python", TRANSFORMERS)
        *lines, summary = self.finetune(python, "--peft.r=3", "--global-batch-size", 4, "--micro-batch-size", 2)
        self.assertEqual([line["peer_seconds"] for line in lines], [2.5, 3.5, 4.5])  # after two that warm up
        peer = summary["peer"]
        self.assertRaises(ProcessLookupError, os.kill, peer["process"], 0)  # it does not outlive the program
        self.assertGreaterEqual(peer["told"]["threads"], 1)
        self.assertEqual((peer["seconds"], peer["peak_rss_bytes"], peer["width"]), (3.5, (1 << 30) + 6, 32))
        self.assertAlmostEqual(summary["our_speed_over_peer"] * summary["seconds"] / 3.5, 1, delta=1e-4)
        self.assertEqual({key: peer["told"][key] for key in ("precision", "micro_batch_size", "micro_batches", "tokens", "has_dropout")},
                         {"precision": "fp32", "micro_batch_size": 2, "micro_batches": 2, "tokens": 32, "has_dropout": True})
        self.assertIsNone(peer["told"]["device"])  # none was named: the CPU
        self.assertEqual((peer["adapter"]["peft_type"], peer["adapter"]["r"]), ("LORA", 3))
        *lines, summary = self.finetune(python, "--method", "prefix", "--peft.num_virtual_tokens=5", "--peft.prefix_projection")
        self.assertEqual((summary["peer"]["told"]["tokens"], summary["peer"]["told"]["encoder"]), (27, {"prefix_projection": True}))

    def test_training_prefill_and_decoding_have_steps_in_turn(self):
        python = self.script("python", TRANSFORMERS)
        for what, work, words, seconds in (("train", "train", ["--seq-length", 32, "--global-batch-size", 4, "--micro-batch-size", 2], [2.5, 3.5, 4.5]),
                                           ("prefill", "infer", ["--seq-length", 16, "--precision", PRECISIONS[-1]], [2.5, 3.5, 4.5])):
            *lines, summary = self.beside(what, python, *words)
            self.assertEqual([line["peer_seconds"] for line in lines], seconds)
            self.assertEqual((summary["peer"]["told"]["work"], summary["peer"]["told"]["tokens"], summary["peer"]["adapter"]), (work, words[1], None))
            self.assertAlmostEqual(summary["our_speed_over_peer"] * summary["seconds"] / 3.5, 1, delta=1e-4)
            self.assertRaises(ProcessLookupError, os.kill, summary["peer"]["process"], 0)
        *_, summary = self.beside("decode", python, "--micro-batch-size", 2, "--device", "cpu")
        self.assertEqual(summary["peer"]["told"]["device"], "cpu")
        self.assertEqual((summary["peer"]["told"]["micro_batch_size"], summary["peer"]["seconds"]), (2, 2.0))  # 1.5 before ours, 2.5 after
        self.assertAlmostEqual(summary["our_speed_over_peer"] * summary["seconds"] / 2.0, 1, delta=1e-4)

    def test_an_answer_that_lacks_its_number_ends_the_bench(self):
        python = self.script("forgets", TRANSFORMERS.replace("peak_rss_bytes", "bytes"))
        self.assertIn('an answer without "peak_rss_bytes"', self.finetune(python, expect=1))

    def test_what_has_no_peer_says_so(self):
        for what in ("gemm", "ops", "checkpoint", "load", "engine"):
            self.assertIn(f"--peer: bench {what} has no peer", self.beside(what, "python3", expect=2))

    def test_peft_that_cannot_run_is_one_line(self):
        lacks = self.script("lacks", "#!/bin/sh\necho '{\"error\": \"torch is not installed\"}'\n")
        for python, words, status, part in ((self.root / "no-python", [], 1, "no-python"), (lacks, [], 1, "torch is not installed"),
                                            (self.script("ends", "#!/bin/sh\nexit 3\n"), [], 1, "ended without an answer"),
                                            (lacks, ["--method", "adapter"], 2, "no bottleneck adapters")):
            errors = self.finetune(python, *words, expect=status)
            self.assertEqual(errors.count("\n"), 1, errors)
            self.assertIn("--peer: ", errors)
            self.assertIn(part, errors)


if __name__ == "__main__":
    unittest.main()
