"""The common part of the tests of generate and score: the committed tiny model, and models made here, byte by byte,
whose output is known because they recite a text."""
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import unittest

CAMBIUM = os.environ["CAMBIUM"]
SANITIZED = "CAMBIUM_SANITIZED" in os.environ  # the build has a sanitizer
counts_memory = unittest.skipIf(SANITIZED or "CAMBIUM_TEST_DEVICE" in os.environ,
                                  "a sanitizer, or a backend for tests, takes memory of its own")
# oneDNN has bf16 from AVX-512 on, and Cambium asks for it only there.
PRECISIONS = ("fp32", "bf16") if "avx512bw" in open("/proc/cpuinfo").read() else ("fp32",)
NO_BF16 = "no bf16 products on this processor"
needs_bf16 = unittest.skipUnless("bf16" in PRECISIONS, NO_BF16)
SOURCE = pathlib.Path(os.environ["CAMBIUM_SOURCE"])
TINY = SOURCE / "tests/commands/golden/tiny/model"
EXPECTED = json.loads((SOURCE / "tests/commands/golden/tiny/expected.json").read_text())
EOS = 256  # of the byte tokenizer
os.environ["OMP_WAIT_POLICY"] = "passive"  # threads that spin steal time from whatever else a machine under test runs


def without_notices(errors):
    """Standard error without the lines that say what is being loaded, what a cache did, and what memory was taken."""
    kept = [line for line in errors.splitlines(keepends=True)
            if not re.match(r"cambium: (loading |\d+ tokens of prompts, |peak memory [0-9.]+ MiB, planned )", line)]
    return "".join(kept)


def without_program(dump):
    """The dump of a run without what its process holds, which differs a little from one to the next."""
    return re.sub(rb"(?m)^# +(program|total) .*\n", b"", dump)


def run(*words, input=None, expect=0, **more):
    """Runs the program and returns (standard output as bytes, standard error as text but for notices)."""
    done = subprocess.run([CAMBIUM, *map(str, words)], input=input if input is not None else b"", capture_output=True,
                          timeout=300, **more)
    errors = without_notices(done.stderr.decode())
    assert done.returncode == expect, f"exit status {done.returncode}, expected {expect}: {words}\n{errors}"
    return done.stdout, errors


def rows(output):
    """The objects of JSON lines. A text may have U+0085 or U+2028, where splitlines would cut."""
    *lines, rest = output.decode().split("\n")
    assert not rest, output[-200:]
    return [json.loads(line) for line in lines]


# ---- files

def write_safetensors(path, tensors, metadata=None):
    """tensors: name -> (type, shape, bytes)."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    content = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + size])
    return {name: (t["dtype"], t["shape"], content[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def bytes_to_unicode():
    """GPT-2's alphabet: a printable character for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(others)}


def write_byte_tokenizer(directory):
    """GPT-2's two files with a token a byte, id = byte, and <|endoftext|> = 256."""
    directory = pathlib.Path(directory)
    vocab = {character: byte for byte, character in bytes_to_unicode().items()} | {"<|endoftext|>": EOS}
    (directory / "vocab.json").write_text(json.dumps(vocab))
    (directory / "merges.txt").write_text("#version: 0.2\n")


def gpt2_config(**more):
    return {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 16, "vocab_size": 16,
            "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0,
            "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.02, "eos_token_id": None, "bos_token_id": None} | more


def gpt2_shapes(config):
    """Names and shapes of a tied GPT-2, as in its files."""
    width = config["n_embd"]
    inner = config["n_inner"] or 4 * width
    shapes = {"wte.weight": (config["vocab_size"], width), "wpe.weight": (config["n_positions"], width)}
    for layer in range(config["n_layer"]):
        shapes |= {f"h.{layer}.{name}": shape for name, shape in {
            "ln_1.weight": (width,), "ln_1.bias": (width,), "attn.c_attn.weight": (width, 3 * width),
            "attn.c_attn.bias": (3 * width,), "attn.c_proj.weight": (width, width), "attn.c_proj.bias": (width,),
            "ln_2.weight": (width,), "ln_2.bias": (width,), "mlp.c_fc.weight": (width, inner), "mlp.c_fc.bias": (inner,),
            "mlp.c_proj.weight": (inner, width), "mlp.c_proj.bias": (width,)}.items()}
    return shapes | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def count(shape):
    size = 1
    for extent in shape:
        size *= extent
    return size


def write_model(directory, config=None, seed=7, **changed):
    """A random model; `changed` tensors replace their like, None leaves one out. Returns the config."""
    config = config or gpt2_config()
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    random_number = random.Random(seed)
    tensors = {f"transformer.{name}": ("F32", shape, floats([random_number.gauss(0, 0.3) for _ in range(count(shape))]))
               for name, shape in gpt2_shapes(config).items()}
    tensors |= changed
    write_safetensors(directory / "model.safetensors", {name: t for name, t in tensors.items() if t})
    (directory / "config.json").write_text(json.dumps(config))
    return config


def write_byte_model(directory, **more):
    """A random model over bytes, with its tokenizer, that is worth tuning: norms are 1, the rest is small."""
    config, r = gpt2_config(vocab_size=EOS + 1, **more), random.Random(3)
    gains = {f"transformer.{name}": ("F32", shape, floats([1.0] * count(shape)))
             for name, shape in gpt2_shapes(config).items() if "ln_" in name and name.endswith("weight")}
    small = {f"transformer.{name}": ("F32", shape, floats([r.gauss(0, 0.1) for _ in range(count(shape))]))
             for name, shape in gpt2_shapes(config).items()}
    write_model(directory, config, **small | gains)
    write_byte_tokenizer(directory)


def llama_config(**more):
    """Heads wider together than the hidden size, of half as many keys and values."""
    return {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 8, "num_key_value_heads": 2,
            "head_dim": 6, "intermediate_size": 48, "max_position_embeddings": 48, "vocab_size": EOS + 1, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "initializer_range": 0.02, "tie_word_embeddings": True,
            "attention_dropout": 0.0, "eos_token_id": EOS, "bos_token_id": None} | more


def llama_shapes(config):
    """Names and shapes of a tied Llama, as in its files; of a Mistral, Qwen2, Qwen3 or Phi-3 where model_type says so."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in {
            "input_layernorm": (width,), "post_attention_layernorm": (width,), "self_attn.q_proj": (q, width),
            "self_attn.k_proj": (kv, width), "self_attn.v_proj": (kv, width), "self_attn.o_proj": (width, q),
            "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}.items()}
        attention, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
        if config["model_type"] == "qwen2":
            shapes |= {f"{attention}{name}_proj.bias": (rows,) for name, rows in (("q", q), ("k", kv), ("v", kv))}
        elif config["model_type"] == "qwen3":
            shapes |= {f"{attention}{name}_norm.weight": (config["head_dim"],) for name in "qk"}
        elif config["model_type"] == "phi3":
            for name in (attention + "q_proj", attention + "k_proj", attention + "v_proj", mlp + "gate_proj", mlp + "up_proj"):
                del shapes[name + ".weight"]
            shapes |= {attention + "qkv_proj.weight": (q + 2 * kv, width), mlp + "gate_up_proj.weight": (2 * inner, width)}
    return shapes


def write_byte_llama(directory, **more):
    """As write_byte_model."""
    config, r = llama_config(**more), random.Random(3)
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "model.safetensors", {
        name: ("F32", shape, floats([1.0 if len(shape) == 1 else r.gauss(0, 0.1) for _ in range(count(shape))]))
        for name, shape in llama_shapes(config).items()})
    (directory / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(directory)


def write_reciting_model(directory, text, positions=None, specials=()):
    """A model that writes `text` (bytes, or ids; it ends with an end-of-text) after any prompt of one token. Its blocks
    add nothing. Its position table holds at each place the code of the byte to write there, and the untied output
    layer compares with the code of every byte. `specials` are names of tokens after the end-of-text."""
    width, positions, vocabulary = 64, positions or len(text) + 1, EOS + 1 + len(specials)
    config = gpt2_config(n_embd=width, n_head=4, n_positions=positions, vocab_size=vocabulary, tie_word_embeddings=False,
                         eos_token_id=EOS)
    r = random.Random(3)
    codes = [[value for _ in range(width // 2) for value in r.choice(((1.0, -1.0), (-1.0, 1.0)))] for _ in range(vocabulary)]
    tensors = {f"transformer.{name}": ("F32", shape, floats([0.0] * count(shape)))
               for name, shape in gpt2_shapes(config).items()}
    wanted = [*text, *[EOS] * (positions - len(text))][:positions]
    tensors["transformer.wpe.weight"] = ("F32", (positions, width), b"".join(floats(codes[t]) for t in wanted))
    tensors["transformer.ln_f.weight"] = ("F32", (width,), floats([1.0] * width))
    tensors["lm_head.weight"] = ("F32", (vocabulary, width), b"".join(floats(code) for code in codes))
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "model.safetensors", tensors)
    (directory / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(directory)
    if specials:
        ids = {name: EOS + 1 + i for i, name in enumerate(specials)}
        decoder = {str(i): {"content": name, "special": True} for name, i in ids.items()}
        (directory / "added_tokens.json").write_text(json.dumps(ids))
        (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
