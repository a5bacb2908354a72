"""--device cuda on several GPUs: ranks that are processes or threads have a GPU each and sum by NCCL. Both are libraries
that stand in for NVIDIA's; the one for NCCL ends a process whose ranks' calls differ or wait for each other."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from model_support import SANITIZED
from mpi_support import MPIRUN, needs_mpirun, strike_all
from pretrain_support import CAMBIUM, LONG, VOCAB, Run, assert_same_run, timeless

STANDIN = os.environ.get("CAMBIUM_CUDA_STANDIN")  # of a build with CUDA
CUDA = ["--device", "cuda"]
UNDEFINED = -2**31  # NCCL's for an option that is not set
SHORT = dict(train__train_iters=3, optim__lr_warmup_iters=0)
LAYOUTS = {  # on 4 processes
    "stages": dict(parallel__pipeline_model_parallel_size=4),
    "all": dict(parallel__tensor_model_parallel_size=2, parallel__sequence_parallel="true",
                parallel__use_distributed_optimizer="true", parallel__nccl_max_ctas=3, parallel__gemm_sm_margin=1),
}
if LONG:
    LAYOUTS |= {
        "data": {},
        "chunks": dict(parallel__pipeline_model_parallel_size=2, parallel__virtual_pipeline_model_parallel_size=2),
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
        """Each layout resumes from the checkpoint of the one before."""
        os.environ["CAMBIUM_NCCL_REPORT"] = str(self.run_of.directory / "calls")
        keys = dict(train__train_iters=2 * len(LAYOUTS), optim__lr_warmup_iters=0, train__global_batch_size=8, model__num_layers=4)
        self.run_of.run("cpu", **keys)
        expected = self.run_of.records("cpu")
        for i, (name, layout) in enumerate(LAYOUTS.items()):
            with self.subTest(name):
                self.launch(4, "run", CUDA, train__exit_interval=2, **keys, **layout)
                assert_same_run(self, self.run_of.records("run"), expected[:2 * i + 2], losses=1e-5, norms=1e-3)
                calls = self.counts()
                self.assertTrue(calls.get("ncclAllReduce") or calls.get("ncclReduceScatter"), calls)
                self.assertEqual(bool(calls.get("ncclSend")), name in ("stages", "chunks"), calls)
                self.assertEqual(calls["communicators"], 0)  # all were destroyed
                self.assertEqual(calls["most blocks"], 4 * layout.get("parallel__nccl_max_ctas", UNDEFINED))

    def test_processes_take_the_algorithms_of_a_file(self):
        keys = dict(train__train_iters=1, optim__lr_warmup_iters=0, train__precision="fp32")
        self.run_of.run("first", **keys)
        file = self.run_of.directory / "card.json"
        tune = [CAMBIUM, "bench", "gemm", "--tune", file, "--model", self.run_of.directory / "first/iter_0000001",
                "--micro-batch-size", "2", "--seq-length", "16", *CUDA]
        subprocess.run(tune, check=True, capture_output=True, timeout=300, env=os.environ | {"CAMBIUM_CUDA_FASTEST": "5"})
        self.launch(2, "plain", CUDA, **keys)
        self.launch(2, "file", [*CUDA, "--gemm-algorithms", file], **keys)
        os.environ["CAMBIUM_CUDA_ALGORITHMS"] = "5"
        self.launch(2, "library", CUDA, **keys)
        plain, found, expected = (timeless(self.run_of.records(name)) for name in ("plain", "file", "library"))
        self.assertEqual(found, expected)
        self.assertNotEqual(found, plain)

    @unittest.skipUnless(LONG, "the threads of one GPU show it")
    def test_over_the_host_no_library_is_opened(self):
        os.environ["CAMBIUM_NCCL_REPORT"] = str(self.run_of.directory / "calls")
        self.launch(2, "host", [*CUDA, "--collectives", "host"], **SHORT)
        self.assertFalse(os.path.exists(os.environ["CAMBIUM_NCCL_REPORT"]))


@unittest.skipIf(SANITIZED, "the counts are the same")
class Messages(Cards):
    """The messages of one step are the difference between two runs, one of which has a step more. Ranks are threads with a GPU
    each. The bytes are those that all ranks send at least in such calls; a launch is a call, or a group of calls."""
    HIDDEN, POSITIONS, ROWS = 64, 16, 2

    def step(self, ranks, data=1, micro_batches=1, layers=2, **layout):
        os.environ["CAMBIUM_NCCL_REPORT"] = str(self.run_of.directory / "calls")

        def count(iterations):
            self.run_of.run("run", [*CUDA, "--ranks", str(ranks)], train__train_iters=iterations, optim__lr_warmup_iters=0,
                            model__num_layers=layers, model__hidden_size=self.HIDDEN, data__seq_length=self.POSITIONS,
                            train__micro_batch_size=self.ROWS, train__global_batch_size=self.ROWS * data * micro_batches,
                            checkpoint__save=None, checkpoint__load=None, log__metrics_file=None,
                            **{f"parallel__{key}": value for key, value in layout.items()})
            return self.counts()
        more, fewer = count(3), count(2)
        return [more[name] - fewer[name] for name in ("bytes", "launches")]

    def parameters(self, layers):
        """All, those of an end with the table, and those of a layer."""
        layer = 12 * self.HIDDEN ** 2 + 13 * self.HIDDEN
        ends = (VOCAB + self.POSITIONS + 2) * self.HIDDEN
        return ends + layers * layer, ends, layer

    def check(self, found, least):
        self.assertGreaterEqual(found, least)
        self.assertLessEqual(found, 1.02 * least)

    def test_data_ranks_send_the_least(self):
        whole, ends, layer = self.parameters(4)
        for strategy, elements, launches in (  # in a tiny model a bucket holds all layers, as three of GPT-2's 124M do
                ("no_shard", 2 * whole, 3), ("optim", 2 * whole, 6), ("optim_grads", 3 * whole, None),
                # Two micro batches gather the ends once, four layers, and those that the two buffers have not, three times.
                ("optim_grads_params", 2 * whole + ends + (4 + 3 * (4 - 2)) * layer, None)):
            with self.subTest(strategy):
                sent, launched = self.step(2, data=2, micro_batches=2, layers=4, data_parallel_sharding_strategy=strategy)
                self.check(sent, 4 * elements)  # in fp32, half of it from each of two ranks
                if launches:
                    self.assertLessEqual(launched / 2, launches)

    def test_a_layer_of_tensor_ranks_sums_four_times(self):
        tokens = self.ROWS * self.POSITIONS
        for sequence, least in (("false", 4), ("true", 12)):
            with self.subTest(sequence=sequence):
                layout = dict(tensor_model_parallel_size=2, sequence_parallel=sequence)
                (two, launched), (three, more) = self.step(2, **layout), self.step(2, layers=3, **layout)
                self.assertEqual((more - launched) / 2, least)
                # A sum sends as much as a scatter and a gather. With sequence, the two inputs are gathered twice, and the
                # gradients of two norms are summed.
                inputs = 2 * tokens * self.HIDDEN * 4 // 2 * 2 + 4 * self.HIDDEN * 4 * 2 if sequence == "true" else 0
                self.assertEqual(three - two, 4 * tokens * self.HIDDEN * 4 * 2 + inputs)
                self.check(two, 2 * (three - two) + 2 * tokens * self.HIDDEN * 4 * 2)  # and the sums of both ends

    def test_stages_send_each_boundary_once(self):
        boundary = self.ROWS * self.POSITIONS * self.HIDDEN * 4
        table = 2 * VOCAB * self.HIDDEN * 4  # a tied one, summed over the first and the last stage
        micro_batches = 4
        for ranks, chunks, most in ((4, 1, 2.25), (2, 2, 4)):  # a launch has all messages of a round
            with self.subTest(ranks=ranks, chunks=chunks):
                sent, launched = self.step(ranks, micro_batches=micro_batches, layers=4, pipeline_model_parallel_size=ranks,
                                           virtual_pipeline_model_parallel_size=chunks)
                self.check(sent, 2 * (ranks * chunks - 1) * micro_batches * boundary + table)
                self.assertLessEqual((launched - 2 * ranks) / ranks / micro_batches, most)


class Refusals(Cards):
    def check(self, errors, text):
        lines = [line for line in errors.splitlines() if "error: " in line]
        self.assertEqual(len(lines), 1, errors)
        self.assertRegex(lines[0], text)
        self.assertFalse((self.run_of.directory / "run" / "latest").exists())

    def refused(self, text):
        """By two threads with a GPU each."""
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

    def test_a_card_that_leaves_the_bus_or_is_full(self):
        os.environ["CAMBIUM_CUDA_FAIL"] = "bus:100@1"
        self.refused(r"rank 1: cuda:1: \w+ failed: unknown error")
        os.environ["CAMBIUM_CUDA_FAIL"] = "alloc:12@1"
        self.refused(r"rank 1: .*cuda:1: cannot allocate ")

    @needs_mpirun
    def test_a_card_that_leaves_the_bus_under_a_process(self):
        os.environ["CAMBIUM_CUDA_FAIL"] = "bus:100@1"
        self.check(self.launch(2, "run", CUDA, expect=1, **SHORT), r"rank 1 failed: cuda:1: \w+ failed: unknown error")

    @needs_mpirun
    def test_a_call_that_fails_while_it_runs(self):
        os.environ["CAMBIUM_NCCL_FAIL"] = "async:2@1"  # nothing but the library knows it
        text = r"rank 1.*: .* of \d+ \S+ over NCCL failed: remote process exited or there was a network error"
        self.check(self.launch(2, "run", CUDA, expect=1, **SHORT), text)


@needs_mpirun
class Lost(Cards):
    """A rank is killed or stopped while the others wait for it on their GPUs: a line names it, and nothing runs on."""

    def check(self, command, sign, seconds, **environment):
        with tempfile.TemporaryDirectory(dir=self.run_of.directory) as own:  # mpirun's: several that begin at once would share one
            done = subprocess.run([*MPIRUN, "-n", "3", *command], capture_output=True, text=True, timeout=60,
                                  env=os.environ | {"TMPDIR": own} | environment)
        lines = re.findall(r"^cambium: error: (.*)$", done.stderr, re.M)
        self.assertNotEqual(done.returncode, 0)
        if sign == "stop":  # more than one rank says so where mpirun takes longer than they wait for it
            self.assertEqual(set(lines), {f"rank 1 has not been heard of for {seconds} s"}, done.stderr)
        else:  # it is the launcher's line alone where mpirun was faster
            self.assertIn(lines, (["rank 1 has died"], []), done.stderr)
            self.assertRegex(done.stderr, r"\brank 1\b.*(has died|\bsignal 9\b)")

    def test_in_each_kind_of_call(self):
        def strike(sign, kind):
            self.check([os.environ["CAMBIUM_COMM_RANKS"], {"kill": "killed", "stop": "stopped"}[sign], kind], sign, 2)

        cases = [(sign, kind) for kind in ("sum", "reduce-scatter", "gather", "send", "receive", "max") for sign in ("kill", "stop")]
        # The short form has each kind of call once.
        strike_all(self, strike, [dict(sign=s, kind=k) for s, k in (cases if LONG else [*cases[:6:3], *cases[4::3], cases[11]])])

    def test_in_training(self):
        layouts = {"ncclAllReduce": {}, "ncclReduceScatter": dict(parallel__use_distributed_optimizer="true"),
                   "ncclAllGather": dict(parallel__use_distributed_optimizer="true"),
                   "ncclSend": dict(parallel__pipeline_model_parallel_size=3, model__num_layers=3)}

        def strike(sign, call):
            keys = dict(SHORT, train__global_batch_size=6, checkpoint__save_interval=1, **layouts[call])
            name = f"{sign}-{call}"
            self.check(self.run_of.command(name, CUDA, **keys), sign, 5, CAMBIUM_NCCL_FAIL=f"{name}:4@1")
            half = [p for p in (self.run_of.directory / name).glob("*") if not re.fullmatch(r"iter_\d{7}|latest.*|\.cambium-.*", p.name)]
            self.assertEqual(half, [])

        cases = [(s, c) for c in layouts for s in ("kill", "stop")]
        strike_all(self, strike, [dict(sign=s, call=c) for s, c in (cases if LONG else [cases[1], cases[6]])], at_once=2)


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
        self.assertRegex(done.stderr, r"--collectives nccl: NCCL is for GPUs, and this run computes on cpu")


if __name__ == "__main__":
    unittest.main()
