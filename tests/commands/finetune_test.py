"""finetune: every method learns, in every layout alike, on a base that stays as it is; what cannot be is refused."""
import json
import os
import unittest

from finetune_support import METHODS, P, Tuning, hash_tree, values
from model_support import run

LONG = os.environ.get("CAMBIUM_TEST_LONG", "0") not in ("", "0")
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


class Finetune(Tuning):
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

    def refuse_rows(self, *parts, rows):
        (self.root / "bad.jsonl").write_text(rows)
        self.refuse(*parts, words=["--peft", "lora", "--data", self.root / "bad.jsonl"])

    def test_what_cannot_be_is_refused_in_one_line_and_writes_nothing(self):
        self.refuse("lora, ia3, adapter, prompt, ptuning or prefix", words=["--peft", "loran"])
        self.refuse("peft.r", words=["--peft.r=0"])
        self.refuse("peft.target_modules q_proj", "attn.c_attn", words=["--peft.target_modules=q_proj"])
        self.refuse("peft.layers_to_transform", words=["--peft.layers_to_transform=9"])
        self.refuse("nowhere", words=["--model", self.root / "nowhere"])
        self.refuse("is not given", words=["--output="])
        self.refuse("nowhere.jsonl", words=["--data", self.root / "nowhere.jsonl"])
        for rows, *parts in (("{", "bad.jsonl:1:"), ('{"prompt": "a", "completion": "b"}\n[]\n', "bad.jsonl:2:"),
                             ('{"prompt": "a"}\n', "bad.jsonl:1:"), ('{"question": "a"}\n', "bad.jsonl:1:")):
            self.refuse_rows(*parts, rows=rows)


def promise(method):
    return lambda self: self.check_method(method)


for method in METHODS:
    setattr(Finetune, f"test_{method}_trains_alike_in_every_layout", promise(method))


if __name__ == "__main__":
    unittest.main()
