"""finetune --peft full: all weights train on rows. The steps are those of transformers with torch's AdamW, every layout
trains alike, and checkpoints are model directories that keep the rows' template."""
import json
import unittest

import model_support as support
from finetune_support import P, Tuning, hash_tree, values
from model_support import SOURCE, rows, run, without_program

LAYOUTS = [
    ["--ranks", "2", P + "tensor_model_parallel_size=2", P + "sequence_parallel=true"],
    ["--ranks", "4", P + "pipeline_model_parallel_size=2", P + "use_distributed_optimizer=true"],
]
TALK = {"messages": [{"role": "user", "content": "to 3"}, {"role": "assistant", "content": "0 1 2"}]}


class Full(Tuning):
    def test_twenty_steps_follow_transformers(self):
        golden = json.loads((SOURCE / "tests/train/golden/full_tuning.json").read_text())
        base, data, steps = self.root / "golden", self.root / "golden.jsonl", golden["run"]
        support.write_byte_model(base, **golden["model"])
        data.write_text("".join(json.dumps(row) + "\n" for row in golden["rows"]))
        words = ["finetune", "--data", data, "--peft", "full", "--optim.lr_decay_style=constant", "--optim.adam_beta2=0.95",
                 f"--optim.lr={steps['lr']}", f"--optim.weight_decay={steps['decay']}", f"--optim.clip_grad={steps['clip']}"]
        batches = {  # each has all rows, in micro batches with different numbers of trained tokens
            "rows": ["--train.global_batch_size=8", "--train.micro_batch_size=2"],
            "packs": ["--train.global_batch_size=3", "--tuning.packing", "--data.seq_length=48"],
        }
        for name, batch in batches.items():
            metrics, out = self.root / f"golden-{name}.metrics", self.root / f"golden-{name}"
            run(*words, *batch, "--model", base, "--output", out, f"--train.train_iters={steps['steps']}",
                f"--log.metrics_file={metrics}")
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            for key in ("lm_loss", "grad_norm"):
                for number, (line, expected) in enumerate(zip(lines, golden[key], strict=True), 1):
                    self.assertLess(abs(line[key] - expected), 1e-5 * expected, f"{key} of step {number}, {name}")
        metrics = self.root / "golden.metrics"
        run(*words, *batches["rows"], "--model", self.root / "golden-rows", "--output", self.root / "golden-after",
            "--train.train_iters=1", f"--log.metrics_file={metrics}")
        self.assertLess(abs(json.loads(metrics.read_text().splitlines()[0])["lm_loss"] - golden["last_loss"]),
                        1e-5 * golden["last_loss"])

    def weights(self, name):
        return values(self.root / name / "iter_0000008/model.safetensors")

    def test_every_layout_trains_alike(self):
        before = hash_tree(self.base)
        self.tune("whole", "full")
        self.assertEqual(before, hash_tree(self.base))
        base, expected = values(self.base / "model.safetensors"), self.weights("whole")
        self.assertEqual(base.keys(), expected.keys())
        self.assertFalse([name for name in base if base[name] == expected[name]])  # every tensor trains
        whole = [line for line in self.lines("whole") if "lm_loss" in line]
        for i, layout in enumerate(LAYOUTS):
            with self.subTest(layout=layout):
                self.tune(f"layout-{i}", "full", *layout)
                lines = [line for line in self.lines(f"layout-{i}") if "lm_loss" in line]
                for a, b in zip(whole, lines, strict=True):
                    self.assertLess(abs(a["lm_loss"] - b["lm_loss"]), 1e-5 * a["lm_loss"])
                found = self.weights(f"layout-{i}")
                self.assertEqual(found, values(self.root / f"layout-{i}/model.safetensors"))
                for name, numbers in expected.items():
                    off = max(abs(x - y) for x, y in zip(numbers, found[name], strict=True))
                    self.assertLessEqual(off, 1e-3 * max(map(abs, numbers)), name)

    # ---- files

    def score(self, model):
        line = json.dumps({"text": "to 4: 0 1 2 3"}).encode()
        return rows(run("score", "--model", model, "--input", "-", "--precision", "fp32", input=line)[0])[0]["logprobs"][1:]

    def test_checkpoints_and_the_best_are_model_directories(self):
        _, errors = self.tune("files", "full", "--valid-data", self.data, "--train.eval_interval=4", "--optim.lr=1e-2")[0]
        out = self.root / "files"
        self.assertIn(f"the model is in {out}\n", errors)
        model = {path.name for path in self.base.iterdir()}
        self.assertEqual({path.name for path in out.iterdir()}, model | {"best", "iter_0000008"})
        for name in model:
            self.assertEqual((out / name).read_bytes(), (out / "iter_0000008" / name).read_bytes(), name)
        self.assertEqual({path.name for path in (out / "best").iterdir()}, model)
        self.assertEqual({path.name for path in (out / "iter_0000008").iterdir()},
                         model | {"optimizer.safetensors", "trainer_state.json"})
        self.assertEqual(self.score(out), self.score(out / "iter_0000008"))
        self.assertNotEqual(self.score(out), self.score(self.base))
        losses = [line["valid_loss"] for line in self.lines("files") if "valid_loss" in line]
        self.assertLess(losses[1], losses[0])
        self.assertEqual(self.score(out / "best"), self.score(out))

    def test_the_best_is_that_of_its_validation(self):
        self.tune("worse", "full", "--valid-data", self.data, "--train.eval_interval=1", "--optim.lr=1", "--train.train_iters=2",
                  "--optim.lr_decay_style=constant", "--checkpoint.save_interval=1", "--optim.clip_grad=0")
        losses = [line["valid_loss"] for line in self.lines("worse") if "valid_loss" in line]
        self.assertLess(losses[0], losses[1])  # such a rate diverges
        self.assertEqual(self.score(self.root / "worse/best"), self.score(self.root / "worse/iter_0000001"))
        self.assertNotEqual(*(self.score(self.root / f"worse/iter_{i:07d}") for i in (1, 2)))

    def test_the_template_of_the_rows_is_kept(self):
        base, data, talk = (self.root / name for name in ("spacious", "rows-of-talks.jsonl", "talk.json"))
        support.write_byte_model(base, n_layer=1, n_head=2, n_embd=16, n_positions=96)
        data.write_text(json.dumps(TALK) + "\n")
        talk.write_text(json.dumps(TALK["messages"][:1]))
        words = ["finetune", "--peft", "full", "--data", data, "--train.train_iters=1", "--optim.lr=1e-3"]
        ask = ["generate", "--messages", talk, "--max-new-tokens", 2]
        run(*ask, "--model", base, expect=1)
        run(*words, "--model", base, "--tuning.template=chatml", "--output", self.root / "talks")
        template = self.root / "talks/iter_0000001/chat_template.jinja"
        self.assertIn("<|im_start|>", template.read_text())
        run(*ask, "--model", self.root / "talks")
        run(*words, "--model", self.root / "talks", "--output", self.root / "further")  # by its own template
        self.assertEqual((self.root / "further/iter_0000001/chat_template.jinja").read_bytes(), template.read_bytes())

    def test_a_resumed_run_gives_the_same_bits(self):
        words = ["full", "--checkpoint.save_interval=4"]
        self.tune("straight", *words)
        self.tune("halfway", *words, "--train.exit_interval=4")
        self.tune("halfway", *words, f"--checkpoint.load={self.root / 'halfway'}")
        self.assertEqual(self.weights("straight"), self.weights("halfway"))
        for name in ("straight", "halfway"):  # the last model replaces that of the first half
            self.assertEqual((self.root / name / "model.safetensors").read_bytes(),
                             (self.root / name / "iter_0000008/model.safetensors").read_bytes())
        other = self.root / "other"
        support.write_byte_model(other, n_layer=2, n_head=4, n_embd=32, n_positions=48)
        _, errors = self.tune("halfway", *words, f"--checkpoint.load={self.root / 'halfway'}", "--model", other, expect=2)[0]
        self.assertIn("model.num_layers is 4 in the checkpoint", errors)
        self.assertIn("--model starts a new one", errors)
        _, errors = self.tune("halfway", *words, expect=2)[0]
        self.assertIn("is already there, of another run", errors)

    # ---- what goes with it

    def test_what_does_nothing_is_refused(self):
        self.refuse("--peft full trains all weights, and cannot be combined with another method", words=["--peft", "full", "lora"])
        self.refuse("peft.r is not a key of --peft full", words=["--peft", "full", "--peft.r=4"])
        self.refuse("peft.ia3.target_modules without --peft ia3", words=["--peft", "full", "--peft.ia3.target_modules=c_fc"])
        self.refuse("--init-adapter does nothing with --peft full", words=["--peft", "full", "--init-adapter", self.root])
        self.refuse("holds a model: the new one needs another directory", words=["--peft", "full", "--output", self.base])
        other = self.root / "holds-a-tokenizer"
        other.mkdir()
        (other / "tokenizer.json").write_text("{}")
        self.refuse("holds tokenizer.json, which a model would replace", words=["--peft", "full", "--output", other])

    def test_the_resolved_run_can_be_read_again(self):
        words = ["finetune", "--model", self.base, "--data", self.data, "--output", self.root / "again", "--dry-run"]
        first, _ = run(*words, "--peft", "full")
        (self.root / "again.yaml").write_bytes(first)
        self.assertIn(b"type: [full]\n", first.replace(b'"', b""))
        self.assertEqual(*map(without_program, (run(*words, "--config", self.root / "again.yaml")[0], first)))


if __name__ == "__main__":
    unittest.main()
