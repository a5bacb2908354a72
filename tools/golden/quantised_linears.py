#!/usr/bin/env python3
"""Writes tests/ckpt/golden/quantised: one quantised linear a directory, packed by the format's own library, with the
values that this library gives it in fp32 as the tensor "expected".

Made with torch 2.15, compressed-tensors 0.20.1, bitsandbytes 0.50.2, and the packing functions of AutoAWQ 0.2.9 and
GPTQModel 7.7.0, whose sources are given:
    python tools/golden/quantised_linears.py autoawq-0.2.9 gptqmodel-7.7.0
"""
import json
import pathlib
import re
import sys

import bitsandbytes
import torch
from compressed_tensors.compressors import (FloatQuantizationCompressor, IntQuantizationCompressor, NaiveQuantizationCompressor,
                                            PackedQuantizationCompressor)
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

OUT, IN = 24, 40
GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/ckpt/golden/quantised"
awq_source, gptq_source = map(pathlib.Path, sys.argv[1:3])
torch.manual_seed(20261129)


def write(name, config, tensors, expected):
    directory = GOLDEN / name
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {f"a.{ending}": tensor.contiguous() for ending, tensor in tensors.items()}
    save_file(tensors | {"expected": expected.float().contiguous()}, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps({"quantization_config": config}, indent=1) + "\n")


# ---- compressed-tensors

def compressed(name, compressor, form, strategy, group=None, block=None, scale_type=torch.bfloat16, out=OUT, **args):
    args = QuantizationArgs(strategy=strategy, group_size=group, block_structure=block, **args)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.randn(out, IN) * 0.3
    high, wide = {"tensor": (out, IN), "channel": (1, IN), "group": (1, group or 1), "block": block or (1, 1)}[strategy]
    rows, groups = -(-out // high), -(-IN // wide)
    scale = (torch.rand(rows, groups) * 0.1 + 0.05).to(scale_type)
    scale = scale.reshape(1) if strategy == "tensor" else scale
    state = {"weight": weight.to(scale_type), "weight_scale": scale}
    if not args.symmetric:
        middle = 1 << args.num_bits - 1
        state["weight_zero_point"] = torch.randint(-middle, middle, (rows, groups)).to(torch.int8)
    packed = compressor.compress(dict(state), scheme)
    as_fp32 = {key: value.float() if key == "weight_scale" else value for key, value in packed.items()}
    expected = compressor.decompress(as_fp32, scheme)["weight"]
    config = {"quant_method": "compressed-tensors", "format": form,
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}}}
    write(name, config, packed, expected)


pack = PackedQuantizationCompressor
compressed("packed_4", pack, "pack-quantized", "group", 8, num_bits=4)
compressed("packed_4_asymmetric", pack, "pack-quantized", "group", 8, num_bits=4, symmetric=False, out=21)
compressed("packed_8_asymmetric_outputs", pack, "pack-quantized", "channel", num_bits=8, symmetric=False, scale_type=torch.float16)
compressed("int_outputs", IntQuantizationCompressor, "int-quantized", "channel", num_bits=8)
compressed("int_asymmetric", NaiveQuantizationCompressor, "naive-quantized", "group", 8, num_bits=8, symmetric=False)
compressed("float_outputs", FloatQuantizationCompressor, "float-quantized", "channel", num_bits=8, type="float")
compressed("float_tensor", FloatQuantizationCompressor, "float-quantized", "tensor", num_bits=8, type="float", scale_type=torch.float32)
compressed("float_blocks", NaiveQuantizationCompressor, "naive-quantized", "block", block=[8, 8], num_bits=8, type="float")


# ---- bitsandbytes

def four_bits(name, quant_type, twice, out, into, block=64):
    weight = torch.randn(out, into).to(torch.bfloat16)
    packed, state = bitsandbytes.functional.quantize_4bit(weight, quant_type=quant_type, compress_statistics=twice, blocksize=block)
    tensors = {"weight": packed} | {f"weight.{key}": value for key, value in state.as_dict(packed=True).items()}
    absmax = state.absmax
    if twice:
        absmax = bitsandbytes.functional.dequantize_blockwise(absmax, state.state2) + state.offset
    state.dtype = torch.float32
    codes = torch.stack((packed.flatten() >> 4, packed.flatten() & 15), 1).flatten()[:out * into].long()
    expected = (state.code[codes] * absmax.repeat_interleave(block)[:out * into]).reshape(out, into)
    library = bitsandbytes.functional.dequantize_4bit(packed, state)
    assert torch.equal(library, expected), (name, (library - expected).abs().max())
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": quant_type,
              "bnb_4bit_use_double_quant": twice}
    write(name, config, tensors, expected)


four_bits("nf4", "nf4", False, OUT, IN)
four_bits("nf4_twice", "nf4", True, 64, 320)
four_bits("fp4_twice", "fp4", True, 40, 72)
weight = torch.randn(OUT, IN).half()
codes, scales, _ = bitsandbytes.functional.int8_vectorwise_quant(weight)
write("int8", {"quant_method": "bitsandbytes", "load_in_8bit": True},
      {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}, codes.float() * (scales / 127)[:, None])


# ---- AWQ and GPTQ: their functions, without the packages around them

def function(path, name, **known):
    """A function of a source file."""
    text = path.read_text()
    found = re.search(rf"^def {name}\(.*?(?=^\S|\Z)", text, re.M | re.S).group(0)
    scope = {"torch": torch, "nn": torch.nn} | known
    exec("from __future__ import annotations\n" + found, scope)  # the source of a release
    return scope[name]


utils = awq_source / "awq/utils/packing_utils.py"
order = {"AWQ_REVERSE_ORDER": [0, 4, 1, 5, 2, 6, 3, 7]}
unpack, reverse = function(utils, "unpack_awq"), function(utils, "reverse_awq_order", **order)
dequantize_gemm = function(utils, "dequantize_gemm", unpack_awq=unpack, reverse_awq_order=reverse)
words = lambda rows, columns: torch.randint(-2 ** 31, 2 ** 31, (rows, columns)).to(torch.int32)
scales = (torch.rand(IN // 8, OUT) * 0.1).half()
tensors = {"qweight": words(IN, OUT // 8), "qzeros": words(IN // 8, OUT // 8), "scales": scales}
write("awq", {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm", "zero_point": True}, tensors,
      dequantize_gemm(tensors["qweight"], tensors["qzeros"], scales.float(), 4, 8).T)


class Quiet:
    info = type("Once", (), {"once": staticmethod(print)})


for bits in (4, 8):
    for version in (1, 2):
        convert = function(gptq_source / "gptqmodel/utils/model.py", "convert_gptq_v1_to_v2_format_module", log=Quiet,
                           BaseQuantLinear=torch.nn.Module, QuantLinear=torch.nn.Module)
        module = torch.nn.Module()
        module.qzeros = torch.nn.Parameter(words(5, OUT * bits // 32), requires_grad=False)
        module.qzero_format = lambda format=None: None
        module.enable_wf_unsqueeze = False
        scales, order = (torch.rand(5, OUT) * 0.1).half(), torch.arange(IN)[torch.randperm(IN)] // 8
        tensors = {"qweight": words(IN * bits // 32, OUT), "qzeros": module.qzeros.data.clone(), "scales": scales, "g_idx": order.int()}
        if version == 1:
            convert(module, bits, torch.int32)
        shifts = torch.arange(0, 32, bits)
        zeros = (module.qzeros.data[:, :, None] >> shifts & (1 << bits) - 1).reshape(5, OUT)
        codes = (tensors["qweight"][:, None, :] >> shifts[None, :, None] & (1 << bits) - 1).reshape(IN, OUT)
        expected = scales.float()[order] * (codes - zeros[order])
        config = {"quant_method": "gptq", "bits": bits, "group_size": 8, "sym": False, "desc_act": True}
        write(f"gptq_{bits}_v{version}", config | ({"checkpoint_format": "gptq_v2"} if version == 2 else {}), tensors, expected.T)
