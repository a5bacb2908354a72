"""Models of Llama's variants, both ways, against a live transformers."""
import json
import unittest

import torch
from interop_support import SEED, Case, logprobs, random_rows, shake
from model_support import NO_BF16, PRECISIONS
from pretrain_support import VOCAB, Run
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config

POSITIONS = 48
PARTS = {"model__normalization": "RMSNorm", "model__position_embedding_type": "rope", "model__swiglu": "true", "model__hidden_dropout": 0,
       "model__add_bias_linear": "false", "model__num_query_groups": 2, "model__ffn_hidden_size": 44, "model__max_position_embeddings": POSITIONS}
WRITTEN = {  # what the run says, and the class that opens it
    "plain": ("Llama", {}),
    "untied": ("Llama", {"model__untie_embeddings_and_output_weights": "true", "model__kv_channels": 10}),
    "bf16": ("Llama", {"train__precision": "bf16"}),
    "biases": ("Llama", {"model__add_bias_linear": "true"}),
    "linear": ("Llama", {"model__rotary_seq_len_interpolation_factor": 2.5, "model__rotary_base": 500}),
    "llama3": ("Llama", {"model__use_rope_scaling": "true", "model__rope_original_max_position_embeddings": 16,
                         "model__rope_scaling_factor": 4, "model__rotary_base": 100}),
    "yarn": ("Llama", {"model__position_embedding_type": "yarn", "model__yarn_rotary_scaling_factor": 4,
                       "model__yarn_original_max_position_embeddings": 12, "model__rotary_base": 100}),
    "window": ("Mistral", {"model__window_size": "6,0"}),
    "q, k and v": ("Qwen2", {"model__add_qkv_bias": "true"}),
    "some windows": ("Qwen2", {"model__add_qkv_bias": "true", "model__window_size": "4,0", "model__window_attn_skip_freq": 2}),
    "heads": ("Qwen3", {"model__qk_layernorm": "true", "model__kv_channels": 12}),
    "partly": ("Phi3", {"model__rotary_percent": 0.5}),
    "dropout": ("Phi3", {"model__hidden_dropout": 0.25, "model__window_size": "6,0"}),
}
SHAPE = dict(vocab_size=211, hidden_size=48, intermediate_size=52, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=POSITIONS, initializer_range=0.25, bos_token_id=None, eos_token_id=None, pad_token_id=None)
ORIGINAL = {"rope_theta": 100.0, "original_max_position_embeddings": 16}
SAVED = {
    "llama": (LlamaConfig, {"head_dim": 10}),
    "llama-biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-linear": (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0}}),
    "llama-3": (LlamaConfig, {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | ORIGINAL}),
    "llama-yarn": (LlamaConfig, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "beta_fast": 8.0} | ORIGINAL}),
    "mistral": (MistralConfig, {"sliding_window": 7}),
    "mistral-full": (MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2Config, {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen2-yarn": (Qwen2Config, {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "yarn", "factor": 3.0} | ORIGINAL}),
    "qwen3": (Qwen3Config, {"head_dim": 14, "attention_bias": True}),
    "phi3": (Phi3Config, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, "sliding_window": 9}),
}


def old_form(config):
    """config.json as versions before 5 wrote it."""
    parameters = dict(config.pop("rope_parameters"))
    config["rope_theta"] = parameters.pop("rope_theta")
    if "partial_rotary_factor" in parameters:
        config["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
    kind = parameters.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else parameters | {"type": kind}
    config["torch_dtype"] = config.pop("dtype")
    return config


class WrittenByPretrain(Case):
    def logits(self, directory, row):
        model, told = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
        self.assertEqual([set(told[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")], [set()] * 3)
        return model, logprobs(model.eval(), row)

    def test_every_family_opens_as_its_class(self):
        for name, (kind, keys) in WRITTEN.items():
            with self.subTest(name):
                if keys.get("train__precision", "fp32") not in PRECISIONS:
                    self.skipTest(NO_BF16)
                run = Run()
                run.run(train__train_iters=4, checkpoint__load=None, model__init_method_std=0.2, **(PARTS | keys))
                directory = run.directory / "run/iter_0000004"
                rows = random_rows(VOCAB, POSITIONS, 1)
                model, whole = self.logits(directory, rows[2])
                self.assertEqual(type(model).__name__, kind + "ForCausalLM")
                self.assert_scores_agree(model, directory, rows)
                path = directory / "config.json"
                config = json.loads(path.read_text())
                new = ("rope_parameters",), ("rope_theta", "rope_scaling", "partial_rotary_factor")
                for left_out in new:  # readers of either form
                    path.write_text(json.dumps({key: value for key, value in config.items() if key not in left_out}))
                    self.assertEqual(self.logits(directory, rows[2])[1], whole, left_out)


class SavedByTransformers(Case):
    def check(self, model, directory):
        rows = random_rows(SHAPE["vocab_size"], POSITIONS, 3)
        self.assert_scores_agree(model, directory, rows)
        return sum(self.assert_greedy_agrees(model, directory, rows[2][:length]) for length in (1, 2, 7, 25))

    def test_every_family_in_both_forms(self):
        for number, (name, (kind, keys)) in enumerate(SAVED.items()):
            with self.subTest(name):
                torch.manual_seed(SEED * 1000 + number)
                model = shake(AutoModelForCausalLM.from_config(kind(**(SHAPE | keys))).eval())
                directory = self.directory / name
                model.save_pretrained(directory)
                compared = self.check(model, directory)
                path = directory / "config.json"
                path.write_text(json.dumps(old_form(json.loads(path.read_text()))))
                self.assertGreater(compared + self.check(model, directory), 0)


if __name__ == "__main__":
    unittest.main()
