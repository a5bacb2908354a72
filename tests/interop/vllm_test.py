"""`vllm bench serve` as it is, against `cambium serve`: every request is completed, and the client counts the tokens that the
server counts."""
import importlib.util
import json
import os
import subprocess
import sys
import unittest

from interop_support import Case, random_gpt2
from model_support import write_byte_tokenizer
from serve_support import Server, write_prompt

COMPLETIONS = ("--backend", "openai")
CHATS = ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")
ADAPTERS = ("three", "five")


@unittest.skipUnless(importlib.util.find_spec("vllm"), "vllm is not installed")
class Bench(Case):
    def setUp(self):
        super().setUp()
        self.model, root = self.directory / "model", self.directory / "adapters"
        random_gpt2(9, vocab_size=257, n_positions=128, bos_token_id=256, eos_token_id=256).save_pretrained(self.model)
        write_byte_tokenizer(self.model)
        for name, tokens in zip(ADAPTERS, (3, 5)):
            write_prompt(root / name, tokens, width=48)
        self.server = Server("--adapter-root", root, "--chat-template", "chatml", "--model-name", "org/tiny", model=self.model)
        self.addCleanup(self.server.__exit__, None, None, None)

    def bench(self, *words):
        done = subprocess.run(
            [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--model", "org/tiny", "--tokenizer", self.model,
             "--base-url", f"http://{self.server.addresses['data']}", "--random-input-len", "20", "--random-output-len", "8",
             "--save-result", "--save-detailed", "--result-dir", self.directory, "--result-filename", "result.json", *words],
            env=os.environ | {"VLLM_NO_USAGE_STATS": "1"}, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads((self.directory / "result.json").read_text())

    def check(self, *words, prompts, output):
        """The client's counts: completions of the prompts, and all tokens."""
        before = self.server.metrics()
        result = self.bench("--num-prompts", str(prompts), *words)
        after = self.server.metrics()
        grown = lambda name: sum(value - before.get(key, 0) for key, value in after.items() if key.startswith(name))
        self.assertEqual((result["completed"], result["failed"], set(result["errors"])), (prompts, 0, {""}))
        self.assertEqual(grown("vllm:request_success_total"), prompts)
        self.assertEqual(grown("vllm:prompt_tokens_total"), result["total_input_tokens"])
        self.assertEqual((grown("vllm:generation_tokens_total"), result["total_output_tokens"]), (output, output))
        return result, grown

    def test_completions(self):
        result, _ = self.check(*COMPLETIONS, prompts=40, output=320)
        self.assertEqual(result["model_id"], "org/tiny")

    def test_completions_at_a_rate_with_log_probabilities(self):
        self.check(*COMPLETIONS, "--request-rate", "50", "--max-concurrency", "4", "--logprobs", "3", prompts=20, output=160)

    def test_chats(self):
        self.check(*CHATS, "--max-concurrency", "4", prompts=20, output=160)

    def test_chats_that_end_at_once(self):
        self.check(*CHATS, "--extra-body", '{"ignore_eos": false, "logit_bias": {"256": 100}}', prompts=5, output=5)

    def test_adapters(self):
        _, grown = self.check(*COMPLETIONS, "--lora-modules", *ADAPTERS, "--lora-assignment", "round-robin", prompts=20, output=160)
        for name in ADAPTERS:
            self.assertEqual(grown(f'cambium:adapter_requests_total{{adapter="{name}"'), 10)
        self.check(*CHATS, "--lora-modules", *ADAPTERS, prompts=10, output=80)


if __name__ == "__main__":
    unittest.main()
