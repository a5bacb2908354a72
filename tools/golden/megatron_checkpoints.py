#!/usr/bin/env python3
"""Writes tests/ckpt/golden/megatron/NAME/: small checkpoints of Megatron core (torch_dist). Made with megatron-core 0.16.1
(installed without its dependencies) and torch 2.15.0 on a CPU.

    python tools/golden/megatron_checkpoints.py [OUTPUT]
    python tools/golden/megatron_checkpoints.py --read DIRECTORY TENSORS ...

The second form opens checkpoints with Megatron core, and compares them with tensors of the same names in files of
safetensors.
"""
import argparse
import pathlib
import shutil
import sys

import torch
import torch.distributed as dist

IS_READING = "--read" in sys.argv
OUTPUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 and not IS_READING else "tests/ckpt/golden/megatron")

COMMON = dict(num_layers=1, hidden_size=16, ffn_hidden_size=32, num_attention_heads=4, num_query_groups=4, group_query_attention=False,
              kv_channels=4, max_position_embeddings=24, vocab_size=61, padded_vocab_size=64, normalization="LayerNorm", norm_epsilon=1e-5,
              swiglu=False, add_bias_linear=True, add_qkv_bias=False, qk_layernorm=False, position_embedding_type="learned_absolute",
              rotary_base=10000, rotary_percent=1.0, untie_embeddings_and_output_weights=False, bias_gelu_fusion=True)
LLAMA = dict(normalization="RMSNorm", swiglu=True, add_bias_linear=False, position_embedding_type="rope", num_query_groups=2,
             group_query_attention=True, untie_embeddings_and_output_weights=True, bias_gelu_fusion=False)
CASES = {
    "gpt": COMMON,
    "gpt_4": COMMON | dict(num_layers=4, untie_embeddings_and_output_weights=True),
    "llama_4": COMMON | LLAMA | dict(num_layers=4),
    "qwen2": COMMON | LLAMA | dict(add_qkv_bias=True, untie_embeddings_and_output_weights=False),
    "qwen3_4": COMMON | LLAMA | dict(num_layers=4, qk_layernorm=True, kv_channels=8, norm_epsilon=1e-6, rotary_base=1000000),
}


def make_model(values):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=values["num_layers"], hidden_size=values["hidden_size"], ffn_hidden_size=values["ffn_hidden_size"],
        num_attention_heads=values["num_attention_heads"], num_query_groups=values["num_query_groups"], kv_channels=values["kv_channels"],
        normalization=values["normalization"], layernorm_epsilon=values["norm_epsilon"], gated_linear_unit=values["swiglu"],
        activation_func=torch.nn.functional.silu if values["swiglu"] else torch.nn.functional.gelu, add_bias_linear=values["add_bias_linear"],
        add_qkv_bias=values["add_qkv_bias"], qk_layernorm=values["qk_layernorm"], use_cpu_initialization=True)
    model = GPTModel(config, get_gpt_layer_local_spec(qk_layernorm=values["qk_layernorm"], normalization=values["normalization"]),
                     vocab_size=values["padded_vocab_size"], max_sequence_length=values["max_position_embeddings"],
                     position_embedding_type=values["position_embedding_type"], rotary_base=values.get("rotary_base", 10000),
                     share_embeddings_and_output_weights=not values["untie_embeddings_and_output_weights"])
    return model


def save(name, values):
    from megatron.core import dist_checkpointing
    torch.manual_seed(1)
    model = make_model(values)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    directory = OUTPUT / name
    directory.mkdir()
    state = model.sharded_state_dict()
    dist_checkpointing.save({**state, "iteration": 7, "checkpoint_version": 3.0, "args": argparse.Namespace(**values)}, str(directory))


def read(directory, tensors):
    """Loads a checkpoint into a model of its arguments; every tensor must be equal."""
    from megatron.core import dist_checkpointing
    from safetensors.torch import load_file
    values = vars(torch.load(pathlib.Path(directory) / "common.pt", weights_only=False)["args"])
    state, expected, compared = dist_checkpointing.load(make_model(values).sharded_state_dict(), directory), load_file(tensors), set()
    for name, value in state.items():
        if not torch.is_tensor(value):
            continue
        words, layer = name.split("."), None
        if name.startswith("decoder.layers."):
            layer = int(words.pop(2))
        name = ".".join(words).replace("layers.input_layernorm.", "layers.self_attention.linear_qkv.layer_norm_")
        name = name.replace("layers.pre_mlp_layernorm.", "layers.mlp.linear_fc1.layer_norm_")
        compared.add(name)
        if not torch.equal(value.detach(), expected[name] if layer is None else expected[name][layer]):
            sys.exit(f"{directory}: {name} differs")
    if compared != set(expected):
        sys.exit(f"{directory}: core did not ask for {sorted(set(expected) - compared)}")


if __name__ == "__main__":
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29555", rank=0, world_size=1)
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    parallel_state.initialize_model_parallel()
    if IS_READING:
        words = sys.argv[sys.argv.index("--read") + 1:]
        for directory, tensors in zip(words[::2], words[1::2]):
            read(directory, tensors)
            print(directory, flush=True)
        sys.exit()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    for name, values in CASES.items():
        save(name, values)
        print(name, flush=True)
