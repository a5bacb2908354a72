"""Writes tests/kernels/golden/rounding.json: what other libraries make of the matrices of `values`, which
tests/kernels/rounding_test.c has, too. A digest is that of the test's `digest`.

nf4 and fp4 are bitsandbytes' own, on one thread of its CPU library. int4 and int8 are the codes that compressed-tensors
gives for our scales; fp8 is PyTorch's conversion. Run it with a Python that has them; the file names their versions.

    python tools/golden/rounding_vectors.py tests/kernels/golden/rounding.json
"""
import importlib.metadata
import json
import sys

import bitsandbytes.functional as bnb
import numpy
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize

CASES = [("nf4", 5, 64), ("nf4", 7, 72), ("nf4", 96, 192), ("nf4", 640, 704), ("fp4", 33, 64), ("fp4", 5, 33),
         ("fp8", 130, 200), ("fp8", 3, 5), ("int8", 9, 100), ("int8", 4, 7), ("int4", 6, 384), ("int4", 5, 96),
         ("int4", 7, 50), ("zeros4", 6, 256), ("zeros8", 5, 33)]


def values(rows, columns):
    i = numpy.arange(rows * columns, dtype=numpy.int64)
    x = ((i * 7919 + 13) % 65521 - 32760) * (1 + i // 37 % 29)
    x[(i % 1024 >= 128) & (i % 1024 < 192)] = 0
    return torch.from_numpy((x / 2.0**21).astype(numpy.float32)).reshape(rows, columns)


def digest(array):
    total = 0
    for byte in numpy.ascontiguousarray(array).tobytes():
        total = (total * 1099511628211 + byte + 1) % 2**64
    return str(total)


def flat(kind, x):
    packed, state = bnb.quantize_4bit(x, blocksize=64, compress_statistics=True, quant_type=kind)
    scales = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
    codes = numpy.stack([packed.numpy() >> 4, packed.numpy() & 15], -1).reshape(-1)[:x.numel()]
    return codes, scales.numpy(), {"scale codes": digest(state.absmax.numpy()), "offset": float(state.offset),
                                   "absmax": state.state2.absmax.tolist()}


def blocks(x):
    rows, columns = x.shape
    codes = numpy.zeros(x.shape, numpy.uint8)
    scales = numpy.zeros((rows, -(-columns // 128)), numpy.float32)
    for r in range(0, rows, 128):
        for c in range(0, columns, 128):
            block = x[r:r + 128, c:c + 128]
            scale = block.abs().max() / 448
            scale = scale if scale > 0 else torch.tensor(1.0)
            codes[r:r + 128, c:c + 128] = (block / scale).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
            scales[r:r + 128, c // 128] = scale
    return codes, scales, {}


def integers(bits, has_zeros, x):
    rows, columns = x.shape
    group = columns if bits == 8 else next((g for g in (128, 64, 32) if columns % g == 0), columns)
    grouped = x.reshape(rows, -1, group)
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scale = (high - low) / (2**bits - 1) if has_zeros else torch.maximum(high, -low) / (2**(bits - 1) - 1)
    scale = scale.to(torch.bfloat16)
    scale[scale == 0] = 1
    lowest = -2**(bits - 1)
    zero = torch.round(-low / scale.float()).clamp(max=2**bits - 1) + lowest if has_zeros else torch.zeros_like(low)
    arguments = QuantizationArgs(num_bits=bits, symmetric=not has_zeros, strategy="group", group_size=group)
    codes = quantize(x, scale.float(), zero.to(torch.int8), arguments, dtype=torch.int8)
    extra = {"zeros": digest((zero - lowest).to(torch.uint8).numpy())} if has_zeros else {}
    return (codes.to(torch.int32) - lowest).to(torch.uint8).numpy(), scale.view(torch.int16).numpy(), extra


def main():
    torch.set_num_threads(1)
    names = ("bitsandbytes", "compressed-tensors", "torch", "numpy")
    made = {"made_with": {name: importlib.metadata.version(name) for name in names},
            "map": bnb.create_dynamic_map().tolist(), "cases": []}
    for kind, rows, columns in CASES:
        x = values(rows, columns)
        codes, scales, extra = flat(kind, x) if kind in ("nf4", "fp4") else blocks(x) if kind == "fp8" else integers(
            int(kind[-1]), kind.startswith("zeros"), x)
        made["cases"].append({"kind": kind, "rows": rows, "columns": columns, "codes": digest(codes),
                              "scales": digest(scales), **extra})
    with open(sys.argv[1], "w") as file:
        json.dump(made, file, indent=None, separators=(", ", ": "))
        file.write("\n")


if __name__ == "__main__":
    main()
