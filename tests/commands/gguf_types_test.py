"""Models as GGUF in few bits: Q5_0 and Q4_0 by their definitions, and which types llama.cpp's mixtures have."""
import math
import shutil
import struct
import unittest

from convert_test import MODELS, Convert, single
from gguf_support import TENSOR_F16, TENSOR_F32, TENSOR_Q8_0, read_gguf, tensors_of
from model_support import read_safetensors, run, write_byte_llama


def centred(middle, content):
    """Numbers as the gguf package rounds them for Q4_0 (8) and Q5_0 (16): the largest becomes the lowest code."""
    values, out = struct.unpack(f"<{len(content) // 4}f", content), b""
    for group in (values[i:i + 32] for i in range(0, len(values), 32)):
        scale = single(max(group, key=abs) / -middle)
        inverse = single(1 / scale) if scale else 0
        codes = [min(2 * middle - 1, int(single(single(value * inverse) + middle + 0.5))) for value in group]
        high = struct.pack("<I", sum((code >> 4) << i for i, code in enumerate(codes))) if middle == 16 else b""
        out += struct.pack("<e", scale) + high + bytes((codes[i] & 15) | (codes[i + 16] & 15) << 4 for i in range(16))
    return out


class Types(Convert):
    def to_gguf(self, source, *words):
        self.file.unlink(missing_ok=True)
        run("convert", "--from", source, "--to", "gguf", "--output", self.file, *words)
        return read_gguf(self.file)

    def test_small_types_have_the_bytes_of_the_gguf_package(self):
        exact = tensors_of(MODELS / "qwen2_tied")
        for word, kind, file_type, middle in (("q5_0", 6, 8, 16), ("q4_0", 2, 2, 8)):
            keys, tensors = self.to_gguf(MODELS / "qwen2_tied", "--dtype", word)
            self.assertEqual(keys["general.file_type"], file_type)
            for name, (found, shape, content) in tensors.items():
                self.assertEqual(found, TENSOR_F32 if len(shape) == 1 else kind if shape[-1] % 32 == 0 else TENSOR_F16, name)
                if found == kind:
                    self.assertEqual(content, centred(middle, exact[name][2]), name)

    def test_k_types_and_their_mixture(self):
        """Rows of 256 have K types; others have what llama.cpp takes instead. A tied embedding is the head, too."""
        sizes = dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=8)
        model = self.root / "wide"
        write_byte_llama(model, **sizes)
        for word, file_type in (("q6_k", 18), ("q4_k_m", 15)):
            keys, tensors = self.to_gguf(model, "--dtype", word)
            self.assertEqual((keys["general.file_type"], keys["general.quantization_version"]), (file_type, 2))
            for name, (found, shape, _) in tensors.items():
                layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
                more = layer < 1 or layer >= 7 or (layer - 1) % 3 == 2
                is_q6 = word == "q6_k" or name == "token_embd.weight" or (("attn_v" in name or "ffn_down" in name) and more)
                wide, narrow = (14, TENSOR_Q8_0) if is_q6 else (12, 6)
                expected = TENSOR_F32 if len(shape) == 1 else wide if shape[-1] % 256 == 0 else narrow
                self.assertEqual(found, expected, name)
            run("convert", "--from", self.file, "--to", "model", "--dtype", "fp32", "--output", self.output)
            before, after = (read_safetensors(path / "model.safetensors") for path in (model, self.output))
            for name, (_, shape, content) in after.items():
                values, exact = (struct.unpack(f"<{len(data) // 4}f", data) for data in (content, before[name][2]))
                error = math.sqrt(sum((a - b) ** 2 for a, b in zip(values, exact)) / sum(b * b for b in exact))
                self.assertLess(error, 0.02 if word == "q6_k" else 0.08, name)
            shutil.rmtree(self.output)


if __name__ == "__main__":
    unittest.main()
