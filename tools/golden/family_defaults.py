"""The defaults of configurations in `transformers` 5.23 for missing keys of config.json.

Writes {model_type: {"base": keys, "defaults": {key: value}}}: the class, made from `base` without the key, has the value.
Run: python tools/golden/family_defaults.py tests/model/golden/family_defaults.json
"""
import json, pathlib, sys
from transformers import LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config

SHAPE = dict(vocab_size=61, hidden_size=256, intermediate_size=46, num_hidden_layers=30, num_attention_heads=64, num_key_value_heads=2,
             max_position_embeddings=96, initializer_range=0.3, rms_norm_eps=1e-3, tie_word_embeddings=True, attention_dropout=0.25,
             hidden_act="silu", rope_theta=500.0, eos_token_id=7)
WINDOWS = dict(use_sliding_window=True, sliding_window=5, max_window_layers=2)
FAMILIES = {
    LlamaConfig: dict(attention_bias=True, mlp_bias=True, head_dim=18, pretraining_tp=1),
    MistralConfig: dict(head_dim=18, sliding_window=5),
    Qwen2Config: dict(WINDOWS),
    Qwen3Config: dict(WINDOWS, head_dim=18, attention_bias=True),
    Phi3Config: dict(sliding_window=5, partial_rotary_factor=0.5, resid_pdrop=0.25, embd_pdrop=0.125),
}

facts = {}
for kind, more in FAMILIES.items():
    base, defaults = SHAPE | more, {}
    for key in base:
        made = kind(**{name: value for name, value in base.items() if name != key})
        defaults[key] = made.rope_parameters[key] if key in ("rope_theta", "partial_rotary_factor") else getattr(made, key)
    facts[kind.model_type] = {"base": base, "defaults": defaults}
pathlib.Path(sys.argv[1]).write_text(json.dumps(facts, indent=1) + "\n")
