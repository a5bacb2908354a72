"""GPT-2's own vocabulary on a real text: the ids are those that tiktoken and tokenizers gave to
tools/golden/tokenizer.py. Vocabulary and text are too large for the repository. They are looked for in
../shared/data, or in the folder named by CAMBIUM_SHARED_DATA, and the test is skipped without them."""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

CAMBIUM = os.environ["CAMBIUM"]
SOURCE = pathlib.Path(os.environ["CAMBIUM_SOURCE"])
DATA = pathlib.Path(os.environ.get("CAMBIUM_SHARED_DATA") or SOURCE.parent / "shared/data")
TEXT = DATA / "tinyshakespeare.txt"
EXPECTED = json.loads((SOURCE / "tests/text/golden/gpt2_text.json").read_text())


class RealText(unittest.TestCase):
    def setUp(self):
        missing = [path for path in (TEXT, DATA / "gpt2/vocab.json", DATA / "gpt2/merges.txt") if not path.exists()]
        if missing:
            print(f"\nskipped: {self.id()}: there is no {missing[0]}", file=sys.stderr)
            self.skipTest(f"there is no {missing[0]}")
        self.assertEqual(hashlib.sha256(TEXT.read_bytes()).hexdigest(), EXPECTED["text"], "this is another text")

    def run_program(self, *words, **more):
        return subprocess.run([CAMBIUM, *map(str, words)], capture_output=True, check=True, timeout=300, **more).stdout

    def test_a_dataset_has_the_ids_of_tiktoken(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            prefix = pathlib.Path(directory) / "p"
            self.run_program("preprocess", "--input", TEXT, "--format", "file", "--tokenizer", DATA / "gpt2", "--output-prefix", prefix)
            ids = pathlib.Path(f"{prefix}_text_document.bin").read_bytes()
        self.assertEqual(list(memoryview(ids[:24]).cast("H")), EXPECTED["first"])
        self.assertEqual(len(ids), 2 * EXPECTED["tokens"])
        self.assertEqual(hashlib.sha256(ids).hexdigest(), EXPECTED["ids"])

    def test_the_ids_of_each_line_are_tiktokens_and_give_the_text_back(self):
        lines = self.run_program("tokenize", "--tokenizer", DATA / "gpt2", input=TEXT.read_bytes())
        self.assertEqual(hashlib.sha256(lines).hexdigest(), EXPECTED["lines"])
        self.assertEqual(self.run_program("detokenize", "--tokenizer", DATA / "gpt2", input=lines), TEXT.read_bytes())


if __name__ == "__main__":
    unittest.main()
