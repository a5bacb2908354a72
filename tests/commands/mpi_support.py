"""The common part of the tests of ranks as processes: how they are launched, found, and seen to end."""
import os, pathlib, re, shutil, subprocess, threading, time, unittest

from model_support import SANITIZED
from pretrain_support import CAMBIUM

MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]  # more ranks than cores
# Once a rank has failed, mpirun gives the others a second to end. Here the rank that fails has said why before.
AT_ONCE_ENDED = ["--mca", "odls_base_sigkill_timeout", "0"]
os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
HAS_MPIRUN = shutil.which("mpirun") is not None and not SANITIZED  # Open MPI's own leaks would be reported
needs_mpirun = unittest.skipUnless(HAS_MPIRUN, "there is no mpirun, or a sanitizer that would report its leaks")


def start(run, ranks, *arguments, launcher=MPIRUN, stderr=subprocess.PIPE, **keys):
    """Starts Run.command(*arguments, **keys) as several processes."""
    command = [*launcher, "-n", str(ranks), *run.command(*arguments, **keys)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)


def run_each(*commands, seconds=240, **keys):
    """Runs a command line for each rank in one launch. A launch that does not end by itself is ended, and is a failure."""
    words = [word for command in commands for word in (":", "-n", "1", *map(str, command))][1:]
    with subprocess.Popen([*MPIRUN, *AT_ONCE_ENDED, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", **keys) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # mpirun ends its ranks
            output, errors = process.communicate()
            raise AssertionError(f"still running after {seconds} s:\n{errors}") from None
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def is_running(pid):
    """Whether the process exists and is no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def has_pending_signals(pid):
    """Signals that the process has not received yet: two at once arrive in the order of their numbers."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return any(int(word, 16) for word in re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)", status, re.M))


def is_held(pid):
    """Whether the process is stopped, and no signal waits for it."""
    try:
        return "\nState:\tT" in pathlib.Path(f"/proc/{pid}/status").read_text() and not has_pending_signals(pid)
    except OSError:  # it has ended
        return False


def rank_processes(word, variable="OMPI_COMM_WORLD_RANK"):
    """{rank: pid} of the program's processes on whose command line this word stands, the rank as the launcher says it."""
    found = {}
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if word not in (directory / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                continue
            if not os.path.samefile(directory / "exe", CAMBIUM):
                continue
            environment = dict(e.split("=", 1) for e in (directory / "environ").read_bytes().decode(errors="replace").split("\0") if "=" in e)
        except OSError:
            continue
        if variable in environment:
            found[int(environment[variable])] = int(directory.name)
    return found


def wait_for_end(pids, seconds):
    """The processes that still run after `seconds`."""
    end = time.monotonic() + seconds
    while pids and time.monotonic() < end:
        time.sleep(0.01)
        pids = [pid for pid in pids if is_running(pid)]
    return pids


def strike_all(test, strike, cases, at_once=4):
    """strike(**case) of each case, some at a time: most of it is waiting."""
    failures, left = [], list(cases)

    def work():
        while left:
            case = left.pop()
            try:
                strike(**case)
            except Exception as error:  # of a thread, which unittest does not see
                failures.append(f"{case}: {error!r}")

    workers = [threading.Thread(target=work) for _ in range(at_once)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    test.assertFalse(failures, "\n".join(failures))
