"""Predictions of cambium plan next to measurements of cambium bench, on this machine.

usage: python3 bench/planning.py CAMBIUM [--small] [--only calibrate,train,finetune,infer] [--rows A,B] [--steps N] [--keep DIR]
       [--precision fp32|bf16] [--rounds N]

Calibrates with 1, 2 and 4 ranks, then compares 12 layouts of 2 to 4 ranks as ratios to one rank with as many threads,
LoRA and IA3 as ratios to a step that trains the whole model, and prompts and further tokens of 8 shapes. It does all of
this in three rounds, because many machines change their speed within minutes: a line has the medians. Prints a line
for each, and the largest and mean error of each kind; for layouts also the place of the fastest in the predicted order.
With --keep, cluster files and lines of earlier calls are used again, so that a quiet machine is needed for a short time
only: --rows takes the layouts from A on and before B. Without --small: GPT-2 124M in bf16, which takes minutes; with it,
8 layers of 256 columns in fp32. --precision chooses another one.
"""
import argparse
import array
import json
import pathlib
import random
import statistics
import struct
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
GPT2_124M = {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
SMALL = {"n_layer": 8, "n_embd": 256, "n_head": 8, "vocab_size": 8192}


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return done


def flags(keys):
    return [f"--parallel.{key}={value}" for key, value in keys.items()]


def write_weights(path, config):
    """Random weights under the names of GPT-2's files: norms are 1, the rest repeats a block of small numbers."""
    width, draw = config["n_embd"], random.Random(1)
    block = array.array("f", (draw.gauss(0, 0.02) for _ in range(4096))).tobytes()
    one = array.array("f", (1,)).tobytes()
    shapes = {"wte.weight": (config["vocab_size"], width), "wpe.weight": (config["n_positions"], width)}
    for layer in range(config["n_layer"]):
        shapes |= {f"h.{layer}.{name}": shape for name, shape in {
            "ln_1.weight": (width,), "ln_1.bias": (width,), "attn.c_attn.weight": (width, 3 * width),
            "attn.c_attn.bias": (3 * width,), "attn.c_proj.weight": (width, width), "attn.c_proj.bias": (width,),
            "ln_2.weight": (width,), "ln_2.bias": (width,), "mlp.c_fc.weight": (width, 4 * width),
            "mlp.c_fc.bias": (4 * width,), "mlp.c_proj.weight": (4 * width, width), "mlp.c_proj.bias": (width,)}.items()}
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    header, values, at = {}, [], 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        pattern = one if "ln_" in name and name.endswith("weight") else block
        values.append((pattern * (size // len(pattern) + 1))[:size])
        header[f"transformer.{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": (at, at + size)}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values))


class Comparison:
    def __init__(self, options, directory):
        self.options, self.directory = options, pathlib.Path(directory)
        self.precision = options.precision or ("fp32" if options.small else "bf16")
        self.round = 0
        self.contexts = {}  # of decoding, by round and batch
        self.model = self.directory / "model"
        self.model.mkdir(parents=True, exist_ok=True)
        self.config = (SMALL if options.small else GPT2_124M) | {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_positions": 1024, "resid_pdrop": 0.1,
            "attn_pdrop": 0.1, "embd_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
            "activation_function": "gelu_new"}
        self.model.joinpath("config.json").write_text(json.dumps(self.config))
        if options.small and not self.model.joinpath("model.safetensors").exists():
            write_weights(self.model / "model.safetensors", self.config)
        self.name = self.model if options.small else "gpt2-124m"

    def cambium(self, *words):
        return run(self.options.cambium, *words)

    def cluster(self, ranks):
        path = self.directory / f"ranks{ranks}-{self.round}.yaml"
        if not path.exists() or " cores busy" in path.read_text():  # of a time when other programs slowed it down
            errors = self.cambium("plan", "calibrate", self.name, "--output", path, "--ranks", ranks, "--precision",
                                  self.precision, "--seq-length", TOKENS).stderr
            print(errors.strip().splitlines()[-1], flush=True)
        return path

    def predicted(self, ranks, batch, keys, *more):
        config = self.directory / "run.yaml"
        sections = {"data": {"seq_length": TOKENS}, "train": {"micro_batch_size": 1, "global_batch_size": batch,
                    "precision": self.precision}, "parallel": keys}
        text = "".join(f"{section}:\n" + "".join(f"  {key}: {value}\n" for key, value in values.items())
                       for section, values in sections.items() if values)
        config.write_text(text + self.shape())
        plan = self.cambium("plan", "train", "--cluster", self.cluster(ranks), "--config", config, "--devices", ranks,
                            "--space", "run", "--json", "-", "--memory-share", "1", *more).stdout
        return json.loads(plan)["plans"][0]["rows"][0]["step_seconds"]

    def shape(self):
        c = self.config
        return (f"model:\n  num_layers: {c['n_layer']}\n  hidden_size: {c['n_embd']}\n  num_attention_heads: {c['n_head']}\n"
                f"  max_position_embeddings: 1024\n  vocab_size: {c['vocab_size']}\n"
                "  hidden_dropout: 0.1\n  attention_dropout: 0.1\n")

    def measured(self, what, *words):
        lines = self.cambium("bench", what, "--model", self.name, "--precision", self.precision, *words).stdout
        return json.loads(lines.strip().splitlines()[-1])

    # ---- the three kinds; each yields a name, and functions that measure and predict

    def calibrate(self):
        for ranks in (1, 2, 4):
            self.cluster(ranks)
        return ()

    def train(self):
        first, end = self.options.rows
        for ranks, batch, keys in LAYOUTS[first:end]:
            name = ", ".join(f"{key} {value}" for key, value in keys.items()) or "data ranks"
            yield (f"{ranks} ranks, {batch} micro batches, {name}",
                   lambda: self.measured("train", "--seq-length", TOKENS, "--ranks", ranks, "--global-batch-size", batch,
                                         "--steps", self.options.steps, *flags(keys))["step_time_over_baseline"],
                   lambda: self.predicted(ranks, batch, keys) / self.predicted(1, batch, {}))

    def finetune(self):
        for method in ("lora", "ia3"):
            yield (method,
                   lambda: self.measured("finetune", "--method", method, "--seq-length", TOKENS, "--steps",
                                         self.options.steps)["step_time_over_baseline"],
                   lambda: self.predicted(1, 1, {}, "--method", method) / self.predicted(1, 1, {}))

    def served(self, batch, before, after):
        plan = self.cambium("plan", "serve", self.model, self.cluster(1), "--devices", 1, "--batch", batch, "--input-len",
                            before, "--output-len", after, "--precision", self.precision, "--json", "-", "--memory-share",
                            "1").stdout
        return json.loads(plan)["rows"][0]

    def decoded(self, batch, before):
        at = self.round, batch
        if at not in self.contexts:
            self.contexts[at] = self.measured("decode", "--micro-batch-size", batch, "--steps", 24)["contexts"]
        return next(c["seconds"] for c in self.contexts[at] if c["context"] == before)

    def infer(self):
        for batch, tokens in PREFILL:
            yield (f"prefill {batch} x {tokens}",
                   lambda: self.measured("prefill", "--micro-batch-size", batch, "--seq-length", tokens, "--steps",
                                         7)["seconds"],
                   lambda: self.served(batch, tokens, 1)["prefill_ms"] / 1e3)
        for batch, before in DECODE:
            yield (f"decode {batch} after {before}", lambda: self.decoded(batch, before),
                   lambda: self.served(batch, before, 24)["token_ms"] / 1e3)


class Kept:
    """Measurements by name, in a file of the directory."""

    def __init__(self, directory):
        self.path = pathlib.Path(directory, "measured.json")
        self.values = json.loads(self.path.read_text()) if self.path.exists() else {}

    def take(self, name, measure):
        if name not in self.values:
            self.values[name] = measure()
            self.path.write_text(json.dumps(self.values, indent=1))
        return self.values[name]


def report(kind, lines):
    """lines: by name, the measured and the predicted times of each round"""
    middle = {name: [statistics.median(times) for times in zip(*rounds)] for name, rounds in lines.items()}
    errors = {name: statistics.median(predicted / measured - 1 for measured, predicted in rounds)
              for name, rounds in lines.items()}
    for name, (measured, predicted) in middle.items():
        print(f"| {name} | {measured:.4g} | {predicted:.4g} | {100 * errors[name]:+.1f}% |", flush=True)
    sizes = [abs(error) for error in errors.values()]
    print(f"{kind}: largest error {100 * max(sizes):.1f}%, mean {100 * sum(sizes) / len(sizes):.1f}%", flush=True)
    if kind == "train":
        fastest = min(middle.values())
        place = 1 + sum(predicted < fastest[1] for _, predicted in middle.values())
        print(f"train: the fastest measured layout is number {place} of the predicted ones", flush=True)


def main():
    parser = argparse.ArgumentParser(usage="\n".join(__doc__.split("\n")[2:4]).removeprefix("usage: "))
    parser.add_argument("cambium")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default="calibrate,train,finetune,infer")
    parser.add_argument("--rows", default=f"0,{len(LAYOUTS)}", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--precision", choices=("fp32", "bf16"))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", help="a directory for cluster files and measurements, which are used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        directory = options.keep or directory
        comparison = Comparison(options, directory)
        kept = Kept(directory)
        lines = {kind: {} for kind in options.only.split(",")}
        for comparison.round in range(options.rounds):
            for kind, found in lines.items():
                for name, measure, predict in getattr(comparison, kind)():
                    times = kept.take(f"{name}, round {comparison.round + 1}", measure), predict()
                    found.setdefault(name, []).append(times)
                    print(f"# {name}: {times[0]:.4g} s measured, {times[1]:.4g} s predicted", flush=True)
        for kind, found in lines.items():
            if found:
                report(kind, found)


if __name__ == "__main__":
    main()
