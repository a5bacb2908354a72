"""`cambium eval` with EleutherAI's lm_eval itself, offline, on random rows of every task: plain, and with PEFT's adapter."""
import json
import math
import shutil
import sys

import peft
import torch
from interop_support import SEED, SOURCE, Case, random_gpt2
from model_support import TINY

sys.path.insert(0, str(SOURCE / "tools/golden"))
import eval_tasks  # noqa: E402

ROWS = 12


def bound(name, value):
    """How far a figure may be off, as a share of it. The logarithm of a perplexity is a mean of logprobs in fp32, which has
    24 bits."""
    return max(1e-6, 2 ** -23 * math.log(value)) if "perplexity" in name else 1e-6


class Harness(Case):
    def make_model(self):
        """A model with the tiny one's tokenizer, none of whose parameters has its usual start."""
        directory = self.directory / "model"
        model = random_gpt2(9, vocab_size=300, n_positions=48, bos_token_id=0, eos_token_id=0)
        model.save_pretrained(directory)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TINY / name, directory / name)
        return directory, model

    def compare(self, directory, words, **more):
        eval_tasks.rng.seed(SEED)
        model = eval_tasks.Recorder(pretrained=str(directory), dtype="float32", device="cpu", batch_size=8, **more)
        rows, _, manager = eval_tasks.make_rows(self.directory, [model], ROWS)
        tasks = [f"{name}={self.directory}/possible/{name}.jsonl" for name in rows]
        output, samples = self.directory / "out.json", self.directory / "samples.jsonl"
        self.run_program("eval", "--model", directory, "--task", *tasks, "--output", output, "--samples", samples, *words)
        requests = [json.loads(line) for line in samples.read_text().splitlines()]
        for found in json.loads(output.read_text())["tasks"]:
            _, metrics = eval_tasks.evaluate(model, manager, found["task"])
            ours = [one for one in requests if one["task"] == found["task"]]
            for one, (context, continuation, logprob, is_greedy) in zip(ours, model.noted, strict=True):
                self.assertEqual((one["context_tokens"], one["continuation_tokens"], one["is_greedy"]), (context, continuation, is_greedy))
                self.assertLessEqual(abs(one["logprob"] - logprob), 1e-5 * abs(logprob))
            for name, value in metrics.items():
                self.assertLessEqual(abs(found["metrics"][name] - value), bound(name, value) * value, (found["task"], name))

    def test_the_figures_are_those_of_lm_eval(self):
        self.compare(self.make_model()[0], [])

    def test_with_an_adapter_of_peft(self):
        directory, model = self.make_model()
        tuned = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["c_attn"], init_lora_weights=False))
        with torch.no_grad():
            for name, parameter in tuned.named_parameters():
                if "lora_" in name:
                    parameter.normal_(0, 0.2)
        tuned.save_pretrained(self.directory / "adapter")
        self.compare(directory, ["--adapter", self.directory / "adapter"], peft=str(self.directory / "adapter"))
