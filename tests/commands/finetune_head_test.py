"""LoRA on the output head: it trains alike in every layout, on a base in few bits too, and is resumed, scored and merged."""
import json
import shutil
import unittest

from finetune_support import LONG, P, Tuning, hash_tree, values
from finetune_test import LAYOUTS
from model_support import rows, run, write_byte_llama

HEAD = ["--peft.target_modules", "c_fc", "lm_head", "--optim.adam_eps=1e-2"]  # tokens that no row has: roundings stay small
TENSOR = ["--ranks", "2", P + "tensor_model_parallel_size=2"]  # of 257 tokens
STAGES = ["--ranks", "2", P + "pipeline_model_parallel_size=2"]


class FinetuneHead(Tuning):
    def score(self, model, *words):
        line = json.dumps({"text": "to 4: 0 1 2 3"}).encode()
        return rows(run("score", "--model", model, "--input", "-", "--precision", "fp32", *words, input=line)[0])[0]["logprobs"][1:]

    def assert_near(self, ours, theirs, bound=1e-5):
        for a, b in zip(ours, theirs, strict=True):
            self.assertLess(abs(a - b), bound * max(1, abs(a)))

    def test_every_layout_trains_alike(self):
        self.check_layouts("every", "lora", LAYOUTS[:3] if LONG else LAYOUTS[2:3], *HEAD, "--peft.lora_dropout=0.1")

    def test_dora_trains_alike(self):
        self.check_layouts("dora", "lora", [TENSOR], *HEAD, "--peft.use_dora=true", "--peft.lora_dropout=0.1")

    def test_a_plan_has_the_workspace_of_dora_with_dropout(self):
        """Its gradients have another stride than the logits."""
        self.data = self.root / "long-rows.jsonl"
        self.addCleanup(delattr, self, "data")  # the class's again
        self.data.write_text("".join(json.dumps({"prompt": f"to {n}:", "completion": " abcdefg" * 4}) + "\n" for n in range(16)))
        self.tune("long", "lora", "--peft.target_modules=lm_head", "--peft.use_dora=true", "--peft.lora_dropout=0.1",
                  "--train.precision=fp32", "--train.global_batch_size=16", "--train.micro_batch_size=16", "--train.train_iters=1")

    def test_another_layout_resumes_a_checkpoint(self):
        save = [*HEAD, "--checkpoint.save_interval=4"]
        self.tune("straight", "lora", *save)
        self.tune("halfway", "lora", *save, *TENSOR, "--train.exit_interval=4")
        self.tune("halfway", "lora", *save, *STAGES, f"--checkpoint.load={self.root / 'halfway'}")
        straight, resumed = (values(self.root / name / "adapter_model.safetensors") for name in ("straight", "halfway"))
        self.assertIn("base_model.model.lm_head.lora_B.weight", straight)
        for tensor, numbers in straight.items():
            off = max(abs(x - y) for x, y in zip(numbers, resumed[tensor], strict=True))
            self.assertLessEqual(off, 1e-4 * max(map(abs, numbers)), tensor)

    def test_answers_are_preferred_alike(self):
        """A loss that weighs rows takes their gradients after all forwards. In bf16 the head takes 128 rows at a time."""
        pairs, losses = self.root / "pairs.jsonl", []
        pairs.write_text("".join(json.dumps({"prompt": f"to {n}:", "chosen": f" {n}" * 12, "rejected": " 0" * n}) + "\n" for n in range(1, 9)))
        self.data = pairs
        self.addCleanup(delattr, self, "data")  # the class's again
        for name, words in (("one", []), ("two", TENSOR), ("few", ["--train.micro_batch_size=1", "--train.precision=bf16"]),
                            ("many", ["--train.micro_batch_size=8", "--train.precision=bf16"])):
            self.tune(name, "lora", *HEAD, "--loss", "dpo", "--optim.lr=1e-2", *words)
            losses.append([line["loss"] for line in self.lines(name) if "loss" in line])
        self.assert_near(losses[0], losses[1])
        self.assert_near(losses[2], losses[3], 1e-3)
        self.assertLess(losses[0][-1], losses[0][0])

    def test_targets_are_those_of_peft(self):
        for name, words in (("all", ["all-linear"]), ("layer", ["c_fc", "lm_head", "--peft.layers_to_transform=1"])):
            self.tune(name, "lora", "--peft.target_modules", *words, "--train.train_iters=1")
        found = {name: sorted(values(self.root / name / "adapter_model.safetensors")) for name in ("all", "layer")}
        self.assertFalse([tensor for tensor in found["all"] if "lm_head" in tensor])
        self.assertEqual([tensor.removeprefix("base_model.model.") for tensor in found["layer"]],
                         [f"{module}.lora_{half}.weight" for module in ("lm_head", "transformer.h.1.mlp.c_fc") for half in "AB"])

    def test_a_merged_head_is_no_longer_tied(self):
        before = hash_tree(self.base)
        for name, words in (("merged", []), ("merged-dora", ["--peft.use_dora=true"])):
            self.tune(name, "lora", "--peft.target_modules=lm_head", "--optim.lr=1e-1", *words)
            _, errors = run("merge", "--model", self.base, "--adapter", self.root / name, "--output", self.root / f"{name}-out")
            self.assertEqual(errors.count("ties its head to the embedding; the merged model has a separate head"), 1, errors)
            adapted, merged = self.score(self.base, "--adapter", self.root / name), self.score(self.root / f"{name}-out")
            self.assertNotEqual(adapted, self.score(self.base))
            self.assert_near(adapted, merged)
            self.assertFalse(json.loads((self.root / f"{name}-out/config.json").read_text())["tie_word_embeddings"])
        self.assertEqual(hash_tree(self.base), before)

    def test_a_head_in_few_bits(self):
        """That of a GGUF file, tied to an embedding in 8 bits."""
        source, file, plain = self.root / "llama", self.root / "q8.gguf", self.root / "plain"
        write_byte_llama(source, num_hidden_layers=2)
        run("convert", "--from", source, "--to", "gguf", "--output", file, "--dtype", "q8_0")
        run("convert", "--from", file, "--to", "model", "--output", plain, "--dtype", "fp32")
        words = ["--peft.target_modules=lm_head", "--peft.use_dora=true", "--optim.lr=1e-1", "--train.precision=fp32"]
        trained = {}
        for name, model in (("bits", file), ("values", plain)):
            self.base = model
            self.tune(name, "lora", *words)
            trained[name] = self.score(model, "--adapter", self.root / name)
        del self.base  # the class's again
        self.assert_near(trained["bits"], trained["values"], 1e-3)
        run("merge", "--model", file, "--adapter", self.root / "bits", "--output", self.root / "dense", "--dequantize", "--dtype", "fp32")
        self.assert_near(self.score(self.root / "dense"), trained["bits"], 1e-3)
        shutil.rmtree(self.root / "dense")

    def test_what_cannot_be_is_refused(self):
        self.refuse("peft.target_modules lm_head: IA3 does not scale the head", words=["--peft=ia3", "--peft.target_modules=lm_head"])
        self.refuse("peft.target_modules head matches no projection", "and the head lm_head", words=["--peft=lora", "--peft.target_modules=head"])


if __name__ == "__main__":
    unittest.main()
