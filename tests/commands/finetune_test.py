"""finetune: every method learns, in every layout alike, on a base that stays as it is; what cannot be is refused."""
import array
import hashlib
import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

import model_support as support
from model_support import run

LONG = os.environ.get("CAMBIUM_TEST_LONG", "0") not in ("", "0")
METHODS = ("lora", "ia3", "adapter", "prompt", "ptuning", "prefix")
P = "--parallel."
LAYOUTS = [
    ["--ranks", "2", P + "tensor_model_parallel_size=2"],
    ["--ranks", "2", P + "pipeline_model_parallel_size=2"],
    ["--ranks", "8", P + "tensor_model_parallel_size=2", P + "sequence_parallel=true", P + "pipeline_model_parallel_size=2",
     P + "virtual_pipeline_model_parallel_size=2", P + "use_distributed_optimizer=true"],
    ["--ranks", "4", P + "tensor_model_parallel_size=4"],
    ["--ranks", "2", P + "tensor_model_parallel_size=2", P + "sequence_parallel=true"],
    ["--ranks", "4", P + "pipeline_model_parallel_size=4"],
    ["--ranks", "2", P + "pipeline_model_parallel_size=2", P + "virtual_pipeline_model_parallel_size=2"],
    ["--ranks", "2"],
    ["--ranks", "4", P + "use_distributed_optimizer=true"],
    ["--ranks", "4", P + "tensor_model_parallel_size=2", P + "pipeline_model_parallel_size=2"],
    [P + "recompute_granularity=full"],
    [P + "recompute_granularity=selective", P + "recompute_modules=layernorm,mlp_act"],
]


def hash_tree(directory):
    return {str(p.relative_to(directory)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(directory.rglob("*")) if p.is_file()}


def values(path):
    """Tensors of fp32 as arrays."""
    return {name: array.array("f", content) for name, (_, _, content) in support.read_safetensors(path).items()}


class Finetune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.root = pathlib.Path(cls.temporary.name)
        cls.base = cls.root / "base"
        cls.base.mkdir()
        config = support.gpt2_config(n_layer=4, n_head=4, n_embd=32, n_positions=48, vocab_size=257, resid_pdrop=0.1,
                                     embd_pdrop=0.1, attn_pdrop=0.1)
        r = random.Random(3)
        tensors = {}
        for name, shape in support.gpt2_shapes(config).items():
            count = support.count(shape)
            is_gain = "ln_" in name and name.endswith("weight")
            tensors[name] = ("F32", shape, support.floats([1.0] * count if is_gain else
                                                          [r.gauss(0, 0.1) for _ in range(count)]))
        (cls.base / "config.json").write_text(json.dumps(config))
        support.write_safetensors(cls.base / "model.safetensors", tensors)
        support.write_byte_tokenizer(cls.base)
        cls.data = cls.root / "rows.jsonl"
        with open(cls.data, "w") as f:
            for i in range(60):
                n = r.randrange(1, 9)
                f.write(json.dumps({"prompt": f"to {n}:", "completion": " " + " ".join(map(str, range(n)))}) + "\n")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def tune(self, name, method, *words, expect=0):
        metrics = self.root / f"{name}.jsonl"
        done = run("finetune", "--model", self.base, "--peft", method, "--data", self.data, "--output", self.root / name,
                   f"--log.metrics_file={metrics}", "--optim.lr=1e-3", "--optim.adam_eps=1e-5", "--train.train_iters=8",
                   "--train.global_batch_size=8", "--peft.num_virtual_tokens=4", "--peft.bottleneck=8", *words, expect=expect)
        losses = [json.loads(line)["lm_loss"] for line in metrics.read_text().splitlines()] if not expect else None
        return done, losses

    def check_method(self, method):
        before = hash_tree(self.base)
        _, whole = self.tune(method, method)
        self.assertEqual(len(whole), 8)
        self.assertEqual(before, hash_tree(self.base))
        file = "adapter.safetensors" if method == "adapter" else "adapter_model.safetensors"
        expected = values(self.root / method / file)
        for i, layout in enumerate(LAYOUTS if LONG else LAYOUTS[:3]):
            name = f"{method}-{i}"
            with self.subTest(layout=layout):
                _, losses = self.tune(name, method, *layout)
                for a, b in zip(whole, losses, strict=True):
                    self.assertLess(abs(a - b), 1e-5 * a)
                found = values(self.root / name / file)
                self.assertEqual(expected.keys(), found.keys())
                for tensor, numbers in expected.items():
                    largest = max(map(abs, numbers))
                    off = max(abs(x - y) for x, y in zip(numbers, found[tensor], strict=True))
                    self.assertLessEqual(off, 1e-4 * largest, tensor)

    def test_epochs_are_as_many_iterations_as_the_rows_make(self):
        metrics = self.root / "epochs.jsonl"
        run("finetune", "--model", self.base, "--peft", "ia3", "--data", self.data, "--output", self.root / "epochs",
            f"--log.metrics_file={metrics}", "--optim.lr=1e-3", "--train.global_batch_size=8", "--tuning.epochs=2")
        self.assertEqual(len(metrics.read_text().splitlines()), 15)  # 120 rows

    def refuse(self, *parts, method="lora", words=(), rows=None):
        if rows is not None:
            (self.root / "bad.jsonl").write_text(rows)
            words = [*words, "--data", self.root / "bad.jsonl"]
        done = subprocess.run([support.CAMBIUM, "finetune", "--model", self.base, "--peft", method, "--data", self.data,
                               "--output", self.root / "refused", "--optim.lr=1e-3", "--train.train_iters=2",
                               *map(str, words)], capture_output=True, text=True, timeout=120)
        lines = [line for line in done.stderr.splitlines() if "error: " in line]
        self.assertIn(done.returncode, (1, 2), done.stderr)
        self.assertEqual(len(lines), 1, done.stderr)
        for part in parts:
            self.assertIn(part, lines[0])
        self.assertFalse((self.root / "refused").exists())

    def test_what_cannot_be_is_refused_in_one_line_and_writes_nothing(self):
        self.refuse("lora, ia3, adapter, prompt, ptuning or prefix", method="loran")
        self.refuse("peft.r", words=["--peft.r=0"])
        self.refuse("peft.target_modules q_proj", "attn.c_attn", words=["--peft.target_modules=q_proj"])
        self.refuse("peft.layers_to_transform", words=["--peft.layers_to_transform=9"])
        self.refuse("nowhere", words=["--model", self.root / "nowhere"])
        self.refuse("is not given", words=["--output="])
        self.refuse("nowhere.jsonl", words=["--data", self.root / "nowhere.jsonl"])
        for rows, *parts in (("{", "bad.jsonl: line 1:"), ('{"prompt": "a", "completion": "b"}\n[]\n', "bad.jsonl: line 2:"),
                             ('{"prompt": "a"}\n', "bad.jsonl: line 1:"), ('{"question": "a"}\n', "bad.jsonl: line 1:")):
            self.refuse(*parts, rows=rows)


def promise(method):
    return lambda self: self.check_method(method)


for method in METHODS:
    setattr(Finetune, f"test_{method}_trains_alike_in_every_layout", promise(method))


if __name__ == "__main__":
    unittest.main()
