"""What a run may write to: not what another one has written, and not what another one is writing."""
import os, signal, subprocess, unittest

from model_support import run as run_program
from pretrain_support import Run, wait_for
from finetune_support import Tuning


def errors_of(done):
    return [line for line in done.stderr.splitlines() if "error: " in line]


class Checkpoints(unittest.TestCase):
    FRESH = dict(checkpoint__load=None, log__metrics_file=None)

    def test_a_fresh_run_leaves_older_checkpoints_alone(self):
        run = Run()
        run.run(checkpoint__save_interval=10)
        before = run.files()
        done = run.run(train__train_iters=15, checkpoint__save_interval=4, checkpoint__keep_last=1, **self.FRESH)
        self.assertIn("iter_0000020 is already there and this run does not go on from it", done.stderr)
        self.assertEqual(run.checkpoints(), ["iter_0000010", "iter_0000015", "iter_0000020"])
        self.assertEqual({name: data for name, data in run.files().items() if "0015" not in name}, before)

    def test_what_would_replace_another_is_refused_before_the_first_step(self):
        run = Run()
        run.run(checkpoint__save_interval=10)
        before = run.files()
        for name, keys in (("10", dict(checkpoint__save_interval=5, train__train_iters=30)), ("20", {}),
                           ("10", dict(train__exit_interval=10, train__train_iters=12)), ("20", dict(train__train_iters=20))):
            done = run.run(expect=1, **self.FRESH, **keys)
            line, = errors_of(done)
            self.assertIn(f"iter_00000{name} is already there, and this run would write it", line)
            self.assertIn("checkpoint.load", line)
            self.assertNotIn("iteration  1", done.stderr)
            self.assertEqual(run.files(), before)

    def test_a_run_prunes_what_it_goes_on_from_and_no_later_one(self):
        run = Run()
        run.run(checkpoint__save_interval=4)
        keys = dict(checkpoint__keep_last=2, log__metrics_file=None)
        done = run.run(**keys, checkpoint__load=run.directory / "run/iter_0000012", train__train_iters=18, checkpoint__save_interval=7)
        self.assertIn("iter_0000020 is already there and this run does not go on from it", done.stderr)
        self.assertEqual(run.checkpoints(), ["iter_0000014", "iter_0000016", "iter_0000018", "iter_0000020"])
        done = run.run(expect=1, **keys, checkpoint__load=run.directory / "run/iter_0000014")
        self.assertIn("iter_0000020 is already there", errors_of(done)[0])
        run.run("other", **keys, checkpoint__load=run.directory / "run", train__train_iters=30)
        self.assertEqual(run.checkpoints(), ["iter_0000014", "iter_0000016", "iter_0000018", "iter_0000020"])
        run.run(**keys, train__train_iters=30)
        self.assertEqual(run.checkpoints(), ["iter_0000020", "iter_0000030"])

    def test_a_directory_that_cannot_be_written_shows_before_the_first_step(self):
        run = Run()
        for path in ("/proc", "/proc/none", run.prefix.with_suffix(".idx")):
            for ranks in ("1", "2"):
                done = run.run("run", ["--ranks", ranks], expect=1, checkpoint__save=path, checkpoint__load=None)
                line, = errors_of(done)
                self.assertIn(str(path), line)
                self.assertNotIn("iteration  1", done.stderr)


class Locks(unittest.TestCase):
    KEYS = dict(train__train_iters=1000000)

    def check(self, run, use, second):
        metrics = run.directory / "run.jsonl"
        metrics.unlink(missing_ok=True)
        process = run.start("run", use, **self.KEYS)
        try:
            self.assertTrue(wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, process))
            line, = errors_of(second())
            self.assertIn(f"is in use by another run (process {process.pid})", line)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        return line

    def test_a_second_run_into_the_same_directory_is_refused_and_death_ends_the_lock(self):
        run = Run()
        for use in ([], ["--ranks", "2"]):
            line = self.check(run, use, lambda: run.run(expect=1, log__metrics_file=run.directory / "other.jsonl"))
            self.assertIn(f"{run.directory}/run ", line)
        run.run(train__train_iters=3)

    def test_a_second_finetune_into_the_same_output_is_refused(self):
        Tuning.setUpClass()
        try:
            words = ["finetune", "--model", Tuning.base, "--peft", "ia3", "--data", Tuning.data, "--output", Tuning.root / "out",
                     "--optim.lr=1e-3", f"--checkpoint.load={Tuning.root / 'out'}"]
            run_program(*words, "--train.train_iters=2")
            metrics = Tuning.root / "long.jsonl"
            process = subprocess.Popen([os.environ["CAMBIUM"], *map(str, words), "--train.train_iters=1000000",
                                        f"--log.metrics_file={metrics}"], stderr=subprocess.DEVNULL)
            self.assertTrue(wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, process))
            # This one has nothing left to train, and would only write the adapter.
            done = subprocess.run([os.environ["CAMBIUM"], *map(str, words), "--train.train_iters=2"], capture_output=True, text=True)
            process.kill()
            process.wait()
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"{Tuning.root / 'out'} is in use by another run (process {process.pid})", errors_of(done)[0])
            run_program(*words, "--train.train_iters=2")
        finally:
            Tuning.tearDownClass()


if __name__ == "__main__":
    unittest.main()
