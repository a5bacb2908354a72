"""Every C file stands as clang-format (the version of Debian 12, the rules of .clang-format) writes it."""
import os
import subprocess
import sys
import unittest

ROOT = os.environ.get("CAMBIUM_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def c_files():
    for room in ("src", "kernels", "tests", "bench", "tools"):
        for directory, subdirectories, names in os.walk(os.path.join(ROOT, room)):
            subdirectories.sort()
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    yield os.path.join(directory, name)


class Format(unittest.TestCase):
    def test_every_file_is_formatted(self):
        files = list(c_files())
        self.assertGreater(len(files), 10)
        wrong = []
        for first in range(0, len(files), 50):
            run = subprocess.run(["clang-format", "--dry-run", "-Werror", *files[first:first + 50]],
                                 capture_output=True, text=True, cwd=ROOT)
            if run.returncode:
                wrong += sorted({line.split(":")[0] for line in run.stderr.splitlines() if "clang-format-violations" in line})
                if not wrong:
                    self.fail(run.stderr)
        self.assertFalse(wrong, "run clang-format -i on: " + " ".join(os.path.relpath(f, ROOT) for f in wrong))


if __name__ == "__main__":
    sys.exit(unittest.main())
