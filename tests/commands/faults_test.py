"""A rank that is killed, or cannot write, ends all ranks; the next start resumes from the last whole checkpoint."""
import os, random, re, resource, signal, stat, time, unittest

from mpi_support import MPIRUN, is_running, needs_mpirun, rank_processes, start, wait_for_end
from pretrain_support import LONG, Run, timeless, wait_for

TP2 = dict(parallel__tensor_model_parallel_size=2)
ZERO = dict(parallel__use_distributed_optimizer="true")
SHARDED = dict(parallel__data_parallel_sharding_strategy="optim_grads_params")
PP2 = dict(parallel__pipeline_model_parallel_size=2)
# In a pipeline that is as long as a batch has micro batches, ranks fill and flush it all the time.
LAYOUTS = [(2, TP2), (4, dict(parallel__pipeline_model_parallel_size=4)), (4, dict(**TP2, **ZERO)), (4, dict(**TP2, **PP2)), (2, SHARDED),
           (4, dict(**PP2, **SHARDED, parallel__virtual_pipeline_model_parallel_size=2)),
           (3, dict(train__global_batch_size=3, checkpoint__async_save="true"))]
KEYS = dict(model__num_layers=4, train__train_iters=30, train__micro_batch_size=1, checkpoint__save_interval=2)
SECONDS = 60  # for what takes a moment where nothing is wrong


class Moment:
    """A random moment of a run: in a step (or the flush of a pipeline), in a save, or while a checkpoint is loaded."""

    def __init__(self, number, r):
        self.kind = ("step", "save", "load")[number % 3]
        self.count = r.randrange(12)  # steps or checkpoints that are waited for
        self.delay = r.random() * {"step": 0.03, "save": 0.004, "load": 0.3}[self.kind]
        self.victim = r.random()
        self.ranks, self.layout = LAYOUTS[number % len(LAYOUTS)]

    def __str__(self):
        return f"{self.kind} {self.count} + {1000 * self.delay:.1f} ms, rank {int(self.victim * self.ranks)} of {self.ranks}, {self.layout}"

    def wait(self, run, name, process, said):
        metrics, root = run.directory / f"{name}.jsonl", run.directory / name
        if self.kind == "load":  # all ranks have met, and begin to load: PMIx 4.2.2 may hang when one dies before
            wait_for(lambda: "ranks: tensor" in said.read_text(), process)
        if self.kind == "step":
            wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > self.count, process)
        elif self.kind == "save":
            wait_for(lambda: len(run.checkpoints(name)) >= self.count and any(".cambium-" in p.name for p in root.glob("*")), process)
        time.sleep(self.delay)


@needs_mpirun
class Killed(unittest.TestCase):
    def kill_one(self, run, name, moment, keys):
        """Kills a rank at the moment; what the launcher said, or None where the run was over before."""
        said = run.directory / f"{name}.said"
        with open(said, "w", encoding="utf-8") as stderr:
            process = start(run, moment.ranks, name, stderr=stderr, **keys)
        self.addCleanup(process.kill)
        word = f"--checkpoint.save={run.directory / name}"
        ranks = {}

        def all_are_there():
            ranks.update(rank_processes(word))
            return len(ranks) == moment.ranks

        self.assertTrue(wait_for(all_are_there, process))
        moment.wait(run, name, process, said)
        victim = int(moment.victim * moment.ranks)
        was_over = not is_running(ranks[victim])
        if not was_over:
            os.kill(ranks[victim], signal.SIGKILL)
        self.assertEqual(wait_for_end(list(ranks.values()), SECONDS), [], "ranks still run")
        self.assertEqual(wait_for_end([process.pid], SECONDS), [], "mpirun still runs")
        process.communicate(timeout=SECONDS)
        errors = said.read_text()
        if was_over or process.returncode == 0:  # it had ended, or was in its last breath
            return None
        self.assertRegex(errors, rf"\brank {victim}\b.*\bsignal 9\b")
        return errors

    def test_the_others_end_and_the_next_start_goes_on(self):
        run, r, killed = Run(), random.Random(20261121), 0
        for number in range(20 if LONG else 6):
            moment = Moment(number, r)
            keys, name = dict(KEYS, **moment.layout), f"run{number}"
            threads = ["--ranks", str(moment.ranks)]
            whole = f"whole{number % len(LAYOUTS)}"
            with self.subTest(str(moment)):
                if not (run.directory / whole).exists():
                    run.run(whole, threads, **keys)
                if moment.kind == "load":
                    run.run(name, threads, train__exit_interval=10, **keys)
                killed += self.kill_one(run, name, moment, keys) is not None
                checkpoints = run.checkpoints(name)
                if number % 2:
                    done = run.run(name, threads, **keys).stderr
                else:
                    process = start(run, moment.ranks, name, **keys)
                    _, done = process.communicate(timeout=300)
                    self.assertEqual(process.returncode, 0, done)
                self.assertIn(f"resuming from {run.directory / name}/{checkpoints[-1]} " if checkpoints else "starting afresh", done)
                self.assertEqual(timeless(run.records(name)), timeless(run.records(whole)))
                newest = f"iter_{KEYS['train__train_iters']:07d}/"
                of_both = [{p: data for p, data in run.files(n).items() if p.startswith(newest)} for n in (name, whole)]
                self.assertEqual(*of_both)
                self.assertEqual([p.name for p in (run.directory / name).iterdir() if ".cambium-" in p.name], [])
        self.assertGreaterEqual(killed, 15 if LONG else 4)  # most moments come before the end


class NoSpace(unittest.TestCase):
    """A file that may not grow, at one rank or at all of them, as on a full disk."""

    KEYS = dict(model__hidden_size=64, model__num_layers=4, train__micro_batch_size=1)
    LIMIT = 300 * 1024  # a moment of the optimizer is larger than this, everything before it smaller

    def check(self, run, errors):
        lines = [line for line in errors.splitlines() if "error: " in line and line.startswith("cambium")]
        self.assertEqual(len(lines), 1, errors)
        self.assertRegex(lines[0], rf"^cambium: error: rank \d+.*: cannot write (\d+ bytes to )?{run.directory}/run/.*: .*(File too large|is the disk full\?\))$")
        self.assertEqual(run.checkpoints(), ["iter_0000005"])
        return int(re.search(r"rank (\d+)", lines[0])[1])

    def test_threads_end_with_one_line(self):
        run = Run()
        run.run(train__exit_interval=5, **self.KEYS)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.LIMIT, before[1]))
        try:
            done = run.run("run", ["--ranks", "4"], expect=1, **ZERO, **self.KEYS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.check(run, done.stderr)
        run.run("run", ["--ranks", "4"], **ZERO, **self.KEYS)
        self.assertEqual(run.records()[-1]["iteration"], 20)

    @needs_mpirun
    def test_one_process_without_space_ends_all(self):
        run = Run()
        run.run(train__exit_interval=5, **self.KEYS)
        limited = run.directory / "limited"
        limited.write_text(f'#!/bin/bash\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && ulimit -S -f {self.LIMIT // 1024}\nexec "$@"\n')
        limited.chmod(limited.stat().st_mode | stat.S_IXUSR)
        command = run.command("run", **ZERO, **self.KEYS)
        run.command = lambda *a, **k: [str(limited), *command]
        process = start(run, 2, launcher=[*MPIRUN, "--mca", "btl", "tcp,self"])
        _, errors = process.communicate(timeout=300)
        self.assertNotEqual(process.returncode, 0, errors)
        self.assertEqual(self.check(run, errors), 1)


if __name__ == "__main__":
    unittest.main()
