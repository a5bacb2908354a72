"""One linear in FP8 through a few steps, by TransformerEngine's rules for delayed scaling, written out in numpy alone
(transformer_engine/pytorch/fp8.py: amax_and_scale_update; recipe.DelayedScaling). Products are in fp64.

A step has two micro batches. Values come from `pattern`, which tests/parallel/fp8_test.c has, too: sizes change from step
to step, so casts saturate and vanish, and in one step all gradients are 0. Made with numpy 2.4.

    python tools/golden/fp8_vectors.py tests/parallel/golden/fp8.json
"""
import json
import sys

import numpy

ROWS, IN, OUT, STEPS, MICROS = 12, 8, 16, 5, 2
INPUT, WEIGHT, GRADIENT = range(3)
EXPONENTS = {INPUT: [0, 2, -1, 3, -30], WEIGHT: [-5, -5, -4, -6, -5], GRADIENT: [-12, -10, None, -8, -14]}
CASES = [("hybrid", 0, 3, "max"), ("e4m3", 1, 2, "most_recent"), ("hybrid", 2, 1, "max")]


def pattern(kind, step, micro, count):
    exponent = EXPONENTS[kind][step]
    if exponent is None:
        return numpy.zeros(count, numpy.float32)
    h = numpy.arange(1, count + 1, dtype=numpy.uint64) * 2654435761 & 0xffffffff
    h ^= kind * 0x9e3779b9 + step * 0x85ebca6b + micro * 0xc2b2ae35 & 0xffffffff
    h ^= h >> 15
    h = h * 0x2c1b3c6d & 0xffffffff
    h ^= h >> 12
    x = ((h >> 24).astype(numpy.float32) - 128) / 128  # 8 bits: bf16 has them
    return x * numpy.float32(2.0) ** exponent


def grid(bits, bias, codes):
    """The numbers of sizes 0 .. codes - 1."""
    code = numpy.arange(codes)
    exponent, fraction = code >> bits, code & (1 << bits) - 1
    normal = ((1 << bits) + fraction) * 2.0 ** (exponent - bias - bits)
    return numpy.where(exponent > 0, normal, fraction * 2.0 ** (1 - bias - bits))


GRIDS = {"e4m3": grid(3, 7, 127), "e5m2": grid(2, 15, 124)}
assert GRIDS["e4m3"][-1] == 448 and GRIDS["e5m2"][-1] == 57344


def cast(x, scale, name):
    values = GRIDS[name]
    size = numpy.abs(x * scale).astype(numpy.float64)
    above = numpy.minimum(numpy.searchsorted(values, size), len(values) - 1)
    below = numpy.maximum(above - 1, 0)
    low, high = size - values[below], values[above] - size
    takes_below = (low < high) | ((low == high) & (below % 2 == 0))
    return numpy.copysign(numpy.where(takes_below, values[below], values[above]), x)


def update(history, scale, most, margin, algorithm):
    """_default_get_amax_and_update_history and _default_sf_compute; the newest entry is history[0]."""
    amax = history.max(axis=0) if algorithm == "max" else history[0].copy()
    history = numpy.roll(history, -1, axis=0)
    history[0] = 0
    with numpy.errstate(divide="ignore", over="ignore"):
        new = (most / amax) / numpy.float32(2.0) ** numpy.float32(margin)
    new = numpy.where(amax > 0, new, scale)
    new = numpy.where(numpy.isfinite(amax), new, scale)
    new = numpy.where(numpy.isinf(new), numpy.finfo(numpy.float32).max, new)
    return history, new.astype(numpy.float32)


def run(format, margin, length, algorithm):
    names = ["e4m3", "e4m3", "e4m3" if format == "e4m3" else "e5m2"]
    most = numpy.array([GRIDS[name][-1] for name in names], numpy.float32)
    history, scale = numpy.zeros((length, 3), numpy.float32), numpy.ones(3, numpy.float32)
    steps = []
    for step in range(STEPS):
        inverse = numpy.float32(1) / scale
        w = pattern(WEIGHT, step, 0, OUT * IN).reshape(OUT, IN)
        bias = pattern(WEIGHT, step, 7, OUT)
        history[0, WEIGHT] = numpy.abs(w).max()
        dw, db = 0, 0
        for micro in range(MICROS):
            x = pattern(INPUT, step, micro, ROWS * IN).reshape(ROWS, IN)
            dy = pattern(GRADIENT, step, micro, ROWS * OUT).reshape(ROWS, OUT)
            for tensor, value in (INPUT, x), (GRADIENT, dy):
                history[0, tensor] = max(history[0, tensor], numpy.abs(value).max())
            qx, qw, qdy = (cast(v, s, n) for v, s, n in zip((x, w, dy), scale, names))
            y = qx @ qw.T * float(inverse[INPUT]) * float(inverse[WEIGHT]) + bias
            dx = qdy @ qw * float(inverse[GRADIENT]) * float(inverse[WEIGHT])
            dw = dw + qdy.T @ qx * float(inverse[GRADIENT]) * float(inverse[INPUT])
            db = db + dy.astype(numpy.float64).sum(axis=0)
        history, scale = update(history, scale, most, margin, algorithm)
        steps.append({"scale": [float(s) for s in scale],
                      **{name: [float("%.7g" % v) for v in numpy.ravel(values)]
                         for name, values in (("y", y), ("dx", dx), ("dw", dw), ("db", db))}})
    return {"format": format, "margin": margin, "length": length, "algorithm": algorithm, "steps": steps}


with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump([run(*case) for case in CASES], out, separators=(",", ":"))
    out.write("\n")
