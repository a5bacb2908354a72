"""tools/gpu, on libraries that stand in for NVIDIA's: its checks pass there, and find what is wrong; a packed folder runs
by itself."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from model_support import CAMBIUM, SANITIZED, SOURCE

STANDIN = os.environ.get("CAMBIUM_CUDA_STANDIN")  # of a build with CUDA
LONG = os.environ.get("CAMBIUM_TEST_LONG", "0") not in ("", "0")
TOOL = SOURCE / "tools/gpu"
GELU_AUX_BIAS, DGELU = 164, 192  # epilogues of cuBLASLt


def setUpModule():
    if not STANDIN or SANITIZED:
        raise unittest.SkipTest("this build has no CUDA, or a sanitizer")


class Tool(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(self.temporary.cleanup)
        self.root = pathlib.Path(self.temporary.name)
        self.results = self.root / "gpu-results.json"

    def run_tool(self, *words, tool=TOOL, expect=0, **environment):
        done = subprocess.run([tool, *map(str, words)], capture_output=True, text=True, timeout=1500, cwd=self.root,
                              env={**os.environ, "LD_LIBRARY_PATH": STANDIN, **environment})
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done

    def check(self, *names, program=CAMBIUM, **more):
        self.run_tool("check", "--program", program, *names, **more)
        return {row.get("case", row.get("op")): row for row in json.loads(self.results.read_text())["check"]}

    def test_checks_pass_on_the_stand_in(self):
        rows = self.check("completions", "server", "models d5_tied fp32", "adapters lora_all_linear", "operations rotary",
                          "batch invariance bf16", "algorithms bf16")
        self.assertEqual({row["outcome"] for row in rows.values()}, {"passed"}, rows)
        self.assertEqual(sum("rotary" in name for name in rows), 24)
        self.assertEqual(len(rows), 24 + 7)
        taken = rows["algorithms taken, bf16"]["taken"]
        epilogues = {int(product["product"].split("epilogue ")[1].split(",")[0]) for product in taken["products"]}
        self.assertGreaterEqual(epilogues, {1, 4, GELU_AUX_BIAS, DGELU})
        self.assertTrue(all(int(product["algorithm"], 16) for product in taken["products"]))
        self.assertIn("cuBLASLt", taken["library"])

    def test_a_failed_case_is_reported_and_the_others_run(self):
        rows = self.check("completions", "operations rotary", expect=1, CAMBIUM_CUDA_FAIL="launch:30")
        self.assertEqual(rows["completions"]["error"],
                         "cambium: error: cuda:0: work on the device failed: unspecified launch failure (719)")
        outcomes = [row["outcome"] for name, row in rows.items() if "rotary" in name]
        self.assertEqual(outcomes, ["passed"] * outcomes.count("passed") + ["failed"] * outcomes.count("failed"))
        self.assertEqual(len(set(outcomes)), 2)

    def test_figures_that_differ_fail(self):
        """A program whose GPU computes something else."""
        program = self.root / "program"
        program.write_text(f'#!/bin/sh\n{CAMBIUM} "$@" | case "$*" in *cuda) sed "s/-3\\./-3.9/" ;; *) cat ;; esac\n')
        program.chmod(0o755)
        rows = self.check("models d5_tied fp32", program=program, expect=1)
        self.assertRegex(rows["models d5_tied fp32"]["error"], r"^line \d has -3\.9\d+ in place of -3\.\d+$")

    def test_words_that_it_does_not_know_are_refused(self):
        for words in ((), ("nonsense",), ("check", "--nonsense"), ("check", "--results"), ("pack",), ("build", "a")):
            with self.subTest(words):
                self.assertIn("--help shows the usage", self.run_tool(*words, expect=2).stderr)
        self.assertIn("no case begins with nothing", self.run_tool("check", "--program", CAMBIUM, "nothing", expect=2).stderr)

    @unittest.skipUnless(LONG, "packs, checks everything and measures: minutes")
    def test_a_packed_folder_runs_by_itself(self):
        folder = self.root / "folder"
        self.run_tool("pack", "--program", CAMBIUM, folder)
        self.assertLessEqual(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()), 60_000_000)
        moved = self.root / "elsewhere"
        shutil.move(folder, moved)
        self.run_tool("check", tool=moved / "gpu")
        results = json.loads(self.results.read_text())
        self.assertGreater(len(results["check"]), 400)
        self.assertEqual({row["outcome"] for row in results["check"]} - {"skipped"}, {"passed"})
        self.assertEqual(len(results["commit"].removesuffix("-dirty")), 40)


if __name__ == "__main__":
    unittest.main()
