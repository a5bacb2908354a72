"""finetune without keys: the length of samples and the learning rate that follow from rows and methods, the help that
names them, and keys that would do nothing."""
import json
import re
import unittest

import model_support as support
from finetune_support import KEYS, METHODS, P, Tuning, keys_of
from model_support import run, without_program

RATES = {"lora": 2e-4, "ia3": 5e-3, "adapter": 1e-4, "prompt": 3e-2, "ptuning": 1e-3, "prefix": 1e-2, "full": 5e-5}
POSITIONS = 48  # of the base


class Defaults(Tuning):
    def write_rows(self, name, *lengths):
        """Rows with this number of tokens each, the end-of-text included."""
        path = self.root / name
        path.write_text("".join(json.dumps({"prompt": "a", "completion": "b" * (n - 2)}) + "\n" for n in lengths))
        return path

    def words(self, method, data, *words):
        return ["finetune", "--model", self.base, "--peft", *method.split(), "--data", data, "--output", self.root / "out",
                *keys_of(method, KEYS), *words]

    def resolved(self, method, data, *words):
        """The keys of the resolved run, and what is printed to standard error."""
        output, errors = run(*self.words(method, data, "--dry-run", *words))
        section, found = "", {}
        for line in output.decode().splitlines():
            key, _, value = line.partition(":")
            if line.startswith("    "):
                found[f"{section}.{key.strip()}"] = value.strip()
            else:
                section = key
        return found, errors

    def length(self, method, data, *words):
        found, errors = self.resolved(method, data, *words)
        self.assertEqual(re.findall(r"data.seq_length is (\d+), the length of the longest row", errors),
                         [found["data.seq_length"]])
        return int(found["data.seq_length"])

    # ---- data.seq_length

    def test_samples_are_as_long_as_the_longest_row(self):
        rows = self.write_rows("rows.jsonl", 5, 17, 9)
        self.assertEqual(self.length("lora", rows), 17)
        self.assertEqual(self.length("prompt", rows), 17 + 4)  # the virtual tokens come before each row
        self.assertEqual(self.length("prefix", rows), 17 + 4)
        longer = self.write_rows("longer.jsonl", 6, 23)
        self.assertEqual(self.length("lora", rows, "--valid-data", longer, "--train.eval_interval=1"), 23)
        found, errors = self.resolved("lora", rows, "--data.seq_length=12")
        self.assertEqual(found["data.seq_length"], "12")
        self.assertNotIn("the longest row", errors)

    def test_rows_are_cut_at_the_positions_of_the_model(self):
        rows = self.write_rows("cut.jsonl", 5, POSITIONS + 9)
        self.assertEqual(self.length("lora", rows), POSITIONS)
        self.assertEqual(self.length("prompt", rows), POSITIONS)
        _, errors = run(*self.words("lora", rows, "--train.train_iters=1", "--output", self.root / "cut"))
        self.assertIn(f"1 of 2 rows are longer than {POSITIONS} tokens and are cut", errors)

    def test_a_scaled_rotation_takes_longer_rows(self):
        base, rows = self.root / "scaled", self.write_rows("scaled.jsonl", 5, 70)
        support.write_byte_llama(base, max_position_embeddings=16, rope_scaling={"type": "yarn", "factor": 4.0})
        words = ("--model", base, "--train.train_iters=1", "--output", self.root / "longer")
        self.assertEqual(self.length("lora", rows, *words), 64)
        _, errors = run(*self.words("lora", rows, *words, "--data.seq_length=40"))
        self.assertIn("1 of 2 rows are longer than 40 tokens and are cut", errors)
        _, errors = run(*self.words("lora", rows, *words, "--data.seq_length=65"), expect=2)
        self.assertIn("data.seq_length 65 is more than the model's 64 scaled positions", errors)

    def test_ranks_that_divide_a_sequence_get_a_multiple(self):
        rows = self.write_rows("odd.jsonl", 5, 17)
        layout = ["--ranks=2", P + "tensor_model_parallel_size=2"]
        self.assertEqual(self.length("lora", rows, *layout), 17)
        self.assertEqual(self.length("lora", rows, *layout, P + "sequence_parallel"), 18)

    def test_packs_are_no_longer_than_the_longest_row(self):
        rows = self.write_rows("packs.jsonl", 17, *[5] * 16)  # a row of n tokens takes n - 1
        found, errors = self.resolved("lora", rows, "--tuning.packing")
        self.assertEqual((found["data.seq_length"], found["train.train_iters"]), ("17", "5"))

    def test_the_default_trains_as_the_same_length_that_is_given(self):
        rows = self.write_rows("same.jsonl", 5, 17, 9, 11)
        losses = {}
        for name, words in (("default", []), ("given", ["--data.seq_length=17"]), ("most", [f"--data.seq_length={POSITIONS}"])):
            metrics = self.root / f"{name}.metrics"
            run(*self.words("lora", rows, f"--log.metrics_file={metrics}", "--tuning.epochs=2", "--output", self.root / name, *words))
            losses[name] = [json.loads(line)["lm_loss"] for line in metrics.read_text().splitlines() if "lm_loss" in line]
        self.assertEqual(len(losses["default"]), 8)
        self.assertEqual(losses["default"], losses["given"])
        for a, b in zip(losses["default"], losses["most"], strict=True):
            self.assertLess(abs(a - b), 1e-5 * a)

    def test_short_rows_on_a_model_of_many_positions_need_little_memory(self):
        base = self.root / "long"
        support.write_byte_llama(base, max_position_embeddings=131072)
        rows = self.write_rows("short.jsonl", 5, 17)
        totals = []
        for words in ([], ["--data.seq_length=131072"]):
            command = self.words("lora", rows, "--dry-run", *words)
            command[command.index("--model") + 1] = base
            output, _ = run(*command)
            total, program = (float(re.search(rf"{row} +([0-9.]+) MiB", output.decode())[1]) for row in ("total", "program"))
            totals.append(total - program)
        self.assertLess(totals[0], 16)
        self.assertGreater(totals[1], 100 * totals[0])

    # ---- optim.lr

    def test_each_method_has_a_learning_rate(self):
        self.assertEqual(set(RATES), {*METHODS, "full"})
        rows = self.write_rows("rates.jsonl", 5, 9)
        cases = {**RATES, "lora ia3": RATES["lora"], "ia3 prompt": RATES["ia3"]}
        for method, rate in cases.items():
            with self.subTest(method):
                found, errors = self.resolved(method, rows)
                self.assertEqual(float(found["optim.lr"]), rate)
                self.assertRegex(errors, rf"(?m)^cambium: optim.lr is {rate:g}, the default of ")
        found, _ = self.resolved("prefix", rows, "--peft.prefix_projection")
        self.assertEqual(float(found["optim.lr"]), 5e-5)  # an encoder trains
        found, errors = self.resolved("lora", rows, "--optim.lr=3e-3")
        self.assertEqual(found["optim.lr"], "0.003")
        self.assertNotIn("optim.lr is", errors)

    def test_the_help_lists_the_rates(self):
        text = re.sub(r"\s+", " ", run("finetune", "--help=optim")[0].decode())
        for method, rate in RATES.items():
            self.assertRegex(text, rf"[:,] {rate:g} for {method}\b")

    # ---- the dump and the help

    def test_the_resolved_run_can_be_read_again(self):
        rows = self.write_rows("again.jsonl", 5, 17, 9)
        command = self.words("lora", rows, "--dry-run")
        first, _ = run(*command, "--tuning.epochs=2")
        (self.root / "run.yaml").write_bytes(first)
        self.assertEqual(*map(without_program, (run(*command, "--config", self.root / "run.yaml")[0], first)))
        self.assertIn(b"train_iters: 6\n", first)
        self.assertNotIn(b"model:", first)

    def test_the_sections_of_adapters_come_first_in_the_help(self):
        text = run("finetune", "--help")[0].decode()
        sections = re.findall(r"(?m)^([a-z]+):\n  --", text[text.index("\noptions:") + 9:])
        self.assertEqual(sections[:4], ["loss", "tuning", "peft", "optim"])
        self.assertNotIn("--model.", text)
        self.assertNotIn("model", sections)

    # ---- keys that do nothing

    def test_keys_that_do_nothing_are_refused(self):
        for key, value, reason in (("model.hidden_size", 8, "--model"), ("data.data_path", "p", "--data"),
                                   ("data.split", "9,1,0", "--valid-data"), ("data.data_cache_path", "p", "index maps"),
                                   ("data.eod_mask_loss", "true", "end-of-text"), ("checkpoint.save", "p", "--output"),
                                   ("data.reset_position_ids", "true", "positions"),
                                   ("data.reset_attention_mask", "true", "attends")):
            self.refuse(f"--{key} does nothing here: ", reason, words=["--peft", "lora", f"--{key}={value}"])
            section, name = key.split(".")
            path = self.root / "idle.yaml"
            path.write_text(f"tuning:\n    packing: true\n{section}:\n    {name}: {value}\n")
            self.refuse("idle.yaml:", "does nothing here: ", reason, words=["--peft", "lora", "--config", path])

    def test_keys_that_do_nothing_together_are_refused(self):
        self.refuse("tuning.epochs does nothing with train.train_iters", words=["--peft", "lora", "--tuning.epochs=2"])
        self.refuse("train.eval_interval does nothing without --valid-data", words=["--peft", "lora", "--train.eval_interval=2"])
        self.refuse("--valid-data does nothing without train.eval_interval",
                    words=["--peft", "lora", "--valid-data", self.data])


if __name__ == "__main__":
    unittest.main()
