"""--device cuda on several cards: ranks that are processes or threads have a card each and sum by NCCL. Both are libraries
that stand in for NVIDIA's; the one for NCCL ends a process whose ranks' calls differ or wait for each other."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from mpi_support import MPIRUN, needs_mpirun
from pretrain_support import LONG, Run, assert_same_run

STANDIN = os.environ.get("CAMBIUM_CUDA_STANDIN")  # of a build with CUDA
CUDA = ["--device", "cuda"]
SHORT = dict(train__train_iters=3, optim__lr_warmup_iters=0)
LAYOUTS = {  # on 4 processes
    "stages": dict(parallel__pipeline_model_parallel_size=4, model__num_layers=4, train__global_batch_size=8),
    "all": dict(parallel__tensor_model_parallel_size=2, parallel__sequence_parallel="true",
                parallel__use_distributed_optimizer="true"),
}
if LONG:
    LAYOUTS |= {
        "data": dict(train__global_batch_size=8),
        "chunks": dict(parallel__pipeline_model_parallel_size=2, model__num_layers=4, train__global_batch_size=8,
                       parallel__virtual_pipeline_model_parallel_size=2),
        "tensor": dict(parallel__tensor_model_parallel_size=4),
    }


def setUpModule():
    if not STANDIN:
        raise unittest.SkipTest("this build has no CUDA")
    os.environ["LD_LIBRARY_PATH"] = STANDIN
    os.environ["CAMBIUM_CUDA_CARDS"] = "4"


class Cards(unittest.TestCase):
    def setUp(self):
        self.run_of = Run()
        self.environment = dict(os.environ)
        self.addCleanup(self.restore)

    def restore(self):
        os.environ.clear()
        os.environ.update(self.environment)

    def launch(self, ranks, *arguments, expect=0, **keys):
        """Runs pretrain as processes. Returns its standard error."""
        command = [*MPIRUN, "-n", str(ranks), *self.run_of.command(*arguments, **keys)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done.stderr

    def counts(self):
        """The calls of NCCL in all processes since the last time."""
        found = {}
        for line in pathlib.Path(os.environ["CAMBIUM_NCCL_REPORT"]).read_text().splitlines():
            row = json.loads(line)
            found[row["name"]] = found.get(row["name"], 0) + row["calls"]
        os.remove(os.environ["CAMBIUM_NCCL_REPORT"])
        return found


@needs_mpirun
class Training(Cards):
    def test_losses_are_the_cpus_in_every_layout(self):
        os.environ["CAMBIUM_NCCL_REPORT"] = str(self.run_of.directory / "calls")
        for name, layout in LAYOUTS.items():
            with self.subTest(name):
                own = {k: v for k, v in layout.items() if not k.startswith("parallel")}
                self.run_of.run(f"{name}-cpu", **SHORT, **own)
                self.launch(4, name, CUDA, **SHORT, **layout)
                assert_same_run(self, self.run_of.records(name), self.run_of.records(f"{name}-cpu"), losses=1e-5, norms=1e-3)
                calls = self.counts()
                self.assertTrue(calls.get("ncclAllReduce") or calls.get("ncclReduceScatter"), calls)
                self.assertEqual(bool(calls.get("ncclSend")), name in ("stages", "chunks"), calls)

    @unittest.skipUnless(LONG, "the threads of one card show it")
    def test_over_the_host_no_library_is_opened(self):
        os.environ["CAMBIUM_NCCL_REPORT"] = str(self.run_of.directory / "calls")
        self.launch(2, "host", [*CUDA, "--collectives", "host"], **SHORT)
        self.assertFalse(os.path.exists(os.environ["CAMBIUM_NCCL_REPORT"]))


class Refusals(Cards):
    def check(self, errors, text):
        lines = [line for line in errors.splitlines() if "error: " in line]
        self.assertEqual(len(lines), 1, errors)
        self.assertRegex(lines[0], text)
        self.assertFalse((self.run_of.directory / "run" / "latest").exists())

    def refused(self, text):
        """By two threads with a card each."""
        self.check(self.run_of.run("run", [*CUDA, "--ranks", "2"], expect=1, **SHORT).stderr, text)

    @needs_mpirun
    def test_two_ranks_on_one_card(self):
        os.environ["CAMBIUM_CUDA_CARDS"] = "1"
        text = r"ranks 0 and 1 on \S+ both have cuda:0, .*--collectives host, or .*--ranks"
        self.check(self.launch(2, "run", CUDA, expect=1, **SHORT), text)

    def test_a_library_that_is_missing_or_old(self):
        os.environ["CAMBIUM_NCCL_VERSION"] = "21705"
        self.refused(r"NCCL is too old: libnccl.so.2 is 2.17, and the program needs 2.18: add --collectives host, or ")
        with tempfile.TemporaryDirectory() as directory:
            for name in ("libcuda.so.1", "libcublasLt.so.13"):
                os.symlink(os.path.join(STANDIN, name), os.path.join(directory, name))
            pathlib.Path(directory, "libnccl.so.2").write_bytes(b"")
            os.environ["LD_LIBRARY_PATH"] = directory
            self.refused(r"no NCCL, .*libnccl.so.2: file too short: add --collectives host, or ")

    def test_a_call_that_fails(self):
        os.environ["CAMBIUM_NCCL_FAIL"] = "ncclAllReduce:2"
        self.refused(r"rank [01]: all-reduce \(sum\) of \d+ fp32 over NCCL failed: unhandled system error")

    @needs_mpirun
    def test_a_call_that_fails_while_it_runs(self):
        os.environ["CAMBIUM_NCCL_FAIL"] = "async:2@1"  # nothing but the library knows it
        text = r"rank 1.*: .* of \d+ \S+ over NCCL failed: remote process exited or there was a network error"
        self.check(self.launch(2, "run", CUDA, expect=1, **SHORT), text)


class Threads(Cards):
    def test_threads_have_cards_of_their_own_or_share_one(self):
        self.run_of.run("cpu", **SHORT)
        os.environ["CAMBIUM_NCCL_REPORT"] = str(self.run_of.directory / "calls")
        self.run_of.run("own", [*CUDA, "--ranks", "2"], **SHORT)
        self.assertTrue(self.counts()["ncclAllReduce"])
        assert_same_run(self, self.run_of.records("own"), self.run_of.records("cpu"), losses=1e-5, norms=1e-3)
        os.environ["CAMBIUM_CUDA_CARDS"] = "1"
        done = self.run_of.run("run", [*CUDA, "--ranks", "2", "--collectives", "nccl"], expect=1)
        self.assertRegex(done.stderr, r"ranks 0 and 1 on \S+ both have cuda:0")

    def test_the_cpu_has_none(self):
        done = self.run_of.run("run", ["--ranks", "2", "--collectives", "nccl"], expect=1)
        self.assertRegex(done.stderr, r"--collectives nccl: NCCL is for cards, and this run computes on cpu")


if __name__ == "__main__":
    unittest.main()
