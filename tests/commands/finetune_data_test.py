"""finetune and its rows: the tokens that count in the loss, packed or not, and the report of skipped rows. A run can be
resumed after a kill or a full disk."""
import json
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import model_support as support
from finetune_support import hash_tree
from model_support import run
from pretrain_support import LONG, wait_for

METHODS = ("lora", "ia3", "adapter", "prompt", "ptuning", "prefix")
VIRTUAL = 4
EOS = support.EOS
TOKENS = f"--peft.num_virtual_tokens={VIRTUAL}"
KEYS = {"lora": ["--peft.r=2"], "adapter": ["--peft.bottleneck=3"], "prompt": [TOKENS, "--peft.prompt_tuning_init=RANDOM"],
        "ptuning": [TOKENS, "--peft.encoder_hidden_size=8"], "prefix": [TOKENS]}


def row(prompt, completion):
    return {"prompt": prompt, "completion": completion}


class Finetune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(temporary.cleanup)
        cls.root = pathlib.Path(temporary.name)
        cls.base = cls.root / "base"
        cls.config = support.gpt2_config(n_layer=2, n_head=2, n_embd=16, n_positions=64, vocab_size=EOS + 4)
        support.write_model(cls.base, cls.config)
        support.write_byte_tokenizer(cls.base)

    def write_rows(self, name, rows):
        path = self.root / name
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
        return path

    def command(self, name, method, data, *words, base=None):
        return ["finetune", "--model", base or self.base, "--peft", method, "--data", *data, "--output", self.root / name,
                f"--log.metrics_file={self.root / name}.metrics", "--train.precision=fp32", "--optim.lr=1e-2",
                *KEYS.get(method, []), *map(str, words)]

    def records(self, name, key="lm_loss"):
        lines = (self.root / f"{name}.metrics").read_text().splitlines()
        return [record for record in map(json.loads, lines) if key in record]

    def tune(self, name, method, data, *words, base=None):
        """The records of the iterations, and what was said."""
        (self.root / f"{name}.metrics").unlink(missing_ok=True)
        for checkpoint in (self.root / name).glob("iter_*"):  # which a run that starts afresh leaves alone
            shutil.rmtree(checkpoint)
        _, errors = run(*self.command(name, method, data, *words, base=base))
        return self.records(name), errors

    def logprobs(self, tokens, base=None):
        """For each token, given those before it."""
        line = json.dumps({"tokens": tokens}).encode()
        output, _ = run("score", "--model", base or self.base, "--precision", "fp32", "--input", "-", input=line)
        return json.loads(output)["logprobs"]


class Loss(Finetune):
    """At the first iteration LoRA is the identity: the loss is that of the base, which score tells of each token."""

    def first_loss(self, rows, *words, base=None):
        records, errors = self.tune("loss", "lora", [self.write_rows("loss.jsonl", rows)], "--train.train_iters=1",
                                    f"--train.global_batch_size={len(rows)}", *words, base=base)
        return records[0]["lm_loss"], errors

    def expected(self, *rows, base=None):
        """rows: (tokens, the places of those that are trained)."""
        chosen = [self.logprobs(tokens, base)[i] for tokens, places in rows for i in places]
        return -sum(chosen) / len(chosen)

    def assert_loss(self, found, expected):
        self.assertLess(abs(found - expected), 1e-5 * expected)

    def test_answers_and_their_ends_alone(self):
        """Exactly at the boundary, and each token counts as much as any other, whatever its row's length."""
        loss, _ = self.first_loss([row("to be", " or"), row("a", "bcdefgh")])
        one, other = [*b"to be or", EOS], [*b"abcdefgh", EOS]
        self.assert_loss(loss, self.expected((one, range(5, 9)), (other, range(1, 9))))

    def test_a_rows_weight_scales_its_losses(self):
        """The mean is over the trained tokens, however they are weighted; a row of weight 0 is left out."""
        one, other = [*b"to be or", EOS], [*b"abcdefgh", EOS]
        for first, second in ((0.25, 3), (1, 0.5), (1e-3, None)):
            loss, _ = self.first_loss([row("to be", " or") | {"weight": first}, row("a", "bcdefgh") | {"weight": second}])
            sums = [-sum(self.logprobs(tokens)[i] for i in places) for tokens, places in ((one, range(5, 9)), (other, range(1, 9)))]
            self.assert_loss(loss, (first * sums[0] + (1 if second is None else second) * sums[1]) / 12)
        loss, errors = self.first_loss([row("to be", " or"), row("a", "bcdefgh") | {"weight": 0}], "--train.global_batch_size=1")
        self.assert_loss(loss, self.expected((one, range(5, 9))))
        self.assertIn("1 of 2 rows have no answer within 64 tokens, or the weight 0, and are left out: line 2\n", errors)

    def test_names_of_special_tokens_are_tokens_or_text(self):
        rows = [{"text": "to be<|endoftext|>or<|endoftext|>"}]
        self.assert_loss(self.first_loss(rows)[0], self.expected(([*b"to be", EOS, *b"or", EOS], range(1, 9))))
        tokens = [*b"to be<|endoftext|>or<|endoftext|>", EOS]
        loss, _ = self.first_loss(rows, "--tuning.special_tokens=text")
        self.assert_loss(loss, self.expected((tokens, range(1, len(tokens)))))

    def test_whole_texts(self):
        loss, _ = self.first_loss([row("to be", " or")], "--tuning.train_on_prompt=true")
        expected = self.expected(([*b"to be or", EOS], range(1, 9)))
        self.assert_loss(loss, expected)
        self.assert_loss(self.first_loss([{"text": "to be or"}])[0], expected)

    def test_all_answers_or_the_last(self):
        template = self.root / "short.jinja"
        template.write_text("{% for m in messages %}{{ m.role[0] }}{{ m.content }};{% endfor %}{% if add_generation_prompt %}a{% endif %}")
        rows = [{"messages": [{"role": role, "content": text} for role, text in (("user", "p"), ("assistant", "q"), ("user", "r"), ("assistant", "s"))]}]
        tokens, template = [*b"up;aq;ur;as;"], f"--tuning.template={template}"
        for words, places in (((), (4, 5, 10, 11)), (("--data.answers=all",), (4, 5, 10, 11)), (("--data.answers=last",), (10, 11))):
            loss, _ = self.first_loss(rows, template, *words)
            self.assert_loss(loss, self.expected((tokens, places)))

    def test_a_token_over_the_boundary_is_trained(self):
        base = self.root / "merging"
        support.write_model(base, self.config)
        support.write_byte_tokenizer(base)
        vocab = json.loads((base / "vocab.json").read_text())
        (base / "vocab.json").write_text(json.dumps(vocab | {"ab": EOS + 1, "bc": EOS + 2}))
        (base / "merges.txt").write_text("#version: 0.2\nb c\na b\n")
        loss, _ = self.first_loss([row("xab", "cab")], base=base)
        self.assert_loss(loss, self.expected(([ord("x"), ord("a"), EOS + 2, EOS + 1, EOS], (2, 3, 4)), base=base))

    def test_the_side_that_is_cut(self):
        for side, tokens, places in (("right", b"abcdefgh", range(6, 8)), ("left", [*b"fghijkl", EOS], range(1, 8))):
            loss, errors = self.first_loss([row("abcdef", "ghijkl")], "--data.seq_length=8", f"--tuning.truncation_side={side}")
            self.assert_loss(loss, self.expected(([*tokens], places)))
            self.assertIn("loss.jsonl: 1 of 1 rows are longer than 8 tokens and are cut", errors)

    def test_which_end_of_text(self):
        """The tokenizer's own; else <|endoftext|>; else config.json's; else none can be."""
        config = json.dumps(self.config | {"eos_token_id": EOS + 2})
        tokenizer = json.dumps({"eos_token": "<|end|>", "added_tokens_decoder": {}})
        plain = {character: byte for byte, character in support.bytes_to_unicode().items()}
        named, generic = {"<|end|>": EOS + 1}, {"<|endoftext|>": EOS}
        cases = ((named | generic, True, EOS + 1), (generic, False, EOS), ({}, False, EOS + 2))
        for number, (vocab, told, eos) in enumerate(cases):
            base = self.root / f"eos{number}"
            support.write_model(base, self.config)
            (base / "config.json").write_text(config)
            (base / "merges.txt").write_text("#version: 0.2\n")
            (base / "vocab.json").write_text(json.dumps(plain | vocab))
            if told:
                (base / "tokenizer_config.json").write_text(tokenizer)
            loss, _ = self.first_loss([row("a", "b")], base=base)
            self.assert_loss(loss, self.expected(([97, 98, eos], (1, 2)), base=base))
        (base / "config.json").write_text(json.dumps(self.config))
        _, errors = run(*self.command("none", "lora", [self.root / "loss.jsonl"], "--train.train_iters=1", base=base), expect=1)
        self.assertIn("no end-of-text", errors.splitlines()[-1])

    def test_a_tokenizer_with_more_tokens_than_the_model(self):
        """A row may not use them: it is refused with its place."""
        base, rows = self.root / "larger", self.root / "larger.jsonl"
        support.write_model(base, self.config)
        support.write_byte_tokenizer(base)
        size = self.config["vocab_size"]
        (base / "added_tokens.json").write_text(json.dumps({f"<t{i}>": i for i in range(EOS + 1, size + 2)}))
        loss, _ = self.first_loss([row("a", f"b<t{size - 1}>")], base=base)
        self.assert_loss(loss, self.expected(([97, 98, size - 1, EOS], (1, 2, 3)), base=base))
        rows.write_text(json.dumps(row("a", "b")) + "\n" + json.dumps(row("a", f"b<t{size}>")) + "\n")
        _, errors = run(*self.command("none", "lora", [rows], "--train.train_iters=1", base=base), expect=1)
        self.assertIn(f"larger.jsonl:2: token {size} is outside the model's vocabulary of {size}", errors)
        (base / "tokenizer_config.json").write_text(json.dumps({"eos_token": f"<t{size}>"}))
        _, errors = run(*self.command("none", "lora", [rows], "--train.train_iters=1", base=base), expect=2)
        self.assertIn(f"the end-of-text is token {size} of the {size + 2} tokens of the tokenizer", errors)

    def template_of(self, name):
        """The files next to the adapter: the template's name, and whether the template is there."""
        out = self.root / name
        jinja = out / "chat_template.jinja"
        if jinja.exists():
            self.assertIn("messages", jinja.read_text())
        return json.loads((out / "cambium_adapter.json").read_text())["chat_template"], jinja.exists()

    def test_chat_templates(self):
        chat = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "you"}]}
        loss, _ = self.first_loss([chat], "--tuning.template=plain")
        self.assert_loss(loss, self.expected(([*b"hi\nyou", EOS], range(3, 7))))
        self.assertEqual(self.template_of("loss"), ("plain", True))
        own = "{% for m in messages %}{{ m.role[0] ~ m.content }};{% endfor %}{% if add_generation_prompt %}a{% endif %}"
        base = self.root / "own"
        support.write_model(base, self.config)
        support.write_byte_tokenizer(base)
        (base / "chat_template.jinja").write_text(own)
        loss, _ = self.first_loss([chat], base=base)
        self.assert_loss(loss, self.expected(([*b"uhi;ayou;"], range(5, 9)), base=base))
        self.assertEqual(self.template_of("loss"), ("", True))
        self.assertEqual((self.root / "loss" / "chat_template.jinja").read_text(), own)
        for text, part in (("{% if %}", "chat_template.jinja: line 1: "), (None, "chatml, alpaca, plain or a file")):
            base = self.root / f"chat{bool(text)}"
            support.write_model(base, self.config)
            support.write_byte_tokenizer(base)
            if text:
                (base / "chat_template.jinja").write_text(text)
            words = self.command("none", "lora", [self.root / "loss.jsonl"], "--train.train_iters=1", base=base)
            _, errors = run(*words, expect=1)
            self.assertIn(part, errors.splitlines()[-1])
            self.assertFalse((self.root / "none").exists())
        self.first_loss([row("a", "b")])
        self.assertEqual(self.template_of("loss"), ("", False))  # what was written before went with it


class Validation(Finetune):
    """train.skip_train: the loss of a model with adapters, which apply together."""

    def validate(self, valid, *adapters):
        (self.root / "skip.metrics").unlink(missing_ok=True)
        before = sorted(self.root.rglob("*"))
        run("finetune", "--model", self.base, "--valid-data", valid, "--train.skip_train", "--train.micro_batch_size=2",
            f"--log.metrics_file={self.root}/skip.metrics", *(word for a in adapters for word in ("--adapter", a)))
        self.assertEqual(sorted(p for p in self.root.rglob("*") if p.name != "skip.metrics"), before)
        record, = self.records("skip", "valid_loss")
        return record["valid_loss"]

    def test_of_the_base_and_of_adapters_that_apply_together(self):
        data = self.write_rows("v.jsonl", [row("ab", "cd"), row("efg", "h"), row("i", "jklm")])
        scores = [self.logprobs([*b"abcd", EOS])[2:], self.logprobs([*b"efgh", EOS])[3:], self.logprobs([*b"ijklm", EOS])[1:]]
        flat = [logprob for row in scores for logprob in row]
        base = -sum(flat) / len(flat)
        self.assertLess(abs(self.validate(data) - base), 1e-5 * base)
        found = {}
        for method in METHODS:
            self.tune(method, method, [data], "--valid-data", data, "--train.train_iters=4", "--train.global_batch_size=3",
                      "--train.eval_interval=4")
            expected = self.records(method, "valid_loss")[-1]["valid_loss"]
            found[method] = self.validate(data, self.root / method)
            self.assertLess(abs(found[method] - expected), 1e-5 * expected, method)
            self.assertNotEqual(found[method], base, method)
        both = self.validate(data, self.root / "lora", self.root / "prompt")
        self.assertNotIn(both, (base, found["lora"], found["prompt"]))
        twice = self.validate(data, self.root / "ia3", self.root / "ia3")
        self.assertNotIn(twice, (base, found["ia3"]))

    def test_what_is_told_of_the_run_counts_the_rows_that_were(self):
        data = self.write_rows("v.jsonl", [row("ab", "cd")] * 4)  # 5 tokens, of which 4 are read
        _, errors = self.tune("counted", "prompt", [data], "--train.train_iters=3", "--train.global_batch_size=4")
        self.assertIn(f"3 iterations, {3 * 4 * (4 + VIRTUAL)} tokens in", errors)


class Rows(Finetune):
    SHORT = [row("ab", "cd"), row("efg", "h"), row("i", "jklm"), {"text": "nop"}]

    def test_packed_is_the_sum_of_the_separate_for_every_method(self):
        """One sample of four rows, and four samples: the same loss, the same gradients."""
        data = [self.write_rows("short.jsonl", self.SHORT)]
        for method in METHODS:
            with self.subTest(method):
                alone, _ = self.tune(f"alone-{method}", method, data, "--train.train_iters=1", "--train.global_batch_size=4")
                packed, _ = self.tune(f"packed-{method}", method, data, "--train.train_iters=1", "--train.global_batch_size=1",
                                      "--tuning.packing=true", "--data.seq_length=64")
                for key in ("lm_loss", "grad_norm"):
                    self.assertLess(abs(alone[0][key] - packed[0][key]), 1e-5 * alone[0][key], key)
                file = "adapter.safetensors" if method == "adapter" else "adapter_model.safetensors"
                one, other = (support.read_safetensors(self.root / f"{how}-{method}" / file) for how in ("alone", "packed"))
                self.assertEqual(one.keys(), other.keys())

    def test_rows_that_train_nothing_are_counted_and_told(self):
        rows = [*self.SHORT, row("a", ""), {"messages": []}, row("x" * 80, "y")]
        _, errors = self.tune("told", "lora", [self.write_rows("empty.jsonl", rows)], "--train.train_iters=1",
                              "--tuning.template=plain")
        self.assertIn("warning: ", errors)
        self.assertIn("empty.jsonl: 3 of 7 rows have no answer within 64 tokens and are left out: lines 5, 6, 7\n", errors)
        self.assertEqual(errors.count("are left out"), 1)
        _, errors = self.tune("told2", "lora", [self.root / "empty.jsonl"], "--train.train_iters=1", "--tuning.template=plain",
                              "--ranks=2", "--train.global_batch_size=2")
        self.assertEqual(errors.count("are left out"), 1)  # not by every rank

    def test_epochs_are_iterations_of_the_rows_that_train(self):
        rows = [*self.SHORT * 3, row("a", "")]
        words = ["--train.global_batch_size=4", "--tuning.epochs=3", "--peft.lora_dropout=0.2"]
        data = [self.write_rows("epochs.jsonl", rows)]
        by_epochs, _ = self.tune("epochs", "lora", data, *words)
        self.assertEqual(len(by_epochs), 9)
        by_iterations, _ = self.tune("iterations", "lora", data, words[0], words[2], "--train.train_iters=9")
        self.assertEqual([r["lm_loss"] for r in by_epochs], [r["lm_loss"] for r in by_iterations])

    def test_files_have_weights(self):
        """For eight rows; without weights the rows of both files form one pool."""
        a, b = self.write_rows("a.jsonl", [row("a", "b")]), self.write_rows("b.jsonl", [row("c", "defgh")])
        words = ["--train.train_iters=1", "--train.global_batch_size=8"]
        loss = {name: self.tune("weights", "lora", data, *words)[0][0]["lm_loss"] for name, data in
                {"a": [a], "b": [b], "both": [a, b], "three": ["3", a, "1", b], "half": ["0.5", a, "0.5", b]}.items()}
        self.assertGreater(abs(loss["a"] - loss["b"]), 1e-3)
        for name, of_a, of_b in (("both", 4, 4), ("three", 6, 2), ("half", 4, 4)):
            of_a, of_b = 2 * of_a, 6 * of_b  # tokens that are trained
            mean = (of_a * loss["a"] + of_b * loss["b"]) / (of_a + of_b)
            self.assertLess(abs(loss[name] - mean), 1e-5 * mean, name)


class Faults(Finetune):
    """A run that ends in the middle, by a kill or a full disk, loses nothing that was saved and resumes bit for bit."""

    KEYS = ["--train.train_iters=24", "--train.global_batch_size=4", "--checkpoint.save_interval=3"]

    def rows(self):
        return [self.write_rows("faults.jsonl", [row(f"{i}+{i}=", str(2 * i)) for i in range(50)])]

    def files(self, name):
        return {str(p): p.read_bytes() for p in (self.root / name).rglob("*") if p.is_file()}

    def adapter(self, name):
        return hash_tree(self.root / name, "*")

    def go_on(self, name, method):
        words = [f"--checkpoint.load={self.root / name}"]
        _, errors = run(*self.command(name, method, self.rows(), *self.KEYS, *words))
        return errors

    def test_a_killed_run_goes_on(self):
        r, killed = random.Random(7), 0
        for number in range(20 if LONG else 6):
            method = METHODS[number % len(METHODS)]
            name, whole = f"killed{number}", f"whole-{method}"
            with self.subTest(name, method=method):
                if not (self.root / whole).exists():
                    self.tune(whole, method, self.rows(), *self.KEYS)
                command = [support.CAMBIUM, *map(str, self.command(name, method, self.rows(), *self.KEYS))]
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                moment, directory = r.randrange(7), self.root / name
                wait_for(lambda: moment == 0 or len(list(directory.glob("iter_*"))) > moment, process)
                time.sleep(r.random() * 0.01)
                process.send_signal(signal.SIGKILL)
                killed += process.wait() == -signal.SIGKILL
                done = sorted(p.name for p in directory.glob("iter_???????"))
                errors = self.go_on(name, method)
                self.assertIn(f"resuming from {directory}/{done[-1]} " if done else "starting afresh", errors)
                self.assertEqual(self.adapter(name), self.adapter(whole))
                self.assertEqual([p.name for p in directory.iterdir() if ".cambium-" in p.name], [])
        self.assertGreaterEqual(killed, 3)  # most moments come before the end

    def test_a_disk_that_is_full_while_it_saves(self):
        """A file may not grow beyond what an adapter's moments need, as on a full disk."""
        method, name = "lora", "full"
        words = ["--peft.r=64", "--peft.target_modules=all-linear"]
        command = self.command(name, method, self.rows(), *self.KEYS, *words, f"--checkpoint.load={self.root / name}")
        run(*command, "--train.exit_interval=6")
        before = self.files(name)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, limits[1]))
        try:
            _, errors = run(*command, expect=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        last = errors.splitlines()[-1]
        self.assertRegex(last, rf"^cambium: error: .*cannot write .*{self.root}/full/.*(File too large|is the disk full\?)")
        self.assertEqual(self.files(name), before)
        run(*command)
        self.tune("not-full", method, self.rows(), *self.KEYS, *words)
        self.assertEqual(self.adapter(name), self.adapter("not-full"))


if __name__ == "__main__":
    unittest.main()
