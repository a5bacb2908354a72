#!/usr/bin/env python3
"""Writes tests/ckpt/golden/gguf.json: random blocks of each type of GGUF that Cambium reads, and the values that the
package gguf (llama.cpp's own, with numpy) gives them. Run it with a Python that has gguf; the file names its version."""
import importlib.metadata
import json
import pathlib
import random

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

# The bytes of its block at which a type has fp16 scales.
SCALES = {"F16": (0,), "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2),
          "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,), "IQ4_XS": (0,)}
BLOCKS = 3


def block(name, size, draw):
    data = bytearray(draw.randbytes(size))
    for place in SCALES.get(name, ()):
        data[place:place + 2] = numpy.float16(draw.choice((0, -0.0, 6e-8, 2e-5, 0.0131, -0.25, 1, -3.5, 100))).tobytes()
    return bytes(data)


def main():
    draw, types = random.Random(20261126), {}
    for name in ("F32", "BF16", *SCALES):
        kind = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[kind]
        data = b"".join(block(name, size, draw) for _ in range(BLOCKS))
        if name == "F32":
            data = numpy.array([1.5, -2e-40, 3e38], dtype="<f4").tobytes()
        if name == "BF16":
            data = numpy.array([0x3f80, 0xc012, 0x0001], dtype="<u2").tobytes()
        values = quants.dequantize(numpy.frombuffer(data, dtype=numpy.uint8), kind).astype("<f4")
        assert values.size == BLOCKS * elements and numpy.isfinite(values).all()
        types[name] = {"number": int(kind), "elements": elements, "bytes": data.hex(), "values": values.tobytes().hex()}
    path = pathlib.Path(__file__).parents[2] / "tests/ckpt/golden/gguf.json"
    path.write_text(json.dumps({"made_by": f"gguf {importlib.metadata.version('gguf')}", "types": types}, indent=1) + "\n")


if __name__ == "__main__":
    main()
