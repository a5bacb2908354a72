"""finetune --loss dpo, orpo and kto. Steps are those of the formulas in torch on peft, and the reference is the model without
what trains. Every method and layout trains alike, and what cannot be is refused."""
import array
import itertools
import json
import random
import re
import shutil

from finetune_support import KEYS, METHODS, P, Tuning, adapters, hash_tree, keys_of, values
from model_support import EOS, SOURCE, run, write_byte_model
from preference_support import write_lora

LOSSES = ("dpo", "orpo", "kto")
FIGURES = ("loss", "rewards_chosen", "rewards_rejected", "rewards_margin", "rewards_accuracy")
TENSOR, PIPELINE = P + "tensor_model_parallel_size=2", P + "pipeline_model_parallel_size=2"
LAYOUTS = [["--ranks", "2", TENSOR], ["--ranks", "2", TENSOR, P + "sequence_parallel=true"], ["--ranks", "4", PIPELINE],
           ["--ranks", "2", P + "data_parallel_sharding_strategy=optim_grads_params"],
           ["--ranks", "4", TENSOR, P + "data_parallel_sharding_strategy=optim"]]


class Preference(Tuning):
    @classmethod
    def write_base(cls):
        write_byte_model(cls.base, n_layer=2, n_head=4, n_embd=32, n_positions=48)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pairs, cls.labelled, r = cls.root / "pairs.jsonl", cls.root / "labelled.jsonl", random.Random(4)
        with open(cls.pairs, "w") as pairs, open(cls.labelled, "w") as labelled:
            for _ in range(24):
                n = r.randrange(1, 9)
                right, wrong = (" " + " ".join(map(str, numbers)) for numbers in (range(n), range(n, 0, -1)))
                pairs.write(json.dumps({"prompt": f"to {n}:", "chosen": right, "rejected": wrong + "!"}) + "\n")
                is_right = r.random() < 0.5
                labelled.write(json.dumps({"prompt": f"to {n}:", "completion": right if is_right else wrong, "label": is_right}) + "\n")

    def prefer(self, name, loss, method, *words, data=None):
        """Runs 4 steps, and returns their figures."""
        metrics = self.root / f"{name}.metrics"
        run("finetune", "--model", self.base, "--peft", *method.split(), "--loss", loss, "--output", self.root / name,
            "--data", data or (self.labelled if loss == "kto" else self.pairs), f"--log.metrics_file={metrics}", "--optim.lr=1e-2",
            "--train.train_iters=4", "--train.global_batch_size=8", "--train.precision=fp32", *keys_of(method, KEYS), *words)
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    def check_equal(self, whole, other):
        for a, b in zip(whole, other, strict=True):
            for key in FIGURES:
                self.assertLessEqual(abs(a[key] - b[key]), 1e-6 * max(1, abs(a[key])), f"{key} of iteration {a['iteration']}")
            self.assertLessEqual(abs(a["grad_norm"] - b["grad_norm"]), 1e-4 * a["grad_norm"])

    def test_ten_steps_follow_the_formulas_in_torch(self):
        golden = json.loads((SOURCE / "tests/train/golden/preference_tuning.json").read_text())
        base, start, steps = self.root / "golden", self.root / "golden-start", golden["run"]
        write_byte_model(base, **golden["model"])
        write_lora(start, golden["model"])
        for name, expected in golden["runs"].items():
            kind, metrics = "labelled" if expected["loss"] == "kto" else "pairs", self.root / f"golden-{name}.metrics"
            data = self.root / f"golden-{kind}.jsonl"
            data.write_text("".join(json.dumps(row) + "\n" for row in golden[kind]))
            run("finetune", "--model", base, "--init-adapter", start, "--data", data, "--loss", expected["loss"], "--output",
                self.root / f"golden-{name}", "--optim.lr_decay_style=constant", "--optim.adam_beta2=0.95", "--train.precision=fp32",
                *(f"--tuning.{key}={value}" for key, value in expected["options"].items()),
                *(f"--optim.{key}={steps[value]}" for key, value in
                  (("lr", "lr"), ("weight_decay", "decay"), ("clip_grad", "clip"))),
                f"--train.global_batch_size={len(golden[kind])}", f"--train.train_iters={steps['steps']}",
                f"--log.metrics_file={metrics}")
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            for number, (line, record) in enumerate(zip(lines, expected["records"], strict=True), 1):
                for key in (*FIGURES, "grad_norm"):
                    self.assertLessEqual(abs(line[key] - record[key]), 1e-5 * max(1, abs(record[key])), f"{name}: {key} of step {number}")

    def test_every_method_starts_as_the_reference_and_learns(self):
        for method in METHODS:
            with self.subTest(method=method):
                lines = self.prefer(f"method-{method}", "dpo", method)
                if method not in ("prompt", "ptuning", "prefix"):  # these change the model before they are trained
                    self.assertEqual((lines[0]["loss"], lines[0]["rewards_margin"]), (0.6931471805599453, 0))
                self.assertLess(lines[-1]["loss"], lines[0]["loss"])
                self.assertGreater(lines[-1]["rewards_margin"], lines[0]["rewards_margin"])

    def test_every_method_stands_on_a_frozen_adapter_of_another(self):
        """Both apply in training, in its reference and where they are served; only what trains is written."""
        below = {method: self.root / f"below-{method}" for method in METHODS}
        for method in METHODS:
            self.prefer(f"below-{method}", "dpo", method)
        for number, method in enumerate(METHODS):
            frozen = METHODS[number - 1]
            with self.subTest(method=method, frozen=frozen):
                before, name = hash_tree(below[frozen]), f"{method}-on-{frozen}"
                loss, data = (("sft", self.data), ("dpo", self.pairs))[number in (0, 2, 4)]
                lines = self.prefer(name, loss, method, "--adapter", below[frozen], "--valid-data", data, "--train.eval_interval=4",
                                    "--train.precision=bf16" if number > 2 else "--train.precision=fp32", data=data)
                if loss == "dpo" and method in ("lora", "adapter"):
                    self.assertEqual((lines[0]["loss"], lines[0]["rewards_margin"]), (0.6931471805599453, 0))
                self.assertEqual(lines[-1]["serving_gap"], 0)
                self.assertEqual(before, hash_tree(below[frozen]))
                written = {tensor for tensor in adapters(self.root / name) if not tensor.startswith("best/")}
                self.assertEqual(written, adapters(below[method]).keys())

    def test_the_reference_keeps_frozen_adapters_but_not_those_that_training_starts_from(self):
        start, merged = self.root / "start", self.root / "merged"
        write_lora(start, {"n_layer": 2, "n_embd": 32})
        self.prefer("frozen", "dpo", "lora")
        run("merge", "--model", self.base, "--adapter", self.root / "frozen", "--output", merged)
        for loss in LOSSES:
            found = self.prefer(f"{loss}-on-frozen", loss, "lora", "--init-adapter", start, "--adapter", self.root / "frozen")
            expected = self.prefer(f"{loss}-on-merged", loss, "lora", "--init-adapter", start, "--model", merged)
            for a, b in zip(found, expected, strict=True):
                for key in FIGURES:  # the merged weights are rounded
                    self.assertLessEqual(abs(a[key] - b[key]), 1e-5 * max(1, abs(b[key])), f"{loss}: {key} of iteration {a['iteration']}")

    def test_layouts_and_micro_batches_do_not_change_the_figures(self):
        """The rows come again in the fourth step, where references are known."""
        for loss in LOSSES:
            packing = ["--tuning.packing", "--data.seq_length=40", "--train.global_batch_size=4"]
            for name, keys, layouts in (("rows", [], [*LAYOUTS, ["--train.micro_batch_size=2"]]),
                                        ("packs", packing, [["--ranks", "4", TENSOR, P + "sequence_parallel=true"], LAYOUTS[2]])):
                whole = self.prefer(f"{name}-whole-{loss}", loss, "lora", *keys)
                for i, layout in enumerate(layouts):
                    with self.subTest(loss=loss, name=name, layout=layout):
                        self.check_equal(whole, self.prefer(f"{name}-{loss}-{i}", loss, "lora", *keys, *layout))

    def sums(self, rows, *words):
        """The sums of the answers' log-probabilities that cambium score finds."""
        texts = [(list(row["prompt"].encode()), [*row[side].encode(), EOS]) for row in rows for side in ("chosen", "rejected")]
        ids = self.root / "ids.jsonl"
        ids.write_text("".join(json.dumps({"tokens": prompt + answer}) + "\n" for prompt, answer in texts))
        lines = [json.loads(line) for line in run("score", "--model", self.base, "--input", ids, *words)[0].splitlines()]
        found = []
        for (prompt, _), line in zip(texts, lines, strict=True):
            total = 0.0
            for value in array.array("f", line["logprobs"][len(prompt):]):
                total += value
            found.append(total)
        return found

    def test_rewards_have_the_bits_of_score(self):
        """Those of the model and of its reference, in each layout of a batch; four rows come in one of their orders."""
        start, data, beta = self.root / "scored-start", self.root / "four.jsonl", 0.3
        rows = [json.loads(line) for line in self.pairs.read_text().splitlines()[:4]]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        write_lora(start, {"n_layer": 2, "n_embd": 32})
        self.prefer("scored-below", "dpo", "prompt", "--train.train_iters=1")
        frozen, packing = ["--adapter", self.root / "scored-below"], ["--tuning.packing", "--data.seq_length=48", "--train.global_batch_size=2"]
        tensor = ["--ranks", "2", TENSOR]
        for precision, below, layout, of_score in (
                ("fp32", [], [], []), ("fp32", frozen, ["--train.micro_batch_size=4"], []), ("fp32", frozen, packing, []),
                ("bf16", frozen, ["--ranks", "2", PIPELINE], []), ("bf16", [], ["--train.micro_batch_size=2"], []),
                ("bf16", frozen, tensor, tensor)):
            with self.subTest(precision=precision, below=below, layout=layout):
                line = self.prefer("scored", "dpo", "lora", "--init-adapter", start, *below, f"--tuning.beta={beta}",
                                   "--train.train_iters=1", "--train.global_batch_size=4", f"--train.precision={precision}",
                                   *layout, data=data)[0]
                shutil.rmtree(self.root / "scored")
                (self.root / "scored.metrics").unlink()
                score = [f"--precision={precision}", *of_score]
                model, reference = self.sums(rows, *below, "--adapter", start, *score), self.sums(rows, *below, *score)
                means = []
                for order in itertools.permutations(range(4)):
                    rewards = [0.0, 0.0]
                    for i in order:
                        for side in (0, 1):
                            rewards[side] += beta * (model[2 * i + side] - reference[2 * i + side])
                    means.append((rewards[0] / 4, rewards[1] / 4))
                self.assertIn((line["rewards_chosen"], line["rewards_rejected"]), means)

    def test_references_of_rows_are_computed_once(self):
        """A run that starts again in each epoch computes them again, with the same bits. Those of validations are apart."""
        for loss, forwards in (("dpo", 1), ("kto", 3)):
            words = ["--train.train_iters=9", "--ranks", "4", PIPELINE]
            valid = ["--valid-data", self.labelled if loss == "kto" else self.pairs, "--train.eval_interval=1"]
            whole = [line for line in self.prefer(f"epochs-{loss}", loss, "lora", *words, *valid) if "loss" in line]
            work = [sum(line["model_tflops"] * line["seconds"] for line in whole[i:i + 3]) for i in (0, 3, 6)]
            self.assertAlmostEqual(work[0] / work[1], (1 + forwards / 2) / (1 + (forwards - 1) / 2))
            self.assertAlmostEqual(work[1] / work[2], 1)
            for last in (3, 6, 9):
                resumed = ["--checkpoint.load", self.root / f"again-{loss}"] if last > 3 else []
                again = self.prefer(f"again-{loss}", loss, "lora", *words, f"--train.exit_interval={last}", *resumed)
            for key in (*FIGURES, "grad_norm"):
                self.assertEqual([line[key] for line in whole], [line[key] for line in again], key)

    def test_a_run_that_resumes_with_another_loss_warns(self):
        frozen = self.root / "another"
        write_lora(frozen, {"n_layer": 2, "n_embd": 32})
        self.prefer("changed", "dpo", "lora", "--train.exit_interval=1")
        for loss, words, parts in (
                ("dpo", ["--tuning.beta=0.25", "--tuning.label_smoothing=0.1"],
                 ("tuning.beta was '0.1' and is '0.25'", "tuning.label_smoothing was '0' and is '0.1'")),
                ("orpo", [], ("loss was 'dpo' and is 'orpo'",)), ("dpo", ["--adapter", frozen], ("adapter was '' and is",))):
            _, errors = run("finetune", "--model", self.base, "--peft", "lora", "--loss", loss, "--data", self.pairs, "--output",
                            self.root / "changed", "--checkpoint.load", self.root / "changed", "--train.train_iters=4",
                            "--train.global_batch_size=8", "--train.precision=fp32", "--optim.lr=1e-2", "--dry-run", *words)
            found = [line for line in errors.splitlines() if "the run resumes, but its results differ" in line]
            self.assertEqual(len(found), len(parts), errors)
            for part, line in zip(parts, found):
                self.assertIn(part, line)

    def test_packing_does_not_change_the_figures_of_a_whole_epoch(self):
        packs = run("finetune", "--model", self.base, "--peft", "prompt", *KEYS["prompt"], "--loss", "dpo", "--data", self.pairs, "--output",
                    self.root / "packs", "--tuning.packing", "--data.seq_length=48", "--train.global_batch_size=1", "--dry-run")
        count = int(re.search(r"train_iters: (\d+)", packs[0].decode()).group(1))
        self.assertLess(count, 20)
        for loss in ("dpo", "orpo"):
            rows = self.prefer(f"rows-{loss}", loss, "prompt", "--train.train_iters=1", "--train.global_batch_size=24")
            packed = self.prefer(f"packed-{loss}", loss, "prompt", "--train.train_iters=1", "--data.seq_length=48", "--tuning.packing",
                                 f"--train.global_batch_size={count}")
            self.check_equal(rows, packed)

    def test_a_validation_has_the_loss_of_training(self):
        for loss in LOSSES:
            data = self.labelled if loss == "kto" else self.pairs
            lines = self.prefer(f"valid-{loss}", loss, "ia3", "--train.global_batch_size=24", "--train.train_iters=2",
                                "--valid-data", data, "--train.eval_interval=1")
            after, trained = [line["valid_loss"] for line in lines if "valid_loss" in line], [line for line in lines if "loss" in line]
            if loss != "kto":  # whose mismatched rows follow the order of the batch
                self.assertLessEqual(abs(after[0] - trained[1]["loss"]), 1e-6 * after[0])

    def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(self):
        for loss in LOSSES:
            whole = self.prefer(f"through-{loss}", loss, "lora")
            self.prefer(f"resumed-{loss}", loss, "lora", "--train.exit_interval=2")
            words = [f"--checkpoint.load={self.root / f'resumed-{loss}'}"]
            resumed = self.prefer(f"resumed-{loss}", loss, "lora", *words)
            for key in (*FIGURES, "grad_norm"):
                self.assertEqual([line[key] for line in whole], [line[key] for line in resumed], key)
            through, again = (values(self.root / f"{name}-{loss}/adapter_model.safetensors") for name in ("through", "resumed"))
            self.assertEqual(through, again)

    def test_adapters_are_validated_without_training(self):
        lines = self.prefer("alone", "dpo", "lora", "--valid-data", self.pairs, "--train.eval_interval=4")
        _, errors = run("finetune", "--model", self.base, "--adapter", self.root / "alone", "--valid-data", self.pairs, "--loss", "dpo",
                        "--train.skip_train", "--train.precision=fp32")
        expected = next(line["valid_loss"] for line in lines if "valid_loss" in line)
        self.assertIn(f"validation loss {expected:.4f}", errors)

    def test_what_cannot_be_is_refused(self):
        dpo, frozen = ["--peft", "lora", "--loss", "dpo"], self.root / "stays"
        write_lora(frozen, {"n_layer": 2, "n_embd": 32})
        for words, parts in (
                ([*dpo], ("rows.jsonl:1:", "not a row of two answers")),
                (["--peft", "lora", "--tuning.beta=0.2"], ("tuning.beta does nothing with --loss sft",)),
                (["--peft", "lora", "--loss", "orpo", "--tuning.sft_weight=1"], ("tuning.sft_weight", "--loss orpo")),
                ([*dpo, "--tuning.train_on_prompt"], ("tuning.train_on_prompt", "--loss dpo")),
                (["--peft", "full", "--loss", "dpo"], ("--loss dpo", "--peft full")),
                (["--peft", "full", "--adapter", "some"], ("--adapter stays frozen", "--peft full")),
                ([*dpo, "--adapter", frozen, "--output", frozen], (f"--output {frozen}", "stays frozen")),
                (["--peft", "lora", "--peft.use_dora", "--adapter", frozen], ("DoRA cannot be stacked with lora",)),
                ([*dpo, "--adapter", self.root / "nothing"], ("nothing is not the directory of an adapter",)),
                (["--peft", "lora", "--loss", "kto", "--train.global_batch_size=1"], ("train.global_batch_size 1",)),
                (["--peft", "lora", "--loss", "ppo"], ("loss", "sft, dpo, orpo"))):
            with self.subTest(words=words):
                self.refuse(*parts, words=words)
