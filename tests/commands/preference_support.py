"""A LoRA adapter with drawn values, in PEFT's form, from which preference tuning starts."""
import json
import random

from model_support import count, floats, write_safetensors

RANK = 4


def write_lora(directory, model, seed=11):
    """On the attention's inputs of a GPT-2 with the fields `model`; it changes the model's answers."""
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 8, "lora_dropout": 0.0,
        "target_modules": ["c_attn"], "fan_in_fan_out": True, "bias": "none", "base_model_name_or_path": None}))
    r, width, tensors = random.Random(seed), model["n_embd"], {}
    for layer in range(model["n_layer"]):
        for half, shape in (("A", (RANK, width)), ("B", (3 * width, RANK))):
            tensors[f"base_model.model.transformer.h.{layer}.attn.c_attn.lora_{half}.weight"] = (
                "F32", shape, floats([r.gauss(0, 0.1) for _ in range(count(shape))]))
    write_safetensors(directory / "adapter_model.safetensors", tensors)
