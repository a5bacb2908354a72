"""NaN and infinity in the files of a model or an adapter: each command says so, with status 1."""
import json
import math
import pathlib
import shutil
import struct
import tempfile
import unittest

from model_support import read_safetensors, run, write_byte_model, write_model, write_safetensors
from pretrain_support import sign_state
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


TRAIN = ("--train.train_iters=2", "--train.micro_batch_size=1", "--train.global_batch_size=1", "--optim.lr=1e-3", "--data.seq_length=8")


class Named(Case):
    """Commands that write, or show, name the tensor and its file, and write nothing."""

    def refuse(self, path, tensor, value, *words):
        """With one broken number in that tensor the command fails; the file is whole again afterwards."""
        whole = path.read_bytes()
        for element in (0, 5):
            spoil(path, tensor, value, element)
            output, errors = run(*words, expect=1)
            self.assertEqual(output, b"")
            name = "nan" if value != value else "inf" if value > 0 else "-inf"
            line = errors.splitlines()[-1].replace(f"model {self.out} was not written: ", "")
            self.assertEqual(line, f"cambium: error: {path}: tensor '{tensor}': element {element} is {name}: finite numbers were expected")
            self.assertFalse(self.out.exists())
            path.write_bytes(whole)

    def setUp(self):
        super().setUp()
        self.model, self.out = self.top / "model", self.top / "out"
        write_byte_model(self.model)
        self.weights = self.model / "model.safetensors"

    def test_adapter_show(self):
        for name in ("lora", "ia3", "prompt", "prefix", "dora"):
            path = copy_adapter(name, self.top / name)
            for tensor in sorted(read_safetensors(path))[:3]:
                for value in BROKEN:
                    if len(read_safetensors(path)[tensor][2]) > 4 * 5:
                        self.refuse(path, tensor, value, "adapter", "show", ADAPTERS / "ia3", self.top / name)

    def test_merge(self):
        base = self.top / "base"
        shutil.copytree(BASE, base)
        for name in ("lora", "ia3", "dora"):
            path = copy_adapter(name, self.top / name)
            words = ("merge", "--model", base, "--adapter", self.top / name, "--output", self.out)
            for value in BROKEN:
                for tensor in ("transformer.wpe.weight", "transformer.h.0.attn.c_attn.weight", "transformer.ln_f.bias"):
                    self.refuse(base / "model.safetensors", tensor, value, *words)
                self.refuse(path, sorted(read_safetensors(path))[-1], value, *words)
        path = self.top / "lora/adapter_model.safetensors"
        for tensor in read_safetensors(path):
            spoil(path, tensor, 3e38)
        _, errors = run("merge", "--model", base, "--adapter", self.top / "lora", "--output", self.out, expect=1)
        self.assertIn("the adapters make numbers of h.", errors)
        self.assertFalse(self.out.exists())

    def test_finetune(self):
        rows, lora = self.top / "rows.jsonl", self.top / "lora"
        rows.write_text('{"prompt": "a", "completion": "b"}\n' * 8)
        words = ("finetune", "--model", self.model, "--data", rows, "--output", self.out, *TRAIN)
        run(*words[:-len(TRAIN) - 1], lora, *TRAIN, "--peft", "lora")
        for value in BROKEN:
            self.refuse(self.weights, "transformer.wpe.weight", value, *words, "--peft", "lora")
            self.refuse(self.weights, "transformer.h.0.mlp.c_fc.weight", value, *words, "--peft", "ia3")
            path = lora / "adapter_model.safetensors"
            self.refuse(path, sorted(read_safetensors(path))[0], value, *words, "--init-adapter", lora)

    def test_pretrain_from_a_model_and_from_a_checkpoint(self):
        (self.top / "text.txt").write_text("some words\n" * 200)
        run("preprocess", "--input", self.top / "text.txt", "--tokenizer", self.model, "--output-prefix", self.top / "data")
        words = ("pretrain", "--data.data_path", self.top / "data_text_document", *TRAIN)
        for value in BROKEN:
            self.refuse(self.weights, "transformer.h.0.ln_1.bias", value, *words, "--init-from", self.model, "--checkpoint.save", self.out)
        run(*words, "--init-from", self.model, "--checkpoint.save", self.top / "run")
        (newest,) = (self.top / "run").glob("iter_*")
        sign_state(newest / "trainer_state.json", files={})
        for file, tensor in (("model", "transformer.wte.weight"), ("optimizer", "exp_avg_sq.transformer.wte.weight")):
            self.refuse(newest / f"{file}.safetensors", tensor, math.nan, *words, "--init-from", self.model, "--checkpoint.load",
                        self.top / "run", "--checkpoint.save", self.out)


if __name__ == "__main__":
    unittest.main()
