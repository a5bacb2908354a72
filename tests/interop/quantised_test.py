"""Quantised directories against live libraries: transformers with compressed-tensors and FP8 in blocks, and bitsandbytes."""
import importlib.util
import json
import unittest

import bitsandbytes
import torch
from bitsandbytes.functional import QuantState
from interop_support import SEED, Case
from quantised_support import FAMILIES, FORMS, compressed, fp8_form, plain_float, quantise, scheme
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, LlamaConfig, LlamaForCausalLM

TOKENS = [1, 5, 9, 2, 30, 7, 7, 11, 40, 3]
BLOCKS = compressed("naive-quantized", scheme("block", kind="float", block_structure=[8, 8]))
# transformers takes blocks that divide a weight, and rounds activations of int8.
LIVE = {**{name: FORMS[name] for name in ("packed4", "packed8", "packed4-row", "float-channel", "float-tensor")},
        "naive-block": (plain_float, {"strategy": "block", "block": (8, 8)}, BLOCKS),
        "fp8-block": fp8_form(strategy="block", block=(8, 8), ending="weight_scale_inv", kind="F32")}


class Quantised(Case):
    def score(self, model):
        path = self.directory / "tokens.jsonl"
        path.write_text(json.dumps({"tokens": TOKENS}) + "\n")
        return json.loads(self.run_program("score", "--model", model, "--input", path, "--precision", "fp32"))["logprobs"][1:]

    def test_log_probabilities_are_those_of_transformers(self):
        for family in ("llama", "mistral", "qwen2", "qwen3"):
            for name, form in LIVE.items():
                if (family, name) == ("qwen2", "fp8-block"):
                    continue  # its keys have 12 outputs, and transformers fails where a block is cut
                with self.subTest(family=family, form=name):
                    model = self.directory / f"{family}-{name}"
                    quantise(FAMILIES[family], model, form, seed=SEED)
                    more = {"quantization_config": FineGrainedFP8Config(dequantize=True, weight_block_size=(8, 8))}
                    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, **(more if name == "fp8-block" else {}))
                    with torch.no_grad():
                        logs = torch.log_softmax(loaded(torch.tensor([TOKENS])).logits, -1)[0]
                    for i, ours in enumerate(self.score(model)):
                        self.assertLess(abs(logs[i, TOKENS[i + 1]].item() - ours), 1e-4)

    def made(self, form, *words):
        """A model of whole blocks, quantised by the program: the directory, and its plain copy."""
        torch.manual_seed(SEED)
        base, model, copy = (self.directory / name for name in ("base", form, f"{form}-plain"))
        if not base.exists():
            LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                                         num_key_value_heads=4, initializer_range=0.2)).save_pretrained(base)
        self.run_program("quantize", "--model", base, "--output", model, "--format", form, *words)
        self.run_program("convert", "--from", model, "--to", "model", "--output", copy, "--dtype", "fp32")
        return model, copy

    @unittest.skipUnless(importlib.util.find_spec("compressed_tensors"), "compressed-tensors is not installed")
    def test_what_quantize_writes_opens_in_transformers(self):
        for form, words, more in (("int4", (), {}), ("int8", (), {}),
                                  ("fp8", (), {"quantization_config": FineGrainedFP8Config(dequantize=True, weight_block_size=(128, 128))})):
            with self.subTest(form=form):
                model, _ = self.made(form, *words)
                loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, **more)
                with torch.no_grad():
                    logs = torch.log_softmax(loaded(torch.tensor([TOKENS])).logits, -1)[0]
                for i, ours in enumerate(self.score(model)):
                    self.assertLess(abs(logs[i, TOKENS[i + 1]].item() - ours), 1e-4)

    @unittest.skipUnless(importlib.util.find_spec("compressed_tensors"), "compressed-tensors is not installed")
    def test_what_quantize_writes_has_the_values_of_compressed_tensors(self):
        """The library's numbers are rounded to the type of the scale. transformers 5.24 does not load asymmetric files."""
        from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        model, copy = self.made("int4", "--group", 32, "--asymmetric")
        packed, plain = load_file(model / "model.safetensors"), load_file(copy / "model.safetensors")
        args = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=32, symmetric=False)
        modules = [name.removesuffix(".weight_packed") for name in packed if name.endswith(".weight_packed")]
        self.assertEqual(len(modules), 14)
        for module in modules:
            parts = {name.removeprefix(f"{module}."): value for name, value in packed.items() if name.startswith(f"{module}.")}
            found = PackedQuantizationCompressor.decompress(parts, QuantizationScheme(targets=["Linear"], weights=args))["weight"]
            self.assertTrue(torch.equal(found, plain[f"{module}.weight"].to(found.dtype)), module)

    def check_blocks(self, model, copy, takes=lambda weight: True):
        """Compares the 4 bits of a model with a plain copy, and returns the number of compared tensors."""
        packed, plain = load_file(model / "model.safetensors"), load_file(copy / "model.safetensors")
        names = [name for name in plain if f"{name}.absmax" in packed and takes(plain[name])]
        for name in names:
            parts = {key[len(name) + 1:]: value for key, value in packed.items() if key.startswith(f"{name}.")}
            state = QuantState.from_dict(parts, device=torch.device("cpu"))
            state.dtype = torch.float32
            self.assertTrue(torch.equal(bitsandbytes.functional.dequantize_4bit(packed[name], state), plain[name]), name)
        return len(names)

    def test_what_quantize_writes_has_the_values_of_bitsandbytes(self):
        model, copy = self.made("nf4")
        self.assertEqual(self.check_blocks(model, copy), 14)

    def test_values_of_four_bits_are_those_of_bitsandbytes(self):
        for form in ("nf4", "fp4", "nf4-twice"):
            model, copy = self.directory / form, self.directory / f"{form}-plain"
            quantise(FAMILIES["llama"], model, form, seed=SEED)
            self.run_program("convert", "--from", model, "--to", "model", "--output", copy, "--dtype", "fp32")
            # 0.50.2 gives other values on a CPU where rows are odd multiples of 32: what it packs does not come back.
            self.assertGreater(self.check_blocks(model, copy, lambda weight: weight.shape[1] % 64 != 32), 10)


if __name__ == "__main__":
    unittest.main()
