"""finetune --peft full against live transformers with torch's AdamW: losses, gradient norms, and the model that results."""
import json
import random
import unittest

import torch
from interop_support import SEED, Case
from model_support import EOS, write_byte_llama, write_byte_model
from transformers import AutoModelForCausalLM
from tuning_support import tune

STEPS, LR, DECAY, CLIP = 20, 1e-3, 0.1, 1.0


class FullTuning(Case):
    def compare(self, write_base):
        base, data, out, metrics = (self.directory / name for name in ("base", "rows.jsonl", "out", "metrics.jsonl"))
        write_base(base)
        r, rows = random.Random(SEED), []
        for _ in range(8):
            n = r.randrange(1, 9)
            rows.append({"prompt": f"to {n}:", "completion": " " + " ".join(map(str, range(n)))})
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.run_program("finetune", "--model", base, "--peft", "full", "--data", data, "--output", out, f"--optim.lr={LR}",
                         "--optim.lr_decay_style=constant", "--optim.adam_beta2=0.95", f"--optim.weight_decay={DECAY}",
                         f"--optim.clip_grad={CLIP}", "--train.global_batch_size=8", "--train.micro_batch_size=2",
                         f"--train.train_iters={STEPS}", "--train.precision=fp32", f"--log.metrics_file={metrics}")
        losses, norms, last = tune(base, rows, EOS, STEPS, LR, DECAY, CLIP)
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
        for number, (record, loss, norm) in enumerate(zip(records, losses, norms, strict=True), 1):
            self.assertLessEqual(abs(record["lm_loss"] - loss), 1e-5 * loss, f"step {number}")
            self.assertLessEqual(abs(record["grad_norm"] - norm), 1e-4 * norm, f"step {number}")
        after, _, _ = tune(out / f"iter_{STEPS:07d}", rows, EOS, 1, LR, DECAY, CLIP)  # transformers opens what was saved
        self.assertLessEqual(abs(after[0] - last), 1e-5 * last)
        self.assertLess(last, losses[0] - 1)
        names = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).state_dict().keys()
        self.assertEqual(names, AutoModelForCausalLM.from_pretrained(out / f"iter_{STEPS:07d}").state_dict().keys())

    def test_twenty_steps_of_a_gpt2_follow_transformers(self):
        self.compare(lambda base: write_byte_model(base, n_layer=2, n_head=4, n_embd=32, n_positions=48))

    def test_twenty_steps_of_a_llama_follow_transformers(self):
        self.compare(write_byte_llama)


if __name__ == "__main__":
    unittest.main()
