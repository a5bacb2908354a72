"""Texts drawn at random from a model, by the definition of the draw in numpy alone. `generate` and its callers promise
the token for each seed, sample number and position.

Computes the logits of MODEL (a directory of transformers) in fp64, and filters them in the order of transformers'
processors (repetition penalty, temperature, top-k, top-p). It draws with a Philox4x32-10 (Salmon et al. 2011) of its
own. The word of (seed; sample, position, 0, 4 << 24) is compared with the sums of probabilities in the order of ids.
Every draw is far enough from its neighbours for fp32 to make it as well. Made with transformers 5.23.0, torch 2.15.0,
numpy 2.4.

    python tools/golden/sample_vectors.py tests/commands/golden/tiny/model tests/infer/golden/samples.json
"""
import json
import math
import sys

import numpy
import torch
from transformers import GPT2LMHeadModel

MARGIN = 1e-5  # of the whole mass; of logits
SAMPLES, NEW_TOKENS = 2, 10
CASES = [dict(temperature=1.0), dict(temperature=0.7), dict(temperature=1.5, top_k=5), dict(temperature=1.0, top_k=40),
         dict(temperature=1.0, top_p=0.9), dict(temperature=0.8, top_p=0.5), dict(temperature=1.2, top_k=20, top_p=0.8),
         dict(temperature=1.0, repetition_penalty=1.3), dict(temperature=0.9, top_k=30, top_p=0.95, repetition_penalty=1.2)]
PROMPTS = [[7], [40, 12, 99], [3, 141, 59, 26, 5, 35, 89, 79, 32, 38]]

torch.set_num_threads(1)
model = GPT2LMHeadModel.from_pretrained(sys.argv[1]).double().eval()


def philox(seed, counter):
    keys, c = [seed & 0xffffffff, seed >> 32], list(counter)
    for _ in range(10):
        a, b = 0xd2511f53 * c[0], 0xcd9e8d57 * c[2]
        c = [b >> 32 ^ c[1] ^ keys[0], b & 0xffffffff, a >> 32 ^ c[3] ^ keys[1], a & 0xffffffff]
        keys = [(keys[0] + 0x9e3779b9) & 0xffffffff, (keys[1] + 0xbb67ae85) & 0xffffffff]
    return c


assert philox(0x299f31d0a4093822, [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344])[0] == 0xd16cfe09  # the published one


class TooClose(Exception):
    pass


def check(distance):
    if distance < MARGIN:
        raise TooClose


def draw(ids, case, seed, sample):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1].numpy().copy()
    penalty = case["repetition_penalty"]
    for i in set(ids):
        logits[i] = logits[i] / penalty if logits[i] > 0 else logits[i] * penalty
    scores = logits / case["temperature"]
    order = numpy.argsort(-scores, kind="stable")
    kept = len(order)
    if case["top_k"]:
        kept = case["top_k"]
        check(scores[order[kept - 1]] - scores[order[kept]])
    weights = numpy.exp(scores - scores.max())
    if case["top_p"] < 1:
        before = numpy.concatenate(([0], numpy.cumsum(weights[order[:kept]])))
        check(numpy.abs(before[1:] - case["top_p"] * before[-1]).min() / before[-1])
        kept = int((before[:-1] < case["top_p"] * before[-1]).sum())
    chosen = numpy.sort(order[:kept])
    sums = numpy.cumsum(weights[chosen])
    unit = (philox(seed, [sample, len(ids), 0, 4 << 24])[0] + 0.5) / 2 ** 32
    check(numpy.abs(sums[:-1] / sums[-1] - unit).min() if kept > 1 else math.inf)
    return int(chosen[numpy.searchsorted(sums, unit * sums[-1], side="right")])


def write(prompt, case, seed):
    texts = []
    for sample in range(SAMPLES):
        ids = list(prompt)
        for _ in range(NEW_TOKENS):
            ids.append(draw(ids, case, seed, sample))
        texts.append(ids[len(prompt):])
    return texts


vectors = []
for number, case in enumerate(CASES):
    case = dict(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0) | case
    for prompt in PROMPTS:
        seed = [1, 42, 2 ** 32 + 5, 2 ** 64 - 977][(number + len(prompt)) % 4]
        while True:
            try:
                vectors.append(case | {"seed": str(seed), "prompt": prompt, "texts": write(prompt, case, seed)})
                break
            except TooClose:
                seed += 1
with open(sys.argv[2], "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(vector) for vector in vectors) + "\n]\n")
