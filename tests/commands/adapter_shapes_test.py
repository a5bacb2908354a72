"""adapter show says where a tensor is transposed or of a wrong length, without the base; loading refuses the same files."""
import json
import pathlib
import shutil
import tempfile
import unittest

from model_support import SOURCE, count, read_safetensors, run, write_safetensors
from requests_support import ADAPTERS, BASE


class Shapes(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.adapter = pathlib.Path(temporary.name) / "adapter"

    def shapes(self, name, change, *parts):
        """`change` gets the shapes of an adapter's tensors, and changes some; the same tensors are named by both."""
        shutil.rmtree(self.adapter, ignore_errors=True)
        shutil.copytree(ADAPTERS / name, self.adapter)
        path, = self.adapter.glob("adapter*.safetensors")
        tensors = read_safetensors(path)
        changed = {key: list(shape) for key, (_, shape, _) in tensors.items()}
        change(changed)
        write_safetensors(path, {key: (kind, changed[key], data if count(changed[key]) == count(shape) else bytes(4 * count(changed[key])))
                                 for key, (kind, shape, data) in tensors.items()})
        (bad, *_), = [[key for key in sorted(tensors) if changed[key] != tensors[key][1]]]
        output, errors = run("adapter", "show", ADAPTERS / "ia3", self.adapter, expect=1)
        self.assertEqual((output, errors.count("\n")), (b"", 1), errors)
        self.assertIn(f"{self.adapter}: tensor '", errors)
        for part in parts:
            self.assertIn(part, errors)
        _, loading = run("generate", "--model", BASE, "--adapter", self.adapter, "--prompt-tokens", 1, expect=1)
        self.assertIn(f"{bad} has shape", loading)
        return bad, errors

    def turn(self, name, part, *parts):
        """One such tensor alone, then all of them."""
        def one(shapes):
            key = sorted(key for key in shapes if part in key)[-1]
            shapes[key].reverse()

        def every(shapes):
            for key in shapes:
                if part in key:
                    shapes[key].reverse()
        for change in (one, every):
            bad, errors = self.shapes(name, change, "transposed", *parts)
            self.assertIn(f"tensor '{bad}' has shape", errors)

    def test_transposed(self):
        for name, part in (("lora", "lora_A"), ("lora", "lora_B"), ("dora", "lora_A"), ("lora_patterns", "lora_B"), ("rslora", "lora_B"),
                           ("ia3", "c_attn.ia3_l"), ("ia3", "c_proj.ia3_l"), ("prompt", "prompt"), ("ptuning_mlp", "prompt"),
                           ("prefix", "prompt"), ("adapter_seq_bn", "adapter_down.0.weight"), ("adapter_seq_bn", "adapter_up.weight"),
                           ("adapter_pre_norm", "adapter_down.1.weight")):
            with self.subTest(name=name, part=part):
                self.turn(name, part)

    def test_of_a_wrong_length(self):
        def longer(part, axis):
            def change(shapes):
                key = sorted(key for key in shapes if part in key)[-1]
                shapes[key][axis] += 1
            return change
        for name, part, axis in (("lora", "lora_A", 0), ("lora", "lora_A", 1), ("lora", "lora_B", 0), ("lora", "lora_B", 1),
                                 ("dora", "lora_magnitude", 0), ("lora_patterns", "lora_B", 1), ("ia3", "c_attn.ia3_l", 0),
                                 ("ia3", "c_attn.ia3_l", 1), ("ia3", "c_proj.ia3_l", 1), ("prompt", "prompt", 0), ("prefix", "prompt", 0),
                                 ("adapter_seq_bn", "down.0.weight", 0), ("adapter_seq_bn", "up.weight", 0), ("adapter_pre_norm", "up.weight", 1),
                                 ("adapter_seq_bn", "down.0.bias", 0), ("adapter_seq_bn", "up.bias", 0), ("adapter_pre_norm", "down.0.bias", 0),
                                 ("adapter_pre_norm", "down.1.bias", 0)):
            with self.subTest(name=name, part=part, axis=axis):
                bad, errors = self.shapes(name, longer(part, axis))
                self.assertIn(bad, errors)

    def test_every_adapter_of_ours_is_shown(self):
        found = [path.parent for root in (ADAPTERS, SOURCE / "tests/peft/families") for path in sorted(root.rglob("adapter_config.json"))]
        self.assertGreater(len(found), 50)
        for start in range(0, len(found), 40):
            run("adapter", "show", *found[start:start + 40])

    def test_a_rank_that_the_configuration_does_not_say(self):
        shutil.copytree(ADAPTERS / "lora", self.adapter)
        config = json.loads((self.adapter / "adapter_config.json").read_text())
        (self.adapter / "adapter_config.json").write_text(json.dumps(config | {"r": config["r"] + 1}))
        _, errors = run("adapter", "show", self.adapter, expect=1)
        self.assertIn("its size 0 is not r of adapter_config.json", errors)


if __name__ == "__main__":
    unittest.main()
