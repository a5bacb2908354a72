"""A rank of generate or score that is killed or stopped, in any phase: one line names it, and nothing runs on. Who is idle takes
no core, and a launch that is stopped as a whole resumes as if nothing had happened."""
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from model_support import CAMBIUM, TINY, read_safetensors, run, write_safetensors
from mpi_support import MPIRUN, is_running, needs_mpirun, rank_processes, strike_all, wait_for_end
from pretrain_support import LONG, wait_for
from requests_support import ADAPTERS, BASE, as_lines

AT_ONCE = 2

TENSOR = ("--parallel.tensor_model_parallel_size", "2")
PIPELINE = ("--parallel.pipeline_model_parallel_size", "2", "--parallel.decoder_first_pipeline_num_layers", "1")
PATIENCE = 60  # seconds, for what takes at most 5 where nothing is wrong
POSITIONS = 100_000  # of a text that takes longer than any of this


def write_long_model(directory, short=TINY):
    """A small GPT-2, whose positions begin again and again."""
    shutil.copytree(short, directory)
    tensors = read_safetensors(short / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("wpe.weight"))
    kind, (positions, width), data = tensors[name]
    times = POSITIONS // positions
    tensors[name] = (kind, [positions * times, width], data * times)
    write_safetensors(directory / "model.safetensors", tensors)
    config = json.loads((short / "config.json").read_text()) | {"n_positions": positions * times}
    (directory / "config.json").write_text(json.dumps(config))


class Launch:
    """A command under mpirun with a standard input that stays open; it has a model's name of its own, to be found by."""

    numbers = itertools.count()

    def __init__(self, test, ranks, command, *words):
        self.model = test.models / f"model{next(self.numbers)}"
        self.model.symlink_to(BASE if "--adapter-root" in words else test.model)
        self.said = self.model.with_suffix(".said")
        self.wrote = self.model.with_suffix(".wrote")
        with open(self.said, "wb") as said, open(self.wrote, "wb") as wrote:
            words = [*MPIRUN, "-n", str(ranks), CAMBIUM, command, "--model", self.model, *words]
            own = self.model.with_suffix(".tmp")  # several mpirun that begin at once trip over each other's directories
            own.mkdir()
            self.process = subprocess.Popen([*map(str, words)], stdin=subprocess.PIPE, stdout=wrote, stderr=said,
                                            env=os.environ | {"TMPDIR": str(own)})
        test.addCleanup(self.close)
        self.count, self.ranks = ranks, {}

    def close(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()

    def wait_until(self, phase):
        """opening: all ranks have met, and rank 0 waits for its prompt; idle: for its next request; else: texts come."""
        assert wait_for(lambda: "cambium: ranks 0" in self.said.read_text(), self.process), self.said.read_text()
        self.ranks = rank_processes(str(self.model))
        assert len(self.ranks) == self.count, self.ranks
        if phase in ("writing", "loading"):
            assert wait_for(lambda: self.wrote.stat().st_size > 100, self.process), self.said.read_text()
        elif phase == "idle":
            time.sleep(1.5)

    def is_all_there(self):
        return all(is_running(pid) for pid in self.ranks.values())

    def lines(self):
        return re.findall(r"^cambium: error: (.*)$", self.said.read_text(), re.M)


COMMANDS = {
    "opening": ("generate", "--prompt", "-"),
    "idle": ("generate", "--requests", "-"),
    "writing": ("generate", "--prompt", "It was", "--max-new-tokens", POSITIONS - 100, "--ignore-eos", "--stream"),
    # Two of the adapters have room at a time: they come and go beside the texts.
    "loading": ("generate", "--requests", "REQUESTS", "--adapter-root", ADAPTERS, "--adapter-memory", "64K"),
}
NAMES = ("lora", "ia3", "dora", "adapter_seq_bn", "prefix", "lora_all_linear", "prompt", "adapter_par_bn")


@needs_mpirun
class Watch(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.models = pathlib.Path(temporary.name)
        self.model = self.models / "long"
        write_long_model(self.model)
        self.requests = self.models / "requests.jsonl"
        one = as_lines({"prompt": [1, 2, i], "adapters": [name], "max_tokens": 4} for i, name in enumerate(NAMES))
        self.requests.write_bytes(one * 10_000)

    def strike(self, phase, sign, victim, layout, ranks=2, delay=0.0):
        launch = Launch(self, ranks, *(self.requests if w == "REQUESTS" else w for w in COMMANDS[phase]), *layout)
        launch.wait_until(phase)
        time.sleep(delay)
        self.assertTrue(launch.is_all_there(), launch.said.read_text())
        os.kill(launch.ranks[victim], sign)
        start = time.monotonic()
        left = wait_for_end([*launch.ranks.values(), launch.process.pid], PATIENCE)
        seconds = time.monotonic() - start
        said = launch.said.read_text()
        self.assertEqual(left, [], f"processes still run\n{said}")
        self.assertNotEqual(launch.process.wait(), 0)
        if sign == signal.SIGSTOP:
            self.assertGreater(seconds, 4)
            # More than one rank says so where mpirun takes longer than they wait for it.
            self.assertEqual(set(launch.lines()), {f"rank {victim} has not been heard of for 5 s"}, said)
        else:
            # It is the launcher's line alone where mpirun was faster.
            self.assertIn(launch.lines(), ([f"rank {victim} has died"], []), said)
            self.assertRegex(said, rf"\brank {victim}\b.*(has died|\bsignal 9\b)")

    def test_a_rank_that_dies_or_stops_is_named_and_ends_all(self):
        kinds = itertools.product(COMMANDS, (signal.SIGKILL, signal.SIGSTOP), (0, 1), (TENSOR, PIPELINE))
        cases = [dict(phase=phase, sign=sign, victim=victim, layout=layout) for phase, sign, victim, layout in kinds]
        # Every phase with a rank that is stopped and with one that is killed, ranks and layouts in turn.
        strike_all(self, self.strike, cases if LONG else [*cases[::5], cases[19]])

    @unittest.skipUnless(LONG, "the long tier")
    def test_at_random_moments_of_four_ranks(self):
        r = random.Random(20261122)
        strike_all(self, self.strike, [
            dict(phase=r.choice(("opening", "opening", "writing", "loading")), sign=r.choice((signal.SIGKILL, signal.SIGSTOP)), victim=r.randrange(4),
                 ranks=4, layout=TENSOR + PIPELINE, delay=r.random() * 0.1) for _ in range(24)])

    @unittest.skipUnless(LONG, "the long tier")
    def test_a_launch_that_is_stopped_as_a_whole_goes_on(self):
        launch = Launch(self, 2, *COMMANDS["idle"], *TENSOR)
        launch.wait_until("idle")
        for sign, seconds in ((signal.SIGSTOP, 8), (signal.SIGCONT, 8)):
            for pid in launch.ranks.values():
                os.kill(pid, sign)
                time.sleep(1)
            time.sleep(seconds)
        self.assertTrue(launch.is_all_there(), launch.said.read_text())
        line = as_lines([{"prompt": [1, 2, 3], "max_tokens": 5, "seed": 4}])
        launch.process.communicate(line, timeout=60)
        self.assertEqual((launch.process.returncode, launch.lines()), (0, []))
        expected, _ = run("generate", "--model", launch.model, "--requests", "-", input=line)
        self.assertEqual(json.loads(launch.wrote.read_bytes()), json.loads(expected))

    def test_an_idle_rank_takes_no_core(self):
        for layout in (TENSOR, PIPELINE):
            launch = Launch(self, 2, *COMMANDS["idle"], *layout)
            launch.wait_until("idle")
            for last in (False, False, True):  # what else the machine does makes a look dearer, never cheaper
                before = self.core_seconds(launch)
                time.sleep(2)
                after = self.core_seconds(launch)
                taken = [(after[rank] - before[rank]) / 2 for rank in (0, 1)]
                if max(taken) < 0.02:
                    break
                self.assertFalse(last, f"parts of a core that the ranks took: {taken}, {layout}")
            _, _ = launch.process.communicate(timeout=60)
            self.assertEqual((launch.process.returncode, launch.lines()), (0, []))

    def core_seconds(self, launch):
        """All threads of each rank: finer than the ticks of /proc/PID/stat."""
        taken = {}
        for rank, pid in launch.ranks.items():
            paths = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
            taken[rank] = sum(int(path.read_text().split()[0]) for path in paths) / 1e9
        return taken


if __name__ == "__main__":
    unittest.main()
