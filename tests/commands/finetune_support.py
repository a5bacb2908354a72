"""A small random base, rows to tune it on, and finetune on both: what the tests of finetune share."""
import array
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import tempfile
import unittest

import model_support as support
from model_support import run

METHODS = ("lora", "ia3", "adapter", "prompt", "ptuning", "prefix")
P = "--parallel."
LONG = os.environ.get("CAMBIUM_TEST_LONG", "0") not in ("", "0")


def keys_of(method, keys):
    """The words in `keys`, a dictionary of methods, for the methods (names with spaces) that train."""
    return [word for name in method.split() for word in keys.get(name, [])]


KEYS = {"adapter": ["--peft.bottleneck=8"]} | {name: ["--peft.num_virtual_tokens=4"] for name in ("prompt", "ptuning", "prefix")}


def hash_tree(directory, pattern="**/*"):
    """Hashes all files, but not the time in a receipt."""
    return {str(p.relative_to(directory)): hashlib.sha256(re.sub(rb'"created": "[^"]*"', b"", p.read_bytes())
                                                          if p.name == "cambium_receipt.json" else p.read_bytes()).hexdigest()
            for p in sorted(directory.glob(pattern)) if p.is_file()}


def values(path):
    """Tensors of fp32 as arrays."""
    return {name: array.array("f", content) for name, (_, _, content) in support.read_safetensors(path).items()}


def adapters(directory):
    """The tensors of all adapters of a run, those of a stack too."""
    names = ("adapter.safetensors", "adapter_model.safetensors")
    return {f"{file.relative_to(directory)}: {name}": numbers for file in sorted(directory.rglob("*.safetensors")) if file.name in names
            for name, numbers in values(file).items()}


class Tuning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.root = pathlib.Path(cls.temporary.name)
        cls.base = cls.root / "base"
        cls.write_base()
        cls.data, r = cls.root / "rows.jsonl", random.Random(3)
        with open(cls.data, "w") as f:
            for i in range(60):
                n = r.randrange(1, 9)
                f.write(json.dumps({"prompt": f"to {n}:", "completion": " " + " ".join(map(str, range(n)))}) + "\n")

    @classmethod
    def write_base(cls):
        support.write_byte_model(cls.base, n_layer=4, n_head=4, n_embd=32, n_positions=48, resid_pdrop=0.1, embd_pdrop=0.1,
                                 attn_pdrop=0.1)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def tune(self, name, method, *words, expect=0):
        metrics = self.root / f"{name}.jsonl"
        done = run("finetune", "--model", self.base, "--peft", *method.split(), "--data", self.data, "--output", self.root / name,
                   f"--log.metrics_file={metrics}", "--optim.lr=1e-3", "--train.train_iters=8",
                   "--train.global_batch_size=8", *keys_of(method, KEYS), *words, expect=expect)
        losses = [line["lm_loss"] for line in self.lines(name) if "lm_loss" in line] if not expect else None
        return done, losses

    def check_layouts(self, name, method, layouts, *words):
        """Losses, norms of gradients and what is written are those of one rank; the base stays as it is."""
        before = hash_tree(self.base)
        self.tune(name, method, *words)
        self.assertEqual(before, hash_tree(self.base))
        whole = [line for line in self.lines(name) if "lm_loss" in line]
        self.assertEqual(len(whole), 8)
        expected = adapters(self.root / name)
        self.assertTrue(expected)
        for i, layout in enumerate(layouts):
            with self.subTest(layout=layout):
                self.tune(f"{name}-{i}", method, *words, *layout)
                lines = [line for line in self.lines(f"{name}-{i}") if "lm_loss" in line]
                for a, b in zip(whole, lines, strict=True):
                    self.assertLess(abs(a["lm_loss"] - b["lm_loss"]), 1e-5 * a["lm_loss"])
                    self.assertLess(abs(a["grad_norm"] - b["grad_norm"]), 1e-3 * a["grad_norm"])
                found = adapters(self.root / f"{name}-{i}")
                self.assertEqual(expected.keys(), found.keys())
                for tensor, numbers in expected.items():
                    largest = max(map(abs, numbers))
                    off = max(abs(x - y) for x, y in zip(numbers, found[tensor], strict=True))
                    self.assertLessEqual(off, 1e-4 * largest, tensor)

    def lines(self, name):
        """The metrics of a run, without their durations."""
        lines = [json.loads(line) for line in (self.root / f"{name}.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key not in ("seconds", "tokens_per_s", "model_tflops")}
                for line in lines]

    def refuse(self, *parts, words):
        done = subprocess.run([support.CAMBIUM, "finetune", "--model", self.base, "--data", self.data, "--output",
                               self.root / "refused", "--optim.lr=1e-3", "--train.train_iters=2", *map(str, words)],
                              capture_output=True, text=True, timeout=120)
        lines = [line for line in done.stderr.splitlines() if "error: " in line]
        self.assertIn(done.returncode, (1, 2), done.stderr)
        self.assertEqual(len(lines), 1, done.stderr)
        for part in parts:
            self.assertIn(part, lines[0])
        self.assertFalse((self.root / "refused").exists())
