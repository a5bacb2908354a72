"""The pretrain command: the files of a run, how it resumes, and how it ends."""
import json, math, os, pty, random, resource, signal, subprocess, time, unittest, unittest.mock

from model_support import EOS, PRECISIONS, gpt2_config, needs_bf16, without_program, write_byte_tokenizer, write_model
from mpi_support import has_pending_signals
from pretrain_support import (CAMBIUM, KEYS, LONG, SOURCE, VOCAB, Run, read_events, sign_state, timeless, wait_for,
                              write_dataset)


AT_ONCE = 3


class Learning(unittest.TestCase):
    def test_loss_falls_on_a_tiny_text(self):
        for precision in PRECISIONS:
            run = Run()
            run.run(train__precision=precision, train__train_iters=60)
            losses = [r["lm_loss"] for r in run.records()]
            self.assertAlmostEqual(losses[0], math.log(VOCAB), delta=0.3)
            self.assertLess(losses[-1], 2.0, precision)

    def test_fifty_steps_follow_pytorch(self):
        golden = SOURCE / "tests/train/golden/torch"
        expected = json.loads((golden / "losses.json").read_text())
        # In bf16 weights and activations have 8 bits, so a loss of 4.6 is known to some 2^-8 of itself.
        for precision, bounds in zip(PRECISIONS, ((1e-4, 1e-3, 1e-12), (1e-2, 1e-1, 1e-12))):
            run = Run()
            metrics = run.directory / "golden.jsonl"
            done = subprocess.run([CAMBIUM, "pretrain", "--config", golden / "run.yaml",
                                   "--init-from", golden / "model", f"--data.data_path={golden / 'text'}",
                                   f"--train.precision={precision}",
                                   f"--data.data_cache_path={run.directory / 'cache'}",
                                   f"--log.metrics_file={metrics}"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            records = [json.loads(line) for line in metrics.read_text().splitlines()]
            self.assertEqual(len(records), 50)
            for key, bound in zip(("lm_loss", "grad_norm", "lr"), bounds):
                worst = max(abs(r[key] - e) / max(abs(e), 1e-12) for r, e in zip(records, expected[key]))
                self.assertLess(worst, bound, f"{key} in {precision}")

    def test_clipping_is_at_1_by_default_and_0_is_off(self):
        run = Run()
        for name, keys in (("default", {}), ("one", {"optim__clip_grad": "1.0"}), ("off", {"optim__clip_grad": 0}),
                           ("huge", {"optim__clip_grad": 1e9})):
            run.run(name, model__init_method_std=1, optim__lr=1e-3, train__train_iters=5, **keys)
        losses = {name: timeless(run.records(name)) for name in ("default", "one", "off", "huge")}
        self.assertGreater(losses["off"][0]["grad_norm"], 1)
        self.assertEqual(losses["default"], losses["one"])
        self.assertEqual(losses["off"], losses["huge"])
        self.assertNotEqual(losses["off"], losses["one"])

    def test_the_micro_batch_does_not_change_the_mean(self):
        losses = []
        for size in (1, 2, 4):
            run = Run()
            run.run(train__micro_batch_size=size, model__hidden_dropout=0.2, train__train_iters=5)
            losses.append([r["lm_loss"] for r in run.records()])
        for other in losses[1:]:
            for a, b in zip(losses[0], other):
                self.assertAlmostEqual(a, b, delta=2e-5 * a)

    def test_init_from_supplies_the_whole_model(self):
        run = Run()
        run.run("first", model__hidden_dropout=0.3, checkpoint__load=None)
        final = run.directory / "first/iter_0000020"
        done = run.run("second", ["--init-from", final], model__hidden_size=48, optim__lr=0, optim__lr_warmup_iters=0,
                       checkpoint__load=None)
        self.assertIn("model.hidden_size 48 gives way to 32", done.stderr)
        config = json.loads((run.directory / "second/iter_0000020/config.json").read_text())
        self.assertEqual((config["resid_pdrop"], config["n_embd"]), (0.3, 32))
        name = "iter_0000020/model.safetensors"
        self.assertEqual(run.files("first")[name], run.files("second")[name])  # the rate was 0


class Documents(unittest.TestCase):
    """The effect of the options of `data` on a sample that spans documents, compared with score, which does not know
    them."""

    @classmethod
    def setUpClass(cls):
        cls.run_ = run = Run([[*(r % 200 for r in range(7 * i, 7 * i + 3 + i % 11)), EOS] for i in range(60)])
        cls.model = run.directory / "model"
        write_model(cls.model, gpt2_config(n_layer=2, n_embd=16, n_head=2, n_positions=41, vocab_size=EOS + 1))
        write_byte_tokenizer(cls.model)
        cls.words = ["--data-path", run.prefix, "--seq-length", "40", "--num-samples", "2", "--split", "100,0,0"]

    def sample(self, number, *options):
        done = subprocess.run([CAMBIUM, "data", "show", *self.words, "--sample", str(number), "--tokenizer", self.model,
                               *options], capture_output=True, check=True)
        return json.loads(done.stdout)

    def losses(self, pieces):
        """Negative log-probabilities of what follows the first token of each piece."""
        rows = "".join(json.dumps({"tokens": piece}) + "\n" for piece in pieces)
        done = subprocess.run([CAMBIUM, "score", "--model", self.model, "--input", "-"], input=rows.encode(),
                              capture_output=True, check=True)
        return [-x for line in done.stdout.splitlines() for x in json.loads(line)["logprobs"][1:]]

    def loss_of_run(self, name, **keys):
        keys = {f"data__{key}": "true" for key in keys}
        model = {key.replace(".", "__"): None for key in KEYS if key.startswith("model.")}
        self.run_.run(name, ["--init-from", self.model], checkpoint__save=None, checkpoint__load=None,
                      data__seq_length=40, data__split="100,0,0", train__train_iters=1, train__micro_batch_size=2,
                      train__global_batch_size=2, optim__lr_warmup_iters=0, **model, **keys)
        return self.run_.records(name)[0]["lm_loss"]

    def test_documents_are_kept_apart_as_asked(self):
        apart = ("--reset-position-ids", "--reset-attention-mask")
        samples = [self.sample(i, "--eod-mask-loss", *apart) for i in range(2)]
        pieces, counts = [], []
        for sample in samples:
            tokens, labels, starts = sample["tokens"], sample["labels"], [*sample["segment_starts"], 40]
            self.assertGreater(len(starts), 3)
            for start, end in zip(starts, starts[1:]):
                pieces.append([*tokens[start:end], labels[end - 1]])
            counts += sample["loss_mask"]
        each = self.losses(pieces)
        for keys, mask in (({}, [1] * 80), ({"eod_mask_loss": True}, counts)):
            expected = sum(x for x, m in zip(each, mask, strict=True) if m) / sum(mask)
            loss = self.loss_of_run(f"apart{len(keys)}", reset_position_ids=True, reset_attention_mask=True, **keys)
            self.assertAlmostEqual(loss, expected, delta=1e-5)
        self.assertLess(sum(counts), 80)

    def test_documents_are_one_text_otherwise(self):
        samples = [self.sample(i, "--eod-mask-loss") for i in range(2)]
        each = self.losses([[*sample["tokens"], sample["labels"][-1]] for sample in samples])
        for keys, mask in (({}, [1] * 80), ({"eod_mask_loss": True}, [m for s in samples for m in s["loss_mask"]])):
            expected = sum(x for x, m in zip(each, mask, strict=True) if m) / sum(mask)
            self.assertAlmostEqual(self.loss_of_run(f"one{len(keys)}", **keys), expected, delta=1e-5)
        for key in ("reset_position_ids", "reset_attention_mask"):
            self.assertNotAlmostEqual(self.loss_of_run(key, **{key: True}), sum(each) / 80, delta=1e-4)


class Identity(unittest.TestCase):
    def test_two_runs_with_one_seed_are_identical(self):
        run = Run()
        run.run("a")
        run.run("b")
        run.run("c", train__seed=4321)
        self.assertEqual(timeless(run.records("a")), timeless(run.records("b")))
        self.assertEqual(run.files("a"), run.files("b"))
        self.assertNotEqual(timeless(run.records("a")), timeless(run.records("c")))

    def test_resume_is_bit_exact(self):
        for precision in PRECISIONS:
            keys = dict(train__precision=precision, train__eval_interval=5, train__eval_iters=2, checkpoint__keep_last=1)
            run = Run()
            run.run("whole", **keys)
            run.run("parts", train__exit_interval=10, **keys)
            self.assertEqual(run.checkpoints("parts"), ["iter_0000010"])
            self.assertEqual([r["iteration"] for r in run.records("parts") if "lm_loss" in r], list(range(1, 11)))
            done = run.run("parts", train__exit_interval=10, **keys)
            self.assertIn("resuming from", done.stderr)
            self.assertEqual(timeless(run.records("whole")), timeless(run.records("parts")))
            self.assertEqual(run.files("whole"), run.files("parts"))

    def test_a_finished_run_has_nothing_left_to_do(self):
        run = Run()
        run.run()
        before, records = run.files(), run.records()
        done = run.run()
        self.assertIn("all 20 iterations are done", done.stderr)
        self.assertEqual((before, records), (run.files(), run.records()))

    def test_kill_at_any_moment_leaves_the_last_whole_checkpoint(self):
        # Saving at each iteration, a random moment lies inside a save as often as not.
        keys = dict(train__train_iters=30, checkpoint__save_interval=1, checkpoint__keep_last=2)
        run = Run()
        start = time.monotonic()
        run.run("whole", **keys)
        seconds = time.monotonic() - start
        whole, random_moment = run.files("whole"), random.Random(11)
        for trial in range(20 if LONG else 5):
            name = f"killed-{trial}"
            process = run.start(name, **keys)
            time.sleep(random_moment.random() * seconds)
            process.kill()
            process.communicate()
            for checkpoint in run.checkpoints(name):
                if checkpoint.startswith("iter_") and "." not in checkpoint:
                    state = json.loads((run.directory / name / checkpoint / "trainer_state.json").read_text())
                    self.assertEqual(f"iter_{state['iteration']:07d}", checkpoint)
            run.run(name, **keys)
            self.assertEqual(timeless(run.records("whole")), timeless(run.records(name)), name)
            self.assertEqual(whole, run.files(name), name)


class Stopping(unittest.TestCase):
    def test_signals_save_and_exit_with_success(self):
        run = Run()
        run.run("whole", train__train_iters=400)
        for number, text in ((signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT")):
            process = run.start(text, train__train_iters=400)
            metrics = run.directory / f"{text}.jsonl"
            self.assertTrue(wait_for(lambda: metrics.exists() and metrics.stat().st_size > 500, process))
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
            self.assertIn(f"stopped by {text} after iteration", errors)
            last = run.records(text)[-1]["iteration"]
            self.assertEqual(run.checkpoints(text), [f"iter_{last:07d}"])
            run.run(text, train__train_iters=400)
            self.assertEqual(timeless(run.records("whole")), timeless(run.records(text)))

    def test_a_second_signal_ends_at_once(self):
        run = Run()
        process = run.start(train__global_batch_size=4000, train__micro_batch_size=4)  # a step of seconds
        wait_for(lambda: (run.directory / "run.jsonl").exists(), process)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        self.assertTrue(wait_for(lambda: not has_pending_signals(process.pid), process))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertEqual(run.checkpoints(), [])

    def test_a_signal_told_twice_is_one_wish_and_a_later_one_ends_at_once(self):
        for samples, pause, status in ((4000, 0.2, 0), (40000, 1.5, -signal.SIGTERM)):
            run = Run()
            process = run.start(train__global_batch_size=samples, train__micro_batch_size=4)  # a step of seconds, or of many
            self.assertTrue(wait_for(lambda: (run.directory / "run.jsonl").exists(), process))
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            time.sleep(pause)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=300)
            self.assertEqual(process.returncode, status, errors)
            self.assertEqual(len(run.checkpoints()), 0 if status else 1)

    def test_a_signal_leaves_what_is_computed_alone(self):
        """oneDNN's products for AVX2 move the stack pointer, so a handler on their thread would overwrite memory."""
        run = Run()
        with unittest.mock.patch.dict(os.environ, ONEDNN_MAX_CPU_ISA="AVX2"):
            process = run.start(model__hidden_size=128, train__micro_batch_size=4, train__global_batch_size=400)  # a step of seconds
        self.assertTrue(wait_for(lambda: (run.directory / "run.jsonl").exists(), process))
        time.sleep(0.2)
        end = time.monotonic() + 0.5  # half of the time in which these count as one
        while time.monotonic() < end:
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(len(run.checkpoints()), 1)

    def test_exit_interval_does_not_change_the_schedule(self):
        run = Run()
        run.run("whole", train__train_iters=12)
        for end in (5, 10, 12):
            run.run("parts", train__train_iters=12, train__exit_interval=5)
            self.assertEqual(run.records("parts")[-1]["iteration"], end)
        self.assertEqual(timeless(run.records("whole")), timeless(run.records("parts")))

    def test_each_style_of_decay_reaches_the_schedule(self):
        r = 0.5 ** 0.5
        for style, wsd, expected in (("constant", None, (1, 1, 1)), ("linear", None, (0.6, 0.4, 0.3)),
                                     ("cosine", None, (0.6, 0.6 - 0.4 * r, 0.6 - 0.4 * 0.9238795325112867)),
                                     ("inverse-square-root", None, (0.2 ** 0.5, (1 / 7) ** 0.5, 0.125 ** 0.5)),
                                     ("WSD", "linear", (1, 0.6, 0.4)), ("WSD", "cosine", (1, 0.6, 0.6 - 0.4 * r)),
                                     ("WSD", "minus_sqrt", (1, 1 - 0.8 * r, 1 - 0.8 * 0.75 ** 0.5)),
                                     ("WSD", None, (1, 0.2 + 0.8 * (2 * r - 1), 0.2 + 0.8 * (2 * 0.5 ** 0.75 - 1)))):
            run = Run()
            keys = {"optim__lr_wsd_decay_iters": 4} if style == "WSD" else {}
            keys |= {"optim__lr_wsd_decay_style": wsd} if wsd else {}
            run.run(checkpoint__save=None, checkpoint__load=None, train__train_iters=10, optim__lr=1e-3,
                    optim__min_lr=2e-4, optim__lr_decay_style=style, optim__lr_warmup_iters=1,
                    optim__lr_decay_iters=9, **keys)
            rates = [1000 * r["lr"] for r in run.records()]
            self.assertEqual(rates[:2], [0, 1])
            self.assertAlmostEqual(rates[9], {"constant": 1, "inverse-square-root": 1 / 3}.get(style, 0.2), delta=1e-9)
            for at, value in zip((5, 7, 8), expected):
                with self.subTest(style=style, wsd=wsd, at=at):
                    self.assertAlmostEqual(rates[at], value, delta=1e-9)

    def test_a_loss_that_is_not_finite_stops_and_saves_nothing(self):
        run = Run()
        run.run(train__exit_interval=10)
        before = run.files()
        done = run.run(expect=1, optim__lr=1e6, optim__lr_decay_style="constant", model__vocab_size=VOCAB, optim__clip_grad=0)
        last = run.records()[-1]["iteration"]
        first = 4 * last
        self.assertRegex(done.stderr, f"iteration {last + 1}: the (loss|gradient norm) is .*; its samples are {first} to "
                                      f"{first + 3} of the training split")
        self.assertEqual(before, run.files())
        self.assertTrue(all(math.isfinite(r["lm_loss"]) for r in run.records()))


class Checkpoints(unittest.TestCase):
    def test_intervals_and_keep_last(self):
        run = Run()
        run.run("only-end")
        self.assertEqual(run.checkpoints("only-end"), ["iter_0000020"])
        run.run("each-6", checkpoint__save_interval=6)
        self.assertEqual(run.checkpoints("each-6"), [f"iter_{i:07d}" for i in (6, 12, 18, 20)])
        run.run("two", checkpoint__save_interval=6, checkpoint__keep_last=2)
        self.assertEqual(run.checkpoints("two"), ["iter_0000018", "iter_0000020"])
        run.run("none", checkpoint__save=None, checkpoint__load=None)
        self.assertFalse((run.directory / "none").exists())

    def test_a_save_has_the_tokenizer_of_the_start(self):
        """All of its files, whatever became of them meanwhile."""
        run = Run()
        tokenizer, started = run.directory / "tokenizer", run.directory / "run.jsonl"
        tokenizer.mkdir()
        write_byte_tokenizer(tokenizer)
        more = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
        for name, text in [(name, '{"eos_token": "<|endoftext|>"}') for name in more] + [("added_tokens.json", '{"<|im_end|>": 257}'),
                                                                                          ("chat_template.jinja", "{{ messages }}")]:
            (tokenizer / name).write_text(text)
        expected = {path.name: path.read_bytes() for path in tokenizer.iterdir()}
        process = run.start(tokenizer=tokenizer, model__vocab_size=None, train__train_iters=100000)
        self.assertTrue(wait_for(lambda: started.exists() and started.read_text().count("\n") > 1, process))
        for name in expected:
            (tokenizer / name).unlink()
        (tokenizer / "vocab.json").write_text("{}")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, errors)
        checkpoint = run.directory / "run" / run.checkpoints()[0]
        self.assertEqual({path.name: path.read_bytes() for path in checkpoint.iterdir() if path.name in expected}, expected)

    def test_load_without_a_checkpoint_starts_afresh_and_says_so(self):
        run = Run()
        done = run.run(checkpoint__load=run.directory / "nothing")
        self.assertIn(f"no checkpoint in {run.directory}/nothing yet: starting afresh", done.stderr)
        again = run.run(checkpoint__load=None, log__metrics_file=None, train__train_iters=3)
        self.assertIn("iter_0000020 is already there and this run does not resume from it", again.stderr)

    def test_what_is_loaded_and_that_nothing_is_saved_is_said_first(self):
        run = Run()
        lines = run.run(optim__lr_warmup_iters=0, train__train_iters=2).stderr.splitlines()
        self.assertEqual(lines[:2], [f"cambium: loading {run.directory}/run", f"cambium: loading {run.prefix}"])
        self.assertNotIn("checkpoint.save is not given", "\n".join(lines))
        model = run.directory / "run/iter_0000002"
        for use in ((), ("--ranks", "2")):
            lines = run.run("other", [*use, "--init-from", str(model)], checkpoint__save=None, checkpoint__load=None,
                            log__metrics_file=None, optim__lr_warmup_iters=0, train__train_iters=1).stderr.splitlines()
            self.assertEqual(lines[:3], [f"cambium: loading {model}", f"cambium: loading {run.prefix}",
                                         "cambium: warning: checkpoint.save is not given: nothing of this run will be saved"])
            self.assertEqual("\n".join(lines).count("loading"), 2)
        done = run.run("other", ["--dry-run"], checkpoint__save=None, checkpoint__load=None)
        self.assertNotIn("checkpoint.save is not given", done.stderr)

    def test_another_model_does_not_resume(self):
        run = Run()
        run.run()
        before = run.files()
        for key, here, there in (("model__num_layers", "3", "2"), ("model__hidden_dropout", "0.25", "0.1")):
            done = run.run(expect=2, **{key: here})
            name = key.replace("__", ".")
            self.assertIn(f"{name} is {there} in the checkpoint", done.stderr)
            self.assertIn(f"but {here} in this run", done.stderr)
        self.assertEqual(before, run.files())
        done = run.run(train__train_iters=24, data__seed=99)
        self.assertIn("data.seed was '1234' and is '99'", done.stderr)
        self.assertIn("train.train_iters was '20' and is '24'", done.stderr)

    @needs_bf16
    def test_a_run_may_go_on_in_the_other_precision(self):
        for first, second in (PRECISIONS, PRECISIONS[::-1]):
            run = Run()
            run.run(train__precision=first, train__exit_interval=10)
            run.run(train__precision=second)
            losses = [r["lm_loss"] for r in run.records()]
            self.assertLess(losses[-1], losses[9] + 0.2)

    def test_damaged_state_is_refused(self):
        run = Run()
        run.run(train__exit_interval=10)
        state = run.directory / "run/iter_0000010/trainer_state.json"
        good = json.loads(state.read_text())
        for text, part in (("{", "trainer_state.json:1:"), ("[]", "'iteration' must be"),
                           (json.dumps({**good, "consumed_samples": -1}), "'consumed_samples' must be"),
                           (json.dumps({**good, "optimizer_step": "x"}), "'optimizer_step' must be")):
            state.write_text(text)
            done = run.run(expect=1)
            self.assertIn(part, done.stderr)


class State(unittest.TestCase):
    """The files that belong to a checkpoint."""

    def refuse(self, run, *parts, **keys):
        done = run.run(expect=1, train__train_iters=24, **keys)
        line, = [line for line in done.stderr.splitlines() if line.startswith("cambium: error: ")]
        for part in parts:
            self.assertIn(part, line)

    def test_a_directory_mixed_from_two_checkpoints_is_refused(self):
        for keys in ({}, dict(train__precision=PRECISIONS[-1], model__hidden_size=256, checkpoint__max_shard_size=1)):
            run = Run()
            run.run(checkpoint__save_interval=10, **keys)
            old, new = run.directory / "run/iter_0000010", run.directory / "run/iter_0000020"
            names = [p.name for p in new.iterdir() if p.suffix == ".safetensors"]
            self.assertGreater(len(names), 3 if keys else 1)
            for use in ([], ["--ranks", "2"]):
                for name in names:
                    good = (new / name).read_bytes()
                    (new / name).write_bytes((old / name).read_bytes())
                    self.refuse(run, f"{new}/{name} is not the file that was saved with trainer_state.json", use=use, **keys)
                    (new / name).write_bytes(good)
            good = (new / "config.json").read_text()
            (new / "config.json").write_text(good.replace("\n", " \n"))
            self.refuse(run, f"{new}/config.json is not the file", **keys)
            (new / "config.json").write_text(good)
            good = (new / "trainer_state.json").read_text()
            (new / "trainer_state.json").write_text((old / "trainer_state.json").read_text())
            self.refuse(run, f"{new}/trainer_state.json is of iteration 10", **keys)
            (new / "trainer_state.json").write_text(good)
            run.run(train__train_iters=24, **keys)

    def test_counters_that_contradict_each_other_are_refused(self):
        run = Run()
        run.run()
        directory = run.directory / "run/iter_0000020"
        state = directory / "trainer_state.json"
        good = json.loads(state.read_text())
        for change, part in (({"lm_loss": good["lm_loss"] + 1e-9}, "was changed after it was saved"),
                             ({"consumed_samples": 84, "consumed_tokens": 84 * 16}, "was changed after it was saved"),
                             ({"files": {}}, "was changed after it was saved")):
            state.write_text(json.dumps({**good, **change}))
            self.refuse(run, f"{state}", part)
        for change, part in (({"optimizer_step": 19}, "'optimizer_step' is 19 after 20 iterations"),
                             ({"iteration": 19}, "'optimizer_step' is 20 after 19 iterations"),
                             ({"iteration": 19, "optimizer_step": 19}, "is of iteration 19"),
                             ({"consumed_samples": 19}, "'consumed_samples' is 19 after 20 iterations"),
                             ({"consumed_samples": 84}, "'consumed_tokens' is not that of 84 samples of 16 tokens"),
                             ({"lm_loss": "x"}, "'lm_loss' must be a number")):
            state.write_text(json.dumps(good))
            sign_state(state, **change)
            self.refuse(run, str(directory), part)
        state.write_text(json.dumps(good))  # spacing is not part of it
        copy = run.directory / "copy"
        directory.rename(copy)  # another name says nothing
        run.run("spaced", checkpoint__load=copy, train__train_iters=24)
        sign_state(copy / "trainer_state.json", files={}, lm_loss=None, consumed_tokens=None)  # of an earlier version
        run.run("before", checkpoint__load=copy, train__train_iters=24)
        self.assertEqual(run.files("before"), run.files("spaced"))


class FullDisk(unittest.TestCase):
    def check(self, run, done):
        errors = [line for line in done.stderr.splitlines() if line.startswith("cambium: error: ")]
        self.assertEqual(len(errors), 1, done.stderr)
        self.assertIn("iter_0000020 was not saved", errors[0])
        self.assertEqual(run.checkpoints(), ["iter_0000010"])

    def test_files_that_may_not_grow(self):
        run = Run()
        run.run(train__exit_interval=10)
        for size in range(6000, 206000, 10000) if LONG else (20000,):  # between the metrics and the optimizer
            def limit():
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            done = subprocess.run(run.command(), capture_output=True, text=True, preexec_fn=limit, restore_signals=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.check(run, done)
        run.run()

    def test_a_full_file_system(self):
        run = Run()
        root = run.directory / "run"
        root.mkdir()
        mounted = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", root],
                                                       capture_output=True).returncode == 0
        if not mounted:
            self.skipTest("a_full_file_system: mounting a tmpfs needs root")
        try:
            run.run(train__exit_interval=10)
            (root / "filler").write_bytes(bytes(200 << 10))
            done = run.run(expect=1)
            (root / "filler").unlink()
            self.check(run, done)
            run.run(checkpoint__keep_last=2)
            self.assertEqual(run.checkpoints()[-1], "iter_0000020")
        finally:
            subprocess.run(["umount", root])

    def test_a_full_metrics_file(self):
        done = Run().run(expect=1, log__metrics_file="/dev/full")
        self.assertIn("cannot write /dev/full: No space left on device", done.stderr)


class Metrics(unittest.TestCase):
    def test_records_have_what_is_promised(self):
        run = Run()
        done = run.run(train__eval_interval=10, train__eval_iters=2)
        records = run.records()
        steps = [r for r in records if "lm_loss" in r]
        for r in steps:
            self.assertEqual(list(r), ["iteration", "lm_loss", "lr", "grad_norm", "tokens_per_s", "model_tflops", "seconds"])
            self.assertAlmostEqual(r["tokens_per_s"] * r["seconds"], 4 * 16, delta=1e-6)
        self.assertEqual([r["lr"] for r in steps[:3]], [0, 5e-3, 1e-2])
        valid = [r for r in records if "valid_loss" in r]
        self.assertEqual([r["iteration"] for r in valid], [10, 20])
        self.assertLess(valid[1]["valid_loss"], valid[0]["valid_loss"])
        self.assertTrue(all("lm_loss" not in r for r in valid))
        self.assertRegex(done.stderr, r"peak memory [0-9.]+ MiB, planned [0-9.]+ MiB")
        self.assertRegex(done.stderr, r"activations +[0-9.]+ MiB")

    def test_a_validation_without_a_training(self):
        run = Run()
        run.run(train__eval_interval=20, train__eval_iters=3)
        before, files = run.records(), run.files()
        trained = [r for r in before if "valid_loss" in r][-1]
        # Not the same samples, but the same text.
        keys = dict(train__skip_train="true", train__eval_iters=3)
        done = run.run("run", **keys, log__metrics_file=run.directory / "alone.jsonl")
        alone, = run.records("alone")
        self.assertEqual((alone["iteration"], run.files()), (20, files))
        self.assertLess(abs(alone["valid_loss"] - trained["valid_loss"]), 0.1 * trained["valid_loss"])
        self.assertIn("0 iterations", done.stderr)
        again = run.run("run", ["--ranks", "2"], **keys, log__metrics_file=run.directory / "two.jsonl",
                        parallel__tensor_model_parallel_size=2)
        self.assertLess(abs(run.records("two")[0]["valid_loss"] - alone["valid_loss"]), 1e-5 * alone["valid_loss"], again.stderr)
        fresh = run.run("fresh", **keys)
        self.assertGreater(run.records("fresh")[0]["valid_loss"], alone["valid_loss"] + 0.1, fresh.stderr)
        self.assertFalse((run.directory / "fresh").exists())

    def test_a_run_whose_validations_get_no_better_stops_early(self):
        run = Run()
        keys = dict(train__train_iters=60, train__eval_interval=2, train__eval_iters=2, train__early_stop=3, optim__lr=0.3)
        done = run.run(**keys)
        losses = [r["valid_loss"] for r in run.records() if "valid_loss" in r]
        waits = [sum(1 for k in range(i + 1) if min(losses[:k + 1]) == min(losses[:i + 1])) - 1 for i in range(len(losses))]
        self.assertEqual((waits[-1], max(waits[:-1])), (3, 2))  # validations since the best one
        self.assertIn("3 validations in a row", done.stderr)
        last = run.records()[-1]["iteration"]
        self.assertLess(last, 60)
        self.assertEqual(run.checkpoints(), [f"iter_{last:07d}"])
        self.assertIn("stopped by train.early_stop", run.run(**keys).stderr)
        run.run("cut", train__exit_interval=3, **keys)  # what it waited for stands in the checkpoint
        run.run("cut", **keys)
        self.assertEqual(timeless(run.records()), timeless(run.records("cut")))

    def test_each_record_is_one_write_right_after_its_iteration(self):
        run = Run()
        process = run.start(train__train_iters=100_000, log__log_interval=100_000, log__metrics_file="/dev/stdout")
        records = []
        while len(records) < 100:  # they come long before the end, and none in halves
            part = os.read(process.stdout.fileno(), 1 << 16)
            self.assertTrue(part.endswith(b"\n"), part)
            records += [json.loads(line)["iteration"] for line in part.splitlines()]
        self.assertEqual(records, list(range(1, len(records) + 1)))
        process.kill()
        process.communicate()

    def test_a_torn_last_line_and_later_records_are_cut(self):
        run = Run()
        run.run("whole")
        run.run(train__exit_interval=10)
        file = run.directory / "run.jsonl"
        lines = file.read_text()
        for tail in ('{"iteration":11,"lm_l', '{"iter', '{"iteration":11,"lm_loss":1.5}\n{"iteration":12,"lm_loss":1.5}\n{"it'):
            for left in run.directory.glob("run/iter_0000020/*"):
                left.unlink()
            if (run.directory / "run/iter_0000020").exists():
                (run.directory / "run/iter_0000020").rmdir()
            file.write_text(lines + tail)
            run.run()
            self.assertEqual(timeless(run.records("whole")), timeless(run.records()))

    def test_files_of_others_are_left_alone(self):
        run = Run()
        file = run.directory / "run.jsonl"
        for text in ("a text\n", "a text without an end", '{"text":"a corpus"}\n', "x" * 100000):
            file.write_text(text)
            done = run.run(expect=1)
            self.assertIn("run.jsonl:1: not a record of a training run", done.stderr)
            self.assertEqual(file.read_text(), text)

    def test_an_empty_validation_split_is_a_warning(self):
        run, said = Run(), "warning: train.eval_interval 5: there are no samples for validations, so none will be made"
        self.assertEqual(run.run(data__split="100,0,0", train__eval_interval=5, train__eval_iters=2).stderr.count(said), 1)
        self.assertNotIn(said, run.run("no-iters", train__eval_interval=5, train__eval_iters=0).stderr)
        self.assertEqual(len(run.records()), 20)
        self.assertEqual(len(run.records("no-iters")), 20)


class EventFiles(unittest.TestCase):
    def test_event_files_tell_what_the_metrics_tell(self):
        run = Run()
        board = run.directory / "board"
        for _ in range(2):
            run.run(log__tensorboard_dir=board, train__exit_interval=10, train__eval_interval=5, train__eval_iters=1)
        found = sorted(board.iterdir())
        self.assertEqual(len(found), 2)
        tags = {"lm_loss": "lm loss", "lr": "learning-rate", "grad_norm": "grad-norm", "tokens_per_s": "tokens-per-second",
                "model_tflops": "model-tflops", "valid_loss": "lm loss validation"}
        records = run.records()
        for number, path in enumerate(found):
            events = read_events(path)
            self.assertEqual(events[0]["version"], "brain.Event:2")
            self.assertEqual(events[1], {"step": 10 * number + 1, "start": True})
            part = [r for r in records if 10 * number < r["iteration"] <= 10 * number + 10]
            self.assertEqual(len(events), len(part) + 2)
            for event, record in zip(events[2:], part):
                self.assertEqual(event["step"], record["iteration"])
                for key, value in record.items():
                    if key in tags and ("valid_loss" in record) == (key == "valid_loss"):
                        self.assertAlmostEqual(event["scalars"][tags[key]], value, delta=1e-6 * abs(value))


class Terminal(unittest.TestCase):
    def test_a_terminal_gets_a_line_a_bar_and_the_ceiling(self):
        run = Run()
        main, terminal = pty.openpty()
        process = subprocess.Popen(run.command(train__train_iters=40, log__log_interval=10), stdout=subprocess.DEVNULL,
                                   stderr=terminal)
        os.close(terminal)
        text = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            text += part
        os.close(main)
        self.assertEqual(process.wait(), 0)
        text = text.decode()
        self.assertRegex(text, r"training +\d+% \[[=> ]{24}\] \d+/40  loss [0-9.]+  [0-9,.]+ tokens/s  \d+s left")
        self.assertRegex(text, r"iteration 10/40  loss [0-9.]+  lr \S+  grad norm [0-9.]+  [0-9,.]+ tokens/s  [0-9.]+ model "
                               r"TFLOP/s \(\d+% of the GEMM ceiling\)  \d+s left")

    def test_elsewhere_there_are_lines_at_the_interval(self):
        run = Run()
        done = run.run(train__train_iters=25, log__log_interval=10)
        lines = [line for line in done.stderr.splitlines() if line.startswith("cambium: iteration")]
        self.assertEqual([line.split()[2] for line in lines], ["1/25", "10/25", "20/25", "25/25"])
        self.assertNotIn("ceiling", done.stderr)
        self.assertNotIn("\r", done.stderr)
        done = run.run("measured", train__train_iters=3, log__measure_ceiling="true")
        self.assertIn("% of the GEMM ceiling)", done.stderr)


class Configuration(unittest.TestCase):
    def test_help_comes_from_the_rows(self):
        done = subprocess.run([CAMBIUM, "pretrain", "--help"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0)
        for word in ("--init-from", "--dry-run", "train.exit_interval", "optim.lr_decay_style", "--config"):
            self.assertIn(word, done.stdout)

    def test_dry_run_prints_the_run_and_the_plan_and_writes_nothing(self):
        run = Run()
        before = run.tree()
        done = run.run(use=["--dry-run"])
        self.assertEqual(before, run.tree())
        for part in ("ffn_hidden_size: 128", "lr_decay_iters: 20", "# memory plan", "#   weights", "#   gradients",
                     "#   optimizer", "#   activations", "#   total"):
            self.assertIn(part, done.stdout)
        (run.directory / "again.yaml").write_text(done.stdout)
        again = subprocess.run([CAMBIUM, "pretrain", "--config", run.directory / "again.yaml", "--dry-run"],
                               capture_output=True, text=True)
        self.assertEqual(*(without_program(text.encode()) for text in (again.stdout, done.stdout)), again.stderr)

    def test_yaml_and_flags_make_one_run(self):
        run = Run()
        sections = {}
        for key, value in {**KEYS, "data.data_path": run.prefix, "log.metrics_file": run.directory / "yaml.jsonl"}.items():
            section, name = key.split(".")
            sections.setdefault(section, []).append(f"  {name}: {value}\n")
        (run.directory / "run.yaml").write_text("".join(f"{s}:\n{''.join(lines)}" for s, lines in sections.items()))
        subprocess.run([CAMBIUM, "pretrain", "--config", run.directory / "run.yaml", "--train.train_iters=7"], check=True,
                       capture_output=True)
        run.run("flags", train__train_iters=7)
        self.assertEqual(timeless(run.records("yaml")), timeless(run.records("flags")))

    def test_a_blend_is_a_list_of_weights_and_prefixes(self):
        run = Run()
        write_dataset(run.directory / "other", [[5] * 40] * 40)
        (run.directory / "run.yaml").write_text(f"data:\n  data_path:\n    - 0.25\n    - {run.prefix}\n    - 0.75\n"
                                                f"    - {run.directory}/other\n")
        blend = ["0.25", run.prefix, "0.75", f"{run.directory}/other"]
        run.run("list", ["--config", run.directory / "run.yaml"], data__data_path=None)
        run.run("words", ["--data.data_path", *blend], data__data_path=None)
        run.run("text", data__data_path=" ".join(map(str, blend)))
        self.assertEqual(timeless(run.records("list")), timeless(run.records("words")))
        self.assertEqual(timeless(run.records("list")), timeless(run.records("text")))
        run.run("one")
        self.assertNotEqual(timeless(run.records("list")), timeless(run.records("one")))

    def test_bad_runs_give_one_clear_line_and_write_nothing(self):
        run = Run()
        run_directory = run.directory
        (run_directory / "empty.idx").write_bytes(b"")
        (run_directory / "empty.bin").write_bytes(b"")
        write_dataset(run_directory / "wide", [[VOCAB + 3] * 40] * 40)
        before = run.tree()
        cases = [
            (2, dict(model__hidden_size=33), "model.hidden_size 33 is not divisible by model.num_attention_heads 4"),
            (2, dict(model__num_layers=None), "model.num_layers is not given"),
            (2, dict(model__vocab_size=None), "model.vocab_size"),
            (2, dict(train__train_iters=None), "train.train_iters is not given"),
            (2, dict(train__global_batch_size=5), "train.global_batch_size 5 is not a multiple of train.micro_batch_size 2"),
            (2, dict(train__early_stop=2), "train.early_stop 2"),
            (2, dict(optim__lr=None), "optim.lr"),
            (2, dict(optim__lr=-1), "optim.lr"),
            (2, dict(optim__ler=1), "optim.lr"),
            (2, dict(data__data_path=None), "data.data_path is not given"),
            (1, dict(data__data_path=run_directory / "missing"), "missing"),
            (1, dict(data__data_path=run_directory / "empty"), "empty"),
            (2, dict(data__seq_length=32, model__max_position_embeddings=16), "data.seq_length 32"),
            (2, dict(parallel__tensor_model_parallel_size=2), "tensor_model_parallel_size 2"),
            (1, dict(tokenizer=run_directory / "none"), "tokenizer"),
            (2, dict(data__eod_mask_loss="true"), "eod_mask_loss"),
            (1, dict(checkpoint__load=run.prefix.with_suffix(".idx")), "text.idx"),
        ]
        for status, keys, part in cases:
            done = run.run(use=[], expect=status, **keys)
            errors = [line for line in done.stderr.splitlines() if "error: " in line]
            self.assertEqual(len(errors), 1, done.stderr)
            self.assertIn(part, errors[0])
            self.assertEqual(before, run.tree(), keys)
        done = run.run(use=["--init-from", run_directory / "nowhere"], expect=1)
        self.assertIn("nowhere", done.stderr)
        self.assertEqual(before, run.tree())
        done = run.run(expect=1, data__data_path=run_directory / "wide")
        self.assertIn("wide.bin", done.stderr)
        self.assertEqual(run.checkpoints(), [])

    def test_places_that_cannot_be_written(self):
        run = Run()
        for keys in (dict(checkpoint__save="/proc/none", checkpoint__load=None), dict(log__metrics_file="/proc/none"),
                     dict(log__tensorboard_dir="/proc/none")):
            done = run.run(expect=1, **keys)
            self.assertEqual(done.stderr.count("error: "), 1)
            self.assertIn("/proc/none", done.stderr)
            self.assertNotIn("iteration  1", done.stderr)


if __name__ == "__main__":
    unittest.main()
