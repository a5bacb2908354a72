"""How threads wait for each other, on an idle machine and beside programs that compute on every core: what the program
chooses, and OMP_WAIT_POLICY=active and passive, in turns.

    waiting.py --cambium PROGRAM [--rounds 3] [--busy 0|1|both] [CASE ...]

Prints a line of JSON for each case: the seconds of each choice (the median of the rounds) and the ratios of the program's
choice to the others. A thread that loses its core makes few steps much longer, so no median of steps counts. Of training it
is the mean step, of decoding the whole command, of serving a token of the whole run. The choices change places from round to
round."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

CASES = {
    "train": ["train", "--precision", "bf16", "--seq-length", "512"],
    "decode1": ["decode", "--precision", "bf16"],
    "decode16": ["decode", "--precision", "bf16", "--micro-batch-size", "16"],
    "serve": ["serve", "--precision", "bf16", "--requests", "48"],
}
CHOICES = ("active", "passive", "chosen")
COMPUTING = "while True: pass"


def run(program, words, choice):
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    if choice != "chosen":
        environment["OMP_WAIT_POLICY"] = choice
    start = time.monotonic()
    done = subprocess.run([program, "bench", *words], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.monotonic() - start, [json.loads(line) for line in done.stdout.splitlines()]


def seconds_of(case, whole, lines):
    """Seconds of a step, of the whole command, or of a token."""
    if case == "train":
        return statistics.fmean(line["seconds"] for line in lines[1:-1])  # the first step warms up
    if case == "serve":
        return 1 / lines[-1]["output_throughput"]
    return whole


def measure(program, case, rounds):
    seconds = {choice: [] for choice in CHOICES}
    for number in range(rounds):
        for choice in CHOICES[::-1] if number % 2 else CHOICES:
            seconds[choice].append(seconds_of(case, *run(program, CASES[case], choice)))
    return {choice: statistics.median(values) for choice, values in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cambium", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", choices=("0", "1", "both"), default="both")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    for busy in {"0": (False,), "1": (True,), "both": (False, True)}[options.busy]:
        others = [subprocess.Popen([sys.executable, "-c", COMPUTING]) for _ in range(os.cpu_count() * busy)]
        try:
            time.sleep(busy)
            for case in options.cases or CASES:
                seconds = measure(options.cambium, case, options.rounds)
                print(json.dumps({"case": case, "busy": busy, "rounds": options.rounds, "seconds": seconds,
                                  "over_active": seconds["chosen"] / seconds["active"],
                                  "over_passive": seconds["chosen"] / seconds["passive"]}), flush=True)
        finally:
            for other in others:
                other.kill()
                other.wait()


if __name__ == "__main__":
    main()
