"""The memory plan: what a run takes is what it said, in every layout, and a plan beyond the memory is refused beforehand."""
import re, subprocess, unittest

import model_support
from finetune_support import Tuning
from mpi_support import needs_mpirun, start
from pretrain_support import CAMBIUM, Run

P = "parallel__"
# A model whose layers are most of it, and their memory more than the program itself.
MODEL = dict(model__vocab_size=512, model__hidden_size=256, model__num_layers=8, data__seq_length=128, train__micro_batch_size=4,
             train__global_batch_size=8, train__train_iters=3)
EVEN = {P + "pipeline_model_parallel_size": 2}
LAYOUTS = {"first": {**EVEN, P + "decoder_first_pipeline_num_layers": 7, P + "decoder_last_pipeline_num_layers": 1},
           "last": {**EVEN, P + "decoder_first_pipeline_num_layers": 1, P + "decoder_last_pipeline_num_layers": 7},
           "even": EVEN}


def memory(errors):
    """Peak and plan of the last line, in MiB."""
    return map(float, re.fullmatch(r"cambium: peak memory ([0-9.]+) MiB, planned ([0-9.]+) MiB", errors.splitlines()[-1]).groups())


def check_memory(test, errors, processes=1):
    """The peak is no more than planned, and the parts of the plan, without the program, are taken."""
    peak, planned = memory(errors)
    program = processes * float(re.search(r"(?m)^cambium:   program +([0-9.]+) MiB$", errors)[1])
    test.assertLessEqual(peak, planned * 1.05, errors)
    test.assertGreaterEqual(peak, (planned - program) * 0.9, errors)
    test.assertGreaterEqual(peak, planned * 0.4, errors)
    return planned


class Plans(unittest.TestCase):
    def check(self, errors, processes, host=None):
        planned = check_memory(self, errors, processes)
        if host is not None:
            self.assertAlmostEqual(host, planned, delta=0.1 + 0.01 * planned)

    def host(self, text):
        return float(re.search(r"this host +([0-9.]+) MiB of 2 ranks", text)[1])

    @model_support.counts_memory
    def test_a_pipeline_takes_what_was_planned_for_all_its_stages(self):
        run = Run()
        self.addCleanup(run.temporary.cleanup)
        named = {"first": (0, 0), "last": (1, 1), "even": (0, 0)}
        for name, layout in LAYOUTS.items():
            done = run.run(name, ["--ranks", "2"], **MODEL, **layout)
            rank, stage = named[name]
            self.assertIn(f"rank {rank} of 2 (tensor 0, data 0, pipeline {stage}), which takes most, ", done.stderr)
            self.check(done.stderr, 1, self.host(done.stderr))

    @model_support.counts_memory
    def test_one_rank_and_others_without_stages_do_too(self):
        run = Run()
        self.addCleanup(run.temporary.cleanup)
        done = run.run("one", **MODEL)
        self.assertNotIn("this host", done.stderr)
        self.check(done.stderr, 1)
        done = run.run("tensor", ["--ranks", "2"], **MODEL, parallel__tensor_model_parallel_size=2)
        self.check(done.stderr, 1, self.host(done.stderr))
        done = run.run("sharded", ["--ranks", "2"], **MODEL, parallel__data_parallel_sharding_strategy="optim_grads_params")
        self.check(done.stderr, 1, self.host(done.stderr))
        # Initial values come in blocks, which a thread's arena must not keep.
        done = run.run("vocabulary", ["--ranks", "2"], **{**MODEL, "model__vocab_size": 8000}, parallel__tensor_model_parallel_size=2)
        self.check(done.stderr, 1, self.host(done.stderr))

    @model_support.counts_memory
    def test_index_maps_are_held_once_by_the_ranks_of_a_process(self):
        """Twenty epochs of many small documents, one file or a blend, with a cache and without."""
        run = Run([[1, 2, 3, 4]] * 300_000)
        self.addCleanup(run.temporary.cleanup)
        keys = dict(train__train_iters=280_000, train__exit_interval=1, train__eval_iters=0, data__split="100,0,0",
                    train__micro_batch_size=1)
        peaks = {}
        for name, ranks, more in (("one", 1, {}), ("cached", 4, {}), ("plain", 4, {"data__data_cache_path": ""}),
                                  ("blend", 2, {"data__data_path": f"0.3 {run.prefix} 0.7 {run.prefix}"})):
            use = ["--data.data_path", *more.pop("data__data_path").split()] if "data__data_path" in more else []
            done = run.run(name, ["--ranks", str(ranks), *use], **keys, **more, **({"data__data_path": None} if use else {}))
            peaks[name], planned = memory(done.stderr)
            self.assertGreater(planned, 30)  # the maps alone
            self.check(done.stderr, 1)
            sums = re.search(r"this host +([0-9.]+) MiB", done.stderr)
            if sums:
                self.assertAlmostEqual(float(sums[1]), planned, delta=1)
        self.assertLess(peaks["cached"], peaks["one"] + 15)
        self.assertLess(peaks["plain"], peaks["one"] + 15)

    @needs_mpirun
    def test_processes_are_added_up(self):
        run = Run()
        self.addCleanup(run.temporary.cleanup)
        process = start(run, 2, "last", **MODEL, **LAYOUTS["last"])
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, errors)
        ours = "".join(line + "\n" for line in errors.splitlines() if line.startswith("cambium: "))
        self.check(ours, 2, self.host(ours))

    def test_more_than_the_memory_is_refused_before_anything_is_done(self):
        run = Run()
        self.addCleanup(run.temporary.cleanup)
        before = run.tree()
        huge = {**MODEL, "model__hidden_size": 1 << 16, "model__num_layers": 64, "train__global_batch_size": 16}
        for use in ([], ["--dry-run"], ["--ranks", "2"], ["--ranks", "2", "--dry-run"]):
            done = run.run("run", use, expect=1, **huge)
            self.assertIn("memory plan of", done.stdout if "--dry-run" in use else done.stderr)
            errors = [line for line in done.stderr.splitlines() if "error: " in line]
            self.assertEqual(len(errors), 1, done.stderr)
            self.assertRegex(errors[0], r"^cambium: error: not enough memory: [0-9.]+ GiB are planned on this host, which")
            self.assertIn("; what would help: a smaller data.seq_length, ", errors[0])
            self.assertEqual("use_distributed_optimizer" in errors[0], "--ranks" in use)
        self.assertEqual(before, run.tree())


class Adapters(Tuning):
    @model_support.counts_memory
    def test_the_peak_is_told_when_the_adapter_is_there(self):
        base = self.root / "wide"
        model_support.write_byte_model(base, n_layer=1, n_head=4, n_embd=512, n_positions=48)
        done = subprocess.run([CAMBIUM, "finetune", "--model", base, "--peft", "lora", "--peft.r=1024", "--peft.target_modules", "c_attn",
                               "c_proj", "c_fc", "--data", self.data, "--output", self.root / "wide-adapter", "--optim.lr=1e-3",
                               "--train.train_iters=3", "--train.global_batch_size=4"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the adapter is in", done.stderr.splitlines()[-2])
        check_memory(self, done.stderr)


if __name__ == "__main__":
    unittest.main()
