"""Runs the tests of one script, as CTest does: run.py SCRIPT.

Each test that was skipped leaves a line "skipped: NAME: REASON", as those of C do (test_skip in test.h), for whoever lists
what was not tested. Where nothing was tested, the exit status is 77, which CTest counts as a skip."""
import importlib, os, sys, unittest

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


def main(script):
    choose_device()
    directory, file = os.path.split(os.path.abspath(script))
    sys.path.insert(0, directory)
    module = os.path.splitext(file)[0]
    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
    result = unittest.TextTestRunner().run(suite)
    for test, reason in result.skipped:
        print(f"skipped: {name_of(test, module)}: {reason}", file=sys.stderr)
    if not result.wasSuccessful() or not (result.testsRun or result.skipped):
        return 1
    return ALL_SKIPPED if result.testsRun <= len(result.skipped) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
