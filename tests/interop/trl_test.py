"""finetune --loss against TRL's trainers, live: losses, rewards and gradient norms of DPO and KTO, also above a frozen adapter, and
ORPO's odds ratio."""
import importlib.util
import json
import types
import unittest

from interop_support import Case
from model_support import EOS, write_byte_model
from preference_support import write_lora

HAS_TRL = importlib.util.find_spec("trl") and importlib.util.find_spec("datasets")
MODEL = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 48}
STEPS, LR, BETA = 10, 5e-3, 0.3
FIGURES = {"loss": "loss", "rewards_chosen": "rewards/chosen", "rewards_rejected": "rewards/rejected", "rewards_margin": "rewards/margins",
           "grad_norm": "grad_norm"}
PAIRS = [{"prompt": f"to {n}:", "chosen": " " + " ".join(map(str, range(n))), "rejected": " " + " ".join(map(str, range(n, 0, -1))) + "!"}
         for n in (2, 4, 5, 8)]
# of two rows, each has the other's answer in whatever order they come
LABELLED = [{"prompt": "to 3:", "completion": " 0 1 2", "label": True}, {"prompt": "to 6 please:", "completion": " 6 5 4!", "label": False}]


@unittest.skipUnless(HAS_TRL, "trl or datasets is not installed")
class Trl(Case):
    def setUp(self):
        super().setUp()
        self.base, self.start, self.below = self.directory / "base", self.directory / "start", None
        write_byte_model(self.base, **MODEL)
        write_lora(self.start, MODEL)

    def freeze(self):
        """Puts a frozen adapter below what trains."""
        self.below = self.directory / "below"
        write_lora(self.below, MODEL, seed=12)

    def model(self):
        """The base in torch, with the frozen adapter merged into it."""
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM
        base = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32)
        return PeftModel.from_pretrained(base, self.below).merge_and_unload() if self.below else base

    def ours(self, loss, rows, steps=STEPS):
        data, metrics = self.directory / "rows.jsonl", self.directory / "metrics.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        below = ["--adapter", self.below] if self.below else []
        self.run_program("finetune", "--model", self.base, *below, "--init-adapter", self.start, "--data", data, "--loss", loss, "--output",
                         self.directory / "out", f"--tuning.beta={BETA}", f"--optim.lr={LR}", "--optim.lr_decay_style=constant",
                         "--optim.adam_beta2=0.999", "--optim.weight_decay=0", "--optim.clip_grad=1", "--train.precision=fp32",
                         f"--train.global_batch_size={len(rows)}", f"--train.train_iters={steps}", f"--log.metrics_file={metrics}")
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    def theirs(self, trainer_of, config_of, rows):
        """Trains on the same file. It is an adapter of peft on a base without it: TRL's reference of an adapter that is there is a copy of it."""
        import datasets
        from peft import PeftModel
        from transformers import GPT2Tokenizer
        tokenizer = GPT2Tokenizer.from_pretrained(self.base)
        tokenizer.pad_token_id = tokenizer.eos_token_id = EOS
        dataset = datasets.Dataset.from_json(str(self.directory / "rows.jsonl"), cache_dir=str(self.directory / "cache"))
        model = PeftModel.from_pretrained(self.model(), self.start, is_trainable=True)
        config = config_of(output_dir=str(self.directory / "trl"), beta=BETA, learning_rate=LR, lr_scheduler_type="constant", max_steps=STEPS,
                           per_device_train_batch_size=len(rows), logging_steps=1, report_to="none", save_strategy="no", use_cpu=True,
                           bf16=False, gradient_checkpointing=False, max_length=None, weight_decay=0.0, max_grad_norm=1.0,
                           disable_tqdm=True)
        trainer = trainer_of(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)
        if "ref" in model.peft_config:  # our reference is the base: the copy that TRL makes of the start changes nothing
            for name, parameter in model.named_parameters():
                if ".lora_B.ref." in name:
                    parameter.data.zero_()
        trainer.train()
        return [line for line in trainer.state.log_history if "loss" in line]

    def compare(self, loss, trainer_of, config_of, rows):
        found, expected = self.ours(loss, rows), self.theirs(trainer_of, config_of, rows)
        self.assertEqual(len(expected), STEPS)
        for number, (ours, theirs) in enumerate(zip(found, expected, strict=True), 1):
            for our_name, name in FIGURES.items():
                self.assertLessEqual(abs(ours[our_name] - theirs[name]), 1e-4 * max(1, abs(theirs[name])), f"{our_name} of step {number}")

    def test_dpo(self):
        from trl import DPOConfig, DPOTrainer
        self.compare("dpo", DPOTrainer, DPOConfig, PAIRS)

    def test_dpo_on_a_frozen_adapter(self):
        from trl import DPOConfig, DPOTrainer
        self.freeze()
        self.compare("dpo", DPOTrainer, DPOConfig, PAIRS)

    def test_kto_on_a_frozen_adapter(self):
        from trl import KTOConfig, KTOTrainer
        self.freeze()
        self.compare("kto", KTOTrainer, KTOConfig, LABELLED)

    def test_kto(self):
        from trl import KTOConfig, KTOTrainer
        self.compare("kto", KTOTrainer, KTOConfig, LABELLED)

    def test_odds_ratio_of_orpo(self):
        """TRL adds the loss of the whole chosen text, prompt included; the paper and we that of the answer."""
        import torch
        from peft import PeftModel
        from preference_torch import answer
        from transformers import GPT2Tokenizer
        from trl.experimental.orpo import ORPOTrainer
        tokenizer, sums = GPT2Tokenizer.from_pretrained(self.base), {}
        model = PeftModel.from_pretrained(self.model(), self.start)
        for side in ("chosen", "rejected"):
            answers = [(tokenizer.encode(row["prompt"]), tokenizer.encode(row[side]) + [EOS]) for row in PAIRS]
            sums[side] = torch.stack([answer(model, prompt, tokens) / len(tokens) for prompt, tokens in answers]).detach()
        itself = types.SimpleNamespace(beta=BETA, accelerator=types.SimpleNamespace(device="cpu"))
        losses, chosen, rejected, _, _ = ORPOTrainer.odds_ratio_loss(itself, sums["chosen"], sums["rejected"])
        line = self.ours("orpo", PAIRS, steps=1)[0]
        expected = {"loss": (-sums["chosen"] - losses).mean(), "rewards_chosen": chosen.mean(), "rewards_rejected": rejected.mean()}
        for name, value in expected.items():
            self.assertLessEqual(abs(line[name] - value.item()), 1e-5 * max(1, abs(value.item())), name)


if __name__ == "__main__":
    unittest.main()
