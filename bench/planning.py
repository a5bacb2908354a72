"""Predictions of cambium plan next to measurements of cambium bench, on this machine.

usage: python3 bench/planning.py CAMBIUM [--only train,finetune,infer] [--steps N] [--keep DIR]

Calibrates with 1, 2 and 4 ranks, then compares 12 layouts of 2 to 4 ranks as ratios to one rank with as many threads,
LoRA and IA3 as ratios to a step that trains the whole model, and prompts and further tokens of 8 shapes. Prints a line
for each, and the largest and mean error of each kind. Minutes on an idle machine.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

TOKENS = 256
# Ranks, micro batches of the whole step, and keys of the section parallel.
LAYOUTS = (
    (2, 4, {"tensor_model_parallel_size": 2}),
    (2, 4, {"tensor_model_parallel_size": 2, "sequence_parallel": "true"}),
    (2, 2, {"tensor_model_parallel_size": 2, "recompute_granularity": "full"}),
    (2, 4, {"pipeline_model_parallel_size": 2}),
    (2, 8, {"pipeline_model_parallel_size": 2}),
    (2, 8, {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}),
    (2, 4, {}),
    (2, 4, {"use_distributed_optimizer": "true"}),
    (4, 4, {}),
    (4, 4, {"tensor_model_parallel_size": 2}),
    (4, 8, {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}),
    (4, 8, {"pipeline_model_parallel_size": 4}),
)
PREFILL = ((1, 64), (1, 256), (2, 256), (1, 1000))
DECODE = ((1, 32), (8, 32), (1, 512), (8, 512))  # requests, and tokens before


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return done


def flags(keys):
    return [f"--parallel.{key}={value}" for key, value in keys.items()]


class Comparison:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.model = pathlib.Path(directory, "model")
        self.model.mkdir(exist_ok=True)
        config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 12, "n_embd": 768, "n_head": 12,
                  "n_positions": 1024, "vocab_size": 50257, "resid_pdrop": 0.1, "attn_pdrop": 0.1, "embd_pdrop": 0.1,
                  "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "activation_function": "gelu_new"}
        self.model.joinpath("config.json").write_text(json.dumps(config))

    def cambium(self, *words):
        return run(self.options.cambium, *words)

    def cluster(self, ranks):
        path = pathlib.Path(self.directory, f"ranks{ranks}.yaml")
        if not path.exists():
            errors = self.cambium("plan", "calibrate", "gpt2-124m", "--output", path, "--ranks", ranks, "--seq-length",
                                  TOKENS).stderr
            print(errors.strip().splitlines()[-1], flush=True)
        return path

    def predicted(self, ranks, batch, keys, *more):
        config = pathlib.Path(self.directory, "run.yaml")
        sections = {"data": {"seq_length": TOKENS}, "train": {"micro_batch_size": 1, "global_batch_size": batch,
                    "precision": "bf16"}, "parallel": keys}
        text = "".join(f"{section}:\n" + "".join(f"  {key}: {value}\n" for key, value in values.items())
                       for section, values in sections.items() if values)
        config.write_text(text + self.shape())
        plan = self.cambium("plan", "train", "--cluster", self.cluster(ranks), "--config", config, "--devices", ranks,
                            "--space", "run", "--json", "-", "--memory-share", "1", *more).stdout
        return json.loads(plan)["plans"][0]["rows"][0]["step_seconds"]

    @staticmethod
    def shape():
        return ("model:\n  num_layers: 12\n  hidden_size: 768\n  num_attention_heads: 12\n  max_position_embeddings: 1024\n"
                "  vocab_size: 50257\n  hidden_dropout: 0.1\n  attention_dropout: 0.1\n")

    def measured(self, what, *words):
        lines = self.cambium("bench", what, "--model", "gpt2-124m", "--precision", "bf16", *words).stdout
        return json.loads(lines.strip().splitlines()[-1])

    # ---- the three kinds; each yields (name, measured, predicted)

    def train(self):
        for ranks, batch, keys in LAYOUTS:
            found = self.measured("train", "--seq-length", TOKENS, "--ranks", ranks, "--global-batch-size", batch, "--steps",
                                  self.options.steps, *flags(keys))
            ratio = self.predicted(ranks, batch, keys) / self.predicted(1, batch, {})
            name = ", ".join(f"{key} {value}" for key, value in keys.items()) or "data ranks"
            yield f"{ranks} ranks, {batch} micro batches, {name}", found["step_time_over_baseline"], ratio

    def finetune(self):
        for method in ("lora", "ia3"):
            found = self.measured("finetune", "--method", method, "--seq-length", TOKENS, "--steps", self.options.steps)
            ratio = self.predicted(1, 1, {}, "--method", method) / self.predicted(1, 1, {})
            yield method, found["step_time_over_baseline"], ratio

    def served(self, batch, before, after):
        plan = self.cambium("plan", "serve", self.model, self.cluster(1), "--devices", 1, "--batch", batch, "--input-len",
                            before, "--output-len", after, "--json", "-", "--memory-share", "1").stdout
        return json.loads(plan)["rows"][0]

    def infer(self):
        for batch, tokens in PREFILL:
            found = self.measured("prefill", "--micro-batch-size", batch, "--seq-length", tokens, "--steps", 7)
            yield f"prefill {batch} x {tokens}", found["seconds"], self.served(batch, tokens, 1)["prefill_ms"] / 1e3
        for batch, before in DECODE:
            found = self.measured("decode", "--micro-batch-size", batch, "--steps", 24)
            seconds = next(c["seconds"] for c in found["contexts"] if c["context"] == before)
            yield f"decode {batch} after {before}", seconds, self.served(batch, before, 24)["token_ms"] / 1e3


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2].removeprefix("usage: "))
    parser.add_argument("cambium")
    parser.add_argument("--only", default="train,finetune,infer")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--keep", help="a directory for cluster files, which are used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        comparison = Comparison(options, options.keep or directory)
        for kind in options.only.split(","):
            errors = []
            for name, measured, predicted in getattr(comparison, kind)():
                errors.append(predicted / measured - 1)
                print(f"| {name} | {measured:.4g} | {predicted:.4g} | {100 * errors[-1]:+.1f}% |", flush=True)
            sizes = [abs(error) for error in errors]
            print(f"{kind}: largest error {100 * max(sizes):.1f}%, mean {100 * sum(sizes) / len(sizes):.1f}%", flush=True)


if __name__ == "__main__":
    main()
