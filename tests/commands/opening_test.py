"""Inference opens a model in little more memory than its packed weights take."""
import json, math, os, pathlib, shutil, struct, subprocess, tempfile, unittest

from model_support import CAMBIUM, counts_memory, gpt2_config, gpt2_shapes
from requests_support import ADAPTERS, BASE


def write_zeros(directory, **more):
    """A model in bf16 whose weights are a hole in the file; returns their bytes once they are packed. A token embedding that is
    also the head is there once."""
    directory.mkdir()
    config = gpt2_config(n_positions=32, torch_dtype="bfloat16", **more)
    shapes, at, header = gpt2_shapes(config), 0, {}
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = shapes["wte.weight"]
    packed = 2 * sum(map(math.prod, shapes.values()))
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(directory / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    (directory / "config.json").write_text(json.dumps(config))
    return packed


def run(directory, *words):
    """The exit status, the errors, and the most bytes of memory that the process held."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([CAMBIUM, "generate", "--model", directory, "--prompt-tokens", "1", "--max-new-tokens", "1",
                                    "--json", *words], stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return process.returncode, errors.read().decode(), usage.ru_maxrss * 1024


def peak(directory):
    status, errors, most = run(directory)
    assert status == 0, errors
    return most


@counts_memory
class Opening(unittest.TestCase):
    def test_little_more_than_the_packed_weights_is_held(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as temporary:
            root = pathlib.Path(temporary)
            write_zeros(root / "program", n_embd=64)
            program = peak(root / "program")
            for name, shape in {"layers": dict(n_layer=6, vocab_size=512), "tied": dict(n_layer=3, vocab_size=32000),
                                "head": dict(n_layer=1, vocab_size=32000, tie_word_embeddings=False)}.items():
                packed = write_zeros(root / name, n_embd=1024, n_head=8, **shape)
                self.assertGreater(packed, 100e6)
                ratio = (peak(root / name) - program) / packed
                self.assertLess(ratio, 1.15, name)
                self.assertGreater(ratio, 0.9, name)

    def test_a_damaged_adapter_is_refused_by_its_header_before_it_is_read(self):
        """A file of 2 GiB of zeros, and one whose header is whole and tells of a tensor that the base does not have."""
        size = 2 << 30
        tensor = json.dumps({"x": {"dtype": "F32", "shape": [size // 4 - 64], "data_offsets": [0, size - 256]}}).encode().ljust(248)
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as temporary:
            root = pathlib.Path(temporary)
            program = peak(BASE)
            for name, header, part in (("zeros", b"", "adapter_model.safetensors"),
                                       ("header", struct.pack("<Q", len(tensor)) + tensor, "missing tensors")):
                shutil.copytree(ADAPTERS / "lora", root / name)
                with open(root / name / "adapter_model.safetensors", "wb") as file:
                    file.write(header)
                    file.truncate(size)
                with self.subTest(name):
                    status, errors, most = run(BASE, "--adapter", root / name)
                    self.assertEqual(status, 1)
                    self.assertIn(part, errors)
                    self.assertLess(most - program, 64 << 20)


if __name__ == "__main__":
    unittest.main()
