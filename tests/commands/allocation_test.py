"""Commands whose n-th allocation fails, for a sample of all n with a fixed seed. Each ends with one line that says so,
or succeeds without that memory, and every file that exists is whole. Under AddressSanitizer nothing leaks either."""
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import unittest

import model_support as support
from gguf_support import byte_tokens, keys_of, tensors_of, write_gguf
from pretrain_support import KEYS, LONG, walk_documents, write_dataset

INJECTOR = os.environ.get("CAMBIUM_INJECTOR")
SHORT_PART = 12  # failures of each command where not all are asked for
TIMES = ("seconds", "tokens_per_s", "model_tflops")  # of metrics, which differ from run to run


def contents(path):
    """The bytes of a file, but for the times in metrics and receipts."""
    data = path.read_bytes()
    if path.name == "metrics.jsonl":
        return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in data.splitlines()]
    return re.sub(rb'"created": "[^"]*"', b"", data) if path.name == "cambium_receipt.json" else data


# The message of such a failure.
TEXT = r"(out of|no) memory|cannot allocate|cannot start a (worker )?thread"


@unittest.skipUnless(INJECTOR, "this build has no library that fails allocations")
class Failing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(temporary.cleanup)
        cls.root = pathlib.Path(temporary.name)
        cls.out = cls.root / "out"
        cls.text = cls.root / "text.txt"
        cls.text.write_text("so much depends upon a red wheel barrow glazed with rain water\n" * 20)
        cls.rows = cls.root / "rows.jsonl"
        cls.rows.write_text("".join(json.dumps({"prompt": f"to {n}:", "completion": " " + " ".join(map(str, range(n)))}) + "\n"
                                    for n in range(1, 9)))
        cls.base = cls.root / "base"
        support.write_byte_model(cls.base, n_layer=2, n_head=2, n_embd=16, n_positions=48)
        write_dataset(cls.root / "walk", walk_documents(12))

    def attempt(self, words, n=None, input=b""):
        """Runs the program with its n-th allocation failing, none where n is 0, in a fresh directory `out`."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        environment = os.environ | {"CAMBIUM_FAIL_ALLOCATION": str(n), "CAMBIUM_FAIL_REPORT": str(self.root / "count"),
                                    "LD_PRELOAD": INJECTOR, "ASAN_OPTIONS": sanitizer.lstrip(":")}
        return subprocess.run([support.CAMBIUM, *map(str, words)], input=input, capture_output=True, timeout=300, env=environment)

    def files(self):
        """The files that exist. The box of a writer that had no memory to remove it waits for the next writer, as after
        a kill."""
        found = {str(p.relative_to(self.out)): p for p in sorted(self.out.rglob("*")) if p.is_file()}
        return {name: contents(p) for name, p in found.items() if ".cambium-" not in name}

    def check(self, *words, input=b"", whole=()):
        """Every failure of the command. Directories that match a pattern of `whole` have all their files, or are absent."""
        good = self.attempt(words, 0, input)
        self.assertEqual(good.returncode, 0, good.stderr.decode())
        count, files = int((self.root / "count").read_text()), self.files()
        self.assertGreater(count, 10)
        part = range(1, count + 1) if LONG else sorted(random.Random(words[0]).sample(range(1, count + 1), SHORT_PART))
        failures = 0
        for n in part:
            with self.subTest(words=words[:2], n=n):
                done = self.attempt(words, n, input)
                errors = [line for line in done.stderr.decode().splitlines() if "error: " in line]
                if done.returncode == 0:
                    self.assertEqual(done.stdout, good.stdout)
                    self.assertEqual(*({p: data for p, data in f.items() if not p.startswith("cache/")} for f in (self.files(), files)))
                else:
                    failures += 1
                    self.assertEqual(done.returncode, 1, done.stderr.decode())
                    self.assertEqual(len(errors), 1, done.stderr.decode())
                    self.assertRegex(done.stdout.decode() if "were refused: their lines" in errors[0] else errors[0], TEXT)
                self.check_files(files, whole)
        self.assertGreater(failures, len(part) // 2)

    def check_files(self, good, whole):
        found = self.files()
        for name, data in found.items():
            self.assertIn(name, good)
            if name.endswith(("metrics.jsonl", ".log")):  # it ends where the run does
                self.assertEqual(data, good[name][:len(data)])
            else:
                self.assertEqual(data, good[name], name)
        for pattern in whole:
            for directory in self.out.glob(pattern):
                prefix = f"{directory.relative_to(self.out)}/"
                lacking = {f for f in good if f.startswith(prefix)} - {f for f in found if f.startswith(prefix)}
                self.assertLessEqual(lacking, {f"{prefix}cambium_receipt.json"})  # written when all adapters are


class Texts(Failing):
    def test_tokenizer_train(self):
        self.check("tokenizer", "train", "--input", self.text, "--vocab-size", 270, "--workers", 2, "--output", self.out / "t")

    def test_tokenize(self):
        self.check("tokenize", "--tokenizer", self.base, input=b"so much depends\nupon\n")

    def test_detokenize(self):
        self.check("detokenize", "--tokenizer", self.base, input=b"115 111 32\n104 105\n")

    def test_preprocess(self):
        lines = self.root / "lines.jsonl"
        lines.write_text("".join(json.dumps({"text": f"so much \u00e4 {n}", "title": [str(n)]}) + "\n" for n in range(20)))
        self.check("preprocess", "--input", lines, "--json-keys", "text", "--tokenizer", self.base, "--workers", 2, "--append-eod",
                   "--output-prefix", self.out / "p")

    def test_data_show(self):
        self.check("data", "show", "--data-path", self.root / "walk", "--seq-length", 16, "--sample", 1, "--tokenizer", self.base,
                   "--data-cache-path", self.out / "cache")


    def test_convert(self):
        source = support.SOURCE / "tests/model/golden/llama_wide_heads"
        write_gguf(self.root / "m.gguf", keys_of(source) | byte_tokens(61), tensors_of(source))
        self.check("convert", "--from", self.root / "m.gguf", "--to", "model", "--output", self.out / "model", whole=["model"])


class Training(Failing):
    def pretrain(self, *words, **keys):
        values = dict(KEYS) | {"data.data_path": self.root / "walk", "data.data_cache_path": self.out / "cache",
                               "train.train_iters": 3, "checkpoint.save": self.out / "run", "checkpoint.save_interval": 2,
                               "log.metrics_file": self.out / "metrics.jsonl", "log.log_interval": 1}
        config = self.root / "run.yaml"
        config.write_text("optim: {weight_decay: 0.1}\ntrain: {eval_interval: 2, eval_iters: 1}\n")
        values |= {k.replace("__", "."): v for k, v in keys.items()}
        return ["pretrain", "--config", config, *words, *(f"--{k}={v}" for k, v in values.items())]

    def test_pretrain(self):
        self.check(*self.pretrain(), whole=["run/iter_*"])

    def test_pretrain_goes_on(self):
        """From a checkpoint of more ranks, saving in the background."""
        before = self.attempt(self.pretrain("--ranks", 2, checkpoint__save=self.root / "before", train__exit_interval=2,
                                            parallel__use_distributed_optimizer="true"), 0)
        self.assertEqual(before.returncode, 0, before.stderr.decode())
        self.check(*self.pretrain(checkpoint__load=self.root / "before", checkpoint__async_save="true"), whole=["run/iter_*"])

    def test_pretrain_of_several_ranks(self):
        self.check(*self.pretrain("--ranks", 2, parallel__tensor_model_parallel_size=2), whole=["run/iter_*"])


class Adapters(Failing):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for peft in ("lora", "prefix"):
            support.run(*cls.finetune(peft, cls.root / peft))

    @classmethod
    def finetune(cls, peft, output, *words):
        keys = [] if peft == "lora" else ["--peft.num_virtual_tokens=4"]
        return ["finetune", "--model", cls.base, "--peft", peft, "--data", cls.rows, "--output", output, "--train.train_iters=3",
                "--train.global_batch_size=4", "--optim.lr=1e-3", *keys, *words]

    def test_finetune(self):
        self.check(*self.finetune("lora", self.out / "a", "--checkpoint.save_interval=2", "--tuning.packing"), whole=["a/iter_*"])

    def test_finetune_in_few_bits(self):
        self.check(*self.finetune("lora", self.out / "a", "--load-in", "nf4"), whole=["a/iter_*"])

    def test_generate_in_few_bits(self):
        self.check("generate", "--model", self.base, "--load-in", "int4", "--prompt", "to 3:", "--max-new-tokens", 4)

    def test_finetune_goes_on(self):
        self.check(*self.finetune("prefix", self.out / "a", "--checkpoint.load", self.root / "prefix", "--train.train_iters=5",
                                  f"--log.metrics_file={self.out / 'metrics.jsonl'}"), whole=["a/iter_*"])

    def test_generate(self):
        self.check("generate", "--model", self.base, "--adapter", self.root / "lora", self.root / "prefix", "--prompt", "to 3:",
                   "--max-new-tokens", 8, "--num-samples", 2, "--json")

    def test_generate_requests(self):
        requests = [{"id": 1, "prompt": "to 3:", "adapters": ["lora", "prefix"], "n": 2, "stop": ["9", "8 "], "logit_bias": {"7": 1}},
                    {"id": 2, "prompt": [1, 2], "logprobs": 2, "prompt_logprobs": 1, "min_tokens": 2, "stop_token_ids": [5]},
                    {"id": 3, "messages": [{"role": "user", "content": "a"}], "adapters": ["lora"], "presence_penalty": 1}]
        self.check("generate", "--model", self.base, "--adapter", f"lora={self.root / 'lora'}", f"prefix={self.root / 'prefix'}",
                   "--chat-template", "plain", "--requests", "-",
                   input="".join(json.dumps(r | {"seed": 5, "max_tokens": 6}) + "\n" for r in requests).encode())

    def test_score(self):
        self.check("score", "--model", self.base, "--adapter", self.root / "lora", "--input", "-",
                   input=b'{"text": "to 3: 0 1 2"}\n{"tokens": [1, 2, 3]}\n')

    def test_merge(self):
        self.check("merge", "--model", self.base, "--adapter", self.root / "lora", "--output", self.out / "merged", whole=["merged"])

    def test_quantize(self):
        self.check("quantize", "--model", self.base, "--output", self.out / "q", "--format", "nf4", "--ignore", "re:.*c_fc", whole=["q"])

    def test_quantize_with_samples(self):
        for method in ("gptq", "awq"):
            self.check("quantize", "--model", self.base, "--output", self.out / "q", "--format", "int4", "--method", method,
                       "--data", self.text, "--samples", 10, "--seq-length", 16, "--threads", 1, whole=["q"])

    def test_adapter_show(self):
        self.check("adapter", "show", self.root / "lora")


del Failing

if __name__ == "__main__":
    unittest.main()
