"""Small GPT-2 directories as transformers writes them, for tests/ckpt. Every value follows from the tensor's name and
the element's index (value() below, and golden_value() in the test). It is a multiple of 1/128 in [-1, 1), which fp32,
bf16 and fp16 hold exactly. Made with transformers 5.23.0, torch 2.15.0, safetensors 0.8.0, huggingface_hub 2.4.0.

    python tools/golden/hf_gpt2.py tests/ckpt/golden
"""
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model


def value(name, elements):
    x = np.arange(elements, dtype=np.uint64) * 2654435761 + zlib.crc32(name.encode())
    return ((((x & 0xFFFFFFFF) >> 13) & 255).astype(np.float32) - 128) / 128


def make(cls, dtype, **more):
    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=40, n_positions=12, n_inner=24, bos_token_id=0,
                        eos_token_id=0, **more)
    model = cls(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            plain = name.removeprefix("transformer.")
            parameter.copy_(torch.from_numpy(value(plain, parameter.numel())).view(parameter.shape))
    return model.to(dtype)


def main(root):
    shutil.rmtree(root, ignore_errors=True)
    make(GPT2LMHeadModel, torch.float32).save_pretrained(root / "fp32")
    make(GPT2LMHeadModel, torch.float32).save_pretrained(root / "sharded", max_shard_size=5000)
    make(GPT2LMHeadModel, torch.bfloat16).save_pretrained(root / "bf16")
    make(GPT2LMHeadModel, torch.float16).save_pretrained(root / "fp16")
    make(GPT2Model, torch.float32).save_pretrained(root / "bare")
    make(GPT2LMHeadModel, torch.float32, tie_word_embeddings=False).save_pretrained(root / "untied")
    # what files of 2019 hold besides: causal masks, and the tied head written out
    (root / "buffers").mkdir()
    shutil.copy(root / "bare/config.json", root / "buffers/config.json")
    tensors = load_file(root / "bare/model.safetensors")
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(12, 12).tril().view(1, 1, 12, 12).bool()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, root / "buffers/model.safetensors")
    for name in root.glob("*/generation_config.json"):
        name.unlink()
    for name in root.glob("*/*"):
        name.chmod(0o644)


main(Path(sys.argv[1]))
