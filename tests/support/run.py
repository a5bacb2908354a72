"""Runs the tests of one script, as CTest does: run.py SCRIPT.

Each test that was skipped leaves a line "skipped: NAME: REASON", as those of C do (test_skip in test.h), for whoever lists
what was not tested. Where nothing was tested, the exit status is 77, which CTest counts as a skip.

A script whose tests mostly wait says AT_ONCE = N: its tests run in N processes. Each process takes the next test that
nobody has taken, and makes the fixtures of its class when it comes to the first one. Each has its own TMPDIR, because
launches of mpirun that begin at once trip over each other's directories."""
import fcntl, importlib, os, sys, tempfile, traceback, unittest

ALL_SKIPPED = 77


def name_of(test, module):
    """module.Class.test; of a whole module or class that was skipped, its name."""
    words = test.id().split(" ")
    return words[0] if words[0].startswith(module) else words[1].strip("()")


def choose_device():
    """CAMBIUM_TEST_DEVICE: the backend that the program is to compute on."""
    if os.environ.get("CAMBIUM_TEST_DEVICE"):
        os.environ["CAMBIUM_PROGRAM"] = os.environ["CAMBIUM"]
        os.environ["CAMBIUM"] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "on_device")


class Shared(unittest.TestSuite):
    """Tests that several processes share. `taken`, a file, holds how many of them are taken."""

    _cleanup = False  # it is no list from which tests could be removed

    def __init__(self, tests, taken):
        super().__init__()
        self.tests, self.taken = tests, taken

    def __iter__(self):
        while (number := self.take()) < len(self.tests):
            yield self.tests[number]

    def take(self):
        with open(self.taken, "r+", encoding="ascii") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            number = int(file.read() or 0)
            file.seek(0)
            file.write(str(number + 1))
        return number


def flat(suite):
    return [test for part in suite for test in flat(part)] if isinstance(suite, unittest.TestSuite) else [suite]


def run(suite, module):
    """Runs tests. Returns (whether all passed, how many ran, how many were skipped)."""
    result = unittest.TextTestRunner().run(suite)
    for test, reason in result.skipped:
        print(f"skipped: {name_of(test, module)}: {reason}", file=sys.stderr)
    return result.wasSuccessful(), result.testsRun, len(result.skipped)


def run_at_once(suite, module, count):
    """The same in several processes. What each one prints is shown when it ends, one after another."""
    with tempfile.TemporaryDirectory() as directory:
        taken = os.path.join(directory, "taken")
        open(taken, "w", encoding="ascii").close()
        shared, children = Shared(flat(suite), taken), []
        for number in range(count):
            output, found = (os.path.join(directory, f"{name}{number}") for name in ("output", "found"))
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid:
                children.append((pid, output, found))
                continue
            try:
                os.environ["TMPDIR"] = tempfile.tempdir = os.path.join(directory, str(number))
                os.mkdir(tempfile.tempdir)
                with open(output, "w", encoding="utf-8") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                words = run(shared, module)
                with open(found, "w", encoding="ascii") as file:
                    file.write(" ".join(str(int(word)) for word in words))
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        results = [(False, 1, 0)] * count  # of one that ended without a result
        for number, (pid, output, found) in enumerate(children):
            os.waitpid(pid, 0)
            with open(output, encoding="utf-8", errors="replace") as file:
                sys.stderr.write(file.read())
            if os.path.exists(found):
                with open(found, encoding="ascii") as file:
                    results[number] = tuple(map(int, file.read().split()))
    return all(good for good, _, _ in results), sum(ran for _, ran, _ in results), sum(skipped for _, _, skipped in results)


def main(script):
    choose_device()
    directory, file = os.path.split(os.path.abspath(script))
    sys.path.insert(0, directory)
    name = os.path.splitext(file)[0]
    module = importlib.import_module(name)
    suite, at_once = unittest.defaultTestLoader.loadTestsFromModule(module), getattr(module, "AT_ONCE", 1)
    is_good, ran, skipped = run(suite, name) if at_once == 1 else run_at_once(suite, name, at_once)
    if not is_good or not (ran or skipped):
        return 1
    return ALL_SKIPPED if ran <= skipped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
