"""The lines that preprocess, score and finetune read: taken alike, as Python's json takes them, and refused alike. Rows of
JSON arrays and of CSV are the lines that they stand for."""
import csv
import gzip
import io
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


TEXTS = ['", ', 'say ""x"",\n\r\nnow \\', "[{,}]\\\t\u00e9\U0001F600" + "x" * 300000]


class Forms(unittest.TestCase):
    """JSON arrays and CSV, as data show and score read them."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.root = pathlib.Path(cls.temporary.name)
        cls.base = cls.root / "base"
        support.write_byte_model(cls.base, n_layer=1, n_head=2, n_embd=16, n_positions=64)

    def write(self, name, data):
        file = self.root / name
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        return file

    def show(self, file, row=0, expect=0):
        """Returns the row that data show prints, or its error after the file's name."""
        run = subprocess.run([support.CAMBIUM, "data", "show", "--data", file, "--tokenizer", self.base, "--row", str(row)], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, expect, run.stderr)
        return run.stderr.partition(file.name)[2].rstrip("\n") if expect else json.loads(run.stdout)

    def same(self, rows, *files):
        """Each of the files has these rows."""
        lines = self.write("lines.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        for number in range(len(rows)):
            expected = self.show(lines, number)
            for file in files:
                self.assertEqual(self.show(file, number), expected)
        for file in files:
            self.assertIn(f": {len(rows)} rows are kept", subprocess.run([support.CAMBIUM, "data", "show", "--data", file, "--tokenizer", self.base, "--row", "9"],
                                                                         capture_output=True, text=True, timeout=60).stderr)

    def test_arrays(self):
        rows = [{"prompt": "p" + text, "completion": "c" + text, "weight": 0.25, "more": [{"a": [1, "]"]}]} for text in TEXTS]
        indented = "\ufeff \n" + json.dumps(rows, indent=4, ensure_ascii=False) + "\r\n \n"
        self.same(rows, self.write("one.json", json.dumps(rows, separators=(",", ":"))), self.write("two.json", indented),
                  self.write("packed", gzip.compress(json.dumps(rows).encode())))

    def test_faults_of_arrays_have_their_place(self):
        for data, said in (('[{"text": "a"}, {"text": 1}]', ': row 2, line 1: field "text" is not a string'),
                           ('[\n{"text": "a"},\n\n{"text":\n"b"}, [] ]', ": row 3, line 5: expected a JSON object"), ('[{"text": "a"}', ": row 1, line 1: the array has no end"),
                           ('[{"text": "a"},\n', ": row 2, line 2: the array has no end"), ('[{"text": "a"}\n,]', ": row 2, line 2: a comma without a row"),
                           ("[,]", ": row 1, line 1: a comma without a row"), ('[{"text": "a"}]\n{}', ": row 2, line 2: text after the end of the array"),
                           ('[{"text": "a"}],', ": row 2, line 1: text after the end of the array"), ('[{"text": "a"} {"text": "b"}]', ": row 1, line 1: column 15: bad JSON"),
                           ("[]", ": 0 rows"), ('[{"text": "' + "a" * (1 << 24) + '"}]', ": row 1, line 1: longer than the 16777216 bytes")):
            with self.subTest(data=data[:40]):
                self.assertTrue(self.show(self.write("bad.json", data), expect=1).startswith(said), self.show(self.root / "bad.json", expect=1))
        file = self.write("empty.json", '[{"text": "a"}, {"prompt": "a", "completion": ""}, {"text": "b", "weight": 0}]')
        run = subprocess.run([support.CAMBIUM, "finetune", "--model", self.base, "--peft", "lora", "--data", file, "--output", self.root / "adapter", "--optim.lr=1e-3"],
                             capture_output=True, text=True, timeout=60)
        self.assertIn("2 of 3 rows have no answer within 64 tokens, or the weight 0, and are left out: rows 2, 3\n", run.stderr)

    def test_csv(self):
        rows = [{"": "0", "prompt": "p" + text, "completion": "c" + text, "weight": weight} for text, weight in zip(TEXTS, ("", "0.5", "1"))]
        taken, files = [row | {"weight": json.loads(row["weight"] or "null")} for row in rows], []
        for number, (end, quoting, mark) in enumerate((("\r\n", csv.QUOTE_MINIMAL, ""), ("\n", csv.QUOTE_ALL, "\ufeff"))):
            out = io.StringIO(newline="")
            writer = csv.DictWriter(out, list(rows[0]), lineterminator=end, quoting=quoting)
            writer.writeheader()
            writer.writerows(rows)
            files.append(self.write(f"{number}.csv", mark + out.getvalue() + end))
            files.append(self.write(f"{number}.CSV.gz", gzip.compress((mark + out.getvalue().rstrip("\r\n")).encode())))
        self.same(taken, *files)

    def test_columns_of_csv(self):
        for data, row in (("instruction,input,output\ni,,o\n", {"instruction": "i", "input": "", "output": "o"}), ("output,input\no,i", {"input": "i", "output": "o"}),
                          ("text\n\n123\n", {"text": "123"}), ('text,tools\n"[1]",\n', {"text": "[1]"}), ("text\nnull", {"text": "null"})):
            self.same([row], self.write("columns.csv", data))
        messages = [{"role": "user", "content": 'q"'}, {"role": "assistant", "content": "a\n"}]
        (self.base / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role[0] }}{{ m.content }};{% endfor %}{% if add_generation_prompt %}a{% endif %}")
        cell = json.dumps(messages).replace('"', '""')
        self.same([{"messages": messages}], self.write("messages.csv", f'messages\n"{cell}"\n'))

    def test_faults_of_csv_have_their_line(self):
        head = "prompt,completion\n"
        for data, said in ((head + '"a\n\nb",c\nd\n', ":5: 1 fields, and the header has 2"), (head + "a,b,c", ":2: 3 fields, and the header has 2"), (head + "a,b\n\na,", ""),
                           (head + 'a,"b\n', ":2: a cell has no quotation mark at its end"), (head + '"a" ,b\n', ":2: a cell has text after its quotation marks"),
                           (head.encode() + b"a,\xe9\n", ":2: a cell is not UTF-8: save the file as UTF-8"), (",".join(map(str, range(1025))), ":1: the header has more than 1024 columns"), ("text,text\n", ':1: the header has the column "text" twice'),
                           ("question,answer\na,b\n", ":2: no field of a row is here"), ("prompt\na\n", ':2: the row has no field "completion"'), (head, ": 0 rows"),
                           ("text,weight\na,-1\n", ':2: field "weight" is not a number'), ("text,weight\na,NaN\n", ':2: field "weight" is not a number'),
                           ("text,weight\na,much\n", ':2: field "weight" is not a number'), ("prompt,chosen,rejected\na,b,c\n", ":2: a row of two answers"),
                           ("messages\n[{'role': 'user'}]\n", ':2: field "messages" is not a list'), ("text\n" + "a" * (1 << 24) + "b\n", ":2: longer than")):
            with self.subTest(data=data[:40]):
                file = self.write("bad.csv", data)
                if said:
                    self.assertTrue(self.show(file, expect=1).startswith(said), self.show(file, expect=1))
                else:
                    self.assertEqual(self.show(file)["token_texts"], ["a", "b", "<|endoftext|>"])

    def test_files_of_other_kinds(self):
        for name, data, said in (("a.parquet", b"PAR1\x15\0\x15", " is a Parquet file: write its rows as JSON lines"), ("a.jsonl", '{"text": "a"}\n'.encode("utf-16"), " is UTF-16 text"),
                                 ("a.csv", "text\na\n".encode("utf-16-be"), " is UTF-16 text"), ("a.json", "\ufeff[]".encode("utf-16-be"), " is UTF-16 text (it begins with FE FF): convert it to UTF-8")):
            self.assertTrue(self.show(self.write(name, data), expect=1).startswith(said), self.show(self.root / name, expect=1))

    def test_score_reads_them_too(self):
        rows = [{"text": "one"}, {"text": 'two "2", 2'}]
        score = lambda *words, data=None: subprocess.run([support.CAMBIUM, "score", "--model", self.base, "--input", *words], input=data, capture_output=True, timeout=60)
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        expected = score(self.write("lines.jsonl", lines)).stdout
        self.assertEqual(len(expected.splitlines()), 2)
        self.assertEqual(score("-", data=MARK + lines).stdout, expected)
        self.assertEqual(score(self.write("a.json", json.dumps(rows))).stdout, expected)
        self.assertEqual(score(self.write("a.csv", 'text\none\n"two ""2"", 2"\n')).stdout, expected)
        self.assertIn(b"standard input is UTF-16 text", score("-", data=lines.decode().encode("utf-16")).stderr)
        self.assertIn(b"a.json: row 2, line 1: an object with either", score(self.write("a.json", '[{"text": "a"}, {}]')).stderr)

    def test_a_mark_may_come_in_pieces(self):
        process = subprocess.Popen([support.CAMBIUM, "score", "--model", self.base, "--input", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for byte in MARK + b'{"text": "a"}\n':
            process.stdin.write(bytes([byte]))
            process.stdin.flush()
        self.assertEqual(len(json.loads(process.communicate(timeout=60)[0])["tokens"]), 1)


if __name__ == "__main__":
    unittest.main()
