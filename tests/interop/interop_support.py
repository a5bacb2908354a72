"""The common part of the tests against live libraries: the program, its seed, and a model that is worth comparing."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
import transformers
from transformers import AutoModelForCausalLM, GPT2Config

CAMBIUM = os.environ["CAMBIUM"]
SOURCE = pathlib.Path(os.environ["CAMBIUM_SOURCE"])
NEW_TOKENS = 20
SEED = int(os.environ.get("CAMBIUM_INTEROP_SEED", "1"))
torch.set_num_threads(2)
transformers.logging.disable_progress_bar()


class Case(unittest.TestCase):
    """A test with a directory of its own."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-interop-")
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)

    def run_program(self, *words, data=b""):
        done = subprocess.run([CAMBIUM, *map(str, words)], input=data, capture_output=True, timeout=600)
        self.assertEqual(done.returncode, 0, f"{words}\n{done.stderr.decode()}")
        return done.stdout

    def fail_program(self, *words, expect=(1, 2)):
        """The text on standard error of a call that ends in this way."""
        done = subprocess.run([CAMBIUM, *map(str, words)], input=b"", capture_output=True, timeout=600)
        errors = done.stderr.decode()
        self.assertIn(done.returncode, (expect,) if isinstance(expect, int) else expect, f"{words}\n{errors}")
        return errors

    def assert_near(self, ours, theirs):
        """Log-probabilities of one row: within 1e-5 of the largest."""
        self.assertEqual((ours[0], theirs[0], len(ours)), (None, None, len(theirs)))
        largest = max(1, *(abs(b) for b in theirs[1:]))
        for a, b in zip(ours[1:], theirs[1:]):
            self.assertLessEqual(abs(a - b), 1e-5 * largest)

    def assert_scores_agree(self, model, directory, rows):
        """score computes the probabilities that transformers computes."""
        model = model.double().eval()
        for row, ours in zip(rows, score(self, directory, rows, "--precision", "fp32"), strict=True):
            self.assert_near(ours, logprobs(model, row))

    def assert_greedy_agrees(self, model, directory, prompt):
        """generate takes transformers' tokens; False where two of its tokens are so close that rounding may choose."""
        answer = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False,
                                max_new_tokens=NEW_TOKENS, pad_token_id=0, return_dict_in_generate=True, output_scores=True)
        gaps = [torch.topk(scores[0], 2).values for scores in answer.scores]
        if min(float(top[0] - top[1]) for top in gaps) < 1e-3:
            return False
        output = self.run_program("generate", "--model", directory, "--temperature", 0, "--json", "--ignore-eos", "--precision",
                                  "fp32", "--max-new-tokens", NEW_TOKENS, "--prompt-tokens", *prompt)
        self.assertEqual(json.loads(output)["tokens"], answer.sequences[0, len(prompt):].tolist())
        return True


def random_rows(vocab_size, positions, seed):
    generator = torch.Generator().manual_seed(SEED * 1000 + seed)
    return [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in (2, positions // 2 + 1, positions)]


def shake(model):
    """No norm and no bias at its usual start, so that each of them matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def random_gpt2(seed, **changed):
    """A GPT-2 none of whose parameters has its usual start, so that each of them matters."""
    return random_model(seed, GPT2Config(**({"n_layer": 2, "n_embd": 48, "n_head": 3, "vocab_size": 211, "n_positions": 40,
                                             "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.25} | changed)))


def random_model(seed, config):
    torch.manual_seed(SEED * 1000 + seed)
    return shake(AutoModelForCausalLM.from_config(config).eval())


def logprobs(model, ids):
    """Natural logarithms of each token's probability after those before it, in the model's own precision."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    every = torch.log_softmax(logits, dim=-1)
    return [None, *(every[i, t].item() for i, t in enumerate(ids[1:]))]


def score(case, directory, rows, *words):
    """cambium score's log-probabilities of rows of ids."""
    lines = "".join(json.dumps({"tokens": row}) + "\n" for row in rows)
    output = case.run_program("score", "--model", directory, "--input", "-", *words, data=lines.encode())
    return [json.loads(line)["logprobs"] for line in output.splitlines()]
