"""The lines that preprocess, score and finetune read: taken alike, as Python's json takes them, and refused alike."""
import json
import pathlib
import struct
import subprocess
import tempfile
import unittest

import model_support as support

MARK = b"\xef\xbb\xbf"
TAKEN = (  # a line, and what its text is
    (MARK + rb'{"text": "after a mark"}', "after a mark"),
    (rb'{"text": "a\u0000b"}', "a\0b"),
    (rb'{"text": 1, "text": "not", "text": "the last"}', "the last"),
    (rb'{"a": NaN, "b": -Infinity, "c": [Infinity], "d": 1e999, "e": -123456789012345678901234567890, "text": "numbers"}', "numbers"),
    (rb'{"text": "lone \ud800 and \uDFFF\ud83d", "other": "\udead"}', "lone \ufffd and \ufffd\ufffd"),
    (rb'{"text": "a pair \uD83D\ude00"}', "a pair \U0001F600"),
    (rb'{"text\u0000" : 1, "k\\u0000": 2, "text": "a key"}', "a key"),
    (rb'{"text": "no escapes: \\ud800 \" NaN 1e999", "n": 0.25}', 'no escapes: \\ud800 " NaN 1e999'),
    (b'  {"text": "spaces"}\t\r', "spaces"),
)
REFUSED = (b'{"text": "a"', b'{"text": "\xff"}', b"{'text': 1}", b'{"text": "a", "n": 01}', b'{"text": "a", "n": nan}', b'{"text": "a",}',
           rb'{"text": "\ud8"}', b'{"text": "a", "n": NaNx}', b'{"text": "a\tb"}', b'{"text": "a", "n": 1e}', b'{"text": "a"} x',
           b'{"text": "a", "n": +1}', b'{"text": "a", "n": 1234567890123456789012x}', MARK + b'{"text": "a mark, not at the start"}')


class JsonLines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.root = pathlib.Path(cls.temporary.name)
        cls.base = cls.root / "base"
        support.write_byte_model(cls.base, n_layer=1, n_head=2, n_embd=16, n_positions=64)

    def run_all(self, name):
        """The three commands on a file: (exit status, output, what stands on standard error)."""
        words = {
            "preprocess": ["--input", self.root / name, "--tokenizer", self.base, "--output-prefix", self.root / "p"],
            "score": ["--input", self.root / name, "--model", self.base],
            "finetune": ["--data", self.root / name, "--model", self.base, "--output", self.root / f"adapter-{name}", "--train.train_iters=1",
                         "--optim.lr=1e-3", "--train.global_batch_size=1", f"--log.metrics_file={self.root / name}.metrics"]}
        done = {}
        for command, more in words.items():
            run = subprocess.run([support.CAMBIUM, command, *map(str, more)], capture_output=True, text=True, timeout=120)
            done[command] = run.returncode, run.stdout, run.stderr
        return done

    def loss(self, name):
        return json.loads((self.root / f"{name}.metrics").read_text().splitlines()[0])["lm_loss"]

    def test_they_take_the_same_lines(self):
        for number, (line, text) in enumerate([(b"\n".join(line for line, _ in TAKEN), None), *TAKEN]):
            with self.subTest(line=line):
                texts = [text] if text else [text for _, text in TAKEN]
                odd, plain = f"odd{number}.jsonl", f"plain{number}.jsonl"
                (self.root / odd).write_bytes(line + b"\n")
                (self.root / plain).write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts))
                expected, found = self.run_all(plain), self.run_all(odd)
                for command in found:
                    self.assertEqual(found[command][0], 0, found[command][2])
                self.assertEqual(found["score"][1], expected["score"][1])
                scored = [id for line in found["score"][1].splitlines() for id in json.loads(line)["tokens"]]
                tokens = (self.root / "p_text_document.bin").read_bytes()
                self.assertEqual(list(struct.unpack(f"<{len(tokens) // 2}H", tokens)), scored)
                self.assertEqual(bytes(scored).decode(), "".join(texts))
                self.assertEqual(self.loss(odd), self.loss(plain))

    def test_a_mark_alone_is_a_blank_line(self):
        (self.root / "blank.jsonl").write_bytes(MARK + b"\r\n" + b'{"text": "one"}\n \t\r\n')
        for command, (status, _, errors) in self.run_all("blank.jsonl").items():
            self.assertEqual(status, 0, (command, errors))

    def test_they_refuse_the_same_lines(self):
        for line in REFUSED:
            with self.subTest(line=line):
                (self.root / "bad.jsonl").write_bytes(b'{"text": "fine"}\n\n' + line + b'\n{"text": "fine"}\n')
                said = set()
                for status, _, errors in self.run_all("bad.jsonl").values():
                    self.assertEqual(status, 1)
                    said.add(errors.splitlines()[-1].partition("bad.jsonl:3: ")[2])
                self.assertEqual(len(said), 1, said)
                self.assertRegex(said.pop(), r"^column \d+: bad JSON: ")


if __name__ == "__main__":
    unittest.main()
