"""Quantised directories open in every command: their values are those of the formats' definitions to the bit, and their
log-probabilities are those of the plain copy."""
import json
import math
import pathlib
import tempfile
import unittest

from model_support import read_safetensors, rows, run
from quantised_support import FAMILIES, FORMS, quantise

TOKENS = [1, 5, 9, 2, 30, 7, 7, 11, 40, 3]


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(temporary.cleanup)
        self.top = pathlib.Path(temporary.name)

    def score(self, model):
        path = self.top / "tokens.jsonl"
        path.write_text(json.dumps({"tokens": TOKENS}) + "\n")
        return rows(run("score", "--model", model, "--input", path, "--precision", "fp32")[0])[0]["logprobs"]


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

    def test_log_probabilities_are_those_of_the_plain_copy(self):
        for family, base in FAMILIES.items():
            for form in FORMS:
                with self.subTest(form=form, family=family):
                    model, copy = self.top / f"{family}-{form}", self.top / f"{family}-{form}-plain"
                    quantise(base, model, form)
                    run("convert", "--from", model, "--to", "model", "--output", copy, "--dtype", "fp32")
                    for a, b in zip(self.score(model)[1:], self.score(copy)[1:], strict=True):
                        self.assertLess(abs(a - b), 1e-5)


if __name__ == "__main__":
    unittest.main()
