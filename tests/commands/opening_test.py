"""Inference opens a model in little more memory than its packed weights take."""
import json, math, os, pathlib, struct, subprocess, tempfile, unittest

from model_support import CAMBIUM, counts_memory, gpt2_config, gpt2_shapes


def write_zeros(directory, **more):
    """A model in bf16 whose weights are a hole in the file; returns their bytes once they are packed. A token embedding that is
    also the head is there twice."""
    directory.mkdir()
    config = gpt2_config(n_positions=32, torch_dtype="bfloat16", **more)
    shapes, at, header = gpt2_shapes(config), 0, {}
    packed = 2 * sum(map(math.prod, [*shapes.values(), shapes["wte.weight"]]))
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = shapes["wte.weight"]
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


def peak(directory):
    """Bytes of memory that a process held at most."""
    process = subprocess.Popen([CAMBIUM, "generate", "--model", directory, "--prompt-tokens", "1", "--max-new-tokens", "1", "--json"],
                               stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


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


if __name__ == "__main__":
    unittest.main()
