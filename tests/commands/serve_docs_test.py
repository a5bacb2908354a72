"""docs/serving.md and docs/operating.md name options, metrics and errors that exist, and all metrics and errors."""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from model_support import SOURCE, run
from serve_support import Server

TEXT = "".join((SOURCE / "docs" / name).read_text() for name in ("serving.md", "operating.md"))
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.M | re.S))


class Names(unittest.TestCase):
    def test_options_are_those_of_the_program(self):
        options = set(re.findall(r"^  (--[a-z][\w.-]*)", run("serve", "--help")[0].decode(), re.M))
        told = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_.-]*[a-z0-9]", TEXT))
        others = {"--json", "--encode", "--decode", "--http2-prior-knowledge", "--data-binary", "--ntasks", "--time", "--signal", "--wrap", "--mpi", "--requests", "--help",
                  "--file", "--tag", "--publish", "--volume", "--build-arg", "--system", "--install", "--create"}
        self.assertEqual(told - options - others, set())
        limits = {option for option in options if option.startswith("--limits.")}
        self.assertEqual(limits - told, set())

    def test_metrics_are_those_of_the_server(self):
        told = set(re.findall(r"(?:vllm:|cambium:|cambium_constraint_)\w+", TEXT))
        with tempfile.TemporaryDirectory() as root, Server("--tuning-root", root) as server:
            there = set(re.findall(r"^# TYPE (\S+)", server.ask("GET", "/metrics", listener="control").body.decode(), re.M))
        self.assertEqual(told, there)

    def test_errors_are_those_of_the_server(self):
        source = (SOURCE / "src/openai/error.c").read_text()
        codes = set(re.findall(r'\{\d+, \w+, "(\w+)", \d+\}|\{\d+, "\w+", "(\w+)", \d+\}', source))
        codes = {first or second for first, second in codes} - {"cancelled", "internal_error", "slow_reader"}
        self.assertGreater(len(codes), 15)
        self.assertEqual({code for code in codes if f"`{code}`" not in TEXT}, set())


class Scrape(unittest.TestCase):
    @unittest.skipUnless(shutil.which("promtool"), "there is no promtool")
    def test_the_scrape_is_one(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            path = pathlib.Path(directory) / "prometheus.yml"
            path.write_text(BLOCKS["yaml"])
            done = subprocess.run(["promtool", "check", "config", path], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
