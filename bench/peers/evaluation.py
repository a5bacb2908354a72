#!/usr/bin/env python3
"""Measures `cambium eval`: beside lm_eval, with and without a context that choices share, and beside prefill.

    python3 bench/peers/evaluation.py --cambium PROGRAM --model DIR [--threads N] [--rounds N] [FIGURE ...]

Texts are random words of the tokenizer, each one token. Two sides run in turn, and a ratio is the median over these pairs. Seconds
begin when the model is open. A line of JSON for each figure:

- lm_eval: rows/s of HellaSwag's rows, over those of lm_eval with batches of 8. This Python must have lm_eval.
- choices: the time of rows of four choices, with 20 tokens each after 100 that all have, over the time with contexts of their own.
- rolling: tokens/s of whole texts, over those of `bench prefill`, which computes logits for the last token only. `ratio_of_work`
  compares FLOP/s: with the head's for every token.

A model with fewer than 1,024 positions has the same shares of them."""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

FIGURES = ("lm_eval", "choices", "rolling")
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--cambium", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--rows", type=int, default=16)
parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(FIGURES))
options = parser.parse_args()
if unknown := set(options.figures) - set(FIGURES):
    parser.error(f"there is no figure {min(unknown)}, but {', '.join(FIGURES)}")
os.environ["OMP_NUM_THREADS"] = str(options.threads)
model = pathlib.Path(options.model)
config = json.loads((model / "config.json").read_text())
POSITIONS = config.get("max_position_embeddings", config.get("n_positions"))
WORDS = sorted(word[1:] for word in json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
               if word[0] == "Ġ" and word[1:].isascii() and word[1:].islower())
rng = random.Random(31)


def share(tokens):
    return max(1, tokens * POSITIONS // 1024)


def words(low, high=None):
    """Tokens that begin with a space: `low`, or from `low` to `high`."""
    return "".join(" " + rng.choice(WORDS) for _ in range(rng.randint(share(low), share(high or low))))


def write(directory, name, rows):
    path = directory / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*command):
    return subprocess.run([options.cambium, *map(str, command), "--threads", str(options.threads)], check=True, capture_output=True).stdout


def evaluate(task, rows):
    output = rows.with_suffix(".result")
    run("eval", "--model", model, "--task", f"{task}={rows}", "--output", output, "--precision", "fp32")
    return json.loads(output.read_text())["tasks"][0]["seconds"]


def in_turn(first, second):
    """Seconds of both sides, round by round; every other round begins with the second."""
    pairs = []
    for i in range(options.rounds):
        order = (first, second) if i % 2 == 0 else (second, first)
        seconds = {side: side() for side in order}
        pairs.append((seconds[first], seconds[second]))
    return pairs


def report(figure, ratios, **more):
    print(json.dumps({"figure": figure, "ratio": statistics.median(ratios), "ratios": ratios} | more), flush=True)


def measure_lm_eval(directory):
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    sys.path.pop(0)  # the folder of this file, which has a transformers.py
    import lm_eval
    import torch
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    torch.set_num_threads(options.threads)
    made = [{"activity_label": words(1).strip(), "ctx_a": words(20, 80).strip(), "ctx_b": words(2, 10).strip(),
             "endings": [words(10, 45).strip() for _ in range(4)], "label": "0"} for _ in range(options.rows)]
    rows = write(directory, "hellaswag", made)
    task = {"include": str(pathlib.Path(lm_eval.__file__).parent / "tasks/hellaswag/hellaswag.yaml"), "task": "local",
            "dataset_path": "json", "dataset_name": None, "training_split": None, "validation_split": None, "test_split": "test", "fewshot_split": None,
            "dataset_kwargs": {"data_files": {"test": str(rows)}}}
    (directory / "local.yaml").write_text(json.dumps(task))
    theirs, manager = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=8), TaskManager(include_path=str(directory))

    def peer():
        start = time.perf_counter()
        lm_eval.simple_evaluate(model=theirs, tasks=["local"], task_manager=manager, bootstrap_iters=0)
        return time.perf_counter() - start
    peer()
    pairs = in_turn(lambda: evaluate("hellaswag", rows), peer)
    report("lm_eval", [b / a for a, b in pairs], rows_per_s=options.rows / statistics.median(a for a, _ in pairs),
           peer_rows_per_s=options.rows / statistics.median(b for _, b in pairs), lm_eval=lm_eval.__version__)


def measure_choices(directory):
    shared, apart = [], []
    for _ in range(options.rows):
        context, first = words(100), rng.sample(WORDS, 4)
        row = {"context": context, "choices": [words(20) for _ in range(4)], "gold": 0}
        shared.append(row)
        rest = context.split(" ", 2)[2:]
        apart.append(row | {"context": [" " + " ".join([word, *rest]) for word in first]})
    files = write(directory, "shared", shared), write(directory, "apart", apart)
    pairs = in_turn(lambda: evaluate("choice", files[0]), lambda: evaluate("choice", files[1]))
    report("choices", [a / b for a, b in pairs], seconds=statistics.median(a for a, _ in pairs))


def measure_rolling(directory):
    count = max(1, options.rows // 4) * POSITIONS
    text = write(directory, "text", [{"text": "".join(" " + rng.choice(WORDS) for _ in range(count))}])
    work = []

    def prefill():
        lines = run("bench", "prefill", "--model", model, "--precision", "fp32", "--seq-length", POSITIONS, "--steps", 3).splitlines()
        found = json.loads(lines[-1])
        work.append(found["model_tflops"] * 1e12 / found["tokens_per_s"])
        return found["seconds"] / POSITIONS
    pairs = in_turn(lambda: evaluate("text", text) / count, prefill)
    ratios = [b / a for a, b in pairs]
    head = 2 * config.get("hidden_size", config.get("n_embd")) * config["vocab_size"]
    report("rolling", ratios, ratio_of_work=statistics.median(ratios) * (1 + head / work[0]),
           tokens_per_s=1 / statistics.median(a for a, _ in pairs))


with tempfile.TemporaryDirectory() as scratch:
    for name in options.figures or FIGURES:
        folder = pathlib.Path(scratch, name)
        folder.mkdir()
        {"lm_eval": measure_lm_eval, "choices": measure_choices, "rolling": measure_rolling}[name](folder)
sys.exit()
