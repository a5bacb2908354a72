"""pretrain and generate on two hosts: network namespaces joined by a veth pair, Open MPI over TCP between them.

Each has a network, a host name and a directory for index caches of its own; the checkpoints' directory is shared."""
import os, re, signal, subprocess, unittest

from cluster_support import need_programs, need_root, skip
from hosts_support import Network, sh
from model_support import CAMBIUM, TINY
from mpi_support import MPIRUN, rank_processes, start, wait_for_end
from pretrain_support import Run, assert_same_run, timeless, wait_for

TP2 = dict(parallel__tensor_model_parallel_size=2)
LAYOUTS = {  # tensor ranks are neighbours on a host, data ranks and stages of a pipeline are not
    "pipeline": dict(TP2, parallel__pipeline_model_parallel_size=2),
    "data": dict(TP2),
    "zero": dict(TP2, parallel__use_distributed_optimizer="true", parallel__sequence_parallel="true"),
}
KEYS = dict(model__num_layers=4, train__micro_batch_size=1)


network = None


def setUpModule():
    global network
    need_root()
    need_programs(["ip", "unshare", "mpirun"], "--cluster")
    network = Network()
    try:
        network.open()
    except RuntimeError as error:
        network.close()
        skip(f"this machine gives no network namespaces ({error})")


def tearDownModule():
    network.close()


class Hosts(unittest.TestCase):
    # Bytes of a step that must have crossed: half of the gradients of 52,000 weights, or activations of 4 x 16 x 32.
    LEAST = {"pipeline": 4 * 2048, "data": 2 * 52_000, "zero": 2 * 52_000}

    def start(self, run, name, **keys):
        return start(run, 4, name, launcher=network.launcher(2, MPIRUN), data__data_cache_path=network.cache, **dict(KEYS, **keys))

    def test_both_hosts_together_give_the_run_of_one_rank(self):
        run = Run()
        run.run("one", **KEYS)
        for name, layout in LAYOUTS.items():
            with self.subTest(name):
                before = network.sent()
                process = self.start(run, name, **layout)
                _, errors = process.communicate(timeout=300)
                self.assertEqual(process.returncode, 0, errors)
                self.assertRegex(errors, r"ranks 0, 1 on 10-77-0-0: ")
                self.assertRegex(errors, r"ranks 2, 3 on 10-77-0-1: ")
                self.assertGreater(network.sent() - before, 20 * self.LEAST[name])
                assert_same_run(self, run.records(name), run.records("one"))
                self.assertEqual(list(network.cache.iterdir()), [])  # each host has had its own

    def test_a_rank_killed_on_the_other_host_ends_all_and_the_run_goes_on(self):
        run = Run()
        run.run("whole", ["--ranks", "4"], **dict(KEYS, **TP2))
        process = self.start(run, "run", train__train_iters=20, checkpoint__save_interval=4, **TP2)
        self.assertTrue(wait_for(lambda: len(run.checkpoints()) > 1, process))
        ranks = rank_processes(f"--checkpoint.save={run.directory / 'run'}")
        self.assertEqual(sorted(ranks), [0, 1, 2, 3])
        os.kill(ranks[3], signal.SIGKILL)
        self.assertEqual(wait_for_end([*ranks.values(), process.pid], 60), [])
        _, errors = process.communicate()
        self.assertNotEqual(process.returncode, 0, errors)
        self.assertRegex(errors, r"rank 3 .* on node 10\.77\.0\.2 exited on signal 9")
        last = run.checkpoints()[-1]
        process = self.start(run, "run", checkpoint__save_interval=4, **TP2)
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn(f"resuming from {run.directory}/run/{last} ", errors)
        self.assertEqual(timeless(run.records()), timeless(run.records("whole")))

    def test_a_rank_of_generate_that_stops_on_the_other_host_is_named(self):
        """Ranks 2 and 3 reach rank 0 over the network, rank 1 also by the host's own addresses."""
        words = [CAMBIUM, "generate", "--model", str(TINY), "--prompt", "-", "--parallel.tensor_model_parallel_size", "2",
                 "--parallel.pipeline_model_parallel_size", "2", "--seed", str(os.getpid())]
        for victim in (0, 3):
            with subprocess.Popen([*network.launcher(2, MPIRUN), "-n", "4", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) as process:
                try:
                    errors = self.stop_one(process, victim)
                finally:
                    process.kill()
            self.assertEqual(re.findall("cambium: error: .*", errors), [f"cambium: error: rank {victim} has not been heard of for 5 s"])

    def stop_one(self, process, victim):
        """Stops a rank once all have met. All end. Returns the launch's standard error."""
        errors = ""
        while "cambium: ranks 0" not in errors:
            line = process.stderr.readline()
            self.assertTrue(line, errors)
            errors += line
        ranks = rank_processes(str(os.getpid()))
        self.assertEqual(len(ranks), 4)
        os.kill(ranks[victim], signal.SIGSTOP)
        running = wait_for_end([*ranks.values(), process.pid], 60)
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(running, [])
        return errors + process.communicate()[1]

    def test_a_command_runs_on_two_hosts_with_a_link_between_that_is_held(self):
        hosts = os.path.join(os.environ["CAMBIUM_SOURCE"], "tools", "hosts")
        before = sh("ip", "netns")
        done = subprocess.run([hosts, "--rate", "300mbit", "sh", "-c", "echo $(hostname) $(nproc) $(tc qdisc show dev veth0)"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = sorted(done.stdout.splitlines())
        self.assertEqual([line.split()[0] for line in lines], ["10-77-0-0", "10-77-0-1"])
        for line in lines:
            self.assertIn("rate 300Mbit", line)
            self.assertEqual(int(line.split()[1]), max(1, len(os.sched_getaffinity(0)) // 2))
        self.assertEqual(subprocess.run([hosts, "sh", "-c", "exit 3"], capture_output=True, timeout=60).returncode, 3)
        self.assertEqual(sh("ip", "netns"), before)  # what it made is gone


if __name__ == "__main__":
    unittest.main()
