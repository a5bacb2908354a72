"""Quantised directories open in every command: their values are those of the formats' definitions to the bit, and their
log-probabilities are those of the plain copy."""
import json
import pathlib
import struct
import tempfile
import unittest

from gguf_support import read_gguf, tensors_of
from model_support import read_safetensors, rows, run
from quantised_support import FAMILIES, FORMS, quantise

TOKENS = [1, 5, 9, 2, 30, 7, 7, 11, 40, 3]


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(temporary.cleanup)
        self.top = pathlib.Path(temporary.name)

    def score(self, model, *options):
        path = self.top / "tokens.jsonl"
        path.write_text(json.dumps({"tokens": TOKENS}) + "\n")
        return rows(run("score", "--model", model, "--input", path, "--precision", "fp32", *options)[0])[0]["logprobs"]


class Values(Case):
    def test_values_are_those_of_the_definition(self):
        for number, form in enumerate(FORMS):
            family = list(FAMILIES)[number % len(FAMILIES)]
            with self.subTest(form=form, family=family):
                model, copy = self.top / f"{form}", self.top / f"{form}-plain"
                plain = quantise(FAMILIES[family], model, form, seed=number)
                run("convert", "--from", model, "--to", "model", "--output", copy, "--dtype", "fp32")
                found = read_safetensors(copy / "model.safetensors")
                self.assertEqual({name: (shape, content) for name, (_, shape, content) in found.items()}, plain)
                self.assertNotIn("quantization_config", json.loads((copy / "config.json").read_text()))

    def test_tensors_are_copied_as_plain_values_of_a_type(self):
        model = self.top / "model"
        plain = quantise(FAMILIES["llama"], model, "packed4-order")
        name = "model.layers.1.mlp.down_proj.weight"
        values = struct.unpack("<960f", plain[name][1])
        for dtype, kind, form in (("auto", "F32", "f"), ("fp16", "F16", "e"), ("bf16", "BF16", None)):
            run("convert", "--from", model, "--to", "tensors", "--output", self.top / dtype, "--dtype", dtype)
            found = read_safetensors(self.top / dtype / "model.safetensors")
            self.assertEqual(sorted(found), sorted(plain))
            self.assertEqual(found[name][:2], (kind, [24, 40]))
            self.assertEqual(found["model.norm.weight"][0], "F32")
            if form:
                self.assertEqual(found[name][2], struct.pack(f"<960{form}", *values))
        self.assertIn("--dtype", run("convert", "--from", FAMILIES["llama"], "--to", "tensors", "--output", self.top / "no",
                                     "--dtype", "bf16", expect=2)[1])

    def test_a_gguf_file_has_the_values(self):
        model, again = self.top / "model", self.top / "again"
        quantise(FAMILIES["llama"], model, "nf4-twice")
        run("convert", "--from", model, "--to", "gguf", "--output", self.top / "m.gguf", "--dtype", "fp32")
        run("convert", "--from", model, "--to", "model", "--output", again, "--dtype", "fp32")
        self.assertEqual(read_gguf(self.top / "m.gguf")[1], tensors_of(again))

    def test_log_probabilities_are_those_of_the_plain_copy(self):
        for number, (family, base) in enumerate(FAMILIES.items()):
            for form in list(FORMS)[number % 3::3]:
                with self.subTest(form=form, family=family):
                    model, copy = self.top / f"{family}-{form}", self.top / f"{family}-{form}-plain"
                    quantise(base, model, form)
                    run("convert", "--from", model, "--to", "model", "--output", copy, "--dtype", "fp32")
                    for a, b in zip(self.score(model)[1:], self.score(copy)[1:], strict=True):
                        self.assertLess(abs(a - b), 1e-5)

    def test_tensor_ranks_compute_the_same(self):
        """Cuts divide groups and blocks, and inputs in any order of groups."""
        for form in ("gptq-order", "gptq-short", "packed4-order", "packed4-asymmetric", "naive-block", "fp8-block-odd", "nf4-twice", "bnb8"):
            model = self.top / form
            quantise(FAMILIES["llama"], model, form)
            alone = self.score(model)[1:]
            for ranks in (2, 4):
                with self.subTest(form=form, ranks=ranks):
                    together = self.score(model, "--ranks", ranks, f"--parallel.tensor_model_parallel_size={ranks}")[1:]
                    for a, b in zip(together, alone, strict=True):
                        self.assertLess(abs(a - b), 1e-5)


class Plans(Case):
    def test_plans_have_the_bytes_that_are_allocated(self):
        """Those that `bench load` has in memory, in each format; the text of a plan names no other."""
        cluster, models = self.top / "cpu.yaml", {"plain": FAMILIES["llama"]}
        cluster.write_text(run("plan", "show", "a100-80gb")[0].decode().replace("kind: cuda:sm_80", "kind: cpu"))
        for form in ("gptq-order", "awq", "packed4-asymmetric", "fp8-block", "nf4-twice", "bnb8"):
            models[form] = self.top / form
            quantise(FAMILIES["llama"], models[form], form)
        models["gguf"] = self.top / "m.gguf"
        run("convert", "--from", FAMILIES["llama"], "--to", "gguf", "--output", models["gguf"], "--dtype", "q4_0")
        weights = {}
        for form, model in models.items():
            for precision in ("fp32", "bf16"):
                plan = json.loads(run("plan", "serve", model, cluster, "--devices", 1, "--batch", 1, "--input-len", 8, "--output-len", 4,
                                      "--precision", precision, "--json", "-")[0])
                *_, loaded = rows(run("bench", "load", "--model", model, "--steps", 1, "--precision", precision)[0])
                weights[form, precision] = plan["rows"][0]["memory"]["weights"]
                self.assertEqual(weights[form, precision], loaded["packed_bytes"], form)
            self.assertTrue(form == "plain" or weights[form, "fp32"] < weights["plain", "fp32"], form)
        _, errors = run("plan", "serve", models["awq"], cluster, "--devices", 1, "--load-in", "int4", "--output-len", 4, "--input-len", 8, expect=2)
        self.assertIn("is quantised already", errors)


if __name__ == "__main__":
    unittest.main()
