"""--load-in, and models in few bits. Weights are rounded while they are loaded. Every layout and every use gives the same
answers. Adapters of all kinds train and answer on such a base, and merge writes a plain model of it."""
import json
import math
import shutil
import struct
import unittest

from finetune_support import KEYS, METHODS, P, Tuning, adapters, hash_tree
from model_support import PRECISIONS, SOURCE, floats, read_safetensors, rows, run, write_byte_llama, write_safetensors
from quantised_support import e4m3, fp32, is_linear, quantise
from requests_support import ask
from serve_support import Server

TOKENS = [1, 5, 9, 2, 30, 7, 7, 11, 40, 3]
LAYOUTS = [["--ranks", "2", f"{P}{kind}_model_parallel_size=2"] for kind in ("tensor", "pipeline")]


def bf16(value):
    bits, = struct.unpack("<I", struct.pack("<f", value))
    bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def by_groups(values, columns, group, largest):
    """Symmetric integers with a bf16 scale for each group of a row."""
    out = []
    for at in range(0, len(values), group or columns):
        part = values[at:at + (group or columns)]
        scale = bf16(fp32(max(map(abs, part)) / largest)) or 1.0
        out += [fp32(scale * min(max(round(value / scale), -largest - 1), largest)) for value in part]
    return out


NUMBERS = sorted({e4m3(code) for code in range(256) if code & 127 != 127})


def by_blocks(values, columns, side):
    out = [0.0] * len(values)
    for top in range(0, len(values) // columns, side):
        for left in range(0, columns, side):
            places = [row * columns + column for row in range(top, min(top + side, len(values) // columns))
                      for column in range(left, min(left + side, columns))]
            scale = fp32(max(abs(values[place]) for place in places) / 448)
            for place in places:
                out[place] = fp32(scale * min(NUMBERS, key=lambda number: abs(number - values[place] / scale)))
    return out


ROUNDED = {"int8": lambda values, columns: by_groups(values, columns, None, 127),
           "int4": lambda values, columns: by_groups(values, columns, 32, 7),  # no larger group divides 96
           "fp8": lambda values, columns: by_blocks(values, columns, 128)}


class LoadIn(Tuning):
    @classmethod
    def write_base(cls):
        write_byte_llama(cls.base, num_hidden_layers=2, hidden_size=96, intermediate_size=160, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=24)
        cls.text = cls.root / "tokens.jsonl"
        cls.text.write_text(json.dumps({"tokens": TOKENS}) + "\n")

    @classmethod
    def copy(cls, name):
        """A plain copy of the base with the values that the rounding gives."""
        target = cls.root / f"plain-{name}"
        if not target.exists():
            shutil.copytree(cls.base, target)
            tensors = read_safetensors(cls.base / "model.safetensors")
            for tensor, (kind, shape, content) in tensors.items():
                if is_linear(tensor):
                    values = [value for value, in struct.iter_unpack("<f", content)]
                    tensors[tensor] = (kind, shape, floats(ROUNDED[name](values, shape[1])))
            write_safetensors(target / "model.safetensors", tensors)
        return target

    def score(self, model, *words, expect=0):
        output, errors = run("score", "--model", model, "--input", self.text, *words, expect=expect)
        return rows(output)[0]["logprobs"][1:] if not expect else errors, errors

    def assertNear(self, found, expected, bound):
        self.assertLess(max(abs(a - b) for a, b in zip(found, expected, strict=True)), bound)


class Rounding(LoadIn):
    def test_weights_have_the_rounded_values(self):
        plain, _ = self.score(self.base)
        for name in ROUNDED:
            with self.subTest(name):
                found, errors = self.score(self.base, "--load-in", name)
                self.assertNear(found, self.score(self.copy(name))[0], 1e-4)
                self.assertNotEqual(found, plain)
                self.assertIn(f"model: {name} by --load-in: 14 of 15 matrices", errors)

    def test_matrices_that_no_kernel_takes_are_counted(self):
        """Rows of 20 have groups of 4, those of 80 groups of 16."""
        model = SOURCE / "tests/model/golden/d5_tied"
        _, errors = run("score", "--model", model, "--load-in", "nf4", "--input", "-", input=b'{"tokens": [1, 2]}\n')
        self.assertIn("model: nf4 by --load-in: 2 of 10 matrices, 6 held in fp32: 0.0 MiB", errors)

    def test_nf4_is_near_the_plain_model(self):
        plain, _ = self.score(self.base)
        found, _ = self.score(self.base, "--load-in", "nf4")
        self.assertGreater(max(abs(a - b) for a, b in zip(found, plain)), 1e-4)
        self.assertLess(math.sqrt(sum((a - b) ** 2 for a, b in zip(found, plain)) / len(plain)), 0.5)

    def test_layouts_answer_alike(self):
        for name in ("int8", "int4", "nf4", "fp8"):
            whole, _ = self.score(self.base, "--load-in", name)
            for layout in LAYOUTS:
                with self.subTest(name, layout=layout):
                    self.assertNear(self.score(self.base, "--load-in", name, *layout)[0], whole, 2e-5)

    def test_a_quantised_model_is_not_rounded_again(self):
        model = self.root / "gptq"
        quantise(self.base, model, "gptq-order")
        errors, _ = self.score(model, "--load-in", "int4", expect=2)
        self.assertIn("is quantised already (gptq, 4 bits, groups of 8, by act-order)", errors)
        self.refuse("is for a frozen base", words=["--peft", "full", "--load-in", "int4"])
        self.refuse("a base in few bits takes bf16 or fp32",
                    words=["--peft", "lora", "--load-in", "int4", "--train.precision", "fp8"])

    def test_the_server_names_it(self):
        with Server("--load-in", "int8", model=self.base) as server:
            models = server.ask("GET", "/v1/models").json["data"]
            self.assertEqual([model["quantization"] for model in models], ["int8 by --load-in"])
        with Server(model=self.base) as server:
            self.assertNotIn("quantization", server.ask("GET", "/v1/models").json["data"][0])


class Training(LoadIn):
    def test_every_method_learns_what_it_does_on_the_plain_copy(self):
        plain, before = self.copy("int8"), hash_tree(self.base)
        for method in (*METHODS, "dora"):
            with self.subTest(method):
                words = ["--peft.use_dora=true"] if method == "dora" else []
                kind = "lora" if method == "dora" else method
                _, losses = self.tune(f"{method}-bits", kind, "--load-in", "int8", *words)
                self.base, own = plain, self.base
                try:
                    _, expected = self.tune(f"{method}-plain", kind, *words)
                finally:
                    self.base = own
                for a, b in zip(losses, expected, strict=True):
                    self.assertLess(abs(a - b), 2e-5 * b)
                notes = json.loads((self.root / f"{method}-bits/cambium_adapter.json").read_text())
                self.assertEqual(notes["quantization"], {"method": "int8", "bits": 8, "group_size": -1})
                self.assertNotIn("quantization", json.loads((self.root / f"{method}-plain/cambium_adapter.json").read_text()))
        self.assertEqual(before, hash_tree(self.base))

    def test_training_and_serving_have_the_same_bits(self):
        self.tune("proved", "lora", "--load-in", "nf4")
        for precision in PRECISIONS:
            for words in ([], ["--adapter", self.root / "proved"]):
                with self.subTest(precision, words=words):
                    output, _ = run("verify", "serving", "--model", self.base, "--load-in", "nf4", "--precision", precision, *words)
                    self.assertTrue(rows(output)[-1]["equal"])

    def test_other_bits_than_those_of_the_training_are_told(self):
        self.tune("bits", "lora", "--load-in", "nf4")
        adapter = ["--adapter", self.root / "bits"]
        self.assertNotIn("warning", self.score(self.base, "--load-in", "nf4", *adapter)[1])
        for words, here in (([], "plain"), (["--load-in", "int8"], "int8, 8 bits")):
            _, errors = self.score(self.base, *words, *adapter)
            warnings = [line for line in errors.splitlines() if "warning: " in line and "busy" not in line]
            self.assertEqual(len(warnings), 1, errors)
            self.assertIn(f"was trained on a base in other bits than {self.base} (nf4, 4 bits, groups of 64, not {here})", warnings[0])

    def test_all_kinds_in_one_batch_answer_as_each_does_alone(self):
        words = ["--load-in", "nf4", "--adapter"]
        for method in METHODS:
            self.tune(f"mixed-{method}", method, "--load-in", "nf4", "--optim.lr=3e-2")
            words.append(f"{method}={self.root / f'mixed-{method}'}")
        for precision in PRECISIONS:
            asked = [{"prompt": "to 5:", "max_tokens": 6, "temperature": 0, "logprobs": 1} | ({"model": name} if name else {})
                     for name in (*METHODS, None)]
            more = [*words, "--precision", precision]
            together = ask(asked, *more, model=self.base)
            for request, answer in zip(asked, together, strict=True):
                with self.subTest(precision, request=request):
                    self.assertEqual(ask([request], *more, model=self.base)[0]["choices"], answer["choices"])
            self.assertGreater(len({json.dumps(answer["choices"]) for answer in together}), 3)


SHARDED = f"{P}data_parallel_sharding_strategy=optim_grads_params"


class Layouts(LoadIn):
    """Cuts divide blocks and inputs in any order of groups, and data ranks keep shares of packed bytes."""

    @classmethod
    def write_base(cls):
        cls.plain = cls.base
        write_byte_llama(cls.plain, num_hidden_layers=2, hidden_size=96, intermediate_size=96, num_attention_heads=12,
                         num_key_value_heads=12, head_dim=8)

    def test_every_format_learns_alike_in_every_layout(self):
        tensor = [["--ranks", n, f"{P}tensor_model_parallel_size={n}"] for n in (2, 3, 4)]
        layouts = [*tensor, [*tensor[0], f"{P}sequence_parallel=true"], LAYOUTS[1], ["--ranks", "2", SHARDED],
                   [*tensor[0], "--ranks", "8", f"{P}sequence_parallel=true", f"{P}pipeline_model_parallel_size=2", SHARDED]]
        for form in ("gptq-order", "fp8-block-odd", None):
            name, words = form or "nf4", ["--train.precision=fp32", "--optim.adam_eps=1e-2"]  # roundings of small gradients stay small
            with self.subTest(name):
                self.base = self.root / f"base-{name}"
                if form:
                    quantise(self.plain, self.base, form)
                else:
                    self.base = self.plain
                    words += ["--load-in", name]
                self.check_layouts(name, "lora", layouts, *words)
                self.tune(f"{name}-whole", "lora", "--ranks", "2", f"{P}use_distributed_optimizer=true", *words)
                self.assertEqual(self.lines(f"{name}-whole"), self.lines(f"{name}-5"))  # that of LAYOUTS with two shares
                self.assertEqual(adapters(self.root / f"{name}-whole"), adapters(self.root / f"{name}-5"))


class Merging(LoadIn):
    def test_a_quantised_base_becomes_a_plain_model(self):
        model, adapter, merged = self.root / "quantised", self.root / "on-bits", self.root / "merged"
        quantise(self.base, model, "nf4-twice")
        self.base, own = model, self.base
        try:
            self.tune("on-bits", "lora", "--optim.lr=3e-2", "--train.precision=fp32")
        finally:
            self.base = own
        words = ["merge", "--model", model, "--adapter", adapter, "--output", merged]
        self.assertIn("--dequantize writes a plain model", run(*words, expect=2)[1])
        self.assertFalse(merged.exists())
        self.assertIn("--dtype needs --dequantize", run(*words, "--dtype", "fp32", expect=2)[1])
        run(*words, "--dequantize", "--dtype", "fp32")
        self.assertNotIn("quantization_config", json.loads((merged / "config.json").read_text()))
        expected, _ = self.score(model, "--adapter", adapter, "--precision", "fp32")
        self.assertNear(self.score(merged)[0], expected, 1e-4)
        run("merge", "--model", model, "--adapter", adapter, "--output", self.root / "short", "--dequantize")
        self.assertEqual({kind for kind, _, _ in read_safetensors(self.root / "short/model.safetensors").values()}, {"BF16"})
        self.assertIn("is plain: --dequantize does nothing",
                      run("merge", "--model", self.base, "--adapter", adapter, "--output", self.root / "no", "--dequantize", expect=2)[1])

    def test_all_weights_of_a_quantised_model_do_not_train(self):
        model = self.root / "not-full"
        quantise(self.base, model, "packed4")
        self.base, own = model, self.base
        try:
            self.refuse("is quantised, and --peft full trains all weights: 'cambium convert --to model'", words=["--peft", "full"])
        finally:
            self.base = own


if __name__ == "__main__":
    unittest.main()
