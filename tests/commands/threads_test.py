"""How many threads compute, whatever the environment and the options say: the same losses, and no crash."""
import os, subprocess, unittest

from pretrain_support import Run


@unittest.skipIf("thread" in os.environ.get("CAMBIUM_SANITIZED", ""), "a build without OpenMP")
class Threads(unittest.TestCase):
    def setUp(self):
        self.run = Run()
        self.addCleanup(self.run.temporary.cleanup)

    def losses(self, name, environment, **keys):
        done = subprocess.run(self.run.command(name, train__train_iters=3, checkpoint__save=None, checkpoint__load=None,
                                               model__hidden_size=64, **keys),
                              env=os.environ | environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, (environment, done.stderr[-2000:]))
        warnings = [line for line in done.stderr.splitlines() if "computing with" in line]
        return [r["lm_loss"] for r in self.run.records(name) if "lm_loss" in r], warnings

    def test_the_environment_of_openmp_changes_no_loss(self):
        # OpenMP may give fewer threads than are asked for, or be told of more than can be started.
        expected, warnings = self.losses("plain", {}, parallel__threads_per_rank=2)
        self.assertEqual(len(expected), 3)
        self.assertEqual(warnings, [])
        for name, value, is_told in (("OMP_NUM_THREADS", "100000", False), ("OMP_THREAD_LIMIT", "1", True),
                                     ("OMP_MAX_ACTIVE_LEVELS", "0", True), ("OMP_DYNAMIC", "true", False),
                                     ("OMP_THREAD_LIMIT", "100000", False)):
            with self.subTest(name=name, value=value):
                found, warnings = self.losses(name + value, {name: value}, parallel__threads_per_rank=2)
                for a, b in zip(found, expected, strict=True):
                    self.assertLess(abs(a - b), 1e-5 * b)
                self.assertEqual(len(warnings), is_told, warnings)

    def test_more_threads_than_the_machine_can_use_are_not_started(self):
        if os.cpu_count() > 256:
            self.skipTest("this machine may use as many")
        _, warnings = self.losses("many", {}, parallel__threads_per_rank=4096, train__micro_batch_size=1,
                                  train__global_batch_size=1, model__num_layers=1)
        self.assertEqual(len(warnings), 1)
        self.assertIn("computing with 256 threads, not 4096: more would wait", warnings[0])


if __name__ == "__main__":
    unittest.main()
