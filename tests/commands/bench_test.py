"""The bench command: what its lines say, against formulas written here. Nothing here is a bar for speed."""
import json
import math
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
import unittest

from model_support import CAMBIUM, PRECISIONS, TINY, gpt2_config, gpt2_shapes, rows, run, write_model
from mpi_support import MPIRUN, needs_mpirun
from pretrain_support import LONG

LAYERS, WIDTH, INNER, VOCAB, POSITIONS = 2, 32, 80, 97, 64
CONFIG = gpt2_config(n_layer=LAYERS, n_embd=WIDTH, n_head=4, n_inner=INNER, vocab_size=VOCAB, n_positions=POSITIONS)
# The FLOPs of a token: every weight but the position table; the embedding once, as the head.
HEAD_WEIGHTS = VOCAB * WIDTH
WEIGHTS = sum(math.prod(shape) for name, shape in gpt2_shapes(CONFIG).items() if name != "wpe.weight")
BLOCK_WEIGHTS = WEIGHTS - HEAD_WEIGHTS
TP2 = ["--ranks", 2, "--parallel.tensor_model_parallel_size=2"]
ZERO = ["--ranks", 2, "--parallel.use_distributed_optimizer"]
PHASES = ["gemm", "attention", "norms", "loss", "optimizer", "communication", "rest"]


class Bench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(temporary.cleanup)
        cls.directory = pathlib.Path(temporary.name)
        cls.model = cls.directory / "model"  # checkpoints, of which the newest is meant
        for number, config in ((3, gpt2_config()), (12, CONFIG)):
            write_model(cls.model / f"iter_{number:07d}", config)
            (cls.model / f"iter_{number:07d}" / "trainer_state.json").write_text("{}")

    def bench(self, *words, expect=0):
        before = sorted(self.directory.rglob("*"))
        output, errors = run("bench", *words, expect=expect, cwd=self.directory)
        self.assertEqual(errors if expect == 0 else "", "")
        self.assertEqual(before, sorted(self.directory.rglob("*")))
        return rows(output) if expect == 0 else errors

    def check_summary(self, summary, name, tokens):
        self.assertEqual(summary["bench"], name)
        self.assertAlmostEqual(summary["tokens_per_s"] * summary["seconds"] / tokens, 1, delta=1e-4)
        for key in ("ceiling", "ratio", "peak_rss_bytes", "planned_bytes"):
            self.assertGreater(summary[key], 0, key)
            self.assertTrue(math.isfinite(summary[key]))
        self.assertEqual(list(summary["phases"]), PHASES)

    def check_flops(self, summary, flops):
        self.assertAlmostEqual(summary["model_tflops"] * 1e12 * summary["seconds"] / flops, 1, delta=1e-4)
        self.assertAlmostEqual(summary["model_tflops"] / summary["ceiling"] / summary["ratio"], 1, delta=1e-4)

    def test_a_training_step(self):
        batch, length, steps = 3, 24, 5
        *lines, summary = self.bench("train", "--model", self.model, "--micro-batch-size", batch,
                                     "--seq-length", length, "--steps", steps)
        self.assertEqual([line["step"] for line in lines], list(range(1, steps + 1)))
        self.assertEqual(summary["seconds"], statistics.median(line["seconds"] for line in lines))
        self.assertTrue(all(abs(line["loss"] - math.log(VOCAB)) < 1 for line in lines))
        self.check_summary(summary, "train", batch * length)
        # 6 operations a weight and token, and causal attention, counted half, forward and twice backward
        self.check_flops(summary, batch * length * (6 * WEIGHTS + 6 * LAYERS * WIDTH * length))
        self.assertAlmostEqual(sum(summary["phases"].values()) / statistics.mean(line["seconds"] for line in lines), 1,
                               delta=1e-3)
        self.assertTrue(all(summary["phases"][name] > 0 for name in PHASES))

    def train(self, *words, batch=4, length=24, steps=3, launcher=()):
        """Lines and summary of a global batch in micro batches of one, and standard error."""
        scratch = self.directory / "scratch"
        scratch.mkdir(exist_ok=True)
        done = subprocess.run([*launcher, CAMBIUM, "bench", "train", "--model", self.model, "--global-batch-size", str(batch),
                               "--seq-length", str(length), "--steps", str(steps), *map(str, words)],
                              env=dict(os.environ, TMPDIR=str(scratch)), capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(list(scratch.iterdir()), [])  # the tokens that it made are gone
        *lines, summary = rows(done.stdout.encode())
        self.assertEqual([line["step"] for line in lines], list(range(1, steps + 1)))
        self.check_summary(summary, "train", batch * length)
        self.check_flops(summary, batch * length * (6 * WEIGHTS + 6 * LAYERS * WIDTH * length))
        self.assertEqual(summary["global_batch_size"], batch)
        return lines, summary, done.stderr

    def check_baseline(self, lines, summary):
        baseline = summary["baseline"]
        self.assertEqual(baseline["seconds"], statistics.median(line["baseline_seconds"] for line in lines))
        self.assertAlmostEqual(summary["step_time_over_baseline"] * baseline["seconds"] / summary["seconds"], 1, delta=1e-4)
        self.assertAlmostEqual(summary["tokens_per_s_over_baseline"] * baseline["tokens_per_s"] / summary["tokens_per_s"], 1,
                               delta=1e-4)
        self.assertEqual(list(baseline["phases"]), PHASES)

    def test_layouts_beside_one_rank(self):
        cores = len(os.sched_getaffinity(0))
        one, summary, told = self.train()
        self.assertEqual((summary["ranks"], summary["threads_per_rank"], told), (1, cores, ""))
        self.assertNotIn("baseline", summary)
        for words, tensor, data in ((TP2, 2, 1), (ZERO, 1, 2)):
            lines, summary, told = self.train(*words)
            self.check_baseline(lines, summary)
            self.assertEqual(summary["baseline"]["threads"], min(2, cores))
            self.assertEqual((summary["ranks"], summary["threads_per_rank"], len(summary["cores"])), (2, 1, 2))
            self.assertEqual((summary["layout"]["tensor"], summary["layout"]["data"]), (tensor, data))
            self.assertEqual(summary["layout"]["sharding"], "optim" if data == 2 else "no_shard")
            self.assertEqual(len(set(summary["cores"])), 2 if cores > 1 else 1)
            self.assertIn("1 thread each", told)
            # the trainer's own steps: the layout is not part of the answer
            for line, expected in zip(lines, one):
                self.assertAlmostEqual(line["loss"] / expected["loss"], 1, delta=1e-5)
        _, summary, _ = self.train(*ZERO, "--baseline=false", "--threads", 2, "--parallel.threads_per_rank=1")
        self.assertNotIn("baseline", summary)
        self.assertEqual(summary["threads_per_rank"], 1)

    def test_a_pipeline_less_its_bubble(self):
        lines, summary, _ = self.train("--ranks", 2, "--parallel.pipeline_model_parallel_size=2", batch=6)
        self.check_baseline(lines, summary)
        self.assertEqual((summary["layout"]["pipeline"], summary["layout"]["data"]), (2, 1))
        self.assertAlmostEqual(summary["pipeline_share"], 6 / 7, delta=1e-5)
        self.assertAlmostEqual(summary["tokens_per_s_over_baseline_and_share"] * 6 / 7 / summary["tokens_per_s_over_baseline"],
                               1, delta=1e-4)

    def test_recomputation_beside_none(self):
        for words, name in ((["--parallel.recompute_granularity=full"], "full"),
                            (["--parallel.recompute_granularity=selective", "--parallel.recompute_modules=[layernorm, mlp_act]"],
                             "selective")):
            lines, summary, _ = self.train(*words, batch=1)
            self.check_baseline(lines, summary)
            self.assertEqual(summary["layout"]["recompute"], name)
            self.assertEqual(summary["baseline"]["threads"], summary["threads_per_rank"])

    @needs_mpirun
    def test_processes_of_a_launch(self):
        lines, summary, told = self.train("--parallel.tensor_model_parallel_size=2", launcher=[*MPIRUN, "-n", "2"])
        self.assertEqual((summary["ranks"], summary["layout"]["tensor"]), (2, 2))
        self.assertNotIn("baseline", summary)
        self.assertEqual(told.count("2 ranks"), 1)

    @needs_mpirun
    def test_what_data_ranks_in_processes_save_by_overlap(self):
        launcher = [*MPIRUN, "-n", "2"]
        lines, summary, _ = self.train("--parallel.use_distributed_optimizer", launcher=launcher)
        overlap = summary["overlap"]
        self.assertNotIn("baseline", summary)
        self.assertEqual(overlap["seconds_without"], statistics.median(line["baseline_seconds"] for line in lines))
        self.assertEqual(list(overlap["phases_without"]), PHASES)
        self.assertAlmostEqual(overlap["saved_seconds"], overlap["seconds_without"] - summary["seconds"], delta=1e-6)
        saveable = min(overlap["transfer_seconds"], overlap["last_backward_seconds"])
        self.assertGreater(saveable, 0)
        self.assertAlmostEqual(overlap["saved_over_saveable"] * saveable, overlap["saved_seconds"], delta=1e-5)
        for words in (["--baseline=false"], ["--parallel.overlap_grad_reduce=false", "--parallel.overlap_param_gather=false"])[:2 if LONG else 1]:
            _, summary, _ = self.train("--parallel.use_distributed_optimizer", "--threads", 2, *words, launcher=launcher)
            self.assertNotIn("overlap", summary)
            self.assertEqual(summary["threads_per_rank"], 2)

    def test_prefill(self):
        batch, length = 2, 40
        *lines, summary = self.bench("prefill", "--model", self.model, "--micro-batch-size", batch,
                                     "--seq-length", length, "--steps", 3, "--precision", "bf16")
        self.assertEqual(len(lines), 3)
        # without bf16 products, the engine multiplies packed weights in fp32
        self.assertEqual(summary.get("ceiling_precision", "bf16"), PRECISIONS[-1])
        self.assertEqual((summary["precision"], summary["seconds"]),
                         ("bf16", statistics.median(line["seconds"] for line in lines)))
        self.check_summary(summary, "prefill", batch * length)
        norm = 2 * WIDTH  # the final one: of the last token alone, as the head is
        blocks = length * (2 * (BLOCK_WEIGHTS - norm) + 2 * LAYERS * WIDTH * length)
        self.check_flops(summary, batch * (blocks + 2 * (norm + HEAD_WEIGHTS)))

    def check_pairs(self, figures, pairs):
        """The shares are those of pairs: a read of the step's bytes just before it, or the products' floor if higher."""
        self.assertAlmostEqual(figures["seconds"] / statistics.median(pair["seconds"] for pair in pairs), 1, delta=1e-4)
        read, floor = statistics.median(pair["read_seconds"] for pair in pairs), figures["floor_seconds"]
        self.assertGreaterEqual(floor / read, 0.9999)
        of_reads = [pair["read_seconds"] / pair["seconds"] for pair in pairs]
        with_floor = [max(pair["read_seconds"], floor) / pair["seconds"] for pair in pairs]
        for key, of in (("ratio", statistics.median), ("best_ratio", max), ("worst_ratio", min)):
            self.assertGreaterEqual(figures[key] / of(of_reads), 0.9999, key)
            self.assertLessEqual(figures[key] / of(with_floor), 1.0001, key)

    def test_decode(self):
        batch, steps = 2, 8
        *lines, summary = self.bench("decode", "--model", self.model, "--micro-batch-size", batch, "--steps", steps)
        self.assertEqual([(line["context"], line["step"]) for line in lines], [(32, i + 1) for i in range(steps)])
        self.check_pairs(summary, lines)
        self.check_summary(summary, "decode", batch)
        context = 32 + steps / 2
        bytes_a_step = 4 * (WEIGHTS + batch * 2 * LAYERS * WIDTH * context)
        self.assertAlmostEqual(summary["bytes_per_s"] * summary["seconds"] / bytes_a_step, 1, delta=1e-4)
        self.assertGreaterEqual(summary["floor_seconds"], bytes_a_step / summary["ceiling"] * 0.9999)
        self.assertEqual([c["context"] for c in summary["contexts"]], [32])
        self.assertAlmostEqual(summary["peak_over_plan"] * summary["planned_bytes"] / summary["peak_rss_bytes"], 1, delta=1e-4)

    def test_layers_of_a_published_shape(self):
        """The plan grows by a layer of SmolLM2 in fp32, and by its part of the cache."""
        planned = [self.bench("decode", "--model", "smollm2-135m", "--layers", layers, "--steps", 1)[-1]["planned_bytes"]
                   for layers in (1, 2)]
        layer = 4 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 576 * 1536 + 2 * 576 + 8192 * 2 * 192)
        self.assertAlmostEqual((planned[1] - planned[0]) / layer, 1, delta=0.01)

    def test_decoding_at_longer_contexts(self):
        model, batch, steps = self.directory / "long", 2, 30
        write_model(model, gpt2_config(n_embd=16, n_head=2, n_positions=1024))
        *lines, summary = self.bench("decode", "--model", model, "--micro-batch-size", batch, "--steps", steps)
        self.check_summary(summary, "decode", batch)
        contexts = summary["contexts"]
        # of 1,024 positions 24 remain after the last context
        self.assertEqual([(c["context"], c["steps"]) for c in contexts], [(32, steps), (512, steps), (1000, 24)])
        for key in ("seconds", "tokens_per_s", "ceiling", "floor_seconds", "ratio"):
            self.assertEqual(contexts[0][key], summary[key])
        for c in contexts:
            self.assertAlmostEqual(c["tokens_per_s"] * c["seconds"] / batch, 1, delta=1e-4)
            self.check_pairs(c, [line for line in lines if line["context"] == c["context"]])
        # what is read beside the weights grows with the context
        floors = [c["floor_seconds"] * c["ceiling"] for c in contexts]
        grown = [4 * batch * 2 * 16 * (c["context"] + c["steps"] / 2) for c in contexts]
        least = summary["bytes_per_s"] * summary["seconds"]
        for floor, more in zip(floors, grown):
            self.assertGreaterEqual(floor / (least + more - grown[0]), 0.999)
        if floors[0] < 1.001 * least:
            self.assertAlmostEqual((floors[2] - floors[0]) / (grown[2] - grown[0]), 1, delta=1e-3)

    def test_loading(self):
        *lines, summary = self.bench("load", "--model", self.model, "--steps", 3, "--precision", "bf16")
        self.assertEqual(summary["file_bytes"], sum(path.stat().st_size for path in pathlib.Path(self.model).glob("*.safetensors")))
        for key in ("seconds", "read_seconds"):
            self.assertEqual(summary[key], statistics.median(line[key] for line in lines))
        ratios = [line["seconds"] / line["read_seconds"] for line in lines]
        for key, of in (("seconds_over_read", statistics.median), ("best_over_read", min), ("worst_over_read", max)):
            self.assertAlmostEqual(summary[key] / of(ratios), 1, delta=1e-3)
        self.assertGreaterEqual(summary["packed_bytes"], 2 * WEIGHTS)
        self.assertAlmostEqual(summary["peak_over_packed"] * summary["packed_bytes"] / summary["peak_rss_bytes"], 1, delta=1e-3)

    def test_the_engine(self):
        scratch = self.directory / "scratch"
        scratch.mkdir(exist_ok=True)
        steps, texts = 2, 16
        output, errors = run("bench", "engine", "--model", self.model, "--steps", steps, cwd=self.directory,
                             env=dict(os.environ, TMPDIR=str(scratch)))
        self.assertEqual(list(scratch.iterdir()), [])
        self.assertEqual([line for line in errors.splitlines() if "ranks 0, 1 " not in line], [])  # of the pipeline
        *lines, summary = rows(output)
        self.assertEqual((summary["bench"], summary["precision"]), ("engine", "fp32"))
        self.assertGreater(summary["peak_rss_bytes"], 0)
        figures = {figure["figure"]: figure for figure in summary["figures"]}
        self.assertEqual(list(figures), ["memory", "memory-adapters", "scheduler", "adapters", "bank", "idle-bank", "shared-prefix",
                                         "prompts", "swap", "swap-large", "pipeline"])
        # pairs of sides in turn: of speeds, or for the shared beginning of times
        context = POSITIONS // 8
        decoded = min(16 * steps, POSITIONS - context - 20)
        expected = {"scheduler": (steps, texts * context), "adapters": (decoded, texts), "idle-bank": (decoded, texts),
                    "bank": (512 // texts * steps, texts), "pipeline": (steps, texts * context), "shared-prefix": (steps, None)}
        for name, (pairs, tokens) in expected.items():
            figure, own = figures[name], [line for line in lines if line["figure"] == name]
            self.assertEqual((figure["pairs"], len(own)), (pairs, pairs), name)
            ratios = [line["seconds"] / line["baseline_seconds"] for line in own]
            ratios = [1 / ratio for ratio in ratios] if tokens else ratios
            self.assertAlmostEqual(figure["ratio"] / statistics.median(ratios), 1, delta=1e-4)
            self.assertLessEqual(figure["quartiles"][0], figure["ratio"])
            self.assertGreaterEqual(figure["quartiles"][1], figure["ratio"])
            for key, speed in (("seconds", "tokens_per_s"), ("baseline_seconds", "baseline_tokens_per_s")):
                self.assertAlmostEqual(figure[key] / statistics.median(line[key] for line in own), 1, delta=1e-4)
                if tokens:
                    self.assertAlmostEqual(figure[speed] * figure[key] / tokens, 1, delta=1e-4)
        prompts = figures["prompts"]
        self.assertAlmostEqual(prompts["ratio"] * prompts["median_seconds"] / prompts["p99_seconds"], 1, delta=1e-4)
        self.assertGreaterEqual(prompts["p99_seconds"], prompts["median_beside_prompts_seconds"])
        self.assertEqual(prompts["first_token"]["pairs"], steps)
        for name in ("swap", "swap-large"):
            figure = figures[name]
            self.assertAlmostEqual(figure["ratio"] * figure["baseline_p99_seconds"] / figure["p99_seconds"], 1, delta=1e-4)
            self.assertGreater(figure["swaps"], 0)
            # the texts wait for every part of a replacement
            self.assertGreater(figure["p99_seconds"], figure["part_seconds"])
            self.assertGreaterEqual(figure["longest_part_seconds"], figure["part_seconds"])
            self.assertGreaterEqual(figure["p99_seconds"], figure["median_seconds"])
        for name in ("memory", "memory-adapters"):
            figure = figures[name]
            self.assertAlmostEqual(figure["ratio"] * figure["planned_bytes"] / figure["peak_rss_bytes"], 1, delta=1e-4)
        self.assertGreater(figures["memory-adapters"]["planned_bytes"], figures["memory"]["planned_bytes"])

    def test_figures_of_the_engine_by_name(self):
        *lines, summary = self.bench("engine", "--model", self.model, "--steps", 1, "--filter", "idle")
        self.assertEqual([figure["figure"] for figure in summary["figures"]], ["idle-bank"])
        self.assertEqual({line["figure"] for line in lines}, {"idle-bank"})

    def test_the_tokenizer(self):
        text = "the cat sat on the mat, 12 times\n" * 500
        (self.directory / "text.txt").write_text(text)
        *lines, summary = self.bench("tokenizer", "--tokenizer", TINY, "--input", "text.txt", "--steps", 3)
        self.assertEqual(summary["seconds"], statistics.median(line["seconds"] for line in lines))
        self.assertAlmostEqual(summary["bytes_per_s"] * summary["seconds"] / len(text), 1, delta=1e-4)
        ids, _ = run("tokenize", "--tokenizer", TINY, input=text.replace("\n", " ").encode())
        self.assertAlmostEqual(summary["tokens"] / len(ids.split()), 1, delta=0.2)
        self.assertAlmostEqual(summary["tokens_per_s"] * summary["seconds"] / summary["tokens"], 1, delta=1e-4)

    def test_products(self):
        *lines, summary = self.bench("gemm", "--filter", "fp32 1x768x768 ")
        self.assertEqual((summary["bench"], summary["operations"], len(lines)), ("gemm", 1, 1))
        for key in ("seconds", "model_tflops", "ratio"):
            self.assertAlmostEqual(summary[key] / lines[0][key], 1, delta=1e-4)
        self.assertGreater(summary["ceiling"], 0)
        self.assertTrue(lines[0]["op"].startswith("gemm fp32 1x768x768 "), lines)
        for key in ("seconds", "model_tflops", "bytes_per_s", "ratio"):
            self.assertGreater(lines[0][key], 0)

    def test_checkpoints(self):
        for ranks in (1, 2):
            start = time.monotonic()
            *lines, summary = self.bench("checkpoint", "--model", self.model, "--seq-length", 16, "--steps", 3, "--ranks", ranks)
            plain = [line["plain_write_seconds"] for line in lines]  # of less than one large piece
            self.assertTrue(all(seconds > 0 for seconds in plain), plain)
            self.assertLess(sum(plain), time.monotonic() - start)
            self.assertEqual((summary["bench"], summary["ranks"], len(lines)), ("checkpoint", ranks, 6))
            self.assertGreater(summary["bytes"], 3 * 4 * WEIGHTS)  # and headers and texts
            self.assertLess(summary["bytes"], 3 * 4 * WEIGHTS + 100000)
            waiting, beside = summary["foreground"], summary["background"]
            self.assertEqual(waiting["seconds"], statistics.median(line["seconds"] for line in lines[:3]))
            self.assertAlmostEqual(waiting["gb_per_s"] / summary["ceiling"] / waiting["ratio"], 1, delta=1e-4)
            for key in ("copy_seconds", "write_seconds", "stall_seconds", "step_seconds"):
                self.assertEqual(beside[key], statistics.median(line[key] for line in lines[3:]))
            ratios = [line["stall_seconds"] / line["write_seconds"] for line in lines[3:]]
            self.assertAlmostEqual(beside["stall_over_write"] / statistics.median(ratios), 1, delta=1e-4)
            self.assertTrue(all(line[key] > 0 for line in lines[3:] for key in ("copy_seconds", "write_seconds")))
            self.assertTrue(all(line["stall_seconds"] >= line["copy_seconds"] for line in lines[3:]), lines)

    def test_finetuning(self):
        model, length, steps, layers, width = self.directory / "tuned", 32, 3, 2, 32
        config = gpt2_config(n_layer=layers, n_embd=width, n_head=4, n_inner=INNER, vocab_size=300, n_positions=length)
        write_model(model, config)
        weights = sum(math.prod(shape) for name, shape in gpt2_shapes(config).items() if name != "wpe.weight")
        expected = {"lora": layers * 8 * (width + 3 * width), "prompt": 20 * width}
        if LONG:
            expected |= {"adapter": layers * 2 * (2 * width * 5 + width + 5), "ia3": layers * (3 * width + INNER),
                         "prefix": 20 * layers * 2 * width, "ptuning": None}
        for method, trainable in expected.items():
            scratch = self.directory / "scratch"
            scratch.mkdir(exist_ok=True)
            output, errors = run("bench", "finetune", "--method", method, "--model", model, "--seq-length", length,
                                 "--steps", steps, "--peft.bottleneck=5", env=dict(os.environ, TMPDIR=str(scratch)))
            self.assertEqual((errors, list(scratch.iterdir())), ("", []))
            *lines, summary = rows(output)
            self.assertEqual((len(lines), summary["method"]), (steps, method))
            self.assertEqual(summary["seconds"], statistics.median(line["seconds"] for line in lines))
            self.check_summary(summary, "finetune", length)
            # 4 operations a weight: what is frozen has no gradient
            self.check_flops(summary, length * (4 * weights + 4 * layers * width * length))
            if trainable is not None:
                self.assertEqual(summary["trainable_parameters"], trainable)
            self.assertGreater(summary["load_seconds"], 0)
            baseline = summary["baseline"]
            self.assertEqual(baseline["seconds"], statistics.median(line["baseline_seconds"] for line in lines))
            self.assertAlmostEqual(summary["step_time_over_baseline"] * baseline["seconds"] / summary["seconds"], 1,
                                   delta=1e-4)
            self.assertAlmostEqual(
                summary["peak_rss_over_baseline"] * baseline["peak_rss_bytes"] / summary["peak_rss_bytes"], 1,
                delta=1e-4)

        output, _ = run("bench", "finetune", "--method", "lora", "--model", model, "--seq-length", length, "--steps", 2,
                        "--ranks", 2, "--parallel.data_parallel_sharding_strategy=optim_grads_params")
        *lines, summary = rows(output)
        self.assertEqual((len(lines), summary["ranks"], summary["layout"]["sharding"]), (2, 2, "optim_grads_params"))
        self.assertEqual(summary["trainable_parameters"], expected["lora"])
        self.assertNotIn("load_seconds", summary)
        self.check_flops(summary, 2 * length * (4 * weights + 4 * layers * width * length))

    def test_what_cannot_be_measured(self):
        for words, part in ((["train", "--model", self.model, "--seq-length", 65], "65 is more than the model's 64"),
                            (["train", "--model", self.model, "--seq-length", 8, *TP2[2:]], "needs 2 ranks"),
                            (["train", "--model", self.model, "--seq-length", 8, *ZERO, "--global-batch-size", 3],
                             "train.global_batch_size 3"),
                            (["decode", "--model", self.model, "--steps", 64], "more than the model's positions"),
                            (["load"], "gpt2-124m has no files"),
                            (["decode", "--model", self.model, "--layers", 2], "has its own layers"),
                            (["finetune", "--model", self.model, "--seq-length", 8], "a vocabulary of 257 or more"),
                            (["engine", "--model", self.model, "--filter", "nothing"], "no figure"),
                            (["engine", "--model", self.model / "iter_0000003"], "64 positions or more, not 16"),
                            (["tokenizer"], "--tokenizer DIR and --input FILE"),
                            (["decode", "--precision", "fp8"], "--precision fp8: bench decode has none"),
                            (["ops", "--filter", "nothing-of-this-name"], "nothing-of-this-name")):
            errors = self.bench(*words, expect=2)
            self.assertEqual(errors.count("\n"), 1, errors)
            self.assertIn(part, errors)

    def test_the_failure_of_a_measuring_process_is_one_line(self):
        model = self.directory / "letters"
        write_model(model, gpt2_config(vocab_size=300, n_positions=64))
        for what in ("finetune", "decode"):
            words = ["--seq-length", 8] if what == "finetune" else ["--steps", 2]
            errors = self.bench(what, "--model", model, *words, "--gemm-algorithms", self.directory / "none.json", expect=1)
            self.assertEqual(errors.count("\n"), 1, errors)
            self.assertIn("products on cpu have no choice of algorithms", errors)


if __name__ == "__main__":
    unittest.main()
