"""The files that finetune writes: the best adapter, checkpoints that resume exactly, stacks; and no trace in the base."""
import json
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

import model_support as support
from finetune_support import METHODS, P, Tuning, hash_tree, values
from model_support import PRECISIONS, run, without_program
from pretrain_support import LONG, sign_state

AT_ONCE = 4
BEST = f"--train.precision={PRECISIONS[-1]}"

LSTM = ["--peft.encoder_reparameterization_type=LSTM", "--peft.encoder_hidden_size=8", "--peft.encoder_dropout=0.2"]
THREE = [["--ranks", "2", P + "tensor_model_parallel_size=2"], ["--ranks", "2", P + "pipeline_model_parallel_size=2"],
         ["--ranks", "2", P + "use_distributed_optimizer=true"]]
STACKS = ("lora ia3", "prompt lora", "adapter prefix ia3", "prompt ptuning prefix")


def kinds(path):
    return {kind for kind, _, _ in support.read_safetensors(path).values()}
DROPOUT = [], ["--peft.lora_dropout=0.1"]  # without LoRA, and with it


class Files(Tuning):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.valid = cls.root / "valid.jsonl"
        # Text that the training teaches the model not to write: this loss falls at first, and then rises.
        cls.valid.write_text("".join(json.dumps({"prompt": f"to {n}:", "completion": " qwxz"}) + "\n" for n in range(1, 9)))

    def validating(self, *words):
        return ["--valid-data", self.valid, "--train.eval_interval=2", *words]

    # ---- the best

    def test_the_best_adapter_is_kept_and_a_run_that_gets_no_better_stops(self):
        tune = self.validating("--train.train_iters=40", "--optim.lr=1e-2", "--train.early_stop=2")
        (_, log), _ = self.tune("early", "lora", *tune)
        losses = [line["valid_loss"] for line in self.lines("early") if "valid_loss" in line]
        best = min(range(len(losses)), key=losses.__getitem__)
        self.assertEqual(len(losses), best + 3, losses)  # two after the best, and the first is number 0
        self.assertLess(self.lines("early")[-1]["iteration"], 40)
        self.assertEqual(log.count("kept in"), sum(losses[i] < min(losses[:i], default=9e9) for i in range(len(losses))))
        self.assertEqual(log.count("2 validations in a row"), 1)
        out, end = self.root / "early", 2 * (best + 1)
        self.tune("until", "lora", *tune, f"--train.exit_interval={end}")
        for name in ("adapter_model.safetensors", "adapter_config.json", "cambium_adapter.json"):
            self.assertEqual((out / "best" / name).read_bytes(), (self.root / "until" / name).read_bytes(), name)
        self.assertNotEqual((out / "best/adapter_model.safetensors").read_bytes(),
                            (out / "adapter_model.safetensors").read_bytes())
        run("generate", "--model", self.base, "--prompt", "to 3:", "--max-new-tokens", "2", "--adapter", out / "best")
        again, _ = self.tune("early", "lora", *tune, "--checkpoint.load", out)
        self.assertIn("was stopped by train.early_stop", again[1])
        for i, layout in enumerate(THREE):
            with self.subTest(layout=layout):
                self.tune(f"early-{i}", "lora", *tune, *layout)
                self.assertEqual([line["iteration"] for line in self.lines("early")],
                                 [line["iteration"] for line in self.lines(f"early-{i}")])
                expected = values(out / "best/adapter_model.safetensors")
                for tensor, numbers in values(self.root / f"early-{i}/best/adapter_model.safetensors").items():
                    off = max(abs(x - y) for x, y in zip(numbers, expected[tensor], strict=True))
                    self.assertLessEqual(off, 1e-3 * max(map(abs, expected[tensor])), tensor)

    # ---- resuming

    def assert_same_run(self, a, b):
        self.assertEqual(self.lines(a), self.lines(b))
        first, second = (hash_tree(self.root / name) for name in (a, b))
        for path in first:  # the interrupted run has one checkpoint more
            self.assertEqual(first[path], second.get(path), path)

    def check_resume(self, name, method, *words):
        words = self.validating(*words)
        self.tune(f"{name}-whole", method, *words)
        self.tune(f"{name}-cut", method, *words, "--train.exit_interval=3")
        self.assertEqual(len([line for line in self.lines(f"{name}-cut") if "lr" in line]), 3)
        self.tune(f"{name}-cut", method, *words, "--checkpoint.load", self.root / f"{name}-cut")
        self.assert_same_run(f"{name}-whole", f"{name}-cut")

    def test_a_run_that_went_on_is_the_run_that_was_not_interrupted(self):
        for method in METHODS:
            with self.subTest(method=method):
                self.check_resume(method, method, *DROPOUT[method == "lora"])
        for name, method, *words in (
                ("bf16", "lora", BEST), ("zero", "lora", BEST, *THREE[2]),
                ("dora", "lora", "--peft.use_dora=true"), ("lstm", "ptuning", *LSTM),
                ("bf16-mlp", "ptuning", BEST), ("projected", "prefix", "--peft.prefix_projection=true"),
                ("stack", "lora ia3", BEST), ("virtual", "ptuning prefix")):
            with self.subTest(name=name):
                self.check_resume(name, method, *words)

    def test_a_run_that_went_on_remembers_its_best_and_how_long_it_waits(self):
        words = self.validating("--train.train_iters=40", "--optim.lr=1e-2", "--train.early_stop=3")
        self.tune("waits-whole", "lora", *words)
        losses = [line["valid_loss"] for line in self.lines("waits-whole") if "valid_loss" in line]
        worse = 2 * losses.index(min(losses)) + 4  # the iteration of the first that is worse than the best
        self.tune("waits-cut", "lora", *words, f"--train.exit_interval={worse}")
        state = json.loads((self.root / f"waits-cut/iter_{worse:07d}/trainer_state.json").read_text())
        self.assertEqual((state["best_valid_loss"], state["validations_without_better"]), (min(losses), 1))
        self.tune("waits-cut", "lora", *words, "--checkpoint.load", self.root / "waits-cut")
        self.assert_same_run("waits-whole", "waits-cut")

    def test_a_run_that_was_stopped_before_a_validation_makes_up_for_it(self):
        """A signal that comes before a validation leaves it out: the checkpoint says which one was the last."""
        words = self.validating()
        self.tune("owes-whole", "lora", *words)
        self.tune("owes-cut", "lora", *words, "--train.exit_interval=4")
        state, metrics = self.root / "owes-cut/iter_0000004/trainer_state.json", self.root / "owes-cut.jsonl"
        saved = json.loads(state.read_text())
        self.assertEqual(saved["validated_iteration"], 4)
        sign_state(state, validated_iteration=2)
        lines = metrics.read_text().splitlines(keepends=True)
        self.assertIn("valid_loss", lines[-2])
        self.assertIn("serving_gap", lines[-1])
        metrics.write_text("".join(lines[:-2]))
        self.tune("owes-cut", "lora", *words, "--checkpoint.load", self.root / "owes-cut")
        self.assertEqual(self.lines("owes-whole"), self.lines("owes-cut"))

    def test_a_killed_run_goes_on_from_its_last_checkpoint(self):
        words = ["--train.train_iters=40", "--checkpoint.save_interval=2", "--checkpoint.keep_last=1"]
        self.tune("unkilled", "ia3", *self.validating(*words))
        for moment in range(1, 21) if LONG else (5,):
            name = f"killed-{moment}"
            metrics = self.root / f"{name}.jsonl"
            with subprocess.Popen([support.CAMBIUM, "finetune", "--model", self.base, "--peft", "ia3", "--data", self.data,
                                   "--output", self.root / name, f"--log.metrics_file={metrics}", "--optim.lr=1e-3",
                                   "--train.global_batch_size=8", *map(str, self.validating(*words))],
                                  stderr=subprocess.DEVNULL) as running:
                while running.poll() is None and not (metrics.exists() and metrics.read_text().count("lm_loss") >= moment):
                    time.sleep(0.002)
                running.send_signal(signal.SIGKILL)
            self.tune(name, "ia3", *self.validating(*words), "--checkpoint.load", self.root / name)
            self.assert_same_run("unkilled", name)

    # ---- what is written

    def test_checkpoints_hold_the_adapter_and_its_optimizer_alone_in_fp32(self):
        def stamps():
            return {str(p): (p.stat().st_mtime_ns, p.stat().st_ino) for p in sorted(self.base.rglob("*"))}
        before = hash_tree(self.base), stamps()
        files = {"adapter": "adapter", "ptuning": "prompt_encoder"}  # what trains
        for precision in PRECISIONS:
            for method in METHODS:
                with self.subTest(method=method, precision=precision):
                    name = f"{precision}-{method}"
                    self.tune(name, method, f"--train.precision={precision}", "--train.train_iters=2")
                    file = files.get(method, "adapter_model") + ".safetensors"
                    last = self.root / name / "iter_0000002"
                    exported = {p.name for p in (self.root / name).iterdir() if p.is_file()}
                    self.assertEqual({p.name for p in last.iterdir()}, exported | {"optimizer.safetensors", "trainer_state.json"})
                    self.assertLessEqual({file, "adapter_config.json", "cambium_adapter.json"}, exported)
                    numbers = sum(map(len, values(last / file).values()))
                    self.assertEqual(kinds(last / file), {"F32"})
                    self.assertEqual(sum(map(len, values(last / "optimizer.safetensors").values())), 2 * numbers)
                    for path in (self.root / name).glob("*.safetensors"):
                        self.assertEqual(kinds(path), {"F32"}, path)
                        self.assertEqual(path.read_bytes(), (last / path.name).read_bytes(), path)
        self.assertEqual(before, (hash_tree(self.base), stamps()))

    def test_a_run_without_its_end_serves_its_newest_checkpoint(self):
        for method in ("lora", "adapter", "lora ia3"):
            with self.subTest(method=method):
                name = "endless-" + method.replace(" ", "-")
                self.tune(name, method, "--train.train_iters=4")
                expected = self.score(self.root / name)
                for path in (self.root / name).iterdir():
                    if path.name != "iter_0000004":
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                self.assertEqual(expected, self.score(self.root / name))

    def score(self, *adapters, model=None):
        texts = self.root / "texts.jsonl"
        texts.write_text('{"tokens":[1,2,3,4,5,6,7]}\n')
        out, _ = run("score", "--model", model or self.base, "--input", texts, "--adapter", *adapters)
        return out

    # ---- resuming from a directory

    def standing_still(self, name, directory, *words):
        """Tunes without a step: what comes out is what went in. Returns the program's words."""
        done = run("finetune", "--model", self.base, "--data", self.data, "--output", self.root / name, "--optim.lr=0",
                   "--train.train_iters=1", "--init-adapter", directory, *words)
        return done[1]

    def test_an_exported_directory_goes_on_whole(self):
        for name, method, *words in (("mlp", "ptuning"), ("lstm", "ptuning", *LSTM), ("narrow", "ptuning", BEST),
                                     ("prefix", "prefix"), ("projected", "prefix", "--peft.prefix_projection=true"),
                                     ("lora", "lora"), ("bottleneck", "adapter"), ("stack", "lora ia3 prompt")):
            with self.subTest(name=name):
                precision = [word for word in words if "precision" in word]
                self.tune(f"go-{name}", method, *words)
                self.standing_still(f"still-{name}", self.root / f"go-{name}", *precision)
                trees = [hash_tree(self.root / f"{kind}-{name}") for kind in ("go", "still")]
                first, second = ({path: digest for path, digest in tree.items() if "iter_" not in path} for tree in trees)
                self.assertEqual(first, second)

    def test_a_folded_prompt_goes_on_as_prompt_tuning(self):
        self.tune("fold", "ptuning")
        (self.root / "fold/prompt_encoder.safetensors").unlink()
        said = self.standing_still("unfolded", self.root / "fold")
        self.assertIn("they continue as prompt tuning", said)
        self.assertEqual(values(self.root / "fold/adapter_model.safetensors"),
                         values(self.root / "unfolded/adapter_model.safetensors"))
        config = json.loads((self.root / "unfolded/adapter_config.json").read_text())
        self.assertEqual(config["peft_type"], "PROMPT_TUNING")
        shutil.rmtree(self.root / "unfolded/iter_0000001")

    # ---- stacks

    def test_a_stack_trains_alike_in_every_layout(self):
        for stack in STACKS:
            name = stack.replace(" ", "-")
            dropout = DROPOUT["lora" in stack]
            _, whole = self.tune(name, stack, *dropout)
            for i, layout in enumerate(THREE):
                with self.subTest(stack=stack, layout=layout):
                    _, losses = self.tune(f"{name}-{i}", stack, *dropout, *layout)
                    for a, b in zip(whole, losses, strict=True):
                        self.assertLess(abs(a - b), 1e-5 * a)

    def test_a_stack_begins_as_the_base_and_learns_more_than_one_of_it(self):
        _, alone = self.tune("one", "lora")
        _, several = self.tune("three", "lora ia3 adapter", "--optim.lr=1e-2")
        self.assertAlmostEqual(alone[0], several[0], delta=1e-6 * alone[0])
        self.assertLess(several[-1], alone[-1])

    def test_a_stack_is_a_directory_of_plain_adapters(self):
        stack = self.root / "plain"
        self.tune("plain", "lora ia3", "--peft.target_modules=c_attn", "--peft.ia3.target_modules=attn.c_proj", "--peft.r=2",
                  "--optim.lr=1e-2", *self.validating())
        for directory in (stack, stack / "best", stack / "iter_0000008"):
            self.assertEqual({p.name for p in directory.iterdir() if p.is_dir() and "iter_" not in p.name} - {"best"},
                             {"lora", "ia3"})
        shown = run("adapter", "show", stack)[0].decode()
        for line in ("method: LoRA", "target_modules: c_attn", "method: IA3", "target_modules: attn.c_proj"):
            self.assertIn(line, shown)
        both = self.score(stack)
        self.assertEqual(both, self.score(stack / "ia3", stack / "lora"))
        self.assertNotEqual(both, self.score(stack / "lora"))
        self.assertEqual(self.score(stack / "best"), self.score(stack / "best/ia3", stack / "best/lora"))
        run("merge", "--model", self.base, "--adapter", stack, "--output", self.root / "merged")
        out, _ = run("score", "--model", self.root / "merged", "--input", self.root / "texts.jsonl")
        for a, b in zip(*(support.rows(text)[0]["logprobs"][1:] for text in (both, out)), strict=True):
            self.assertLess(abs(a - b), 1e-5 * max(1, abs(a)))
        before = hash_tree(stack)
        self.tune("plain", "lora ia3", "--peft.target_modules=c_attn", "--peft.ia3.target_modules=attn.c_proj", "--peft.r=2",
                  "--optim.lr=1e-2", *self.validating(), "--train.train_iters=9", "--checkpoint.load", stack)  # the same: replaced
        self.assertNotEqual(before["lora/adapter_model.safetensors"], hash_tree(stack)["lora/adapter_model.safetensors"])
        self.assert_refused(stack, "lora", f"{stack} holds ia3, another adapter")

    def test_rows_are_in_the_plan(self):
        """Two bytes and a bit a token, twelve a row, its weight among them; ten more a sample where files have weights."""
        many, rows, tokens = self.root / "many.jsonl", 40000, 25
        many.write_text((json.dumps({"text": "x" * (tokens - 1)}) + "\n") * rows)
        def planned(*data):
            plan, _ = run("finetune", "--model", self.base, "--data", *data, "--peft", "ia3", "--optim.lr=1e-3", "--output",
                          self.root / "none", "--train.train_iters=5000", "--train.global_batch_size=8", "--dry-run")
            return float(re.search(rb"#   data +([0-9.]+) MiB", plan)[1]) * 2**20
        few = planned(self.data)
        self.assertLess(few, 100_000)
        rows_bytes = rows * (tokens * (2 + 1 / 8) + 12)
        self.assertAlmostEqual(planned(many) - few, rows_bytes, delta=120_000)
        self.assertAlmostEqual(planned("1", many, "1", self.data) - few, rows_bytes + 10 * 40000, delta=120_000)

    def test_a_dry_run_prints_a_configuration_that_is_the_run(self):
        words = ["--peft", "lora", "ia3", "--peft.ia3.target_modules=c_attn", "--peft.r=3", "--tuning.epochs=1"]
        common = ["finetune", "--model", self.base, "--data", self.data, "--optim.lr=1e-3"]
        plan, _ = run(*common, *words, "--output", self.root / "planned", "--dry-run")
        self.assertFalse((self.root / "planned").exists())
        (self.root / "planned.yaml").write_bytes(plan)
        again, _ = run(*common, "--config", self.root / "planned.yaml", "--output", self.root / "planned", "--dry-run")
        self.assertEqual(without_program(plan), without_program(again))
        for line in ("type: [lora, ia3]", "ia3.target_modules: [c_attn]", "train_iters: 60", "# memory plan"):
            self.assertIn(line, plan.decode())

    # ---- what is refused

    def assert_refused(self, output, method, part):
        """finetune into `output` does nothing but say why."""
        before = hash_tree(output)
        done = run("finetune", "--model", self.base, "--peft", *method.split(), "--data", self.data, "--output", output,
                   "--optim.lr=1e-3", "--train.train_iters=1", expect=1)
        self.assertIn(part, done[1])
        self.assertIn("name another directory, or remove it", done[1])
        self.assertEqual(before, hash_tree(output))

    def test_an_output_that_holds_other_adapters_is_refused_and_stays(self):
        adapters = self.root / "adapters"
        for method in ("lora", "ia3"):
            self.tune(f"adapters/{method}", method, "--train.train_iters=1")
        (adapters / "lora/notes.txt").write_text("mine")
        self.assert_refused(adapters, "lora", f"{adapters} holds ia3, another adapter")
        self.assert_refused(adapters, "lora ia3", f"{adapters}/ia3 holds iter_0000001, which finetune did not write there")
        self.assert_refused(adapters / "lora", "ia3", "adapter_config.json, of an adapter of another method")
        self.assert_refused(adapters / "lora", "ia3 lora", "adapter_config.json, another adapter's")
        self.tune("adapters/lora", "lora", "--train.train_iters=2", "--checkpoint.load", adapters / "lora")  # its own: replaced
        self.assertEqual((adapters / "lora/notes.txt").read_text(), "mine")
        (adapters / "lora/best").mkdir()
        (adapters / "lora/best/notes.txt").write_text("mine")
        self.assert_refused(adapters / "lora", "lora", f"{adapters}/lora/best holds notes.txt, which finetune did not write there")
        shutil.rmtree(adapters / "lora/best")
        (adapters / "lora/cambium_adapter.json").unlink()
        self.assert_refused(adapters / "lora", "lora", "adapter_config.json, of an adapter that finetune did not write")

    def test_what_came_while_it_trained_stays(self):
        output, metrics = self.root / "meanwhile", self.root / "meanwhile.jsonl"
        with subprocess.Popen([support.CAMBIUM, "finetune", "--model", self.base, "--peft", "ia3", "--data", self.data, "--output", output,
                               f"--log.metrics_file={metrics}", "--optim.lr=1e-3", "--train.train_iters=1000000"],
                              stderr=subprocess.PIPE, text=True) as running:
            while running.poll() is None and not (metrics.exists() and "lm_loss" in metrics.read_text()):
                time.sleep(0.002)
            (output / "adapter_config.json").write_text("mine")
            running.send_signal(signal.SIGTERM)
            errors = running.communicate(timeout=120)[1]
        self.assertEqual(running.returncode, 1, errors)
        self.assertIn(f"{output} holds adapter_config.json, of an adapter that finetune did not write", errors)
        self.assertEqual((output / "adapter_config.json").read_text(), "mine")

    def test_what_cannot_be_stacked_or_stopped_is_refused_by_name(self):
        self.refuse("lora is there twice", words=["--peft", "lora", "lora"])
        self.refuse("DoRA", "with ia3", words=["--peft", "lora", "ia3", "--peft.use_dora=true"])
        self.refuse("peft.ia3.target_modules", "--peft ia3", words=["--peft", "lora", "--peft.ia3.target_modules=c_attn"])
        self.refuse("--peft loran", words=["--peft", "lora", "loran"])
        self.refuse("train.early_stop 3", "train.eval_interval", words=["--peft", "lora", "--train.early_stop=3"])
        self.refuse("train.eval_interval does nothing without --valid-data",
                    words=["--peft", "lora", "--train.early_stop=3", "--train.eval_interval=1"])
        self.refuse("peft.encoder_dropout 0.5", "LSTM", words=["--peft", "ptuning", "--peft.encoder_dropout=0.5"])
        self.tune("given", "lora ia3", "--train.train_iters=1")
        given = ["--init-adapter", self.root / "given"]
        self.refuse("--peft prompt", words=["--peft", "prompt", "ia3", *given])
        self.refuse("a stack of 2 methods", words=["--peft", "lora", *given])
        self.refuse("peft.ia3.target_modules", words=["--peft.ia3.target_modules=c_attn", *given])
        (self.root / "given/ia3").rename(self.root / "given/z")
        self.refuse("in the order of its methods' names", words=given)


if __name__ == "__main__":
    unittest.main()
