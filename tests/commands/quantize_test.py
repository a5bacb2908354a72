"""cambium quantize: what is written has the values that each format's rounding gives, next to everything else as it was."""
import json
import math
import pathlib
import random
import re
import resource
import struct
import subprocess
import tempfile
import unittest

from mpi_support import MPIRUN, needs_mpirun
from model_support import SOURCE, floats, read_safetensors, rows, run, write_byte_llama, write_safetensors
from pretrain_support import CAMBIUM
from quantised_support import FAMILIES, NF4, e4m3, fp32

TOKENS = [1, 5, 9, 2, 30, 7, 7, 11, 40, 3]
WIDE = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=160, num_hidden_layers=2)
E4M3 = sorted({e4m3(code) for code in range(256) if code & 127 != 127})


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16))[0]


def fp16(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def integers(values, bits, zeros, round_scale, least=0):
    """A group by the definition: the scale is rounded first, then the codes."""
    low, high, top = min(0, *values), max(0, *values), 2 ** bits - 1
    scale = round_scale(fp32(fp32(high - low) / top if zeros else max(high, -low) / (top // 2))) or 1.0
    zero = max(min(round(fp32(-low / scale)), top), least) if zeros else top // 2 + 1
    return [fp32(scale * max(-zero, min(top - zero, round(fp32(value / scale))))) for value in values]


def by_group(values, columns, group, of):
    group = columns if group < 0 else group
    return [number for at in range(0, len(values), columns) for first in range(at, at + columns, group)
            for number in of(values[first:min(first + group, at + columns)])]


def fp8(values, columns):
    found, height = [0.0] * len(values), len(values) // columns
    for top in range(0, height, 128):
        for left in range(0, columns, 128):
            block = [r * columns + c for r in range(top, min(top + 128, height)) for c in range(left, min(left + 128, columns))]
            scale = fp32(max(abs(values[i]) for i in block) / 448) or 1.0
            for i in block:
                size = fp32(values[i] / scale)
                near = min(E4M3, key=lambda number: (abs(number - size), struct.pack(">d", number)[-6] & 1))
                found[i] = fp32(scale * near)
    return found


def nf4(values, scales):
    return [fp32(min(NF4, key=lambda number, i=i: abs(number - values[i] / scales[i // 64])) * scales[i // 64])
            for i in range(len(values))]


FORMS = {
    "int4": lambda v, c, g: by_group(v, c, g, lambda group: integers(group, 4, False, bf16)),
    "int8": lambda v, c, g: by_group(v, c, -1, lambda group: integers(group, 8, False, bf16)),
    "gptq": lambda v, c, g: by_group(v, c, g, lambda group: integers(group, 4, False, fp16)),
    "fp8": lambda v, c, g: fp8(v, c),
}
ASYMMETRIC = {
    "int4": lambda v, c, g: by_group(v, c, g, lambda group: integers(group, 4, True, bf16)),
    "int8": lambda v, c, g: by_group(v, c, -1, lambda group: integers(group, 8, True, bf16)),
    "gptq": lambda v, c, g: by_group(v, c, g, lambda group: integers(group, 4, True, fp16, 1)),
}


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(temporary.cleanup)
        self.top = pathlib.Path(temporary.name)
        self.model = self.top / "model"

    def quantize(self, form, *words, model=None, output="out", expect=0):
        output = self.top / output
        if form == "gptq" and "--method" not in words:
            words += ("--method", "nearest")
        return output, run("quantize", "--model", model or self.model, "--output", output, "--format", form, *words, expect=expect)[1]

    def plain(self, model):
        copy = self.top / f"{model.name}-plain"
        run("convert", "--from", model, "--to", "model", "--output", copy, "--dtype", "fp32")
        return {name: (shape, content) for name, (_, shape, content) in read_safetensors(copy / "model.safetensors").items()}

    def check_values(self, model, form, of, group, *words):
        output, _ = self.quantize(form, *words, model=model, output=f"{model.name}-{form}{len(words)}")
        before, after = self.plain(model), self.plain(output)
        self.assertEqual(set(before), set(after))
        changed = 0
        for name, (shape, content) in after.items():
            plain = struct.unpack(f"<{len(content) // 4}f", before[name][1])
            if "_proj" not in name or not name.endswith("weight"):
                self.assertEqual(content, before[name][1], name)
                continue
            expected, changed = of(plain, shape[1], group), changed + 1
            self.assertEqual(list(struct.unpack(f"<{len(plain)}f", content)), expected, name)
        self.assertGreater(changed, 0)
        return output


class Values(Case):
    def test_values_are_those_of_nearest_rounding(self):
        write_byte_llama(self.model, **WIDE)
        for form, of in FORMS.items():
            with self.subTest(form=form):
                self.check_values(self.model, form, of, 32)
        for form, of in ASYMMETRIC.items():
            with self.subTest(form=form):
                self.check_values(self.model, form, of, 32, "--asymmetric")
        for form in ("int4", "gptq"):
            with self.subTest(form=form, group=-1):
                self.check_values(self.model, form, FORMS[form], -1, "--group", "-1")

    def test_nf4_has_the_codes_next_to_its_scales(self):
        write_byte_llama(self.model, **WIDE)
        output, _ = self.quantize("nf4")
        files, before, after = read_safetensors(output / "model.safetensors"), self.plain(self.model), self.plain(output)
        for name, (_, content) in after.items():
            if "_proj" not in name:
                continue
            plain = struct.unpack(f"<{len(content) // 4}f", before[name][1])
            state = json.loads(files[f"{name}.quant_state.bitsandbytes__nf4"][2])
            table, nested, codes = (files[f"{name}.{part}"][2] for part in ("nested_quant_map", "nested_absmax", "absmax"))
            table, nested = (struct.unpack(f"<{len(part) // 4}f", part) for part in (table, nested))
            scales = [fp32(fp32(table[code] * nested[i // 256]) + fp32(state["nested_offset"])) for i, code in enumerate(codes)]
            self.assertEqual((state["shape"], state["blocksize"], state["dtype"]), (after[name][0], 64, "float32"))
            for i, scale in enumerate(scales):  # rounded to 8 bits, they are near the largest number of their block
                self.assertLess(abs(scale / max(abs(value) for value in plain[64 * i:64 * i + 64]) - 1), 0.1)
            exact = [max(map(abs, plain[i:i + 64])) for i in range(0, len(plain), 64)]
            found, expected = ([round(value / of[i // 64], 5) for i, value in enumerate(values)] for values, of in
                               ((struct.unpack(f"<{len(plain)}f", content), scales), (nf4(plain, exact), exact)))
            self.assertEqual(found, expected)

    def test_every_family_opens_and_scores_as_its_plain_copy(self):
        for family, base in FAMILIES.items():
            for form in ("int4", "int8", "nf4", "fp8"):
                with self.subTest(family=family, form=form):
                    output, _ = self.quantize(form, model=base, output=f"{family}-{form}")
                    copy = self.top / f"{family}-{form}-copy"
                    run("convert", "--from", output, "--to", "model", "--output", copy, "--dtype", "fp32")
                    path = self.top / "tokens.jsonl"
                    path.write_text(json.dumps({"tokens": TOKENS}) + "\n")
                    a, b = (rows(run("score", "--model", model, "--input", path, "--precision", "fp32")[0])[0]["logprobs"]
                            for model in (output, copy))
                    for one, other in zip(a[1:], b[1:], strict=True):
                        self.assertLess(abs(one - other), 1e-4)


class Directory(Case):
    def test_everything_else_is_carried_and_equal_input_gives_equal_bytes(self):
        write_byte_llama(self.model, **WIDE)
        (self.model / "generation_config.json").write_text('{"eos_token_id": [256, 3]}')
        for form in ("int4", "int8", "fp8", "nf4", "gptq"):
            outputs = [self.quantize(form, "--threads", threads, output=f"{form}{threads}")[0] for threads in (1, 2)]
            names = sorted(path.name for path in outputs[0].iterdir())
            self.assertEqual(names, sorted(path.name for path in self.model.iterdir()))
            for name in names:
                self.assertEqual(*((output / name).read_bytes() for output in outputs))
                if name not in ("config.json", "model.safetensors"):
                    self.assertEqual((outputs[0] / name).read_bytes(), (self.model / name).read_bytes(), name)
            config = json.loads((outputs[0] / "config.json").read_text())
            self.assertIn("quant_method", config.pop("quantization_config"))
            self.assertEqual(config, json.loads((self.model / "config.json").read_text()))
            size = (outputs[0] / "model.safetensors").stat().st_size
            self.assertLess(size, 0.5 * (self.model / "model.safetensors").stat().st_size)

    def test_ignored_linears_stay_as_they_are(self):
        write_byte_llama(self.model, **WIDE)
        kept = ["model.layers.0.mlp.down_proj", "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"]
        for form, key in (("int4", "ignore"), ("fp8", "modules_to_not_convert"), ("nf4", "llm_int8_skip_modules"), ("gptq", "dynamic")):
            output, _ = self.quantize(form, "--ignore", kept[0], r"re:.*\.q_proj", output=form)
            before, after = self.plain(self.model), self.plain(output)
            equal = {name for name in after if before[name] == after[name] and "_proj" in name}
            self.assertEqual(equal, {f"{name}.weight" for name in kept})
            named = list(json.loads((output / "config.json").read_text())["quantization_config"][key])
            for name in kept:
                self.assertTrue(any(name in word for word in named), (form, named))

    def test_the_errors_of_weights_are_reported_by_kind(self):
        write_byte_llama(self.model, **WIDE)
        _, errors = self.quantize("int8")
        for kind in ("self_attn.q_proj", "mlp.down_proj"):
            self.assertRegex(errors, rf"cambium: {kind}: 2 linears, relative error of weights 0\.00[0-9]+")


def llama_with_outliers(model, **sizes):
    """Inputs of very different sizes, so that it matters which weights are rounded well."""
    write_byte_llama(model, **sizes)
    r, path = random.Random(5), model / "model.safetensors"
    tensors = read_safetensors(path)
    for name, (kind, shape, content) in tensors.items():
        if "layernorm" in name:
            tensors[name] = (kind, shape, floats([math.exp(1.2 * r.gauss(0, 1)) for _ in range(shape[0])]))
    write_safetensors(path, tensors)


class Calibrated(Case):
    SIZES = WIDE | dict(max_position_embeddings=128)
    WORDS = ("--samples", 40, "--seq-length", 64)

    def setUp(self):
        super().setUp()
        llama_with_outliers(self.model, **self.SIZES)
        r = random.Random(2)
        self.data = self.top / "data.jsonl"
        self.data.write_text("".join(json.dumps({"tokens": [r.randrange(256) for _ in range(120)]}) + "\n" for _ in range(40)))

    def divergence(self, form, method, *words, output="out"):
        output, errors = self.quantize(form, "--method", method, "--data", self.data, *self.WORDS, *words, output=output)
        self.assertRegex(errors, r"cambium: mlp\.up_proj: 2 linears, relative error of weights 0\.\d+, of outputs 0\.\d+\n")
        return output, float(re.search(r"held back: ([0-9.]+) nats a token", errors)[1])

    def test_gptq_keeps_the_answers_better_than_nearest_rounding(self):
        _, nearest = self.divergence("int4", "nearest", output="nearest")
        for form in ("int4", "gptq"):
            first, solved = self.divergence(form, "gptq", output=f"{form}1")
            self.assertLess(solved, 0.85 * nearest)
            again, _ = self.divergence(form, "gptq", output=f"{form}2")
            self.assertEqual((first / "model.safetensors").read_bytes(), (again / "model.safetensors").read_bytes())

    def test_awq_keeps_the_answers_and_the_function(self):
        """Its factors go into norms and rows: the plain copy of what is written must answer as the model does."""
        nearest_output, nearest = self.divergence("int4", "nearest", output="nearest")
        output, scaled = self.divergence("int4", "awq", output="awq")
        self.assertLess(scaled, 0.85 * nearest)
        before, after = (read_safetensors(model / "model.safetensors") for model in (self.model, output))
        norms = [name for name in before if "layernorm" in name]
        self.assertTrue(all(before[name] != after[name] for name in norms))
        exact, rounded, awq = self.scores(self.model, nearest_output, output)
        distance = [sum((a - b) ** 2 for a, b in zip(exact, other)) for other in (rounded, awq)]
        self.assertLess(distance[1], distance[0])

    def scores(self, *models):
        path = self.top / "tokens.jsonl"
        path.write_text(json.dumps({"tokens": TOKENS * 6}) + "\n")
        return [rows(run("score", "--model", model, "--input", path, "--precision", "fp32")[0])[0]["logprobs"][1:] for model in models]

    def change(self, edit, **config):
        path = self.model / "model.safetensors"
        tensors = read_safetensors(path)
        edit(tensors)
        write_safetensors(path, tensors)
        keys = json.loads((self.model / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps(keys | config))

    def test_awq_scales_what_comes_before_each_linear(self):
        """Values of 2 heads feed 4 heads of o_proj. Biases of outputs that are divided are divided, too: they are large here,
        so an error in one changes the answers."""
        r, widths = random.Random(4), {"self_attn.q": 64, "self_attn.k": 32, "self_attn.v": 32, "self_attn.o": 64, "mlp.gate": 160,
                                       "mlp.up": 160, "mlp.down": 64}

        def add_biases(tensors):
            for layer in range(2):
                for name, width in widths.items():
                    bias = floats([math.exp(r.gauss(0, 1.5)) for _ in range(width)])
                    tensors[f"model.layers.{layer}.{name}_proj.bias"] = ("F32", (width,), bias)
        self.change(add_biases, attention_bias=True, mlp_bias=True)
        nearest = self.divergence("int4", "nearest", output="nearest")
        awq = self.divergence("int4", "awq", output="awq")
        self.assertLess(awq[1], 0.85 * nearest[1])
        exact, *others = self.scores(self.model, nearest[0], awq[0])
        distance = [sum((a - b) ** 2 for a, b in zip(exact, other, strict=True)) for other in others]
        self.assertLess(distance[1], 0.85 * distance[0])
        before, after = ({name: struct.unpack(f"<{len(content) // 4}f", content) for name, (kind, _, content) in
                          read_safetensors(model / "model.safetensors").items() if name.endswith("bias")} for model in (self.model, awq[0]))
        for name in before:
            self.assertEqual(before[name] != after[name], "v_proj" in name or "up_proj" in name, name)

    def test_awq_keeps_ignored_linears_and_scales_no_norm_that_feeds_them(self):
        kept = ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "model.layers.1.self_attn.o_proj"]
        nearest = self.divergence("int4", "nearest", "--ignore", *kept, output="nearest")
        awq = self.divergence("int4", "awq", "--ignore", *kept, output="awq")
        self.assertLess(awq[1], nearest[1])
        exact, *others = self.scores(self.model, nearest[0], awq[0])
        distance = [sum((a - b) ** 2 for a, b in zip(exact, other, strict=True)) for other in others]
        self.assertLess(distance[1], distance[0])
        before, after = (read_safetensors(model / "model.safetensors") for model in (self.model, awq[0]))
        for name in kept:
            self.assertEqual(before[name + ".weight"], after[name + ".weight"])
        same = {name for name in before if "layernorm" in name and before[name] == after[name]}
        self.assertEqual(same, {"model.layers.0.input_layernorm.weight"})

    def test_biases_and_gains_are_scaled_together(self):
        text = self.top / "gpt2.jsonl"
        text.write_text("".join(json.dumps({"tokens": [(7 * i + k) % 30 for k in range(40)]}) + "\n" for i in range(20)))
        output, errors = self.quantize("int4", "--method", "awq", "--data", text, "--samples", 20, "--seq-length", 16,
                                       model=FAMILIES["gpt2"])
        path = self.top / "tokens.jsonl"
        path.write_text(json.dumps({"tokens": TOKENS}) + "\n")
        exact, found = (rows(run("score", "--model", model, "--input", path, "--precision", "fp32")[0])[0]["logprobs"][1:]
                        for model in (FAMILIES["gpt2"], output))
        for a, b in zip(exact, found, strict=True):
            self.assertLess(abs(a - b), 0.5)

    def test_any_number_of_ranks_writes_the_same_bytes(self):
        """38 samples go to 3 ranks, and the 160 outputs of a linear too: shares differ."""
        for method in ("gptq", "awq", "nearest"):
            words = ("--method", method, "--data", self.data, *self.WORDS, "--asymmetric")
            found = [self.quantize("int4", *words, *ranks, output=f"{method}{len(ranks)}{ranks[-1:]}")
                     for ranks in ((), ("--ranks", 1, "--threads", 2), ("--ranks", 2), ("--ranks", 3))]
            files = [{path.name: path.read_bytes() for path in output.iterdir()} for output, _ in found]
            self.assertTrue(all(one == files[0] for one in files), method)
            lines = [re.findall(r"relative error.*|held back: .*", errors) for _, errors in found]
            self.assertEqual(len(lines[0]), 8)
            self.assertTrue(all(one == lines[0] for one in lines), method)

    @needs_mpirun
    def test_processes_write_what_one_writes(self):
        words = ("quantize", "--model", self.model, "--format", "gptq", "--data", self.data, *self.WORDS)
        run(*words, "--output", self.top / "one")
        done = subprocess.run([*MPIRUN, "-n", "2", CAMBIUM, *map(str, words), "--output", str(self.top / "two")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(*((self.top / name / "model.safetensors").read_bytes() for name in ("one", "two")))
        done = subprocess.run([*MPIRUN, "-n", "2", CAMBIUM, *map(str, words), "--output", str(self.top / "out"), "--group", "48"],
                              capture_output=True, text=True)
        self.assertEqual(done.stderr.count("--group 48: 128, 64, 32 or -1 was expected"), 1, done.stderr)
        self.assertFalse((self.top / "out").exists())

    def test_ranks_need_samples(self):
        Refusals.refused(self, "int4", "--ranks", 2, says="--ranks 2 needs --data")
        _, errors = self.quantize("int4", "--data", self.data, "--samples", 10, "--ranks", 10, expect=2)
        self.assertIn("--ranks 10: --data has 9 samples to divide", errors)

    def test_texts_of_every_form(self):
        text = (SOURCE / "README.md").read_text()
        for name, content in (("a.txt", text), ("b.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in text.splitlines()))):
            (self.top / name).write_text(content)
            output, errors = self.quantize("int4", "--data", self.top / name, *self.WORDS, output=name + ".out")
            self.assertIn("held back", errors)

    def test_bad_data(self):
        short = self.top / "short.jsonl"
        short.write_text(json.dumps({"tokens": [1, 2, 3]}) + "\n")
        Refusals.refused(self, "int4", "--data", short, says="has 4 tokens: at least 160 are needed", expect=1)
        short.write_text("{}\n")
        Refusals.refused(self, "int4", "--data", short, says="short.jsonl:1: ", expect=1)
        Refusals.refused(self, "int4", "--data", self.top / "none.jsonl", says="none.jsonl", expect=1)


class Refusals(Case):
    def refused(self, form, *words, says, expect=2, model=None):
        output, errors = self.quantize(form, *words, expect=expect, model=model)
        self.assertIn(says, errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertFalse(output.exists())
        self.assertEqual([path.name for path in self.top.iterdir() if "out" in path.name], [])

    def test_bad_usage(self):
        write_byte_llama(self.model, **WIDE)
        self.refused("int4", "--group", 128, says="--group 128 does not divide the 64 inputs of model.layers.0.self_attn.q_proj")
        self.refused("int4", "--group", 48, says="--group 48: 128, 64, 32 or -1 was expected")
        self.refused("fp8", "--group", 64, says="--group cannot be combined with --format fp8")
        self.refused("nf4", "--asymmetric", says="--asymmetric cannot be combined with --format nf4")
        self.refused("int4", "--ignore", "lm_head", says="--ignore lm_head: no linear has this name")
        self.refused("int4", "--ignore", "re:(", says="ignore")
        self.refused("int3", says="int3")
        for method in ("awq", "gptq"):
            self.refused("int4", "--method", method, says=f"--method {method} needs --data")
            self.refused("int8", "--method", method, says=f"--method {method} cannot be combined with --format int8")
        self.refused("gptq", "--method", "auto", says="--method gptq needs --data")
        self.refused("gptq", "--method", "awq", says="--method awq cannot be combined with --format gptq")
        quantised, _ = self.quantize("int4", output="quantised")
        self.refused("int8", says="the model is quantised already: compressed-tensors", model=quantised)
        odd = self.top / "odd"
        write_byte_llama(odd, intermediate_size=36)
        self.refused("gptq", says="sides must be multiples of 8", model=odd)

    def test_numbers_that_are_not_finite(self):
        write_byte_llama(self.model, **WIDE)
        path = self.model / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-4:] = struct.pack("<f", math.nan)
        path.write_bytes(content)
        self.refused("int4", says="mlp.", expect=1)

    def test_a_full_disk_leaves_nothing_behind(self):
        write_byte_llama(self.model, **WIDE)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, before[1]))
        try:
            self.refused("int4", says="was not written", expect=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


if __name__ == "__main__":
    unittest.main()
