"""llama.cpp's own benchmarks beside ours: both run on the same model in bf16, one after the other, and again.

    llama_bench.py --cambium PROGRAM --llama DIRECTORY --model NAME|DIR --gguf FILE [--rounds 3] [--threads 2]

DIRECTORY has llama-bench and llama-batched-bench. NAME is a shape of `cambium bench`, and FILE a model of that shape.
Weights are random: speed does not depend on them. It measures a prompt of 1,024 tokens, then 32 tokens after 32 in 1 and
in 16 sequences. For each it prints the medians of tokens/s and of the rounds' ratios, ours over llama.cpp's."""
import argparse
import json
import pathlib
import statistics
import subprocess

PROMPT, CONTEXT, TOKENS, SEQUENCES = 1024, 32, 32, 16


def last_line(words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def ours(o, what, *words):
    return last_line([o.cambium, "bench", what, "--model", o.model, "--precision", "bf16", "--threads", o.threads, *words])


def decode_ours(o, sequences):
    return ours(o, "decode", "--micro-batch-size", sequences, "--steps", TOKENS)["tokens_per_s"]


def bench_theirs(o, *words):
    return last_line([o.llama / "llama-bench", "-m", o.gguf, "-t", o.threads, "-r", 3, "-o", "jsonl", *words])["avg_ts"]


def decode_theirs(o, sequences):
    return last_line([o.llama / "llama-batched-bench", "-m", o.gguf, "-t", o.threads, "-tb", o.threads, "-c", sequences * (CONTEXT + TOKENS),
                      "-npp", CONTEXT, "-ntg", TOKENS, "-npl", sequences, "--output-format", "jsonl"])["speed_tg"]


CASES = {"prefill": (lambda o: ours(o, "prefill", "--seq-length", PROMPT)["tokens_per_s"],
                     lambda o: bench_theirs(o, "-p", PROMPT, "-n", 0)),
         "decode of 1": (lambda o: decode_ours(o, 1), lambda o: bench_theirs(o, "-p", 0, "-n", TOKENS, "-d", CONTEXT)),
         f"decode of {SEQUENCES}": (lambda o: decode_ours(o, SEQUENCES), lambda o: decode_theirs(o, SEQUENCES))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("cambium", "llama", "model", "gguf"):
        parser.add_argument(f"--{name}", required=True, type=str if name == "model" else pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    for case, (own, other) in CASES.items():
        pairs = [(own(o), other(o)) for _ in range(o.rounds)]
        print(json.dumps({"model": o.model, "case": case, "tokens_per_s": statistics.median(a for a, _ in pairs),
                          "peer_tokens_per_s": statistics.median(b for _, b in pairs),
                          "ratio": statistics.median(a / b for a, b in pairs),
                          "ratios": [round(a / b, 3) for a, b in pairs]}), flush=True)


main()
