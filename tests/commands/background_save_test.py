"""pretrain with checkpoint.async_save: the files and the run of the foreground, whatever ends it; and saves of processes."""
import os, random, signal, subprocess, time, unittest

from model_support import PRECISIONS
from mpi_support import needs_mpirun, start
from pretrain_support import LONG, Run, timeless, wait_for

AT_ONCE = 3

BESIDE = dict(checkpoint__async_save="true", checkpoint__save_interval=3)
WAITING = dict(checkpoint__save_interval=3)
LAYOUTS = {"one": (1, {}), "tensor": (2, dict(parallel__tensor_model_parallel_size=2)),
           "zero": (4, dict(parallel__use_distributed_optimizer="true", train__micro_batch_size=1)),
           "copies": (2, dict(train__precision=PRECISIONS[-1]))}


class Bounded(Run):
    """Ranks that do not agree on a save wait for each other for ever: that must fail soon."""

    def __init__(self):
        super().__init__()
        self.seconds = 120


class Background(unittest.TestCase):
    def test_the_files_are_those_of_the_foreground(self):
        run = Bounded()
        for name, (ranks, layout) in LAYOUTS.items():
            run.run(f"waiting-{name}", ["--ranks", str(ranks)], **WAITING, **layout)
            done = run.run(f"beside-{name}", ["--ranks", str(ranks)], **BESIDE, **layout)
            self.assertEqual(run.files(f"waiting-{name}"), run.files(f"beside-{name}"), name)
            self.assertEqual(done.stderr.count("; the training stood still for "), 7, done.stderr)  # the end, too
            self.assertEqual(timeless(run.records(f"waiting-{name}")), timeless(run.records(f"beside-{name}")))

    def test_old_ones_go(self):
        run = Bounded()
        run.run(**BESIDE, checkpoint__keep_last=2)
        self.assertEqual(run.checkpoints(), ["iter_0000018", "iter_0000020"])

    def test_what_a_kill_left_unpruned_goes_when_the_run_goes_on(self):
        """Also where there is nothing left to train. Without training nothing goes."""
        run = Bounded()
        run.run(**BESIDE, checkpoint__keep_last=3)
        left = ["iter_0000015", "iter_0000018", "iter_0000020"]
        self.assertEqual(run.checkpoints(), left)
        run.run(**BESIDE, checkpoint__keep_last=2, train__skip_train="true")
        self.assertEqual(run.checkpoints(), left)
        run.run(**BESIDE, checkpoint__keep_last=2)
        self.assertEqual(run.checkpoints(), left[1:])

    def test_files_of_bounded_size_come_back(self):
        run = Bounded()
        run.run("whole", model__hidden_size=256)
        keys = dict(model__hidden_size=256, checkpoint__max_shard_size=1)
        run.run("cut", train__exit_interval=9, **BESIDE, **keys)
        names = {path.split("/")[1] for path in run.files("cut")}
        self.assertIn("optimizer.safetensors.index.json", names)
        self.assertGreater(sum(n.startswith("optimizer-0") for n in names), 2)
        self.assertNotIn("optimizer.safetensors", names)
        for path, data in run.files("cut").items():
            self.assertLess(len(data), 1100000, path)
        run.run("cut", model__hidden_size=256)
        self.assertEqual(timeless(run.records("whole")), timeless(run.records("cut")))

    def test_kill_at_any_moment_leaves_the_last_whole_checkpoint(self):
        keys = dict(train__train_iters=30, checkpoint__save_interval=1, checkpoint__keep_last=2, checkpoint__async_save="true")
        run = Bounded()
        begin = time.monotonic()
        run.run("whole", **keys)
        seconds, whole, moment = time.monotonic() - begin, run.files("whole"), random.Random(12)
        for trial in range(20 if LONG else 5):
            name, ranks = f"killed-{trial}", ["--ranks", str(1 + trial % 2)]
            process = run.start(name, ranks, **keys)
            time.sleep(moment.random() * seconds)
            process.kill()
            process.communicate()
            run.run(name, **keys)
            self.assertEqual(set(run.files(name)), set(whole), name)
            self.assertEqual(len(run.records(name)), len(run.records("whole")))
            if trial % 2 == 0:  # on one rank throughout: to the bit
                self.assertEqual(whole, run.files(name), name)

    def test_a_signal_ends_with_everything_saved(self):
        run = Bounded()
        keys = dict(train__train_iters=100000, checkpoint__save_interval=1, checkpoint__keep_last=3, checkpoint__async_save="true")
        process = run.start("run", ["--ranks", "2"], **keys)
        metrics = run.directory / "run.jsonl"
        self.assertTrue(wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 5, process))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, errors)
        last = run.records()[-1]["iteration"]
        self.assertEqual(run.checkpoints(), [f"iter_{i:07d}" for i in range(last - 2, last + 1)])
        self.assertEqual([p.name for p in (run.directory / "run").iterdir() if ".cambium-" in p.name], [])

    def test_a_full_file_system_ends_the_run(self):
        run = Bounded()
        root = run.directory / "run"
        tokenizer = run.directory / "tokenizer"
        root.mkdir()
        mounted = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", root],
                                                       capture_output=True).returncode == 0
        if not mounted:
            self.skipTest("a_full_file_system: mounting a tmpfs needs root")
        try:
            run.run(train__exit_interval=3, **BESIDE)
            tensors = 1 + sum((p.stat().st_size + 4095) // 4096 for p in root.rglob("*.safetensors"))  # with the mark before them
            for room in (tensors - 1, tensors):  # not for the tensors; only for them, so that the thread fails
                space = os.statvfs(root)
                (root / "filler").write_bytes(bytes((space.f_bavail - room) * space.f_bsize))
                done = run.run(use=["--ranks", "2"], expect=1, **BESIDE)
                (root / "filler").unlink()
                errors = [line for line in done.stderr.splitlines() if line.startswith("cambium: error: ")]
                self.assertEqual(len(errors), 1, done.stderr)
                self.assertIn("iter_0000006 was not saved", errors[0])
                self.assertIn("No space left on device", errors[0])
                self.assertIn("config.json" if room == tensors else "optimizer.safetensors", errors[0])
                self.assertEqual([p.name for p in root.iterdir()], ["iter_0000003"])
            run.run(checkpoint__keep_last=1, checkpoint__async_save="true")
            self.assertEqual(run.checkpoints(), ["iter_0000020"])
        finally:
            subprocess.run(["umount", root])


@needs_mpirun
class Processes(unittest.TestCase):
    def launch(self, run, ranks, name, expect=0, **keys):
        process = start(run, ranks, name, **keys)
        try:
            _, errors = process.communicate(timeout=run.seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
        self.assertEqual(process.returncode == 0, expect == 0, errors)
        return errors

    def test_processes_write_the_files_of_threads(self):
        # In the foreground through MPI-IO, in the background each by itself.
        run = Bounded()
        for name, (ranks, layout) in list(LAYOUTS.items())[1:]:
            run.run(f"threads-{name}", ["--ranks", str(ranks)], **WAITING, **layout)
            for how, keys in (("waiting", WAITING), ("beside", BESIDE)):
                errors = self.launch(run, ranks, f"{how}-{name}", **keys, **layout)
                self.assertEqual(run.files(f"threads-{name}"), run.files(f"{how}-{name}"), (name, how))
                self.assertEqual(errors.count("saved "), 7, errors)

    def test_changed_keys_are_told_once(self):
        run = Bounded()
        self.launch(run, 2, "run", train__exit_interval=3)
        errors = self.launch(run, 2, "run", train__seed=7)
        self.assertEqual(errors.count("train.seed was "), 1, errors)

    def test_a_file_system_that_fills_up_is_one_line(self):
        run = Bounded()
        root = run.directory / "run"
        root.mkdir()
        mounted = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", root],
                                                       capture_output=True).returncode == 0
        if not mounted:
            self.skipTest("a_file_system_that_fills_up: mounting a tmpfs needs root")
        try:
            run.run(train__exit_interval=3)
            (root / "filler").write_bytes(bytes(200 << 10))
            for keys in (WAITING, BESIDE):
                errors = self.launch(run, 2, "run", expect=1, **keys)
                self.assertEqual(errors.count("iter_0000006 was not saved"), 1, errors)
                self.assertIn("No space left on device", errors)
                self.assertEqual(run.checkpoints(), ["iter_0000003"])
        finally:
            subprocess.run(["umount", root])


if __name__ == "__main__":
    unittest.main()
