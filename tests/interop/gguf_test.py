"""GGUF files, against the live gguf package, and transformers' reading of them."""
import importlib.util
import math
import random
import unittest

import numpy
import torch
from gguf import GGMLQuantizationType, GGUFReader, quants
from gguf_support import TYPES, random_blocks, write_gguf
from interop_support import SEED, SOURCE, Case
from model_support import TINY, floats, read_safetensors
from transformers import AutoModelForCausalLM

MODELS = SOURCE / "tests/model/golden"
SHAPES = {"token_embd": [61, 256]} | {f"blk.{i}.{name}": shape for i in range(2) for name, shape in {
    "attn_q": [256, 256], "attn_k": [128, 256], "attn_v": [128, 256], "attn_output": [256, 256], "ffn_gate": [512, 256],
    "ffn_up": [512, 256], "ffn_down": [256, 512]}.items()}
KEYS = {"block_count": 2, "embedding_length": 256, "feed_forward_length": 512, "context_length": 32, "attention.head_count": 4,
        "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0, "rope.dimension_count": 64,
        "vocab_size": 61}


class Quantised(Case):
    """Random files: each type on its own, and a file that mixes all."""

    def write(self, name, architecture="llama"):
        r, file = random.Random(f"{SEED} {name}"), self.directory / f"{architecture}-{name}.gguf"
        tensors = {f"{norm}.weight": (0, [256], floats([r.uniform(0.5, 2) for _ in range(256)]))
                   for norm in ("output_norm", *(f"blk.{i}.{kind}" for i in range(2) for kind in ("attn_norm", "ffn_norm")))}
        for module, shape in SHAPES.items():
            kind = r.choice([*TYPES]) if name == "mixed" else name
            tensors[f"{module}.weight"] = (TYPES[kind][0], shape, random_blocks(r, kind, math.prod(shape)))
        if architecture == "qwen2":
            tensors |= {f"blk.{i}.attn_{part}.bias": (0, [rows], floats([r.gauss(0, 0.1) for _ in range(rows)]))
                        for i in range(2) for part, rows in (("q", 256), ("k", 128), ("v", 128))}
        keys = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in KEYS.items()}
        write_gguf(file, keys, tensors)
        return file

    def test_values_are_those_of_the_package(self):
        for name in (*TYPES, "mixed"):
            file, target = self.write(name), self.directory / name
            self.run_program("convert", "--from", file, "--to", "tensors", "--dtype", "fp32", "--output", target)
            found = read_safetensors(target / "model.safetensors")
            expected = {t.name: quants.dequantize(t.data, t.tensor_type).astype(numpy.float32) for t in GGUFReader(file).tensors}
            for ours, theirs in (("embed_tokens", "token_embd"), ("layers.1.mlp.down_proj", "blk.1.ffn_down"),
                                 ("layers.0.self_attn.v_proj", "blk.0.attn_v"), ("layers.1.mlp.gate_proj", "blk.1.ffn_gate")):
                self.assertEqual(found[f"model.{ours}.weight"][2], expected[f"{theirs}.weight"].tobytes(), (name, ours))

    def test_scores_are_those_of_transformers(self):
        r = random.Random(SEED)
        rows = [[r.randrange(61) for _ in range(n)] for n in (2, 17, 32)]
        for architecture in ("llama", "qwen2"):
            for name in (*TYPES, "mixed"):
                with self.subTest(name, architecture=architecture):
                    file = self.write(name, architecture)
                    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
                    self.assert_scores_agree(read, file, rows)


class Written(Case):
    def convert(self, name, kind):
        file = self.directory / kind / f"{name}.gguf"
        file.parent.mkdir(exist_ok=True)
        self.run_program("convert", "--from", MODELS / name, "--to", "gguf", "--dtype", kind, "--output", file)
        return file

    def test_rounding_is_that_of_the_package(self):
        count = 0
        for name in ("llama_biases_linear", "qwen2_tied", "qwen3", "phi3_partial", "d64_untied"):
            full = {t.name: t for t in GGUFReader(self.convert(name, "fp32")).tensors}
            for tensor in GGUFReader(self.convert(name, "q8_0")).tensors:
                if tensor.tensor_type == GGMLQuantizationType.Q8_0:
                    expected = quants.quantize(full[tensor.name].data, GGMLQuantizationType.Q8_0)
                    self.assertTrue(numpy.array_equal(expected, tensor.data), (name, tensor.name))
                    count += 1
        self.assertGreater(count, 20)

    def test_transformers_reads_the_sources_tensors(self):
        """It reads neither biases nor Llama 3's scaling of a llama; where it reads everything, logits are equal, too."""
        for name in ("llama_biases_linear", "llama_3", "qwen2_tied"):
            file = self.convert(name, "fp32")
            read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
            source = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32)
            tensors, expected = read.state_dict(), source.state_dict()
            common = tensors.keys() & expected.keys()
            self.assertGreater(len(common), 10)
            self.assertEqual([key for key in common if not torch.equal(tensors[key], expected[key])], [], name)
            if name == "qwen2_tied":
                ids = torch.arange(20)[None] % source.config.vocab_size
                self.assertTrue(torch.equal(read(ids).logits, source(ids).logits))

    def test_every_key_is_read(self):
        for name in ("llama_3", "qwen2_tied", "qwen3", "phi3_partial", "d64_untied"):
            fields = GGUFReader(self.convert(name, "fp32")).fields
            architecture = fields["general.architecture"].contents()
            config = AutoModelForCausalLM.from_pretrained(MODELS / name).config
            for key, value in (("block_count", config.num_hidden_layers), ("embedding_length", config.hidden_size),
                               ("attention.head_count", config.num_attention_heads), ("context_length", config.max_position_embeddings),
                               ("vocab_size", config.vocab_size)):
                self.assertEqual(fields[f"{architecture}.{key}"].contents(), value, (name, key))

    @unittest.skipUnless(importlib.util.find_spec("llama_cpp"), "llama.cpp is not installed (pip install llama-cpp-python)")
    def test_llama_cpp_has_the_same_ids_and_the_same_greedy_text(self):
        import llama_cpp
        file = self.directory / "tiny.gguf"
        self.run_program("convert", "--from", TINY, "--to", "gguf", "--dtype", "fp32", "--output", file)
        model = llama_cpp.Llama(str(file), n_ctx=48, verbose=False, logits_all=False)
        for text in ("The quick brown fox", " two  spaces", "naïve café", "12345 + 678"):
            ids = [int(word) for word in self.run_program("tokenize", "--tokenizer", TINY, data=text.encode() + b"\n").split()]
            self.assertEqual(model.tokenize(text.encode(), add_bos=False), ids)
            ours = self.run_program("generate", "--model", TINY, "--prompt", text, "--max-new-tokens", 12, "--temperature", 0, "--precision", "fp32")
            theirs = model.create_completion(ids, max_tokens=12, temperature=0)["choices"][0]["text"]
            self.assertEqual(ours.decode().rstrip("\n"), theirs.rstrip("\n"), text)


if __name__ == "__main__":
    unittest.main()
