"""GGUF files, against the live gguf package, and transformers' reading of them."""
import importlib.util
import unittest

import numpy
import torch
from gguf import GGMLQuantizationType, GGUFReader, quants
from interop_support import SOURCE, Case
from model_support import TINY
from transformers import AutoModelForCausalLM

MODELS = SOURCE / "tests/model/golden"


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
