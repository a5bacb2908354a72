"""The manual pages and the completions that tools/manual makes from the program's help. They have every command and every
option. The pages have no faults, and the shells offer what the help names."""
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import tempfile
import time
import unittest

from model_support import CAMBIUM, SOURCE, run

DIRECTORY = tempfile.TemporaryDirectory(prefix="cambium-test-")
MANUAL = pathlib.Path(DIRECTORY.name) / "manual"


def setUpModule():
    subprocess.run([SOURCE / "tools/manual", CAMBIUM, MANUAL], check=True, timeout=300)


def tearDownModule():
    DIRECTORY.cleanup()


def commands():
    """{words of a command: its help}. Some commands have a longer one with a help of its own."""
    found = re.findall(r"^  ([a-z]+) +\S", run("--help")[0].decode().split("\nexamples:\n")[0], re.M)
    assert len(found) >= 13, found
    helps = {name: run(name, "--help")[0].decode() for name in found}
    longer = ["bench serve", *re.findall(r"'cambium (plan [a-z]+) --help'", helps["plan"])]
    return helps | {words: run(*words.split(), "--help")[0].decode() for words in longer}


def options(text):
    return re.findall(r"^  (--[\w.-]+)", text, re.M)


class Pages(unittest.TestCase):
    def page(self, words):
        return (MANUAL / "man1" / ("-".join(["cambium", *words.split()]) + ".1")).read_text().replace("\\-", "-")

    def test_each_command_has_a_page_with_all_its_options(self):
        helps = commands()
        self.assertEqual({path.name for path in (MANUAL / "man1").iterdir()},
                         {"cambium.1"} | {f"cambium-{words.replace(' ', '-')}.1" for words in helps})
        for words, text in helps.items():
            page = self.page(words)
            self.assertEqual(re.findall(r"^\.BI (--[\w.-]+)", page, re.M), options(text), words)
            for example in re.findall(r"^  (cambium .*)", text.split("\nexamples:\n")[1], re.M):
                self.assertIn(f"\n{example}\n".replace("\\", "\\e"), page)
        for words in helps:
            self.assertIn(f".BR cambium-{words.replace(' ', '-')} (1)", self.page(""))

    def test_a_page_says_what_the_help_says(self):
        page = self.page("merge")
        self.assertIn("\ncambium-merge \\- fold adapters into a model\n".replace("\\-", "-"), page)
        words = re.sub(r"\s+", " ", run("merge", "--help")[0].decode())
        for line in re.findall(r"^\.BI.*\n(.*)", page, re.M):
            self.assertIn(line, words)

    def check(self, *words):
        for path in sorted((MANUAL / "man1").iterdir()):
            done = subprocess.run([*words, path], capture_output=True, text=True, timeout=120,
                                  env=os.environ | {"LC_ALL": "C.UTF-8", "MANWIDTH": "80"})
            faults = re.sub(r".*referenced manual not found.*\n", "", done.stdout if words[0] == "mandoc" else done.stderr)
            self.assertEqual((done.returncode, faults), (0, ""), path.name)

    @unittest.skipUnless(shutil.which("man"), "no man")
    def test_man_warns_of_nothing(self):
        self.check("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z")

    @unittest.skipUnless(shutil.which("mandoc"), "no mandoc")
    def test_mandoc_warns_of_nothing(self):
        self.check("mandoc", "-T", "lint", "-W", "warning")


# Runs the function as bash does when it completes a line, and prints what it offers.
ASK_BASH = """source "$1"; shift
compopt() { echo "$2"; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_cambium
[ ${#COMPREPLY[@]} = 0 ] || printf '%s\\n' "${COMPREPLY[@]}"
"""


class Bash(unittest.TestCase):
    def offers(self, *words):
        done = subprocess.run(["bash", "-c", ASK_BASH, "bash", MANUAL / "bash/cambium", "cambium", *words],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_commands_and_all_their_options(self):
        helps = commands()
        self.assertEqual(self.offers(""), [words for words in helps if " " not in words] + ["--help", "--version"])
        self.assertEqual(self.offers("detok"), ["detokenize"])
        for words, text in helps.items():
            offered = self.offers(*words.split(), "--")
            self.assertEqual([option.removesuffix("=false") for option in offered], options(text), words)
        self.assertIn("--parallel.overlap_grad_reduce=false", self.offers("pretrain", "--parallel.over"))

    def test_values(self):
        self.assertEqual(self.offers("generate", "--precision", ""), ["auto", "fp32", "bf16", "tf32"])
        self.assertEqual(self.offers("generate", "--precision", "=", "b"), ["bf16"])
        self.assertEqual(self.offers("generate", "--precision", "="), ["auto", "fp32", "bf16", "tf32"])
        self.assertEqual(self.offers("generate", "--model", ""), ["default"])  # a directory or a GGUF file
        self.assertEqual(self.offers("pretrain", "--config", "r"), ["default"])  # files, as readline finds them
        self.assertEqual(self.offers("generate", "--top-k", ""), [])

    def test_a_list_takes_several_values_and_ends_with_an_option(self):
        self.assertEqual(self.offers("generate", "--adapter", "a", ""), ["dirnames"])
        self.assertEqual(self.offers("generate", "--adapter", "a", "--pr"), self.offers("generate", "--pr"))
        self.assertIn("--model", self.offers("generate", "--model", "a", ""))

    def test_the_word_of_a_command(self):
        self.assertEqual(self.offers("tokenizer", "tr"), ["train"])
        self.assertEqual(self.offers("adapter", "show", ""), ["dirnames"])
        self.assertEqual(self.offers("adapter", "show", "one", "--"), ["--help", "--version"])
        self.assertIn("--vocab-size", self.offers("tokenizer", "train", ""))
        self.assertIn("serve", self.offers("bench", ""))
        self.assertIn("gemm", self.offers("bench", ""))
        self.assertIn("--url", self.offers("bench", "serve", "--"))
        self.assertNotIn("--url", self.offers("bench", "gemm", "--"))


@unittest.skipUnless(shutil.which("zsh"), "no zsh")
class Zsh(unittest.TestCase):
    """A shell on a terminal; what it shows after two tabs."""

    def setUp(self):
        child, self.terminal = pty.fork()
        if not child:
            os.execvpe("zsh", ["zsh", "-f", "-i"], os.environ | {"TERM": "dumb", "PS1": "> ", "COLUMNS": "120"})
        self.addCleanup(os.waitpid, child, 0)
        self.addCleanup(os.close, self.terminal)
        self.type(f"fpath=({MANUAL}/zsh $fpath); autoload -U compinit; compinit -u -D; echo rea''dy\n")
        self.wait_for("ready\r")

    def type(self, text):
        os.write(self.terminal, text.encode())

    def wait_for(self, *words):
        """Reads until all words were shown."""
        shown, end = "", time.monotonic() + 120
        while not all(word in shown for word in words):
            self.assertLess(time.monotonic(), end, f"{words} not in {shown}")
            if select.select([self.terminal], [], [], 1)[0]:
                shown += os.read(self.terminal, 4096).decode(errors="replace")
        self.type("\x15")  # a line anew

    def test_it_offers_what_the_help_names(self):
        for line, words in {
            "cambium to": ("tokenizer", "train a byte-level BPE tokenizer on text files"),
            "cambium generate --pre": ("--precision", "--prefix-cache", "precision of the computation"),
            "cambium generate --precision ": ("auto", "bf16", "fp32", "tf32"),
            "cambium tokenizer train --input a.txt --vo": ("--vocab-size",),
            "cambium bench serve --scenario ": ("long-prompt", "pipeline"),
            "cambium bench ": ("checkpoint", "gemm", "serve"),
        }.items():
            self.type(line + "\t\t")
            self.wait_for(*words)


class Usage(unittest.TestCase):
    def manual(self, *words):
        return subprocess.run([SOURCE / "tools/manual", *words], capture_output=True, text=True, timeout=60)

    def test_help_and_errors(self):
        self.assertIn("usage: tools/manual PROGRAM DIR", self.manual("--help").stdout)
        self.assertEqual(self.manual("one").returncode, 2)

    def test_a_program_that_fails_makes_no_pages(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            done = self.manual("/bin/false", f"{directory}/manual")
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(os.listdir(directory), [])


if __name__ == "__main__":
    unittest.main()
