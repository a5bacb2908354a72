"""Golden vectors of adapters on small random Llama, Mistral, Qwen and Phi-3 models: as peft_vectors.py, whose batch they share.

Each family has a directory with its `base` and its cases, in the form of tests/peft/golden/README.md. RMSNorm and softmax, which
`transformers` computes in fp32, are made to compute in the model's type; the angles of the rotation stay fp32.

    python tools/golden/peft_family_vectors.py tests/peft/families [FAMILY ...]
"""
import functools, json, pathlib, shutil, sys
import torch
from peft import IA3Config, LoraConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig
from transformers import LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config, AutoModelForCausalLM

import peft_vectors
from model_doubles import use_double
from peft_vectors import HIDDEN, INNER, VOCABULARY, Bottleneck, allow_reading, bottleneck, make_with_room, virtual

SHAPE = dict(vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.2, bos_token_id=0, eos_token_id=0)
FAMILIES = {  # bases with biases and without, with heads narrower together than C and wider
    "llama": (LlamaConfig, dict(head_dim=8)),
    "mistral": (MistralConfig, dict(head_dim=4, sliding_window=None)),
    "qwen2": (Qwen2Config, dict()),
    "qwen3": (Qwen3Config, dict(head_dim=8, tie_word_embeddings=True)),
    "phi3": (Phi3Config, dict(pad_token_id=None, rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                                     partial_rotary_factor=0.67))),
}
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def lora(r=4, lora_alpha=8, **more):
    return LoraConfig(task_type="CAUSAL_LM", r=r, lora_alpha=lora_alpha, **more)


def ia3(**more):
    return IA3Config(task_type="CAUSAL_LM", **more)


METHODS = {
    "lora": lambda: lora(),
    "lora_all_linear": lambda: lora(target_modules="all-linear"),
    "lora_patterns": lambda: lora(target_modules=SEVEN, rank_pattern={"q_proj": 2, "v_proj": 5, "layers.1.mlp.up_proj": 3},
                                  alpha_pattern={"layers.0.self_attn.k_proj": 16}),
    "lora_one_layer": lambda: lora(target_modules=["v_proj", "gate_proj"], layers_to_transform=[1], layers_pattern="layers"),
    "rslora": lambda: lora(target_modules=["k_proj", "down_proj"], use_rslora=True),
    "dora": lambda: lora(target_modules=["k_proj", "up_proj"], use_dora=True),
    "dora_all_linear": lambda: lora(target_modules="all-linear", use_dora=True),
    "ia3": lambda: ia3(),
    "ia3_outputs": lambda: ia3(target_modules=SEVEN, feedforward_modules=[]),
    "ia3_inputs": lambda: ia3(target_modules=SEVEN, feedforward_modules=SEVEN),
    "prompt": lambda: virtual(PromptTuningConfig),
    "ptuning_mlp": lambda: virtual(PromptEncoderConfig, encoder_hidden_size=20),
    "prefix": lambda: virtual(PrefixTuningConfig),
    "prefix_projection": lambda: virtual(PrefixTuningConfig, prefix_projection=True, encoder_hidden_size=12),
    "adapter_double_seq_bn": lambda: bottleneck(mh_adapter=True, non_linearity="swish"),
    "adapter_seq_bn": lambda: bottleneck(original_ln_before=True),
    "adapter_par_bn": lambda: bottleneck(is_parallel=True, init_weights="mam_adapter", reduction_factor=2, scaling=4.0),
}
HEAD = {  # untied or tied; at the end of a family, because seeds go by place
    "lora_head": lambda: lora(target_modules=["v_proj", "lm_head"], rank_pattern={"lm_head": 3}, alpha_pattern={"lm_head": 12}),
    "dora_head": lambda: lora(target_modules=["k_proj", "lm_head"], use_dora=True),
}
SINGLE = {f"lora_{module}": functools.partial(lora, target_modules=[module]) for module in SEVEN}
FEW = {name: METHODS[name] for name in ("lora", "lora_all_linear", "ia3")}
CASES = {
    "llama": METHODS | SINGLE | HEAD,
    "mistral": FEW,
    "qwen2": FEW,
    "qwen3": METHODS | HEAD,
    "phi3": {  # nothing is changed where nothing is said
        "lora": lambda: lora(target_modules=["qkv_proj", "o_proj"]),
        "lora_all_linear": FEW["lora_all_linear"],
        "dora": lambda: lora(target_modules=["qkv_proj", "gate_up_proj"], use_dora=True),
        "ia3": lambda: ia3(target_modules=["qkv_proj", "gate_up_proj", "down_proj"], feedforward_modules=["down_proj"]),
    },
}


class FamilyBottleneck(Bottleneck):
    """The decoder layers' forward written out, with the adapters at its two places."""

    def layers(self):
        return self.base.model.layers

    def key(self, layer, place):
        return f"model.layers.{layer}.{place}_adapters.adapters.{self.name}."

    def run_layer(self, number, layer, hidden_states, **rest):
        s = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **rest)[0]
        x = self.place(number, "attention", hidden_states, s)
        return self.place(number, "output", x, layer.mlp(layer.post_attention_layernorm(x)))

    def forward(self, input_ids, attention_mask):
        for number, layer in enumerate(self.layers()):
            layer.forward = functools.partial(self.run_layer, number, layer)
        return self.base(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)


def make_base(directory, kind, keys):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(kind(**(SHAPE | keys)))
    with torch.no_grad():  # norms and biases away from their neutral start, so that each of them matters
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)


def main(root, families):
    rows = json.loads((root.parent / "golden" / "batch.json").read_text())["rows"]
    for number, family in enumerate(FAMILIES):
        if families and family not in families:
            continue
        shutil.rmtree(root / family, ignore_errors=True)
        (root / family).mkdir(parents=True)
        make_base(root / family / "base", *FAMILIES[family])
        use_double()
        plain = peft_vectors.open_base(root / family / "base").double()
        logits = peft_vectors.run(plain, rows, 0)[0]
        written_out = FamilyBottleneck(plain, bottleneck(output_adapter=False), "none")
        assert (peft_vectors.run(written_out, rows, 0)[0] - logits).abs().max() < 1e-12, "the plain model is not transformers' own"
        for place, (name, config) in enumerate(CASES[family].items()):
            make_with_room(root / family, name, 10000 * (1 + number) + 100 * place, config(), rows, FamilyBottleneck)
    allow_reading(root)


main(pathlib.Path(sys.argv[1]), sys.argv[2:])
