"""finetune: every method learns, in every layout alike, on a base that stays as it is; what cannot be is refused."""
import json
import unittest

from finetune_support import LONG, METHODS, P, Tuning, hash_tree
from model_support import run

SHARDED = ["--ranks", "4", P + "data_parallel_sharding_strategy=optim_grads_params"]
LAYOUTS = [
    ["--ranks", "2", P + "tensor_model_parallel_size=2"],
    ["--ranks", "2", P + "pipeline_model_parallel_size=2", P + "virtual_pipeline_model_parallel_size=3",  # ends without layers
     P + "account_for_embedding_in_pipeline_split=true", P + "account_for_loss_in_pipeline_split=true"],
    ["--ranks", "8", P + "tensor_model_parallel_size=2", P + "sequence_parallel=true", P + "pipeline_model_parallel_size=2",
     P + "virtual_pipeline_model_parallel_size=2", P + "data_parallel_sharding_strategy=optim_grads_params"],
    ["--ranks", "4", P + "tensor_model_parallel_size=4"],
    ["--ranks", "2", P + "pipeline_model_parallel_size=2"],
    ["--ranks", "2", P + "tensor_model_parallel_size=2", P + "sequence_parallel=true"],
    ["--ranks", "4", P + "pipeline_model_parallel_size=4"],
    ["--ranks", "2", P + "pipeline_model_parallel_size=2", P + "virtual_pipeline_model_parallel_size=2"],
    ["--ranks", "2"],
    ["--ranks", "4", P + "use_distributed_optimizer=true"],
    SHARDED,
    ["--ranks", "4", P + "tensor_model_parallel_size=2", P + "pipeline_model_parallel_size=2"],
    [P + "recompute_granularity=full"],
    [P + "recompute_granularity=selective", P + "recompute_modules=layernorm,mlp_act"],
]


class Finetune(Tuning):
    def test_epochs_are_as_many_iterations_as_the_rows_make(self):
        metrics = self.root / "epochs.jsonl"
        run("finetune", "--model", self.base, "--peft", "ia3", "--data", self.data, "--output", self.root / "epochs",
            f"--log.metrics_file={metrics}", "--optim.lr=1e-3", "--train.global_batch_size=8", "--tuning.epochs=2")
        self.assertEqual(len(metrics.read_text().splitlines()), 15)  # 120 rows

    def test_epochs_that_are_resumed_are_those_that_were_begun(self):
        words = ("finetune", "--model", self.base, "--peft", "ia3", "--data", self.data, "--output", self.root / "begun", "--optim.lr=1e-3",
                 "--train.global_batch_size=8", "--tuning.epochs=2", "--checkpoint.save_interval=5")
        resumed = (*words, f"--checkpoint.load={self.root / 'begun'}")
        run(*words, "--train.exit_interval=5")
        _, errors = run(*resumed)
        self.assertNotIn("warning", errors)
        self.assertIn("iteration 15/15", errors)
        _, errors = run(*resumed, "--tuning.epochs=3")
        self.assertIn("train.train_iters was '15' and is '23'", errors)
        self.assertEqual(errors.count("warning"), 1, errors)
        # Another run does not begin there.
        before = hash_tree(self.root / "begun")
        for more in ((), ("--tuning.epochs=1",), ("--checkpoint.save_interval=4",)):
            _, errors = run(*words, *more, expect=2)
            self.assertTrue(errors.endswith(f"cambium: error: {self.root / 'begun'}/iter_0000023 is already there, of another run: "
                                            "resume from it (checkpoint.load), or name another directory\n"), errors)
            self.assertEqual(errors.count("error"), 1)
        self.assertEqual(hash_tree(self.root / "begun"), before)

    def test_a_stack_trains_alike_on_a_sharded_base(self):
        self.check_layouts("stack", "lora ia3 prompt", [SHARDED])

    def refuse_rows(self, *parts, rows):
        (self.root / "bad.jsonl").write_text(rows)
        self.refuse(*parts, words=["--peft", "lora", "--data", self.root / "bad.jsonl"])

    def test_what_cannot_be_is_refused_in_one_line_and_writes_nothing(self):
        self.refuse("lora, ia3, adapter, prompt, ptuning, prefix or full", words=["--peft", "loran"])
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
    return lambda self: self.check_layouts(method, method, LAYOUTS if LONG else LAYOUTS[:3])


for method in METHODS:
    setattr(Finetune, f"test_{method}_trains_alike_in_every_layout", promise(method))


if __name__ == "__main__":
    unittest.main()
