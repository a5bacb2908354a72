"""NaN and infinity in the files of a model or an adapter: each command says so, with status 1."""
import json
import math
import pathlib
import shutil
import struct
import tempfile
import unittest

from model_support import CAMBIUM, read_safetensors, run, write_byte_model, write_model, write_safetensors
from requests_support import ADAPTERS, BASE, ask

LINE = "cambium: error: a token has no probability: the model's numbers are broken\n"
BROKEN = (math.nan, math.inf, -math.inf)


def spoil(path, tensor, value, element=1):
    """One fp32 number of a tensor becomes `value`."""
    tensors = read_safetensors(path)
    kind, shape, data = tensors[tensor]
    assert kind == "F32"
    data = data[:4 * element] + struct.pack("<f", value) + data[4 * element + 4:]
    write_safetensors(path, tensors | {tensor: (kind, shape, data)})


def copy_adapter(name, to):
    """A copy of a golden adapter that can be changed; the path of its tensors."""
    shutil.copytree(ADAPTERS / name, to)
    return pathlib.Path(to) / "adapter_model.safetensors"


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.top = pathlib.Path(temporary.name)


class Generate(Case):
    def check(self, *words, **more):
        output, errors = run("generate", *words, expect=1, **more)
        self.assertEqual(errors.splitlines(keepends=True)[-1], LINE)
        self.assertNotIn(b'"tokens"', output)

    def test_any_number_of_a_model_ends_every_form_with_the_line(self):
        model, talk = self.top / "model", self.top / "talk.json"
        talk.write_text(json.dumps([{"role": "user", "content": "a"}]))
        for tensor in ("wte.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.bias", "ln_f.bias"):
            for value in BROKEN:
                write_byte_model(model, n_positions=64)
                spoil(model / "model.safetensors", f"transformer.{tensor}", value)
                self.check("--model", model, "--prompt-tokens", 1, 2, "--max-new-tokens", 3)
        for words in (("--prompt", "a"), ("--prompt", "a", "--stream"), ("--prompt", "a", "--json", "--num-samples", 3),
                      ("--prompt", "a", "--temperature", 0), ("--messages", talk, "--chat-template", "plain"),
                      ("--messages", talk, "--chat-template", "plain", "--stream")):
            self.check("--model", model, "--max-new-tokens", 3, *words)

    def test_a_logit_of_minus_infinity_is_seen_though_its_token_is_never_drawn(self):
        for value in BROKEN:  # of one sign or the other it makes the logit -inf
            write_model(self.top)
            spoil(self.top / "model.safetensors", "transformer.wte.weight", value, element=8 * 11)
            self.check("--model", self.top, "--prompt-tokens", 1, 2, "--top-k", 3)
            output, errors = run("score", "--model", self.top, "--input", "-", input=b'{"tokens": [1, 2]}', expect=1)
            self.assertEqual(output, b"")
            self.assertIn("the model's numbers are broken", errors)

    def test_an_adapter_ends_a_text_and_leaves_other_requests(self):
        for name in ("lora", "ia3", "prompt"):
            path = copy_adapter(name, self.top / name)
            for value in BROKEN:
                spoil(path, sorted(read_safetensors(path))[0], value)
                self.check("--model", BASE, "--adapter", self.top / name, "--prompt-tokens", 1, 2)
        good = {"prompt": [1, 2], "max_tokens": 2, "seed": 1}
        answers = ask([good, *(good | {"adapters": [name]} for name in ("lora", "ia3", "prompt")), good],
                      "--adapter-root", self.top, model=BASE, expect=1)
        self.assertEqual([LINE.endswith(f"{a.get('error')}\n") for a in answers], [False, True, True, True, False])
        self.assertEqual(answers[0]["choices"], answers[4]["choices"])


if __name__ == "__main__":
    unittest.main()
