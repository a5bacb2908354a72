"""docs/serving.md: what it names is there, what is there it names, and its examples work as they stand."""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from model_support import SOURCE, run, write_reciting_model
from serve_support import Server, write_prompt

TEXT = (SOURCE / "docs/serving.md").read_text()
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.M | re.S))


def examples(begin):
    """Indented lines that begin so, with those that belong to them."""
    found = re.findall(rf"^    {begin}.*(?:\n     +.*)*", TEXT, re.M)
    assert found, begin
    return [re.sub(r"^    ", "", example, flags=re.M) for example in found]


def check(*words, text=None, **more):
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60, input=text, **more)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


class Names(unittest.TestCase):
    def test_options_are_those_of_the_program(self):
        options = set(re.findall(r"^  (--[a-z][\w.-]*)", run("serve", "--help")[0].decode(), re.M))
        told = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_.-]*[a-z0-9]", TEXT))
        others = {"--json", "--encode", "--decode", "--http2-prior-knowledge", "--data-binary", "--ntasks", "--time", "--signal", "--wrap", "--mpi", "--requests", "--help",
                  "--file", "--tag", "--publish", "--volume", "--build-arg", "--system", "--install"}
        self.assertEqual(told - options - others, set())
        limits = {option for option in options if option.startswith("--limits.")}
        self.assertEqual(limits - told, set())

    def test_metrics_are_those_of_the_server(self):
        told = set(re.findall(r"(?:vllm|cambium):\w+", TEXT))
        with Server() as server:
            there = set(re.findall(r"^# TYPE (\S+)", server.ask("GET", "/metrics", listener="control").body.decode(), re.M))
        self.assertEqual(told, there)

    def test_errors_are_those_of_the_server(self):
        source = (SOURCE / "src/openai/error.c").read_text()
        codes = set(re.findall(r'\{\d+, \w+, "(\w+)", \d+\}|\{\d+, "\w+", "(\w+)", \d+\}', source))
        codes = {first or second for first, second in codes} - {"cancelled", "internal_error", "slow_reader"}
        self.assertGreater(len(codes), 15)
        self.assertEqual({code for code in codes if f"`{code}`" not in TEXT}, set())


@unittest.skipUnless(shutil.which("curl"), "no curl")
class Examples(unittest.TestCase):
    def test_requests_work_as_they_stand(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            root = pathlib.Path(directory)
            write_reciting_model(root / "model", b"Once upon a time there was a long text. " * 8)
            for number, name in enumerate(("verse", "formal", "songs", "songs-v2")):
                write_prompt(root / "adapters" / name, number + 1)
            (root / "proto").symlink_to(SOURCE / "proto")
            with Server("--adapter-root", root / "adapters", "--chat-template", "plain", model=root / "model") as server:
                for example in examples("curl "):
                    command = example.replace("localhost:8000", server.addresses["data"]).replace("localhost:8001", server.addresses["control"])
                    answer = check("bash", "-c", command.replace("curl ", "curl --fail-with-body --silent --show-error "), cwd=root)
                    self.assertRegex(answer, r'^(\{|data: \{)', example)
                lines = examples("protoc-c ") + examples("printf ")
                if shutil.which("protoc-c"):
                    answer = check("bash", "-ec", "\n".join(lines).replace("localhost:8000", server.addresses["data"]), cwd=root)
                    self.assertRegex(answer, r'text: "[^"]+"')

    def test_the_scrape_is_one(self):
        if not shutil.which("promtool"):
            self.skipTest("no promtool")
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            path = pathlib.Path(directory) / "prometheus.yml"
            path.write_text(BLOCKS["yaml"])
            check("promtool", "check", "config", path)


if __name__ == "__main__":
    unittest.main()
