"""A rank that is killed, stopped or hung, at any moment of a server's life. Nobody is told that the server is ready,
requests fail as they should, one line says who and why, and no process remains. A server that was stopped as a whole
continues."""
import contextlib
import ctypes
import http.client
import itertools
import json
import os
import pathlib
import random
import signal
import tempfile
import threading
import time
import unittest

from model_support import SANITIZED, TINY
from mpi_support import is_running, needs_mpirun, strike_all, wait_for_end
from pretrain_support import LONG
from rank_watch_test import PIPELINE, TENSOR, write_long_model
from serve_grpc_support import Client, grpc
from serve_ranks_support import RankServer
from serve_support import PATIENCE, Server, write_prompt

AT_ONCE = 4  # most of it is waiting
TIMEOUT = 2  # --rank-timeout
WORDS = ("--rank-timeout", TIMEOUT, "--kv-cache-memory", "64M")
ENDLESS = {"prompt": "It was", "max_tokens": 90_000, "ignore_eos": True}
PHASES = ("load", "idle", "prefill", "decode", "swap")


class Asker(threading.Thread):
    """A request that would take for ever, on a thread of its own: `result` is its end."""

    def __init__(self, server, kind):
        super().__init__(daemon=True)
        self.server, self.ask, self.result, self.has_begun = server, getattr(self, kind), None, threading.Event()
        self.start()

    def run(self):
        try:
            self.result = self.ask()
        except (OSError, http.client.HTTPException) as error:
            self.result = type(error).__name__
        self.has_begun.set()

    def whole(self):
        self.has_begun.set()
        answer = self.server.ask("POST", "/v1/completions", ENDLESS)
        return answer.status, answer.code

    def prefill(self):
        self.has_begun.set()
        answer = self.server.ask("POST", "/v1/completions", ENDLESS | {"prompt": [5] * 60_000, "max_tokens": 9})
        return answer.status, answer.code

    def stream(self):
        last = None
        with self.server.stream("/v1/completions", ENDLESS) as stream:
            for last in stream:
                self.has_begun.set()
            return stream.is_done, last.get("error", {}).get("code")

    def grpc(self):
        with Client(self.server.addresses["data"]) as client:
            try:
                for _ in client.call("Generate", text="It was", max_tokens=90_000, ignore_eos=True):
                    self.has_begun.set()
            except grpc.RpcError as error:
                return error.code().name

    def swap(self):
        for number in itertools.count():
            name = "one" if number % 2 else "two"
            answer = self.server.ask("PUT", "/v1/adapters/x", {"path": name}, listener="control")
            self.has_begun.set()
            if answer.status != 200:
                return answer.status, answer.code


# The allowed answers, in the order of `kinds`. A connection may end without an answer only if its process does.
FAILED = {"whole": (503, "engine_failed"), "prefill": (503, "engine_failed"), "stream": (False, "engine_failed"),
          "grpc": "UNAVAILABLE", "swap": (503, "engine_failed")}
KINDS = {"load": (), "idle": (), "prefill": ("prefill", "whole"), "decode": ("stream", "whole", "grpc"), "swap": ("swap", "stream")}


class Faults(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.models = pathlib.Path(temporary.name)
        self.model, self.root = self.models / "long", self.models / "root"
        write_long_model(self.model)
        write_prompt(self.root / "one", 5_000, 32)  # several pieces long
        write_prompt(self.root / "two", 5_001, 32)


def errors_in_json(lines):
    """The program's lines of level error; the launcher's own lines begin differently, and none may be plain text."""
    assert not [line for line in lines if line.startswith("cambium: ")], lines
    return [line["message"] for line in (json.loads(line) for line in lines if line.startswith("{")) if line["level"] == "error"]


def is_ready(server):
    with contextlib.suppress(OSError, http.client.HTTPException):
        return server.ask("GET", "/ready", timeout=5).status == 200
    return False


@needs_mpirun
class Ranks(Faults):
    def strike(self, phase, sign, victim, layout, ranks=2, delay=0.0, is_json=False):
        server = RankServer(ranks, *WORDS, *layout, "--adapter-root", self.root, "--log-format", "json" if is_json else "text",
                            model=self.model, is_awaited=False)
        try:
            askers = self.begin(server, phase)
            time.sleep(delay)
            self.assertTrue(all(is_running(pid) for pid in server.ranks.values()), server.lines)
            os.kill(server.ranks[victim], sign)
            end = time.monotonic() + PATIENCE
            if phase != "load":
                while is_ready(server):
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.02)
            left = wait_for_end([*server.ranks.values(), server.process.pid], PATIENCE)
            self.assertEqual(left, [], "processes still run")
            self.assertNotEqual(server.process.wait(), 0)
            server.reader.join()
            if is_json:
                self.assertEqual(errors_in_json(server.lines), [f"rank {victim} has not been heard of for {TIMEOUT} s"])
            else:
                self.check_lines(server, sign, victim)
            for kind, asker in askers.items():
                asker.join(PATIENCE)
                if victim:
                    self.assertEqual(asker.result, FAILED[kind], kind)
                else:  # a rank that was stopped wakes when the launcher ends it, and refuses what it reads from then on
                    woken = [(503, "draining")] if sign == signal.SIGSTOP else []
                    self.assertIn(asker.result, (FAILED[kind], *woken, (False, None), *(e.__name__ for e in (
                        ConnectionResetError, ConnectionRefusedError, http.client.RemoteDisconnected, http.client.IncompleteRead,
                        BrokenPipeError))), kind)
        finally:
            for pid in server.ranks.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            server.process.kill()
            server.process.wait()
            server.process.stdout.close()
            server.reader.join()
            server.process.stderr.close()
            server.directory.cleanup()

    def begin(self, server, phase):
        if phase == "load":
            server.wait_line("cambium: ranks 0")
            server.find_ranks()
            return {}
        server.await_ready()
        if phase == "swap":
            self.assertEqual(server.ask("POST", "/v1/adapters", {"name": "x", "path": "one"}, listener="control").status, 200)
        askers = {kind: Asker(server, kind) for kind in KINDS[phase] if kind != "grpc" or grpc}
        for asker in askers.values():
            self.assertTrue(asker.has_begun.wait(PATIENCE))
        return askers

    def check_lines(self, server, sign, victim):
        said = [line[len("cambium: error: "):] for line in server.lines if line.startswith("cambium: error: ")]
        said = [line for line in said if line != "stopped by SIGTERM while the model was loaded"]  # a rank that mpirun ends
        if sign == signal.SIGSTOP:
            self.assertEqual(set(said), {f"rank {victim} has not been heard of for {TIMEOUT} s"}, server.lines)
        else:  # the launcher's line alone where mpirun was faster
            self.assertIn(said, ([f"rank {victim} has died"], []), server.lines)
            self.assertRegex("\n".join(server.lines), rf"\brank {victim}\b.*(has died|\bsignal 9\b)")

    def test_a_rank_that_dies_or_stops_is_named_and_ends_all(self):
        draw = random.Random(12)
        kinds = itertools.product(PHASES, (signal.SIGKILL, signal.SIGSTOP), (0, 1), (TENSOR, PIPELINE))
        cases = [dict(phase=phase, sign=sign, victim=victim, layout=layout, delay=draw.random() * 0.2) for phase, sign, victim, layout in kinds]
        # Every phase with a rank that is stopped and with one that is killed, ranks and layouts in turn.
        strike_all(self, self.strike, cases if LONG else [case for i, case in enumerate(cases) if i % 4 == (i // 4) % 4], at_once=3)

    def test_lines_of_json_name_the_rank(self):
        strike_all(self, self.strike, [dict(phase="decode", sign=signal.SIGSTOP, victim=victim, layout=TENSOR, is_json=True) for victim in (0, 1)])

    @unittest.skipUnless(LONG, "the long tier")
    def test_at_random_moments_of_four_ranks(self):
        draw = random.Random(20261123)
        strike_all(self, self.strike, [dict(phase=draw.choice(PHASES), sign=draw.choice((signal.SIGKILL, signal.SIGSTOP)), victim=draw.randrange(4),
                             ranks=4, layout=TENSOR + PIPELINE, delay=draw.random()) for _ in range(24)], at_once=3)

    def test_a_launch_that_is_stopped_as_a_whole_goes_on(self):
        with RankServer(2, *WORDS, *TENSOR, model=self.model) as server:
            pids = list(server.ranks.values())
            with server.stream("/v1/completions", ENDLESS | {"max_tokens": 2_000}) as stream:
                next(stream)
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(TIMEOUT + 1)
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                self.assertEqual(sum(1 for chunk in stream if chunk["choices"][0]["finish_reason"] == "length"), 1)
                self.assertTrue(stream.is_done)
            time.sleep(TIMEOUT + 1)  # nobody finds out later
            self.assertTrue(is_ready(server))
            server.complete("It was", max_tokens=3)


# ---- ranks that are threads

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WAIT_ALL, SYS_WRITE = 17, 0x4206, 0x4207, 0x40000000, 1


def rank_thread(pid, rank):
    """For a rank that is a thread: its helpers, which have its name, came after it."""
    threads = sorted(pathlib.Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name))
    return next(int(path.name) for path in threads if (path / "comm").read_text() == f"rank {rank}\n")


@contextlib.contextmanager
def held(case, thread, child):
    """A thread that hangs until the block ends. A process that has ended is there until who holds one of its threads looks;
    `child` is the one that somebody else waits for."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    is_writing = True
    while is_writing:  # it wakes the loop by a write, under a lock without which the loop would hang, too
        for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
            if libc.ptrace(request, thread, None, None):
                case.skipTest(f"no thread can be traced here: {os.strerror(ctypes.get_errno())}")
        os.waitpid(thread, WAIT_ALL)
        is_writing = pathlib.Path(f"/proc/{thread}/syscall").read_text().startswith(f"{SYS_WRITE} ")
        if is_writing:
            libc.ptrace(PTRACE_DETACH, thread, None, None)
            time.sleep(0.01)
    try:
        yield
    finally:
        if libc.ptrace(PTRACE_DETACH, thread, None, None) and thread != child:
            os.waitpid(thread, WAIT_ALL)


def fill(pipe):
    """By a door of its own: who has the pipe's other end would find that it does not wait any more."""
    descriptor = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    for size in (4096, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(descriptor, b"." * size)
    os.close(descriptor)


@unittest.skipIf(SANITIZED, "a sanitizer has threads and a tracer of its own")
class Hung(Faults):
    """A rank whose thread hangs while all processes live."""

    def hang(self, server, pid, thread, victim, is_idle=False, is_json=False):
        try:
            asker = None if is_idle else Asker(server, "stream")
            if asker:
                self.assertTrue(asker.has_begun.wait(PATIENCE))
            with held(self, thread, server.process.pid):
                whole = Asker(server, "whole")
                whole.join(PATIENCE)
                if asker:
                    asker.join(PATIENCE)
                    self.assertEqual(asker.result, FAILED["stream"])
                self.assertEqual(whole.result, FAILED["whole"])
                self.assertFalse(is_ready(server))
                self.assertEqual(wait_for_end([pid], PATIENCE), [])
            self.assertNotIn(server.wait(), (0, None))
            line = f"rank {victim} has made no progress for {TIMEOUT} s"
            if is_json:
                self.assertEqual(errors_in_json(server.lines), [line])
            else:
                self.assertEqual([said for said in server.lines if "made no progress" in said], [f"cambium: error: {line}"])
        finally:
            server.process.kill()
            server.process.wait()
            server.process.stdout.close()

    def test_an_engine_that_hangs_is_told_and_ended(self):
        server = Server(*WORDS, model=self.model)
        self.hang(server, server.process.pid, server.process.pid, 0)

    def test_a_thread_that_hangs_is_the_rank_that_is_named(self):
        def strike(layout, victim, is_idle):
            server = Server(*WORDS, "--ranks", 2, *layout, model=self.model)
            pid = server.process.pid
            self.hang(server, pid, rank_thread(pid, victim), victim, is_idle)

        strike_all(self, strike, [dict(layout=TENSOR, victim=1, is_idle=False), dict(layout=TENSOR, victim=0, is_idle=False),
                                  dict(layout=PIPELINE, victim=1, is_idle=True), dict(layout=PIPELINE, victim=0, is_idle=True)], at_once=2)

    def test_lines_of_json_name_the_rank(self):
        server = Server(*WORDS, "--ranks", 2, *TENSOR, "--log-format", "json", model=self.model)
        self.hang(server, server.process.pid, rank_thread(server.process.pid, 1), 1, is_idle=True, is_json=True)

    @needs_mpirun
    def test_a_process_whose_engine_hangs_is_named(self):
        for layout, victim in ((TENSOR, 1), (PIPELINE, 0)):
            with self.subTest(layout=layout, victim=victim):
                server = RankServer(2, *WORDS, *layout, model=self.model)
                self.addCleanup(server.directory.cleanup)
                self.hang(server, server.ranks[0], server.ranks[victim], victim)

    def test_a_log_that_nobody_reads_does_not_keep_a_hung_server_alive(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        server = Server(*WORDS, errors=writing, model=self.model)
        fill(writing)
        pid = server.process.pid
        try:
            with held(self, pid, pid):
                self.assertEqual(Asker(server, "whole").ask(), FAILED["whole"])
                self.assertEqual(wait_for_end([pid], PATIENCE), [])
            self.assertEqual(server.wait(), 1)
        finally:
            server.process.kill()
            server.process.wait()
            server.process.stdout.close()

    def test_a_rank_that_hangs_for_shorter_than_the_timeout_goes_on(self):
        with Server("--rank-timeout", 6, "--kv-cache-memory", "64M", "--ranks", 2, *TENSOR, model=self.model) as server:
            for victim in (1, 0, 1):  # longer than the timeout, all three together
                with server.stream("/v1/completions", ENDLESS | {"max_tokens": 2_000}) as stream:
                    next(stream)
                    with held(self, rank_thread(server.process.pid, victim), server.process.pid):
                        time.sleep(3)
                    self.assertEqual(sum(1 for chunk in stream if chunk["choices"][0]["finish_reason"] == "length"), 1)
                    self.assertTrue(stream.is_done)
            self.assertTrue(is_ready(server))
            self.assertEqual([line for line in server.lines if "error" in line or "progress" in line], [])
            self.assertEqual(server.metrics()['cambium:rank_up{rank="1"}'], 1)


class Threads(Faults):
    def test_a_server_that_was_stopped_goes_on(self):
        with Server(*WORDS, "--ranks", 2, *TENSOR, model=self.model) as server:
            with server.stream("/v1/completions", ENDLESS | {"max_tokens": 2_000}) as stream:
                next(stream)
                server.signal(signal.SIGSTOP)
                time.sleep(TIMEOUT + 1)
                server.signal(signal.SIGCONT)
                self.assertEqual(sum(1 for chunk in stream if chunk["choices"][0]["finish_reason"] == "length"), 1)
                self.assertTrue(stream.is_done)
            self.assertTrue(is_ready(server))

    def test_a_signal_while_it_starts_ends_it(self):
        draw = random.Random(4)
        for _ in range(40 if LONG else 8):
            server = Server(*WORDS, *draw.choice(((), ("--ranks", 2, *TENSOR))), model=self.model, is_awaited=False)
            time.sleep(draw.random() * 0.15)
            server.signal(draw.choice((signal.SIGTERM, signal.SIGINT)))
            # The dynamic loader minds no signals yet.
            self.assertIn(server.wait(), (0, 1, -signal.SIGTERM, -signal.SIGINT), server.lines)
            server.process.stdout.close()
            server.process.stderr.close()

    def test_idle_ranks_take_no_core(self):
        for words in ((), ("--ranks", 2, *TENSOR), ("--ranks", 2, *PIPELINE)):
            with Server(*words, model=TINY) as server:
                server.complete("It was", max_tokens=3)
                self.assert_idle([server.process.pid], 2 if words else 1)

    @needs_mpirun
    def test_idle_processes_take_no_core(self):
        with RankServer(2, *TENSOR, model=TINY) as server:
            server.complete("It was", max_tokens=3)
            self.assert_idle(server.ranks.values(), 1)

    def assert_idle(self, pids, ranks):
        def seconds():
            """All threads of each process: finer than the ticks of /proc/PID/stat."""
            return [sum(int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9 for pid in pids]

        for last in (False, False, False, False, True):  # what else the machine does makes a look dearer, never cheaper
            before = seconds()
            time.sleep(1.5)
            taken = [(b - a) / 1.5 / ranks for a, b in zip(before, seconds())]
            if max(taken) < 0.02:
                return
            self.assertFalse(last, f"parts of a core that each rank took: {taken}")


if __name__ == "__main__":
    unittest.main()
