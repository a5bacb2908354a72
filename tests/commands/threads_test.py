"""How many threads compute, whatever the environment and the options say: the same losses, and no crash."""
import os, subprocess, sys, unittest

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
        # OpenMP may give fewer threads than requested, or be asked for more than can be started.
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

    def test_the_plan_names_the_threads_and_why(self):
        done = subprocess.run([*self.run.command("plan", parallel__threads_per_rank=2), "--dry-run"], capture_output=True,
                              text=True, timeout=60)
        cores = len(os.sched_getaffinity(0))
        self.assertRegex(done.stdout, rf"memory plan of \d+ parameters, 2 threads \(as asked, of {cores} cores?\):")
        allowed = {min(os.sched_getaffinity(0))}
        done = subprocess.run([*self.run.command("plan"), "--dry-run"], capture_output=True, text=True, timeout=60,
                              preexec_fn=lambda: os.sched_setaffinity(0, allowed))
        why = "all cores" if os.cpu_count() == 1 else f"affinity leaves 1 of {os.cpu_count()} cores"
        self.assertRegex(done.stdout, rf"memory plan of \d+ parameters, 1 thread \({why}\):")

    @unittest.skipIf(os.cpu_count() < 2, "one thread waits for nobody")
    def test_a_busy_machine_is_named_once(self):
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
        command = self.run.command("busy", train__train_iters=10**6, checkpoint__save=None, checkpoint__load=None)
        lines, busy = [], []
        environment = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env=environment) as run:
            try:
                for line in run.stderr:
                    lines.append(line)
                    if "this machine is busy" in line:
                        busy.append(line)
                        run.terminate() # it ends a step later, and says no more of it
            finally:
                run.kill()
                for hog in hogs:
                    hog.kill()
                    hog.wait()
        self.assertEqual(len(busy), 1, "".join(lines)[-2000:])
        self.assertRegex(busy[0], r"load \d+ on \d+ cores; threads sleep while they wait for each other\n$")


if __name__ == "__main__":
    unittest.main()
