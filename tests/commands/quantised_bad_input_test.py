"""Damaged quantised directories are refused with exit status 1. One line names the file and the tensor, or the key of the
configuration. Methods and forms that are not read are refused by their names."""
import json
import math
import pathlib
import random
import shutil
import struct
import tempfile
import unittest

from gguf_support import TYPES, random_blocks, write_gguf
from model_support import floats, read_safetensors, run, write_safetensors
from quantised_support import FAMILIES, compressed, quantise, scheme

MODULE = "model.layers.1.mlp.down_proj"
MODEL, CONFIG = "model.safetensors", "config.json"


def without(*endings):
    """The tensors of the module with these endings go."""
    def edit(tensors, _):
        for ending in endings:
            del tensors[f"{MODULE}.{ending}"]
    return edit


def put(ending, kind, shape, content):
    def edit(tensors, _):
        tensors[f"{MODULE}.{ending}"] = (kind, shape, content)
    return edit


def shaped(ending, *shape):
    """Another shape, of zeros."""
    def edit(tensors, _):
        kind, old, content = tensors[f"{MODULE}.{ending}"]
        width, size = len(content) // max(1, product(old)), product(shape)
        tensors[f"{MODULE}.{ending}"] = (kind, shape, bytes(width * size))
    return edit


def typed(ending, kind):
    """Another type of the same width."""
    def edit(tensors, _):
        _, shape, content = tensors[f"{MODULE}.{ending}"]
        tensors[f"{MODULE}.{ending}"] = (kind, shape, content)
    return edit


def bytes_at(ending, at, content):
    def edit(tensors, _):
        kind, shape, old = tensors[f"{MODULE}.{ending}"]
        tensors[f"{MODULE}.{ending}"] = (kind, shape, old[:at] + content + old[at + len(content):])
    return edit


def keys(**changed):
    def edit(_, config):
        config.update(changed)
    return edit


def config_is(value):
    def edit(_, config):
        config.clear()
        config.update(value)
    return edit


def weights(**changed):
    def edit(_, config):
        config["config_groups"]["group_0"]["weights"].update(changed)
    return edit


def state(kind="nf4", text=None, **changed):
    """Another quant_state: a text, or other values of keys (None takes one away)."""
    def edit(tensors, _):
        name = f"{MODULE}.weight.quant_state.bitsandbytes__{kind}"
        found = json.loads(tensors[name][2])
        found.update(changed)
        content = (text if text is not None else json.dumps({k: v for k, v in found.items() if v is not None})).encode()
        tensors[name] = ("U8", (len(content),), content)
    return edit


def group(**changed):
    def edit(_, config):
        config["config_groups"]["group_0"].update(changed)
    return edit


def renamed(old, new):
    def edit(tensors, _):
        tensors[f"{MODULE}.{new}"] = tensors.pop(f"{MODULE}.{old}")
    return edit


def product(shape):
    size = 1
    for extent in shape:
        size *= extent
    return size


NAN16, INFINITE16, NAN32, NANB = b"\x00\x7e", b"\x00\x7c", struct.pack("<f", float("nan")), b"\xc0\x7f"
MISSING = "missing tensor"
# the down projection has 24 outputs and 40 inputs


def deepened(ending):
    """The same numbers in three dimensions."""
    def edit(tensors, _):
        kind, shape, content = tensors[f"{MODULE}.{ending}"]
        tensors[f"{MODULE}.{ending}"] = (kind, [*shape, *[1] * (3 - len(shape))], content)
    return edit


TENSORS = [  # form, damage, the place that the line names, more of the line
    ("gptq4", without("qzeros"), MODEL, f"{MISSING} {MODULE}.qzeros"),
    ("gptq4", without("scales"), MODEL, f"{MISSING} {MODULE}.scales"),
    ("gptq4", without("qweight"), MODEL, f"'{MODULE}.qzeros'"),
    ("gptq4", without("qweight", "qzeros", "scales"), "", f"missing tensors: {MODULE}.weight"),
    ("gptq4", shaped("qweight", 4, 24), MODEL, f"'{MODULE}."),
    ("gptq4", shaped("qweight", 5, 32), MODEL, f"'{MODULE}."),
    ("gptq4", shaped("qweight", 120), MODEL, f"'{MODULE}.qweight'"),
    ("gptq4", shaped("qweight", 0, 24), MODEL, f"'{MODULE}.qweight'"),
    ("gptq4", typed("qweight", "F32"), MODEL, f"'{MODULE}."),
    ("gptq4", shaped("qzeros", 5, 4), MODEL, f"'{MODULE}.qzeros' has shape [5, 4] (expected [5, 3])"),
    ("gptq4", shaped("qzeros", 4, 3), MODEL, f"'{MODULE}.qzeros' has shape [4, 3] (expected [5, 3])"),
    ("gptq4", typed("qzeros", "F32"), MODEL, f"'{MODULE}.qzeros' has dtype F32 (expected I32)"),
    ("gptq4", shaped("scales", 6, 24), MODEL, f"'{MODULE}.scales' has shape [6, 24] (expected [5, 24])"),
    ("gptq4", typed("scales", "I16"), MODEL, f"'{MODULE}.scales' has dtype I16"),
    ("gptq4", bytes_at("scales", 6, INFINITE16), MODEL, f"'{MODULE}.scales' has a scale that is not finite: element 3"),
    ("gptq4", bytes_at("scales", 0, NAN16), MODEL, f"'{MODULE}.scales'"),
    ("gptq4", put("weight", "F32", (24, 40), bytes(3840)), MODEL, f"'{MODULE}.weight'"),
    ("gptq4", deepened("qweight"), MODEL, f"'{MODULE}.qweight' is no matrix"),
    ("gptq4", keys(group_size=0), MODEL, "'model.layers.0.mlp.down_proj.scales' has shape [5, 24] (expected [1, 24])"),
    ("gptq4", keys(dynamic={".*": {"group_size": 16}}), MODEL, "'model.layers.0.mlp.down_proj.scales' has shape [5, 24] (expected [3, 24])"),
    ("gptq4", keys(group_size=16), MODEL, "'model.layers.0.mlp.down_proj.scales' has shape [5, 24] (expected [3, 24])"),
    ("gptq4", keys(bits=8), MODEL, "'model.layers.0.mlp.down_proj."),
    ("gptq-row", shaped("qweight", 6, 24), MODEL, f"'{MODULE}.qweight' has values of shape [24, 48] (expected [24, 40]; "
     "without g_idx, inputs fill whole words of 32 bits)"),
    ("gptq-order", bytes_at("g_idx", 8, struct.pack("<i", 5)), MODEL, f"'{MODULE}.g_idx' gives input 2 group 5"),
    ("gptq-order", bytes_at("g_idx", 8, struct.pack("<i", -1)), MODEL, f"'{MODULE}.g_idx' gives input 2 group -1"),
    ("gptq-order", shaped("g_idx", 24), MODEL, f"'{MODULE}."),
    ("gptq-order", typed("g_idx", "F32"), MODEL, f"'{MODULE}.g_idx' has dtype F32"),
    ("awq", without("qzeros"), MODEL, f"{MISSING} {MODULE}.qzeros"),
    ("awq", shaped("qweight", 40, 4), MODEL, f"'{MODULE}.qweight' has shape [40, 4] (expected [40, 3])"),
    ("awq", shaped("scales", 4, 24), MODEL, f"'{MODULE}.scales'"),
    ("awq", keys(group_size=20), MODEL, "'model.layers.0.mlp.down_proj.scales'"),
    ("packed4", without("weight_scale"), MODEL, f"{MISSING} {MODULE}.weight_scale"),
    ("packed4", without("weight_shape"), MODEL, f"{MISSING} {MODULE}.weight_shape"),
    ("packed4", without("weight_packed"), MODEL, f"'{MODULE}.weight_scale'"),
    ("packed4", bytes_at("weight_shape", 0, struct.pack("<q", 25)), MODEL, f"'{MODULE}.weight_packed'"),
    ("packed4", bytes_at("weight_shape", 8, struct.pack("<q", -40)), MODEL, f"'{MODULE}.weight_shape'"),
    ("packed4", bytes_at("weight_shape", 8, struct.pack("<q", 2 ** 62)), MODEL, f"'{MODULE}.weight_shape'"),
    ("packed4", shaped("weight_shape", 3), MODEL, f"'{MODULE}.weight_shape'"),
    ("packed4", shaped("weight_packed", 24, 6), MODEL, f"'{MODULE}.weight_packed' has shape [24, 6] (expected [24, 5])"),
    ("packed4", bytes_at("weight_scale", 2, NANB), MODEL, f"'{MODULE}.weight_scale' has a scale that is not finite: element 1"),
    ("packed4", weights(group_size=16), MODEL, "'model.layers.0.mlp.down_proj.weight_scale'"),
    ("packed4", weights(symmetric=False), MODEL, f"{MISSING} model.layers.0.mlp.down_proj.weight_zero_point"),
    ("packed4", weights(num_bits=8), MODEL, "'model.layers.0.mlp.down_proj.weight_packed'"),
    ("packed4-asymmetric", shaped("weight_zero_point", 2, 5), MODEL, f"'{MODULE}.weight_zero_point'"),
    ("packed4-order", bytes_at("weight_g_idx", 0, struct.pack("<i", 99)), MODEL, f"'{MODULE}.weight_g_idx' gives input 0 group 99"),
    ("packed4", weights(group_size=3), MODEL, "'model.layers.0.mlp.down_proj.weight_scale'"),
    ("packed4", group(format="int-quantized"), MODEL, "contradicts 'format' \"int-quantized\" of its group"),
    ("int", group(format="pack-quantized"), MODEL, "contradicts 'format' \"pack-quantized\" of its group"),
    ("float-channel", group(format="pack-quantized"), MODEL, "contradicts 'format' \"pack-quantized\" of its group"),
    ("packed4", group(targets=["LinearX"]), MODEL, "is no target of 'config_groups'"),
    ("packed4", group(targets=["re:.*q_proj"]), MODEL, "is no target of 'config_groups'"),
    ("int", weights(strategy="tensor"), MODEL, "'model.layers.0.mlp.down_proj.weight_scale'"),
    ("int", weights(symmetric=False), MODEL, f"{MISSING} model.layers.0.mlp.down_proj.weight_zero_point"),
    ("int", keys(ignore=["Linear"]), MODEL, "is quantised, but"),
    ("naive-block", weights(strategy="channel"), MODEL, "'model.layers.0.mlp.down_proj.weight_scale'"),
    ("packed4", keys(ignore=["re:.*down_proj"]), MODEL, "'model.layers.0.mlp.down_proj.weight_packed' is quantised, but"),
    ("int", shaped("weight_scale", 24, 2), MODEL, f"'{MODULE}.weight_scale'"),
    ("int", without("weight_scale"), MODEL, f"{MISSING} {MODULE}.weight_scale"),
    ("int", weights(type="float"), MODEL, "'model.layers.0.mlp.down_proj.weight' has dtype I8"),
    ("int", typed("weight", "U8"), MODEL, f"'{MODULE}.weight_scale'"),
    ("float-channel", bytes_at("weight", 100, b"\x7f"), MODEL, f"'{MODULE}.weight' has a number that is nan"),
    ("float-channel", bytes_at("weight", 100, b"\xff"), MODEL, f"'{MODULE}.weight' has a number that is nan"),
    ("float-channel", bytes_at("weight_scale", 0, NANB), MODEL, f"'{MODULE}.weight_scale'"),
    ("fp8-block", without("weight_scale_inv"), MODEL, f"{MISSING} {MODULE}.weight_scale_inv"),
    ("fp8-block", shaped("weight_scale_inv", 2, 2), MODEL, f"'{MODULE}.weight_scale_inv' has shape [2, 2] (expected [2, 3])"),
    ("fp8-block", renamed("weight_scale_inv", "weight_scale"), MODEL, f"{MISSING} {MODULE}.weight_scale_inv"),
    ("fp8-block", keys(weight_block_size=[16, 40]), MODEL, "weight_scale_inv' has shape"),
    ("fp8-block", keys(weight_block_size=None), MODEL, "weight_scale_inv' has shape"),
    ("fp8-block", typed("weight", "F8_E5M2"), MODEL, f"'{MODULE}.weight_scale_inv'"),
    ("fp8-block", typed("weight", "I8"), MODEL, f"'{MODULE}.weight_scale_inv'"),
    ("nf4", without("weight.absmax"), MODEL, f"{MISSING} {MODULE}.weight.absmax"),
    ("nf4", without("weight.quant_map"), MODEL, f"{MISSING} {MODULE}.weight.quant_map"),
    ("nf4", without("weight.quant_state.bitsandbytes__nf4"), MODEL, f"'{MODULE}.weight' has no quant_state"),
    ("nf4", without("weight"), MODEL, f"'{MODULE}.weight.absmax'"),
    ("nf4", renamed("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"), MODEL, "'quant_type' must be"),
    ("nf4", state(text="{"), MODEL, f"'{MODULE}.weight.quant_state.bitsandbytes__nf4'"),
    ("nf4", state(text="[]"), MODEL, f"'{MODULE}.weight.quant_state.bitsandbytes__nf4'"),
    ("nf4", state(text="{}\0"), MODEL, f"'{MODULE}.weight.quant_state.bitsandbytes__nf4' holds a zero byte"),
    ("nf4", state(text=" " * 70000), MODEL, f"'{MODULE}.weight.quant_state.bitsandbytes__nf4' has 70000 bytes"),
    ("nf4", state(quant_type="fp4"), MODEL, "'quant_type' must be \"nf4\""),
    ("nf4", state(blocksize=32), MODEL, f"'{MODULE}.weight.absmax' has shape [15] (expected [30])"),
    ("nf4", state(blocksize=63), MODEL, "'blocksize' must be"),
    ("nf4", state(blocksize=0), MODEL, "'blocksize' must be"),
    ("nf4", state(blocksize=None), MODEL, "'blocksize'"),
    ("nf4", state(shape=[24, 41]), MODEL, f"'{MODULE}.weight' has shape"),
    ("nf4", state(shape=[960]), MODEL, "'shape' must be"),
    ("nf4", state(shape=[2 ** 62, 40]), MODEL, "'shape' must be"),
    ("nf4", state(shape=[40, 24]), MODEL, f"'{MODULE}.weight' has values of shape [40, 24] (expected [24, 40])"),
    ("nf4", deepened("weight.quant_state.bitsandbytes__nf4"), MODEL, "bytes in 3 dimensions"),
    *(("nf4", state(text=text), MODEL, f"'{MODULE}.weight.quant_state.bitsandbytes__nf4'")
      for text in ("", "null", "3", '"x"', '{"blocksize": 64, "blocksize": 64}', "[" * 5000, "\xff", "{}")),
    *(("nf4", state(**{key: value}), MODEL, f"'{key}'") for key in ("blocksize", "shape", "quant_type")
      for value in ("x", -1, 2.5, [], {}, True, 2 ** 60, 1e300)),
    *(("nf4", state(shape=shape), MODEL, "'shape' must be") for shape in ([24, 40, 1], [24, True], [0, 40], [-24, -40], [24, 40.0], [24])),
    *(("nf4-twice", state(**{key: value}), MODEL, f"'{key}'") for key in ("nested_blocksize", "nested_offset", "nested_dtype")
      for value in ("x", [], {}, True, 1e300)),
    ("nf4-twice", state(nested_offset=None), MODEL, "'nested_offset' is missing"),
    *(("nf4-twice", state(nested_blocksize=size), MODEL, "'nested_blocksize' must be 256") for size in (2, 100, 128, 512)),
    *((form, state(form[:3], dtype=word), MODEL, "'dtype' must be") for form in ("nf4", "fp4", "nf4-twice")
      for word in ("int8", "float64", "float8_e4m3fn", "torch.float16", "", 16, [])),
    ("gptq4", keys(desc_act=True), MODEL, "missing tensor model.layers.0.mlp.down_proj.g_idx: 'desc_act' is true"),
    ("gptq-order", without("g_idx"), MODEL, f"{MISSING} {MODULE}.g_idx: 'desc_act' is true"),
    ("fp4", state("fp4", quant_type="nf4"), MODEL, "'quant_type' must be \"fp4\""),
    ("fp4", without("weight.quant_state.bitsandbytes__fp4"), MODEL, f"'{MODULE}.weight' has no quant_state"),
    ("nf4", state(nested_blocksize=256), MODEL, "'nested_blocksize' must be"),
    ("nf4", shaped("weight", 481, 1), MODEL, f"'{MODULE}.weight' has shape [481, 1] (expected [480, 1])"),
    ("nf4", shaped("weight.quant_map", 15), MODEL, f"'{MODULE}.weight.quant_map'"),
    ("nf4", bytes_at("weight.quant_map", 8, struct.pack("<f", 0.5)), MODEL, f"'{MODULE}.weight.quant_map' is another table"),
    ("nf4", bytes_at("weight.absmax", 4, NAN32), MODEL, f"'{MODULE}.weight.absmax'"),
    ("nf4", keys(bnb_4bit_quant_type="fp4"), MODEL, "'quant_type' must be \"fp4\""),
    ("nf4", keys(load_in_4bit=False, load_in_8bit=True), MODEL, "has 4 bits, but"),
    ("nf4-twice", without("weight.nested_absmax"), MODEL, f"{MISSING} {MODULE}.weight.nested_absmax"),
    ("nf4-twice", without("weight.nested_quant_map"), MODEL, f"{MISSING} {MODULE}.weight.nested_quant_map"),
    ("nf4-twice", shaped("weight.nested_absmax", 2), MODEL, f"'{MODULE}.weight.nested_absmax'"),
    ("nf4-twice", state(nested_blocksize=None), MODEL, "'nested_blocksize'"),
    ("nf4-twice", state(nested_dtype="float16"), MODEL, "'nested_dtype' must be"),
    ("nf4-twice", bytes_at("weight.nested_absmax", 0, NAN32), MODEL, f"{MODULE}.weight.nested_absmax"),
    ("bnb8", without("SCB"), MODEL, f"{MISSING} {MODULE}.SCB"),
    ("bnb8", shaped("SCB", 25), MODEL, f"'{MODULE}.SCB' has shape [25] (expected [24"),
    ("bnb8", bytes_at("SCB", 8, NAN32), MODEL, f"'{MODULE}.SCB'"),
    ("bnb8", bytes_at("weight_format", 0, b"\2"), MODEL, f"'{MODULE}.weight_format' is 2"),
]
REFUSED = ("hqq", "aqlm", "vptq", "spqr", "quip", "higgs", "quanto", "torchao", "eetq", "quark", "bitnet", "mxfp4", "exl2", "exl3",
           "auto-round", "fbgemm_fp8", "modelopt", "marlin", "no such method")
CONFIGS = [  # form, change of quantization_config, words of the line
    *(("gptq4", keys(quant_method=method), f"'quant_method' \"{method}\" is not supported") for method in REFUSED),
    *(("gptq4", config_is({"bits": 4} | more), "'quant_method'") for more in ({}, {"quant_method": []}, {"quant_method": ""})),
    *((form, keys(group_size=size), "'group_size'") for form in ("gptq4", "awq") for size in (-1.5, True, [], {}, "8", 1e99, 8.0)),
    *((form, keys(bits=bits), "'bits'") for form in ("gptq4", "awq") for bits in (0, -4, True, [4], 4.0, 10 ** 18)),
    *(("gptq4", keys(dynamic={pattern: rule}), "'dynamic'") for pattern in (".*", "+:.*") for rule in (3, None, [], "x", True)),
    *(("gptq4", keys(**{key: 3}), f"'{key}'") for key in ("checkpoint_format", "pack_dtype")),
    ("awq", keys(version=3), "'version'"), ("awq", keys(zero_point="x"), "'zero_point'"),
    *((form, weights(**{key: value}), f"'{key}'") for form in ("packed4", "int", "float-channel", "naive-block")
      for key in ("num_bits", "type", "strategy", "group_size", "symmetric") for value in ([], {}, 2.5)),
    *((form, weights(strategy=word), f"'strategy' \"{word}\"") for form in ("packed4", "int", "naive-block") for word in ("token", "x")),
    *((form, weights(group_size=8), "'group_size'") for form in ("int", "float-channel", "naive-block")),
    *((form, group(targets=value), "'targets'") for form in ("packed4", "int") for value in (None, "Linear", [3])),
    *((form, group(weights=value), "'weights'") for form in ("packed4", "int") for value in (None, [], "x")),
    *(("fp8-block", keys(weight_block_size=value), "'weight_block_size'")
      for value in ([], {}, [16, 16, 16], [16, 2.5], [True, True], [2 ** 40, 16], [-1, 16], ["16", "16"], 3)),
    *(("fp8-block", keys(**{key: 3}), f"'{key}'") for key in ("fmt", "scale_fmt", "activation_scheme")),
    ("fp8-block", keys(activation_scheme="nonsense"), "'activation_scheme' \"nonsense\""),
    *(("nf4", keys(load_in_4bit=value), "'load_in_4bit'") for value in ("yes", 3, [])),
    *(("nf4", keys(**{key: 3}), f"'{key}'") for key in ("bnb_4bit_quant_type", "bnb_4bit_quant_storage")),
    ("gptq4", keys(quant_method=None), "'quant_method'"), ("gptq4", keys(quant_method=4), "'quant_method'"),
    *(("gptq4", keys(bits=bits), f"({bits} bits are not supported)") for bits in (2, 3, 5, 6, 7)),
    ("gptq4", keys(bits=None), "'bits'"), ("gptq4", keys(bits="4"), "'bits'"), ("gptq4", keys(group_size=-2), "'group_size'"),
    ("gptq4", keys(group_size=2 ** 40), "'group_size'"), ("gptq4", keys(sym="yes"), "'sym'"),
    *(("gptq4", keys(checkpoint_format=word), f"'checkpoint_format' \"{word}\"") for word in ("marlin", "gptq_v3", "bitblas")),
    ("gptq4", keys(is_marlin_format=True), "'is_marlin_format'"), ("gptq4", keys(pack_dtype="int8"), "'pack_dtype' \"int8\""),
    ("gptq4", keys(dynamic=[1]), "'dynamic'"), ("gptq4", keys(dynamic={"+:(": {}}), "dynamic"),
    ("gptq4", keys(dynamic={".*": {"bits": 3}}), "'bits'"), ("gptq4", keys(dynamic={"-:.*": {}}), "'dynamic'"),
    *(("awq", keys(version=word), f"'version' \"{word}\"") for word in ("gemv", "GEMV_FAST", "marlin", "exllama")),
    ("awq", keys(bits=8), "(8 bits are not supported)"),
    *(("packed4", keys(format=word), f"'format' \"{word}\"")
      for word in ("marlin-24", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "sparse-24-bitmask", "nonsense")),
    ("packed4", keys(transform_config={"config_groups": {"R1": {}}}), "'transform_config'"),
    ("packed4", keys(sparsity_config={"format": "sparse-24-bitmask"}), "'sparsity_config' \"sparse-24-bitmask\""),
    ("packed4", keys(config_groups=None), "'config_groups'"), ("packed4", keys(config_groups={}), "'config_groups'"),
    ("packed4", keys(config_groups={"g": 4}), "'config_groups'"), ("packed4", keys(ignore="lm_head"), "'ignore'"),
    ("packed4", keys(ignore=[3]), "'ignore'"), ("packed4", keys(ignore=["re:("]), "ignore"),
    ("packed4", keys(ignore=["re:((.+)+)+[A-Z]"]), "ignore"),
    *((form, weights(num_bits=bits), f"{bits} bits") for form in ("packed4", "int", "naive-int-tensor") for bits in (1, 2, 3, 5, 6, 7)),
    *(("gptq4", keys(desc_act=value), "'desc_act'") for value in ("yes", 1, [])),
    ("packed4", weights(num_bits=None), "'num_bits'"),
    ("packed4", weights(type="complex"), "'type' \"complex\""), ("packed4", weights(strategy="tensor_group"), "'strategy' \"tensor_group\""),
    ("packed4", weights(group_size=None), "'group_size'"), ("packed4", weights(type="float"), "type float"),
    ("naive-block", weights(block_structure=[128]), "'block_structure'"), ("naive-block", weights(block_structure=[0, 8]), "'block_structure'"),
    ("fp8-block", keys(scale_fmt="ue8m0"), "'scale_fmt' \"ue8m0\""), ("fp8-block", keys(fmt="e5m2"), "'fmt' \"e5m2\""),
    ("fp8-block", keys(weight_block_size=[16]), "'weight_block_size'"), ("fp8-block", keys(weight_block_size=[0, 16]), "'weight_block_size'"),
    ("fp8-block", keys(weight_block_size="16"), "'weight_block_size'"),
    ("nf4", keys(load_in_8bit=True), "'load_in_8bit'"), ("nf4", keys(bnb_4bit_quant_storage="bfloat16"), "'bnb_4bit_quant_storage' \"bfloat16\""),
    ("nf4", keys(bnb_4bit_quant_type="nf8"), "'bnb_4bit_quant_type' \"nf8\""),
]


def more_rows(ending):
    """One more row than the others say, of zeros."""
    def edit(tensors, _):
        kind, shape, content = tensors[f"{MODULE}.{ending}"]
        grown = [shape[0] + 1, *shape[1:]]
        tensors[f"{MODULE}.{ending}"] = (kind, grown, bytes(len(content) // product(shape) * product(grown)))
    return edit


def nothing(ending):
    def edit(tensors, _):
        kind, shape, _ = tensors[f"{MODULE}.{ending}"]
        tensors[f"{MODULE}.{ending}"] = (kind, [0, *shape[1:]], b"")
    return edit


def doubles(ending):
    """A type that no format has here."""
    def edit(tensors, _):
        _, shape, _ = tensors[f"{MODULE}.{ending}"]
        tensors[f"{MODULE}.{ending}"] = ("F64", shape, bytes(8 * product(shape)))
    return edit


def not_finite(bits):
    """The last scale or FP8 number of a part becomes these bits of its type."""
    def damage(ending):
        def edit(tensors, _):
            kind, shape, content = tensors[f"{MODULE}.{ending}"]
            last = bits[kind]
            tensors[f"{MODULE}.{ending}"] = (kind, shape, content[:-len(last)] + last)
        return edit
    return damage


PARTS = {  # every damage of every part is refused
    "gptq4": ("qweight", "qzeros", "scales"), "gptq8": ("qweight", "qzeros", "scales"), "gptq4-v2": ("qzeros",), "gptq-row": ("scales",),
    "gptq-order": ("g_idx",), "gptq-short": ("scales",), "awq": ("qweight", "qzeros", "scales"), "awq-row": ("qweight", "scales"),
    "packed4": ("weight_packed", "weight_scale", "weight_shape"), "packed8": ("weight_packed",), "packed4-row": ("weight_scale",),
    "packed8-asymmetric": ("weight_packed", "weight_scale", "weight_zero_point"), "packed4-order": ("weight_g_idx",),
    "int": ("weight", "weight_scale"), "int-group-asymmetric": ("weight_scale", "weight_zero_point"), "naive-int-tensor": ("weight_scale",),
    "float-channel": ("weight", "weight_scale"), "float-tensor": ("weight_scale",), "naive-block": ("weight", "weight_scale"),
    "fp8-block": ("weight", "weight_scale_inv"), "fp8-block-odd": ("weight_scale_inv",), "fp8-tensor": ("weight",),
    "fp8-channel": ("weight", "weight_scale"), "nf4": ("weight", "weight.absmax", "weight.quant_map", "weight.quant_state.bitsandbytes__nf4"),
    "fp4": ("weight", "weight.absmax", "weight.quant_map"), "nf4-twice": ("weight.absmax", "weight.nested_absmax", "weight.nested_quant_map"),
    "fp4-twice-32": ("weight.nested_absmax",), "bnb8": ("weight", "SCB"),
}
DAMAGES = {"more rows": more_rows, "deeper": deepened, "nothing": nothing, "doubles": doubles}
SCALES = ("scales", "weight_scale", "weight_scale_inv", "weight.absmax", "weight.nested_absmax", "SCB")
NOT_FINITE = {"nan": not_finite({"F16": NAN16, "BF16": NANB, "F32": NAN32}),
              "infinite": not_finite({"F16": INFINITE16, "BF16": b"\x80\x7f", "F32": struct.pack("<f", math.inf)}),
              "minus infinite": not_finite({"F16": b"\x00\xfc", "BF16": b"\x80\xff", "F32": struct.pack("<f", -math.inf)})}


class BadInput(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(temporary.cleanup)
        self.top = pathlib.Path(temporary.name)

    def damaged(self, form, edit):
        """A quantised llama with an edit of its tensors and its quantization_config."""
        whole, model = self.top / form, self.top / "model"
        if not whole.exists():
            quantise(FAMILIES["llama"], whole, form)
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(whole, model)
        tensors, config = read_safetensors(model / MODEL), json.loads((model / CONFIG).read_text())
        edit(tensors, config["quantization_config"])
        write_safetensors(model / MODEL, tensors)
        (model / CONFIG).write_text(json.dumps(config))
        return model

    def refuse(self, form, edit, *parts):
        with self.subTest(form=form, parts=parts):
            model = self.damaged(form, edit)
            output, errors = run("generate", "--model", model, "--prompt-tokens", 1, 2, "--max-new-tokens", 1, expect=1)
            lines = [line for line in errors.splitlines() if "error" in line]
            self.assertEqual((output, len(lines)), (b"", 1), errors)
            for part in (str(model), *parts):
                self.assertIn(part, lines[0])

    def test_damaged_tensors_are_refused_by_name(self):
        for form, edit, *parts in TENSORS:
            self.refuse(form, edit, *parts)

    def test_every_part_of_every_form_is_checked(self):
        for form, parts in PARTS.items():
            for part in parts:
                has_scales = part in SCALES and (form, part) != ("nf4-twice", "weight.absmax")  # which has codes
                damages = DAMAGES | (NOT_FINITE if has_scales else {})
                if form.startswith(("gptq", "awq", "packed")):  # whose weight has another name
                    damages |= {"plain": lambda _: put("weight", "F32", (24, 40), bytes(3840))}
                for name, damage in damages.items():
                    with self.subTest(part=part, damage=name):
                        self.refuse(form, damage(part), MODEL, f"'{MODULE}.")

    def test_damaged_files_and_sizes_that_no_memory_has_are_refused(self):
        def header(change):
            def edit(data):
                size = struct.unpack("<Q", data[:8])[0]
                found = json.loads(data[8:8 + size])
                change(found)
                text = json.dumps(found).encode()
                return struct.pack("<Q", len(text)) + text + data[8 + size:]
            return edit

        def entry(ending, **changed):
            return header(lambda found: found[f"{MODULE}.{ending}"].update(changed))
        edits = [lambda data: data[:0], lambda data: data[:7], lambda data: data[:100], lambda data: data[:-1], lambda data: data[:len(data) // 2],
                 lambda data: struct.pack("<Q", 2 ** 62) + data[8:], lambda data: data[:8] + b"[" + data[9:]]
        for form, part in (("gptq4", "qweight"), ("packed4", "weight_packed"), ("nf4", "weight"), ("fp8-block", "weight"), ("bnb8", "SCB")):
            whole = self.damaged(form, lambda tensors, config: None) / MODEL
            data = whole.read_bytes()
            for number, edit in enumerate([*edits, entry(part, shape=[2 ** 40, 2 ** 40]), entry(part, shape=[-5, 24]), entry(part, shape=[2 ** 62]),
                                           entry(part, data_offsets=[0, 2 ** 50]), entry(part, data_offsets=[8, 0]), entry(part, dtype="I4")]):
                with self.subTest(form=form, number=number):
                    whole.write_bytes(edit(data))
                    output, errors = run("generate", "--model", whole.parent, "--prompt-tokens", 1, "--max-new-tokens", 1, expect=1)
                    lines = [line for line in errors.splitlines() if "error" in line]
                    self.assertEqual((output, len(lines)), (b"", 1), errors)
                    self.assertIn(str(whole), lines[0])
                    self.assertTrue(number < len(edits) or f"'{MODULE}.{part}'" in lines[0], lines[0])

    def test_damaged_tensors_of_every_type_of_gguf_are_refused(self):
        r, name, file = random.Random(3), "blk.0.ffn_down.weight", self.top / "m.gguf"
        keys = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 256, "llama.feed_forward_length": 256,
                "llama.context_length": 16, "llama.attention.head_count": 4, "llama.attention.layer_norm_rms_epsilon": 1e-5}
        plain = {f"{norm}.weight": (0, [256], floats([1.0] * 256)) for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")}
        plain["token_embd.weight"] = (0, [4, 256], floats([0.5] * 1024))
        for module in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"):
            plain[f"blk.0.{module}.weight"] = (1, [256, 256], bytes(131072))
        for word, (kind, in_block, size, places, _) in TYPES.items():
            data = random_blocks(r, word, 65536)
            bad = [(name, [255, 256], data), (name, [256, 512], data * 2), (name, [65536], data), ("exceeds", [2 ** 30, 256], data),
                   ("64 bits", [2 ** 40, 2 ** 40], data), ("a size of 0", [0, 256], data)]
            if in_block > 1:
                bad.append(("whole blocks", [256, in_block + 1], data))
            for number in (math.nan, math.inf):
                bits = struct.pack("<e" if places else "<f", number)[2 if word == "BF16" else 0:]
                for at in (9 * size + place for place in places or (0,)):
                    bad.append((name, [256, 256], data[:at] + bits + data[at + len(bits):]))
            for words, shape, content in bad:
                with self.subTest(type=word, words=words, shape=shape):
                    write_gguf(file, keys, plain | {name: (kind, shape, content)})
                    self.refuse_gguf(file, words)
            for end in (1, size, len(data)):
                with self.subTest(type=word, end=end):
                    write_gguf(file, keys, plain | {name: (kind, [256, 256], data)})
                    file.write_bytes(file.read_bytes()[:-end])
                    self.refuse_gguf(file, f"'{name}'.* exceeds the file")
        write_gguf(file, keys, plain)
        self.refuse_gguf(file, name)

    def refuse_gguf(self, file, words):
        output, errors = run("generate", "--model", file, "--prompt-tokens", 1, "--max-new-tokens", 1, expect=1)
        lines = [line for line in errors.splitlines() if "error" in line]
        self.assertEqual((output, len(lines)), (b"", 1), errors)
        self.assertIn(str(file), lines[0])
        self.assertRegex(lines[0], words)

    def test_words_and_numbers_of_the_configuration_are_refused_by_key(self):
        for form, edit, *parts in CONFIGS:
            self.refuse(form, edit, CONFIG, *parts)

    def test_a_plain_model_with_a_quantised_configuration_is_refused(self):
        model = self.top / "plain"
        shutil.copytree(FAMILIES["llama"], model)
        config = json.loads((model / CONFIG).read_text())
        (model / CONFIG).write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
        _, errors = run("generate", "--model", model, "--prompt-tokens", 1, "--max-new-tokens", 1, expect=1)
        self.assertIn("no linear is quantised", errors)

    def test_a_quantised_model_without_a_configuration_is_refused(self):
        model = self.damaged("packed4", lambda tensors, config: None)
        shutil.copy(FAMILIES["llama"] / CONFIG, model / CONFIG)
        _, errors = run("generate", "--model", model, "--prompt-tokens", 1, "--max-new-tokens", 1, expect=1)
        self.assertIn("missing tensors: model.layers.0.", errors)


if __name__ == "__main__":
    unittest.main()
