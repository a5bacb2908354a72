"""A small writer of GGUF files, for tests: keys, tensors, and a model directory as llama.cpp's converter names and
orders it."""
import json
import math
import pathlib
import re
import struct

from model_support import floats, read_safetensors

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TENSOR_F32, TENSOR_F16, TENSOR_Q8_0, TENSOR_BF16 = 0, 1, 8, 30
# Types of tensors: their numbers, the elements and bytes of a block, its bytes at which scales of fp16 stand, and the size
# that values have beside these.
TYPES = {"F32": (0, 1, 4, (), 1), "F16": (1, 1, 2, (0,), 1), "BF16": (30, 1, 2, (), 1), "Q4_0": (2, 32, 18, (0,), 5),
         "Q4_1": (3, 32, 20, (0, 2), 8), "Q5_0": (6, 32, 22, (0,), 9), "Q5_1": (7, 32, 24, (0, 2), 16), "Q8_0": (8, 32, 34, (0,), 74),
         "Q2_K": (10, 256, 84, (80, 82), 12), "Q3_K": (11, 256, 110, (108,), 40), "Q4_K": (12, 256, 144, (0, 2), 250),
         "Q5_K": (13, 256, 176, (0, 2), 500), "Q6_K": (14, 256, 210, (208,), 1300), "IQ4_NL": (20, 32, 18, (0,), 60),
         "IQ4_XS": (23, 256, 136, (0,), 1100)}
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # kinds of tokens

NAMES = {  # of modules, in files of transformers: those of GGUF
    "model.embed_tokens": "token_embd", "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
    "model.norm": "output_norm", "transformer.ln_f": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "ln_1": "attn_norm", "post_attention_layernorm": "ffn_norm", "ln_2": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv", "attn.c_attn": "attn_qkv",
    "self_attn.o_proj": "attn_output", "attn.c_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.c_proj": "ffn_down"}


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def scalar(value):
    """The number of a value's type, and its bytes."""
    if isinstance(value, bool):
        return BOOL, struct.pack("<B", value)
    if isinstance(value, int):
        return (U32, struct.pack("<I", value)) if value >= 0 else (I32, struct.pack("<i", value))
    if isinstance(value, float):
        return F32, struct.pack("<f", value)
    return STRING, text(value)


def pack_value(value):
    if not isinstance(value, list):
        return struct.pack("<I", scalar(value)[0]) + scalar(value)[1]
    kind = scalar(value[0])[0] if value else STRING
    return struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(scalar(item)[1] for item in value)


def write_gguf(path, keys, tensors, version=3, alignment=32):
    """keys: name -> value; tensors: name -> (type, shape with rows first, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    head += b"".join(text(key) + pack_value(value) for key, value in keys.items())
    data = b""
    for name, (kind, shape, content) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)) + struct.pack("<IQ", kind, len(data))
        data += content + b"\0" * (-len(content) % alignment)
    pathlib.Path(path).write_bytes(head + b"\0" * (-len(head) % alignment) + data)


def read_gguf(path):
    """(keys, tensors) of a file, as write_gguf takes them."""
    content, at = pathlib.Path(path).read_bytes(), 24
    sizes = {U32: "I", I32: "i", F32: "f", BOOL: "?"}

    def take(form):
        nonlocal at
        found = struct.unpack_from("<" + form, content, at)
        at += struct.calcsize("<" + form)
        return found[0] if len(found) == 1 else found

    def take_text():
        return bytes(take(f"{take('Q')}s")).decode()

    def take_value(kind):
        if kind != ARRAY:
            return take_text() if kind == STRING else take(sizes[kind])
        kind, count = take("IQ")
        return [take_text() if kind == STRING else take(sizes[kind]) for _ in range(count)]

    magic, version, tensor_count, key_count = struct.unpack_from("<4sIQQ", content)
    assert (magic, version) == (b"GGUF", 3)
    keys = {take_text(): take_value(take("I")) for _ in range(key_count)}
    places = []
    for _ in range(tensor_count):
        name, dims = take_text(), take("I")
        shape = [take("Q") for _ in range(dims)][::-1]
        places.append((name, shape, take("I"), take("Q")))
    start, tensors = at + -at % 32, {}
    for name, shape, kind, place in places:
        count = math.prod(shape)
        size = next(count // elements * size for number, elements, size, *_ in TYPES.values() if number == kind)
        assert place % 32 == 0 and start + place + size <= len(content)
        tensors[name] = (kind, shape, content[start + place:start + place + size])
    return keys, tensors


def random_blocks(r, name, elements):
    """The bytes of these many elements of a type, whose values are about 0.05."""
    _, in_block, size, places, values = TYPES[name]
    if name == "F32":
        return struct.pack(f"<{elements}f", *(r.gauss(0, 0.05) for _ in range(elements)))
    if name == "BF16":
        return b"".join(struct.pack("<f", r.gauss(0, 0.05))[2:] for _ in range(elements))
    data = bytearray(r.randbytes(elements // in_block * size))
    for block in range(0, len(data), size):
        for place in places:
            data[block + place:block + place + 2] = struct.pack("<e", r.gauss(0, 0.05 / values))
    return bytes(data)


# ---- a model directory

def transposed(rows, columns, content):
    values = struct.unpack(f"<{rows * columns}f", content)
    return floats([values[i * columns + j] for j in range(columns) for i in range(rows)])


def paired(content, rows, heads):
    """Rows of each head as llama.cpp wants a llama's: one of the first half, one of the second, and so on."""
    size, half = len(content) // rows, rows // heads // 2
    order = [head * 2 * half + i // 2 + i % 2 * half for head in range(heads) for i in range(2 * half)]
    return b"".join(content[row * size:(row + 1) * size] for row in order)


def gguf_name(name):
    found = re.fullmatch(r"(?:(?:model\.layers|transformer\.h)\.(\d+)\.)?(.*)\.(weight|bias)", name)
    layer, module, kind = found.groups()
    return f"blk.{layer}.{NAMES[module]}.{kind}" if layer else f"{NAMES[module]}.{kind}"


def tensors_of(directory):
    """The tensors of a directory in fp32, under the names of GGUF."""
    config = json.loads((directory / "config.json").read_text())
    family, out = config["model_type"], {}
    for name, (kind, shape, content) in read_safetensors(directory / "model.safetensors").items():
        assert kind == "F32"
        if family == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight$", name):
            content, shape = transposed(*shape, content), shape[::-1]
        for word, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if family == "llama" and word in name:
                content = paired(content, shape[0], config[heads])
        out[gguf_name(name)] = (TENSOR_F32, shape, content)
    return out


def keys_of(directory):
    config = json.loads((directory / "config.json").read_text())
    family = config["model_type"]
    of = lambda *names: next((config[name] for name in names if config.get(name) is not None), None)
    keys = {"block_count": of("num_hidden_layers", "n_layer"), "embedding_length": of("hidden_size", "n_embd"),
            "feed_forward_length": of("intermediate_size", "n_inner"), "context_length": of("max_position_embeddings", "n_positions"),
            "attention.head_count": of("num_attention_heads", "n_head"), "attention.head_count_kv": of("num_key_value_heads"),
            "attention.key_length": of("head_dim"), "attention.value_length": of("head_dim"),
            "attention.layer_norm_rms_epsilon": of("rms_norm_eps"), "attention.layer_norm_epsilon": of("layer_norm_epsilon")}
    keys["feed_forward_length"] = keys["feed_forward_length"] or 4 * keys["embedding_length"]
    rope = config.get("rope_parameters")
    if rope:
        heads = keys["attention.head_count"]
        size = of("head_dim") or keys["embedding_length"] // heads
        keys |= {"rope.freq_base": rope["rope_theta"], "rope.dimension_count": int(size * rope.get("partial_rotary_factor", 1))}
        if rope["rope_type"] != "default":
            keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"],
                     "rope.scaling.original_context_length": rope.get("original_max_position_embeddings")}
    return {"general.architecture": family} | {f"{family}.{key}": value for key, value in keys.items() if value is not None}


def byte_tokens(size):
    """A tokenizer of bytes: `size` tokens of the printable characters, and one control token."""
    names = [chr(33 + i) for i in range(size - 1)] + ["<|endoftext|>"]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": names,
            "tokenizer.ggml.token_type": [NORMAL] * (size - 1) + [CONTROL], "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": size - 1}


def tokenizer_keys(tokenizer, pattern):
    """The lists of a tokenizer.json of bytes."""
    names = {id: name for name, id in tokenizer["model"]["vocab"].items()}
    kinds = dict.fromkeys(names, NORMAL)
    for token in tokenizer["added_tokens"]:
        names[token["id"]], kinds[token["id"]] = token["content"], CONTROL if token["special"] else 4
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pattern, "tokenizer.ggml.tokens": [names[i] for i in range(len(names))],
            "tokenizer.ggml.token_type": [kinds[i] for i in range(len(names))], "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.add_bos_token": False}
