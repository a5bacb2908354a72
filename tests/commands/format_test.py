"""Every file of C or CUDA stands as clang-format (the version of Debian 12, the rules of .clang-format) writes it."""
import os
import subprocess
import sys
import unittest

from house_support import ROOMS, ROOT, files_under


def source_files():
    folders = [folder for folder, _ in ROOMS.values()] + [os.path.join(ROOT, top) for top in ("tests", "tools")]
    return [path for folder in folders for path in files_under(folder, (".c", ".h", ".cu", ".cuh"))]


class Format(unittest.TestCase):
    def test_every_file_is_formatted(self):
        files = source_files()
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
