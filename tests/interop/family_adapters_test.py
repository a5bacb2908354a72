"""As adapters_test.py, on Llama, Mistral, Qwen2, Qwen3 and Phi-3."""
import unittest

import adapters_test
from interop_support import random_model
from peft import IA3Config, LoraConfig
from transformers import LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config

SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SHAPE = {"num_hidden_layers": adapters_test.LAYERS, "hidden_size": 48, "intermediate_size": 56, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": adapters_test.VOCABULARY, "max_position_embeddings": adapters_test.POSITIONS,
         "initializer_range": 0.25, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def lora(r=4, lora_alpha=8, **more):
    return LoraConfig(**({"task_type": "CAUSAL_LM", "r": r, "lora_alpha": lora_alpha} | more))


def ia3(**more):
    return IA3Config(**({"task_type": "CAUSAL_LM"} | more))


FEW = {
    "lora": lora,
    "lora-all-linear": lambda: lora(target_modules="all-linear"),
    "dora": lambda: lora(target_modules="all-linear", use_dora=True),
    "ia3": ia3,
    "ia3-outputs": lambda: ia3(target_modules=SEVEN, feedforward_modules=[]),
}
WEIGHTS = FEW | {
    "lora-expression": lambda: lora(target_modules=r".*\.layers\.[02]\.(?:self_attn\.k_proj|mlp\.up_proj)"),
    "lora-patterns": lambda: lora(target_modules=SEVEN, rank_pattern={"q_proj": 2, "v_proj": 6, r"layers\.[02]\.mlp\.up_proj": 3},
                                  alpha_pattern={"layers.0.self_attn.k_proj": 16}),
    "lora-layers": lambda: lora(target_modules=["v_proj", "gate_proj"], layers_to_transform=[0, 2], layers_pattern="layers"),
    "lora-exclude": lambda: lora(target_modules="all-linear", exclude_modules=["mlp.gate_proj", "k_proj"]),
    "lora-whole-paths": lambda: lora(target_modules=["model.layers.0.self_attn.v_proj", "layers.1.mlp.up_proj"]),
    "rslora": lambda: lora(target_modules=["k_proj", "down_proj"], use_rslora=True),
    "ia3-inputs": lambda: ia3(target_modules=SEVEN, feedforward_modules=SEVEN),
    "ia3-exclude": lambda: ia3(target_modules=["k_proj", "up_proj"], feedforward_modules=[], exclude_modules=["layers.1.mlp.up_proj"]),
}
FEW_TUNED = {"lora": [], "lora-all-linear": ["--peft.target_modules=all-linear", "--peft.r=3"], "ia3": [],
             "dora": ["--peft.target_modules=all-linear", "--peft.use_dora=true"]}
TUNED = FEW_TUNED | {
    "lora-patterns": ["--peft.target_modules", "q_proj", "up_proj", "--peft.rank_pattern", "up_proj=6", "layers.1.self_attn.q_proj=2"],
    "ia3-inputs": ["--peft.target_modules", *SEVEN, "--peft.feedforward_modules", "k_proj", "gate_proj"],
    "prompt": [], "ptuning-mlp": ["--peft.encoder_hidden_size=20"],
    "prefix": [], "prefix-projection": ["--peft.prefix_projection=true", "--peft.encoder_hidden_size=12"],
}


class Family:
    seed, kind, changed = 0, None, {}
    weights, virtuals, tuned = FEW, {}, FEW_TUNED

    def random_base(self):
        return random_model(self.seed, self.kind(**(SHAPE | self.changed)))


class Llama(Family):
    seed, kind, changed = 20, LlamaConfig, {"head_dim": 10, "attention_bias": True}
    weights, virtuals, tuned = WEIGHTS, adapters_test.VIRTUALS, TUNED


class Qwen3(Family):
    seed, kind, changed = 21, Qwen3Config, {"head_dim": 10, "tie_word_embeddings": True}
    weights, virtuals, tuned = WEIGHTS, adapters_test.VIRTUALS, TUNED


class Mistral(Family):
    seed, kind, changed = 22, MistralConfig, {"head_dim": 12, "sliding_window": 7}


class Qwen2(Family):
    seed, kind = 23, Qwen2Config


class Phi3(Family):  # nothing is changed where nothing is said
    seed, kind = 24, Phi3Config
    weights = {
        "lora": lambda: lora(target_modules=["qkv_proj", "o_proj"]),
        "lora-all-linear": FEW["lora-all-linear"],
        "dora": lambda: lora(target_modules=["qkv_proj", "gate_up_proj"], use_dora=True),
        "ia3": lambda: ia3(target_modules=["qkv_proj", "gate_up_proj", "down_proj"], feedforward_modules=["down_proj"]),
    }
    tuned = {"lora": ["--peft.target_modules", "qkv_proj", "down_proj"],
             "ia3": ["--peft.target_modules", "qkv_proj", "down_proj", "--peft.feedforward_modules", "down_proj"]}


for family in (Llama, Qwen3, Mistral, Qwen2, Phi3):
    for test in (adapters_test.WrittenByPeft, adapters_test.WrittenByFinetune):
        name = f"{family.__name__}{test.__name__}"
        globals()[name] = type(name, (family, test), {})
del family, test


if __name__ == "__main__":
    unittest.main()
