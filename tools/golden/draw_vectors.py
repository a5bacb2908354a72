"""Draws from given logits by the definition, in numpy alone: the promises of `sample` in kernels/ops.h for each option
and for combinations. Repetition penalty, temperature, top-k, top-p and min-p mean the same as in the processors of
transformers. The penalties for presence and frequency and logit_bias mean the same as in OpenAI's API. All are written
out here, in fp64.

A vector's logits are words of Philox4x32-10 (seed 11; id, vector, 0, 0), modulo `steps`, in 32nds below zero: few steps make many
equals, which go by id. The random numbers are those of tools/golden/sample_vectors.py. Every draw is far enough from its
neighbours that fp32 makes it as well. Made with numpy 2.4.

    python tools/golden/draw_vectors.py tests/kernels/golden/draws.json
"""
import itertools
import json
import math
import random
import sys

import numpy

MARGIN = 1e-5
DRAWS = 6


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


def check(is_far):
    if not is_far:
        raise TooClose


def f32(x):
    return float(numpy.float32(x))


def scores_of(logits, v):
    scores = logits.copy()
    for id, count, bias, is_seen in v["changes"]:
        x = logits[id] + (-math.inf if bias is None else bias)
        if is_seen:
            x = x / f32(v["repetition_penalty"]) if x > 0 else x * f32(v["repetition_penalty"])
        if count > 0:
            x -= f32(v["presence_penalty"]) + count * f32(v["frequency_penalty"])
        scores[id] = x
    return scores


def kept_ids(scores, v):
    """Ids that stay, ascending, and their weights."""
    touched = {change[0] for change in v["changes"]}
    order = numpy.argsort(-scores, kind="stable")
    kept = len(order)
    if v["temperature"] == 0:
        best = scores[order[0]]
        rivals = [i for i in order[1:20] if abs(scores[i] - best) < MARGIN]
        check(not rivals or not touched & {int(order[0]), *map(int, rivals)})
        return order[:1], numpy.ones(1)
    scores = scores / f32(v["temperature"])
    if 0 < v["top_k"] < kept:
        kept = v["top_k"]
        inside, outside = int(order[kept - 1]), int(order[kept])
        gap = scores[inside] - scores[outside]
        check(gap > MARGIN or (gap == 0 and not touched & {inside, outside}))
    weights = numpy.exp(scores - scores.max())
    if v["top_p"] < 1:
        before = numpy.concatenate(([0], numpy.cumsum(weights[order[:kept]])))
        check(numpy.abs(before[1:] / before[-1] - f32(v["top_p"])).min() > MARGIN)
        kept = int((before[:-1] < f32(v["top_p"]) * before[-1]).sum())
    chosen = numpy.sort(order[:kept])
    if v["min_p"] > 0:
        largest = weights[chosen].max()
        below = weights[chosen][weights[chosen] < largest]
        check(not len(below) or numpy.abs(below / largest / f32(v["min_p"]) - 1).min() > MARGIN)
        chosen = chosen[weights[chosen] >= f32(v["min_p"]) * largest]
    return chosen, weights[chosen]


def draws_of(logits, v):
    chosen, weights = kept_ids(scores_of(logits, v), v)
    sums = numpy.cumsum(weights)
    tokens = []
    for i in range(DRAWS):
        unit = (philox(int(v["seed"]), [v["choice"], i, 0, 4 << 24])[0] + 0.5) / 2 ** 32
        check(len(sums) == 1 or numpy.abs(sums[:-1] / sums[-1] - unit).min() > MARGIN)
        tokens.append(int(chosen[numpy.searchsorted(sums, unit * sums[-1], side="right")]))
    return tokens


def options():
    plain = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0,
                 frequency_penalty=0.0, bias=False, top_count=0)
    alone = [dict(), dict(temperature=0.0), dict(temperature=0.6), dict(top_k=1), dict(top_k=17), dict(top_p=0.3), dict(top_p=0.9),
             dict(min_p=0.02), dict(min_p=0.5), dict(min_p=1.0), dict(repetition_penalty=1.5), dict(repetition_penalty=0.8),
             dict(presence_penalty=1.3), dict(presence_penalty=-0.7), dict(frequency_penalty=0.9), dict(frequency_penalty=-0.2),
             dict(bias=True), dict(top_count=1), dict(top_count=20)]
    yield from (plain | case for case in alone)
    for temperature, k, p, m, is_changed in itertools.product((0.0, 0.8, 1.7), (0, 40), (1.0, 0.8), (0.0, 0.1), (0, 1)):
        yield plain | dict(temperature=temperature, top_k=k, top_p=p, min_p=m, bias=bool(is_changed), top_count=3 * is_changed,
                           repetition_penalty=1.2 if is_changed else 1.0, presence_penalty=0.4 * is_changed,
                           frequency_penalty=0.3 * is_changed)


def changes_of(rng, vocab, case):
    """For some ids, in any order; the likely ones are among them."""
    if not case["bias"] and case["repetition_penalty"] == 1 and not case["presence_penalty"] and not case["frequency_penalty"]:
        return []
    changes = []
    for id in rng.sample(range(vocab), vocab // 3):
        is_seen = rng.random() < 0.7
        bias = 0.0
        if case["bias"]:
            bias = rng.choice([0.0, 0.0, 1.5, -2.25, 4.0, None])  # None: banned
        changes.append([id, rng.randrange(1, 5) if is_seen and rng.random() < 0.6 else 0, bias, is_seen])
    return changes


def vector(rng, number, case):
    vocab, steps = rng.choice([(37, 128), (300, 64), (300, 4096), (1003, 300)])
    logits = numpy.array([-(philox(11, [id, number, 0, 0])[0] % steps) / 32 + 2 for id in range(vocab)])
    v = {key: value for key, value in case.items() if key != "bias"} | dict(vocab=vocab, steps=steps, choice=number % 5,
                                                                         seed=str(rng.getrandbits(64)),
                                                                         changes=changes_of(rng, vocab, case))
    v["tokens"] = draws_of(logits, v)
    total = math.log(numpy.exp(logits).sum())
    v["logprobs"] = [float(logits[token]) - total for token in v["tokens"]]
    likely = numpy.argsort(-logits, kind="stable")[:v["top_count"]]
    v["top"] = [[int(id), float(logits[id]) - total] for id in likely]
    return v


rng = random.Random(5)
vectors = []
for case in options():
    for _ in range(2):
        while True:  # other seeds, until no draw is too close
            try:
                vectors.append(vector(rng, len(vectors), case))
                break
            except TooClose:
                pass
with open(sys.argv[1], "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(v) for v in vectors) + "\n]\n")
