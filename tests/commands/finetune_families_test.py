"""finetune on a Llama. Every method trains alike in every layout, also on tensor ranks that hold the same keys and
values. The results are scored, merged and trained further."""
import json
import unittest

from finetune_support import LONG, METHODS, P, Tuning, values
from model_support import rows, run, write_byte_llama

FOUR = ["--ranks", "4", P + "tensor_model_parallel_size=4"]  # over two heads of keys and values
LAYOUTS = [
    ["--ranks", "8", P + "tensor_model_parallel_size=4", P + "sequence_parallel=true", P + "pipeline_model_parallel_size=2",
     P + "use_distributed_optimizer=true"],
    FOUR,
    ["--ranks", "2", P + "tensor_model_parallel_size=2"],
    ["--ranks", "4", P + "tensor_model_parallel_size=2", P + "pipeline_model_parallel_size=2"],
    ["--ranks", "4", P + "use_distributed_optimizer=true"],
    [P + "recompute_granularity=full"],
    [P + "recompute_granularity=selective", P + "recompute_modules=layernorm,mlp_act"],
]
EVERYTHING = ["--peft.target_modules=all-linear"]
WORDS = {"lora": [*EVERYTHING, "--peft.lora_dropout=0.1"], "ia3": [], "adapter": [], "prompt": [], "ptuning": [], "prefix": []}


class FinetuneLlama(Tuning):
    @classmethod
    def write_base(cls):
        write_byte_llama(cls.base)

    def score(self, model, *words):
        line = json.dumps({"text": "to 4: 0 1 2 3"}).encode()
        return rows(run("score", "--model", model, "--input", "-", "--precision", "fp32", *words, input=line)[0])[0]["logprobs"][1:]

    def test_dora_with_dropout_trains_alike(self):
        sharded = ["--ranks", "4", P + "data_parallel_sharding_strategy=optim_grads_params"]
        layouts = [FOUR, [*sharded, P + "tensor_model_parallel_size=2"], *([sharded] if LONG else [])]
        self.check_layouts("dora", "lora", layouts, *EVERYTHING, "--peft.use_dora=true", "--peft.lora_dropout=0.1")

    def test_what_is_scored_is_what_is_merged(self):
        for name, method, words in (("merged-lora", "lora", EVERYTHING), ("merged-ia3", "ia3", []),
                                    ("merged-dora", "lora", [*EVERYTHING, "--peft.use_dora=true"])):
            with self.subTest(name):
                self.tune(name, method, *words, "--optim.lr=1e-2")
                run("merge", "--model", self.base, "--adapter", self.root / name, "--output", self.root / f"{name}-out")
                adapted, merged = self.score(self.base, "--adapter", self.root / name), self.score(self.root / f"{name}-out")
                self.assertNotEqual(adapted, self.score(self.base))
                for a, b in zip(adapted, merged, strict=True):
                    self.assertLess(abs(a - b), 1e-5 * max(1, abs(a)))

    def test_another_layout_goes_on_from_a_checkpoint(self):
        self.tune("straight", "lora", *EVERYTHING, "--checkpoint.save_interval=4")
        self.tune("halfway", "lora", *EVERYTHING, "--checkpoint.save_interval=4", *FOUR, "--train.exit_interval=4")
        self.tune("halfway", "lora", *EVERYTHING, "--checkpoint.save_interval=4", f"--checkpoint.load={self.root / 'halfway'}")
        straight, resumed = (values(self.root / name / "adapter_model.safetensors") for name in ("straight", "halfway"))
        for tensor, numbers in straight.items():
            off = max(abs(x - y) for x, y in zip(numbers, resumed[tensor], strict=True))
            self.assertLessEqual(off, 1e-4 * max(map(abs, numbers)), tensor)

    def test_what_cannot_be_is_refused(self):
        self.refuse("peft.target_modules c_attn", "self_attn.q_proj", words=["--peft.target_modules=c_attn"])
        window = self.root / "window"
        write_byte_llama(window, model_type="mistral", sliding_window=9)
        self.refuse("prefix tuning", "window of 9 tokens",
                    words=["--model", window, "--peft", "prefix", "--peft.num_virtual_tokens=4"])


def promise(method):
    return lambda self: self.check_layouts(method, method, LAYOUTS if LONG else LAYOUTS[:1], *WORDS[method])


for method in METHODS:
    setattr(FinetuneLlama, f"test_{method}_trains_alike_in_every_layout", promise(method))


if __name__ == "__main__":
    unittest.main()
