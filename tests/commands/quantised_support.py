"""Quantised model directories, byte by byte: each writer packs random codes, scales and zeros of a linear as a format's
library does, and says which fp32 values they mean. Directly from the formats' definitions, without their libraries."""
import json
import math
import random
import shutil
import struct

from model_support import SOURCE, read_safetensors, write_safetensors

FAMILIES = {"gpt2": SOURCE / "tests/peft/golden/base",
            **{name: SOURCE / f"tests/peft/families/{name}/base" for name in ("llama", "mistral", "qwen2", "qwen3", "phi3")}}
NF4 = [-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1]
FP4 = [0, 0.0052083335, 0.6666667, 1, 0.33333334, 0.5, 0.16666667, 0.25]
FP4 += [-value for value in FP4]


def fp32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def e4m3(code):
    sign, exponent, fraction = -1 if code & 128 else 1, code >> 3 & 15, code & 7
    return sign * (fraction * 2.0 ** -9 if not exponent else (8 + fraction) * 2.0 ** (exponent - 10))


class Scales:
    """Random positive numbers of a type, and their bytes."""

    def __init__(self, r, count, kind, middle=0.02):
        numbers = [middle * math.exp(r.gauss(0, 0.4)) for _ in range(count)]
        self.kind = kind
        if kind == "BF16":
            words = [struct.unpack("<I", struct.pack("<f", number))[0] >> 16 for number in numbers]
            self.content = struct.pack(f"<{count}H", *words)
            self.numbers = [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]
        else:
            form = f"<{count}{'e' if kind == 'F16' else 'f'}"
            self.content = struct.pack(form, *numbers)
            self.numbers = list(struct.unpack(form, self.content))


def words(rows, bits, order=range(8)):
    """Rows of codes, packed along the row in 32-bit words, the code order[i] of a word in its place i."""
    per, out = 32 // bits, b""
    places = list(order) if bits == 4 else range(per)
    for row in rows:
        row = row + [0] * (-len(row) % per)
        out += b"".join(struct.pack("<I", sum(row[at + places[i]] << bits * i for i in range(per)))
                        for at in range(0, len(row), per))
    return out


def turned(rows):
    return [list(column) for column in zip(*rows)]


def codes_of(r, rows, columns, bits):
    return [[r.randrange(1 << bits) for _ in range(columns)] for _ in range(rows)]


def flat(rows):
    return [item for row in rows for item in row]


def up(a, b):
    return -(-a // b)


# Writers: (random numbers, module, outputs, inputs, options) -> (tensors after the module's name, values [outputs][inputs])

def gptq(r, out, into, bits=4, group=8, version=1, symmetric=False, order=None, kind="F16", **_):
    group = into if group < 0 else group
    groups = up(into, group)
    codes, scales = codes_of(r, out, into, bits), Scales(r, groups * out, kind)
    zeros = [[1 << bits - 1] * out if symmetric else [r.randrange(1 << bits) for _ in range(out)] for _ in range(groups)]
    of = [k // group for k in range(into)]
    if order == "mixed":
        r.shuffle(of)
    stored = words(zeros, bits)
    if version == 1:  # a word at a time: zero minus one borrows from the code above
        less = 0x11111111 if bits == 4 else 0x01010101
        stored = b"".join(struct.pack("<I", (word - less) % 2 ** 32) for word, in struct.iter_unpack("<I", stored))
    into_words = up(into, 32 // bits)
    packed = words(codes, bits)
    packed = b"".join(packed[4 * (o * into_words + w):][:4] for w in range(into_words) for o in range(out))
    tensors = {"qweight": ("I32", (into_words, out), packed), "qzeros": ("I32", (groups, up(out, 32 // bits)), stored),
               "scales": (kind, (groups, out), scales.content)}
    if order:
        tensors["g_idx"] = ("I32", (into,), struct.pack(f"<{into}i", *of))
    return tensors, [[fp32(scales.numbers[of[k] * out + o] * (codes[o][k] - zeros[of[k]][o])) for k in range(into)]
                     for o in range(out)]


def awq(r, out, into, group=8, **_):
    if out % 8:
        return None
    group = into if group < 0 else group
    groups, order = up(into, group), (0, 2, 4, 6, 1, 3, 5, 7)
    codes, scales = codes_of(r, into, out, 4), Scales(r, groups * out, "F16")
    zeros = codes_of(r, groups, out, 4)
    tensors = {"qweight": ("I32", (into, out // 8), words(codes, 4, order)),
               "qzeros": ("I32", (groups, out // 8), words(zeros, 4, order)), "scales": ("F16", (groups, out), scales.content)}
    return tensors, [[fp32(scales.numbers[k // group * out + o] * (codes[k][o] - zeros[k // group][o])) for k in range(into)]
                     for o in range(out)]


def packed(r, out, into, bits=4, group=8, symmetric=True, order=False, kind="BF16", shape="q", **_):
    group = into if group < 0 else group
    groups, middle = up(into, group), 1 << bits - 1
    codes, scales = codes_of(r, out, into, bits), Scales(r, out * groups, kind)
    zeros = [[middle] * groups if symmetric else [r.randrange(1 << bits) for _ in range(groups)] for _ in range(out)]
    of = [k // group for k in range(into)]
    if order:
        r.shuffle(of)
    tensors = {"weight_packed": ("I32", (out, up(into, 32 // bits)), words(codes, bits)),
               "weight_scale": (kind, (out, groups), scales.content),
               "weight_shape": ("I64" if shape == "q" else "I32", (2,), struct.pack(f"<2{shape}", out, into))}
    if not symmetric:
        rows = up(out, 32 // bits)
        content = words(turned(zeros), bits)
        content = b"".join(content[4 * (g * rows + w):][:4] for w in range(rows) for g in range(groups))
        tensors["weight_zero_point"] = ("I32", (rows, groups), content)
    if order:
        tensors["weight_g_idx"] = ("I32", (into,), struct.pack(f"<{into}i", *of))
    return tensors, [[fp32(scales.numbers[o * groups + of[k]] * (codes[o][k] - zeros[o][of[k]])) for k in range(into)]
                     for o in range(out)]


def blocks_of(strategy, out, into, block, group):
    return {"tensor": (out, into), "channel": (1, into), "group": (1, group), "block": block}[strategy]


def plain_int(r, out, into, strategy="channel", block=None, group=8, symmetric=True, kind="BF16", **_):
    high, wide = blocks_of(strategy, out, into, block, group)
    rows, groups = up(out, high), up(into, wide)
    codes, scales = codes_of(r, out, into, 8), Scales(r, rows * groups, kind, 0.002)
    zeros = [[128 if symmetric else r.randrange(256) for _ in range(groups)] for _ in range(rows)]
    tensors = {"weight": ("I8", (out, into), bytes(code ^ 128 for code in flat(codes))),
               "weight_scale": (kind, (1,) if strategy == "tensor" else (rows, groups), scales.content),
               "input_scale": ("F32", (1,), struct.pack("<f", 3))}
    if not symmetric:
        tensors["weight_zero_point"] = ("I8", (rows, groups), bytes(zero ^ 128 for zero in flat(zeros)))
    return tensors, [[fp32(scales.numbers[o // high * groups + k // wide] * (codes[o][k] - zeros[o // high][k // wide]))
                      for k in range(into)] for o in range(out)]


def plain_float(r, out, into, strategy="channel", block=None, group=8, kind="BF16", ending="weight_scale", scalar=(1,), **_):
    high, wide = blocks_of(strategy, out, into, block, group)
    rows, groups = up(out, high), up(into, wide)
    codes = [[r.choice([code for code in range(256) if code & 127 != 127]) for _ in range(into)] for _ in range(out)]
    scales = Scales(r, rows * groups, kind, 0.004)
    tensors = {"weight": ("F8_E4M3", (out, into), bytes(flat(codes))),
               ending: (kind, scalar if strategy == "tensor" else (rows, groups), scales.content)}
    return tensors, [[fp32(scales.numbers[o // high * groups + k // wide] * e4m3(codes[o][k])) for k in range(into)]
                     for o in range(out)]


def bnb4(r, out, into, quant_type="nf4", twice=False, block=64, **_):
    table = [fp32(value) for value in (NF4 if quant_type == "nf4" else FP4)]
    codes = [r.randrange(16) for _ in range(out * into)]
    blocks = up(out * into, block)
    state = {"quant_type": quant_type, "blocksize": block, "dtype": "bfloat16", "shape": [out, into]}
    tensors = {"weight": ("U8", (up(out * into, 2), 1), bytes(a << 4 | b for a, b in zip(codes[::2], codes[1::2] + [0]))),
               "weight.quant_map": ("F32", (16,), struct.pack("<16f", *table))}
    if twice:
        inner = [r.randrange(256) for _ in range(blocks)]
        nested = [fp32(-1 + i / 128) for i in range(256)]
        outer = Scales(r, up(blocks, 256), "F32", 0.02)
        offset = fp32(0.1 + r.random() / 10)
        absmax = [fp32(fp32(nested[code] * outer.numbers[i // 256]) + offset) for i, code in enumerate(inner)]
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        tensors |= {"weight.absmax": ("U8", (blocks,), bytes(inner)), "weight.nested_quant_map": ("F32", (256,), struct.pack("<256f", *nested)),
                    "weight.nested_absmax": ("F32", (len(outer.numbers),), outer.content)}
    else:
        scales = Scales(r, blocks, "F32", 0.1)
        absmax = scales.numbers
        tensors["weight.absmax"] = ("F32", (blocks,), scales.content)
    text = json.dumps(state).encode()
    tensors[f"weight.quant_state.bitsandbytes__{quant_type}"] = ("U8", (len(text),), text)
    return tensors, [[fp32(table[codes[o * into + k]] * absmax[(o * into + k) // block]) for k in range(into)] for o in range(out)]


def bnb8(r, out, into, **_):
    codes, scales = codes_of(r, out, into, 8), Scales(r, out, "F32", 0.3)
    tensors = {"weight": ("I8", (out, into), bytes(code ^ 128 for code in flat(codes))), "SCB": ("F32", (out,), scales.content),
               "weight_format": ("U8", (), b"\0")}
    return tensors, [[fp32((codes[o][k] - 128) * fp32(scales.numbers[o] / 127)) for k in range(into)] for o in range(out)]


def compressed(form, weights, **more):
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None,
                                          "output_activations": None, "format": form}}, "kv_cache_scheme": None,
            "sparsity_config": {}, "transform_config": {}} | more


def scheme(strategy, bits=8, kind="int", symmetric=True, **more):
    return {"num_bits": bits, "type": kind, "symmetric": symmetric, "strategy": strategy, "dynamic": False,
            "group_size": None, "block_structure": None, "actorder": None, "observer": "minmax"} | more


def gptq_form(**options):
    config = {"quant_method": "gptq", "bits": options.get("bits", 4), "group_size": options.get("group", 8),
              "sym": options.get("symmetric", False), "desc_act": options.get("order") == "mixed"}
    name = options.pop("named", options.get("version", 1))
    return gptq, options, config | ({"checkpoint_format": "gptq_v2"} if name == 2 else {})


def packed_form(**options):
    group, bits = options.get("group", 8), options.get("bits", 4)
    weights = scheme("channel" if group < 0 else "group", bits, symmetric=options.get("symmetric", True),
                     group_size=None if group < 0 else group)
    return packed, options, compressed("pack-quantized", weights)


def fp8_form(**options):
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "modules_to_not_convert": ["lm_head"]}
    block = options.get("block")
    return plain_float, options, config | ({"weight_block_size": list(block)} if block else {"weight_block_size": None})


def bnb_form(writer=bnb4, **options):
    config = {"quant_method": "bitsandbytes", "load_in_4bit": writer is bnb4, "load_in_8bit": writer is bnb8,
              "bnb_4bit_quant_type": options.get("quant_type", "nf4"), "bnb_4bit_use_double_quant": options.get("twice", False),
              "bnb_4bit_quant_storage": "uint8", "llm_int8_threshold": 6.0, "llm_int8_skip_modules": None}
    return writer, options, config


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm", "zero_point": True, "modules_to_not_convert": None}
FORMS = {  # name -> (writer, its options, quantization_config)
    "gptq4": gptq_form(), "gptq4-v2": gptq_form(version=2), "gptq8": gptq_form(bits=8), "gptq8-v2": gptq_form(bits=8, version=2),
    "gptq-short": gptq_form(group=7), "gptq-row": gptq_form(group=-1, kind="BF16"), "gptq-wide": gptq_form(group=1000),
    "gptq-symmetric": gptq_form(symmetric=True), "gptq-symmetric-second-named-first": gptq_form(symmetric=True, version=2, named=1),
    "gptq-symmetric-first-named-second": gptq_form(symmetric=True, version=1, named=2),
    "gptq-order": gptq_form(order="mixed"), "gptq-natural": gptq_form(order="natural"),
    "gptq8-order-short": gptq_form(order="mixed", bits=8, group=7, symmetric=True),
    "awq": (awq, {}, AWQ), "awq-row": (awq, {"group": -1}, AWQ | {"group_size": -1, "version": "GEMM"}),
    "packed4": packed_form(), "packed8": packed_form(bits=8), "packed4-row": packed_form(group=-1, kind="F16"),
    "packed4-asymmetric": packed_form(symmetric=False, kind="F32"), "packed8-asymmetric": packed_form(bits=8, symmetric=False, shape="i"),
    "packed4-order": packed_form(order=True),
    "int": (plain_int, {}, compressed("int-quantized", scheme("channel"))),
    "int-group-asymmetric": (plain_int, {"strategy": "group", "symmetric": False},
                             compressed("int-quantized", scheme("group", group_size=8, symmetric=False))),
    "naive-int-tensor": (plain_int, {"strategy": "tensor"}, compressed("naive-quantized", scheme("tensor"))),
    "float-channel": (plain_float, {}, compressed("float-quantized", scheme("channel", kind="float"))),
    "float-tensor": (plain_float, {"strategy": "tensor", "kind": "F32"}, compressed("float-quantized", scheme("tensor", kind="float"))),
    "naive-block": (plain_float, {"strategy": "block", "block": (16, 9)},
                    compressed("naive-quantized", scheme("block", kind="float", block_structure=[16, 9]))),
    "fp8-block": fp8_form(strategy="block", block=(16, 16), ending="weight_scale_inv", kind="F32"),
    "fp8-block-odd": fp8_form(strategy="block", block=(5, 7), ending="weight_scale_inv"),
    "fp8-tensor": fp8_form(strategy="tensor", kind="F32", scalar=()), "fp8-channel": fp8_form(strategy="channel", kind="F32"),
    "nf4": bnb_form(), "fp4": bnb_form(quant_type="fp4"), "nf4-twice": bnb_form(twice=True),
    "fp4-twice-32": bnb_form(quant_type="fp4", twice=True, block=32), "bnb8": bnb_form(bnb8),
}


def is_linear(name):
    return name.endswith("_proj.weight") or name.endswith(("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight"))


def quantise(base, target, form, seed=5):
    """Writes a copy of a base model with its linears in this form. Returns what the model's tensors mean in fp32, as a
    plain file has them: name -> (shape, bytes)."""
    writer, options, config = FORMS[form] if isinstance(form, str) else form
    r, tensors, plain = random.Random(seed), {}, {}
    shutil.copytree(base, target)
    keys = json.loads((base / "config.json").read_text())
    is_turned = keys["model_type"] == "gpt2"
    for name, (kind, shape, content) in read_safetensors(base / "model.safetensors").items():
        if is_linear(name):
            out, into = shape[::-1] if is_turned else shape
            written = writer(r, out, into, **options)
            if written:
                tensors |= {f"{name.removesuffix('weight')}{ending}": tensor for ending, tensor in written[0].items()}
                values = turned(written[1]) if is_turned else written[1]
                plain[name] = (list(shape), struct.pack(f"<{out * into}f", *flat(values)))
                continue
        tensors[name] = (kind, shape, content)
        plain[name] = (list(shape), content)
    write_safetensors(target / "model.safetensors", tensors, {"format": "pt"})
    (target / "config.json").write_text(json.dumps(keys | {"quantization_config": config}))
    return plain
