"""cambium preprocess as its user meets it: the datasets that it writes, in order, whole or not at all."""
import gzip
import hashlib
import json
import os
import pty
import random
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from model_support import counts_memory

CAMBIUM = os.environ["CAMBIUM"]
EOD = 256


def byte_characters():
    """GPT-2's printable character of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}


def write_tokenizer(directory, count=257):
    """Ids are the bytes; 256 is the end of the text; the others never occur."""
    os.mkdir(directory)
    vocabulary = {c: b for b, c in byte_characters().items()} | {"<|endoftext|>": EOD}
    vocabulary |= {f"<|unused{i}|>": i for i in range(257, count)}
    with open(os.path.join(directory, "vocab.json"), "w") as f:
        json.dump(vocabulary, f)
    with open(os.path.join(directory, "merges.txt"), "w") as f:
        f.write("#version: 0.2\n")


def read_dataset(prefix):
    """(documents as lists of sequences of tokens, code of the token type)"""
    with open(prefix + ".idx", "rb") as f:
        idx = f.read()
    with open(prefix + ".bin", "rb") as f:
        tokens = f.read()
    magic, version, code, n, d = struct.unpack_from("<9sQBQQ", idx)
    assert (magic, version) == (b"MMIDIDX\0\0", 1) and len(idx) == 34 + 12 * n + 8 * d
    lengths = struct.unpack_from(f"<{n}i", idx, 34)
    offsets = struct.unpack_from(f"<{n}q", idx, 34 + 4 * n)
    documents = struct.unpack_from(f"<{d}q", idx, 34 + 12 * n)
    size, letter = {8: (2, "H"), 4: (4, "i")}[code]
    assert len(tokens) == size * sum(lengths)
    sequences = [list(struct.unpack_from(f"<{k}{letter}", tokens, o)) for k, o in zip(lengths, offsets)]
    return [sequences[a:b] for a, b in zip(documents, documents[1:])], code


def digests(prefix):
    found = []
    for end in (".bin", ".idx"):
        with open(prefix + end, "rb") as f:
            found.append(hashlib.file_digest(f, "sha256").hexdigest())
    return found


class Preprocess(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name
        write_tokenizer(self.path("tokenizer"))
        os.mkdir(self.path("out"))

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def write(self, name, data):
        data = data.encode() if isinstance(data, str) else data
        with open(self.path(name), "wb") as f:
            f.write(gzip.compress(data) if name.endswith(".gz") else data)
        return self.path(name)

    def run_preprocess(self, *words, **more):
        if "--tokenizer" not in words:
            words += ("--tokenizer", self.path("tokenizer"))
        return subprocess.run([CAMBIUM, "preprocess", "--output-prefix", self.path("out", "p"), *map(str, words)],
                              capture_output=True, text=True, timeout=300, **more)

    def documents(self, *words, key="text", eod=True):
        """The documents of a run, decoded, without their end-of-document tokens."""
        run = self.run_preprocess(*words, *(["--append-eod"] if eod else []))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn(self.path("out", f"p_{key}_document"), run.stdout.splitlines())
        documents, code = read_dataset(self.path("out", f"p_{key}_document"))
        self.assertEqual(code, 8)
        texts = []
        for sequences in documents:
            if sequences and eod:
                self.assertEqual(sequences[-1].pop(), EOD)
            texts.append([bytes(s).decode() for s in sequences])
        return texts

    def assert_fails(self, run, status, *parts):
        """One line that has the parts, and nothing remains."""
        self.assertEqual(run.returncode, status, run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        for part in parts:
            self.assertIn(part, run.stderr)
        self.assertEqual(os.listdir(self.path("out")), [])

    def test_json_lines(self):
        lines = [{"text": "Hello"}, {"text": ""}, {"text": "é\0\U0001F600 <|endoftext|>", "id": 10 ** 30, "text2": 1.5},
                 {"text": ["a", "", "bc"]}, {"text": []}, {"text": "last"}]
        file = self.write("a.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n  \r\n")
        expected = [["Hello"], [], ["é\0\U0001F600 <|endoftext|>"], ["a", "bc"], [], ["last"]]
        self.assertEqual(self.documents("--input", file), expected)
        self.assertEqual(self.documents("--input", file, eod=False), expected)
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["p_text_document.bin", "p_text_document.idx"])

    def test_every_key_is_a_dataset(self):
        file = self.write("a.jsonl", '{"title": "T1", "body": "B1"}\n{"body": "B2", "title": ""}')
        words = ("--input", file, "--json-keys", "title", "body")
        self.assertEqual(self.documents(*words, key="title"), [["T1"], []])
        self.assertEqual(self.documents(*words, key="body"), [["B1"], ["B2"]])

    def test_plain_text(self):
        text = "one\ntwo\n%\n%\nthree\r\n%\r\n\n% not\nend"
        file = self.write("a.txt", text)
        self.assertEqual(self.documents("--input", file), [[text]])
        self.assertEqual(self.documents("--input", file, "--format", "file"), [[text]])
        self.assertEqual(self.documents("--input", file, "--format", "line"),
                         [["one"], ["two"], ["%"], ["%"], ["three"], ["%"], [], ["% not"], ["end"]])
        self.assertEqual(self.documents("--input", file, "--format", "delimiter"),
                         [["one\ntwo"], [], ["three"], ["\n% not\nend"]])
        self.assertEqual(self.documents("--input", file, "--format", "delimiter", "--delimiter", "two"),
                         [["one"], ["%\n%\nthree\r\n%\r\n\n% not\nend"]])
        with_end = self.write("b.txt", "x\n%\ny\n%\n")
        self.assertEqual(self.documents("--input", with_end, "--format", "delimiter"), [["x"], ["y"]])
        self.assertEqual(self.documents("--input", with_end, "--format", "line"), [["x"], ["%"], ["y"], ["%"]])

    def test_bytes_that_are_no_characters_are_kept(self):
        data = bytes(range(256)) * 3 + b"\xff\xfe\xc3"
        run = self.run_preprocess("--input", self.write("a.txt", data))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(read_dataset(self.path("out", "p_text_document"))[0], [[list(data)]])

    def test_gzip_by_contents_and_files_in_order(self):
        files = [self.write("b.jsonl.gz", '{"text": "1"}\n{"text": "2"}'), self.write("a.jsonl", '{"text": "3"}'),
                 self.write("e.txt", ""), self.write("c.txt.gz", "4"), self.write("d.jsonl", '\n{"text": "5"}\n')]
        os.rename(files[0], self.path("packed.jsonl"))
        files[0] = self.path("packed.jsonl")
        self.assertEqual(self.documents("--input", *files), [["1"], ["2"], ["3"], [], ["4"], ["5"]])

    def test_pipes_are_read(self):
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        for data in (b"a line\nof text", gzip.compress(b"a line\nof text")):
            writer = subprocess.Popen(["dd", "of=" + pipe, "status=none"], stdin=subprocess.PIPE)
            writer.stdin.write(data)
            writer.stdin.close()
            self.assertEqual(self.documents("--input", pipe, "--format", "line"), [["a line"], ["of text"]])
            self.assertEqual(writer.wait(), 0)

    def test_order_and_bytes_do_not_depend_on_the_workers(self):
        r = random.Random(3)
        texts = ["".join(r.choice("abc é\n") for _ in range(r.choice((0, 1, 20, 300, 3000)))) for _ in range(3000)]
        texts[700] = "x" * 3_000_000  # a document larger than a batch
        file = self.write("a.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in texts))
        written = []
        for workers in (1, 2, 7):
            got = self.documents("--input", file, "--workers", workers)
            self.assertEqual(got, [[t] if t else [] for t in texts])
            with open(self.path("out", "p_text_document.idx"), "rb") as f:
                written.append(f.read())
        self.assertEqual(written[0], written[1])
        self.assertEqual(written[0], written[2])

    @counts_memory
    def test_a_long_text_is_not_held(self):
        """64 MB in bounded memory, and with the tokens of the same text as the one string of a JSON line."""
        r = random.Random(5)
        words = ["the", "cat's", " ", "  ", "\r\n", "\n\n", "é", "漢字", "１２", "\u00a0", "...", "<|endoftext|>", "'re", "12", "\t"]
        pieces = ["".join(r.choice(words) + r.choice(("", " ", " ")) for _ in range(2000)) for _ in range(50)]
        order = [r.randrange(50) for _ in range(8000)]
        text, line = self.path("long.txt"), self.path("long.jsonl")
        with open(text, "w", newline="") as plain, open(line, "w") as lines:
            lines.write('{"text": "')
            for piece in order:  # not held here either, or it would count for the child
                plain.write(pieces[piece])
                lines.write(json.dumps(pieces[piece])[1:-1])
            lines.write('"}')
        self.assertGreater(os.path.getsize(text), 60e6)
        golden = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "text", "golden", "small")
        written = []
        for file in (line, text):
            run = subprocess.Popen([CAMBIUM, "preprocess", "--output-prefix", self.path("out", "p"), "--append-eod",
                                    "--workers", "2", "--tokenizer", golden, "--input", file],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(run.pid, 0)
            run.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(run.returncode, 0)
            written.append(digests(self.path("out", "p_text_document")))
        self.assertEqual(written[0], written[1])
        self.assertLess(usage.ru_maxrss, 48 << 10)

    def test_long_documents_end_where_they_did(self):
        """Line ends and delimiters that meet the border of what is held."""
        for length in (1 << 18, (1 << 18) - 1, (1 << 18) + 1, 3 << 17):
            body = ("word " * (length // 5 + 1))[:length - 1] + "."
            for end in ("\n", "\r\n", "  \r\n"):
                text = f"{body}{end}%{end.strip(' ')}a{end}"
                rest = end[:-len(end.strip(" "))]
                file = self.write("a.txt", text)
                self.assertEqual(self.documents("--input", file, "--format", "file"), [[text]])
                self.assertEqual(self.documents("--input", file, "--format", "line"), [[body + rest], ["%"], ["a" + rest]])
                self.assertEqual(self.documents("--input", file, "--format", "delimiter"), [[body + rest], ["a" + rest]])
        self.assertEqual(self.documents("--input", file, self.write("b.txt", body), self.write("c.txt", "")),
                         [[text], [body], []])

    def test_tokens_around_a_text_stand_there_once(self):
        """Also around a document that is read in parts; an empty one has none."""
        with open(os.path.join(self.path("tokenizer"), "tokenizer_config.json"), "w") as f:
            json.dump({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "add_bos_token": True,
                       "add_eos_token": True}, f)
        text = "a word, " * 400_000
        documents = [json.dumps({"text": t}) for t in ("ab", "", ["c", "d"], text)]
        run = self.run_preprocess("--input", self.write("d.jsonl", "\n".join(documents)), self.write("d.txt", text),
                                  "--append-eod")
        self.assertEqual(run.returncode, 0, run.stderr)
        long = [EOD, *text.encode(), EOD, EOD]
        found, _ = read_dataset(self.path("out", "p_text_document"))
        self.assertEqual([d for d in found if d],
                         [[[EOD, *b"ab", EOD, EOD]], [[EOD, *b"c", EOD], [EOD, *b"d", EOD, EOD]], [long], [long]])

    def test_wide_tokens_for_a_large_vocabulary(self):
        for count, code in ((65499, 8), (65500, 4)):
            shutil.rmtree(self.path("tokenizer"))
            write_tokenizer(self.path("tokenizer"), count)
            run = self.run_preprocess("--input", self.write("a.txt", "hi"), "--append-eod")
            self.assertEqual(run.returncode, 0, run.stderr)
            documents, got = read_dataset(self.path("out", "p_text_document"))
            self.assertEqual((documents, got), ([[[104, 105, EOD]]], code))

    def test_a_terminal_gets_a_progress_bar(self):
        file = self.write("a.jsonl", '{"text": "some words of a text"}\n' * 200_000)
        main, terminal = pty.openpty()
        process = subprocess.Popen([CAMBIUM, "preprocess", "--output-prefix", self.path("out", "p"), "--tokenizer",
                                    self.path("tokenizer"), "--input", file], stdout=subprocess.DEVNULL, stderr=terminal)
        os.close(terminal)
        text = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            text += part
        os.close(main)
        self.assertEqual(process.wait(60), 0, text)
        self.assertRegex(text.decode(), r"\r[^\n]* \d+% \[[=> ]{24}\]")
        self.assertNotIn("\r", self.run_preprocess("--input", file).stderr)

    def test_bad_documents_name_file_and_line(self):
        cases = [("{", "bad.jsonl:3: ", "bad JSON"), ('{"text": "a"', "bad.jsonl:3: ", "bad JSON"), ('{"text": 1}', "bad.jsonl:3: ", '"text"'),
                 ('{"other": "a"}', "bad.jsonl:3: ", 'no key "text"'), ("[1]", "bad.jsonl:3: ", "expected a JSON object"),
                 ('{"text": ["a", 2]}', "bad.jsonl:3: ", "entry 1"), ('{"text": "\xff"}', "bad.jsonl:3: ", "bad JSON"),
                 ('{"text": null}', "bad.jsonl:3: ", "neither"), ('{"text": "a"} x', "bad.jsonl:3: ", "bad JSON")]
        for line, *parts in cases:
            with self.subTest(line=line):
                good = self.write("good.jsonl", '{"text": "fine"}\n')
                bad = self.write("bad.jsonl", b'{"text": "a"}\n\n' + line.encode("latin-1") + b'\n{"text": 5}\n')
                for workers in (1, 4):
                    run = self.run_preprocess("--input", good, bad, "--workers", workers)
                    self.assert_fails(run, 1, "bad.jsonl", *parts)

    def test_plain_text_under_another_name_is_explained(self):
        run = self.run_preprocess("--input", self.write("poem", "Roses are red\n"))
        self.assert_fails(run, 1, "poem:1: column 5: bad JSON", "--format file, line or delimiter")

    def test_rows_of_other_kinds_are_explained(self):
        for name, data in (("a.json", '[{"text": "a"}]'), ("b.json", '[\n  {"text": "a"}\n]'), ("a.csv", "text\na\n"), ("c.json", '{\n"text": "a"\n}')):
            self.assert_fails(self.run_preprocess("--input", self.write(name, data)), 1, f"{name}:1: ", "expected JSON lines", "no array and no CSV")
        for data, what in ((b"PAR1\x15\0", "a Parquet file: write its rows as JSON lines"), (b"ARROW1\0\0", "an Arrow file"),
                           (b"PK\3\4", "a zip archive or a workbook"), (b"\x28\xb5\x2f\xfd", "packed by zstd")):
            self.assert_fails(self.run_preprocess("--input", self.write("a.jsonl", data)), 1, "a.jsonl is " + what)
        self.assertEqual(self.documents("--input", self.write("par.txt", "PAR1")), [["PAR1"]])

    def test_texts_in_wide_characters_are_refused(self):
        for coding, shown in (("utf-16-le", "FF FE"), ("utf-16-be", "FE FF"), ("utf-32-le", "FF FE 00 00"), ("utf-32-be", "00 00 FE FF")):
            for name, words in (("a.txt", ()), ("a.txt", ("--format", "line")), ("a.txt", ("--format", "delimiter")), ("a.jsonl", ())):
                for pack in (bytes, gzip.compress):
                    file = self.write(name, pack("\ufeff\u4f60 one\r\n".encode(coding)))
                    self.assert_fails(self.run_preprocess("--input", file, *words), 1, f"{name} is UTF-{coding[4:6]} text (it begins with {shown})")
        for coding in ("utf-16-le", "utf-16-be"):
            self.assert_fails(self.run_preprocess("--input", self.write("a.txt", "one\n".encode(coding))), 1, "a.txt is UTF-16 text (every other byte is 00)")

    def test_a_mark_at_the_start_of_a_file_is_dropped(self):
        mark = "\ufeff"
        for data, words, expected in (("one\ntwo", (), [["one\ntwo"]]), ("one\ntwo", ("--format", "line"), [["one"], ["two"]]),
                                      ("%\ntwo", ("--format", "delimiter"), [[], ["two"]]), ("a" + mark + "\n" + mark, ("--format", "line"), [["a" + mark], [mark]])):
            file, packed = self.write("a.txt", mark + data), self.write("b.txt.gz", mark + data)
            self.assertEqual(self.documents("--input", file, packed, *words), expected * 2)
        for words, expected in (((), [[], ["x"]]), (("--format", "line"), [["x"]])):
            self.assertEqual(self.documents("--input", self.write("a.txt", mark), self.write("b.txt", "x"), *words), expected)

    def test_the_first_error_is_the_one_that_is_shown(self):
        lines = ['{"text": "%s"}' % ("a" * 1000)] * 5000
        lines[2000] = lines[3000] = lines[4999] = "bad"
        file = self.write("a.jsonl", "\n".join(lines))
        for workers in (1, 2, 8):
            self.assert_fails(self.run_preprocess("--input", file, "--workers", workers), 1, "a.jsonl:2001: ")

    def test_damaged_gzip_is_refused(self):
        whole = gzip.compress(b'{"text": "abc"}\n' * 1000)
        for data in (whole[:-9], whole[:40], whole[:-6] + b"x" + whole[-5:], whole[:30] + bytes([whole[30] ^ 255]) + whole[31:]):
            with open(self.path("a.jsonl.gz"), "wb") as f:
                f.write(data)
            self.assert_fails(self.run_preprocess("--input", self.path("a.jsonl.gz")), 1, "a.jsonl.gz", "gzip")

    def test_an_empty_corpus_is_refused(self):
        for name, data in (("a.txt", ""), ("a.jsonl", ""), ("b.jsonl", "\n\n"), ("c.jsonl", '{"text": ""}\n'), ("a.txt.gz", "")):
            with self.subTest(name=name, data=data):
                self.assert_fails(self.run_preprocess("--input", self.write(name, data)), 1, "no text in", name)

    def test_files_and_options_that_cannot_be(self):
        file = self.write("a.jsonl", '{"text": "a"}')
        self.assert_fails(self.run_preprocess("--input", file, self.path("none.jsonl")), 1, "none.jsonl")
        self.assert_fails(self.run_preprocess("--input", self.directory), 1, self.directory)
        self.assert_fails(self.run_preprocess("--input", file, "--tokenizer", self.path("none")), 1, "none")
        self.assert_fails(self.run_preprocess("--input", file, "--output-prefix", self.path("no", "p")), 1, "no/p_text")
        self.assert_fails(self.run_preprocess("--input", file, "--json-keys", "a/b"), 2, "a/b")
        self.assert_fails(self.run_preprocess("--input", file, "--json-keys", "text", "text"), 2, "given twice")
        self.assert_fails(self.run_preprocess("--input", file, "--wrokers", "2"), 2, "--workers")
        self.assert_fails(self.run_preprocess("--input", file, "--workers", "-1"), 2, "out of range")
        self.assert_fails(self.run_preprocess(), 2, "--input is required")

    def test_a_tokenizer_without_an_end_cannot_append_it(self):
        with open(self.path("tokenizer", "vocab.json"), "w") as f:
            json.dump({c: b for b, c in byte_characters().items()}, f)
        file = self.write("a.txt", "a")
        self.assert_fails(self.run_preprocess("--input", file, "--append-eod"), 1, "no end-of-text token")
        self.assertEqual(self.documents("--input", file, eod=False), [["a"]])

    def test_a_full_disk_leaves_nothing(self):
        file = self.write("a.txt", "word " * 100_000)

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        run = self.run_preprocess("--input", file, preexec_fn=limit)
        self.assert_fails(run, 1, "cannot write", "p_text_document.bin")

    def test_a_failure_keeps_the_dataset_of_before(self):
        good, bad = self.write("a.txt", "good"), self.write("b.jsonl", "bad")
        self.documents("--input", good)
        self.assertEqual(self.run_preprocess("--input", bad).returncode, 1)
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["p_text_document.bin", "p_text_document.idx"])
        self.assertEqual(read_dataset(self.path("out", "p_text_document"))[0], [[list(b"good") + [EOD]]])

    def test_a_signal_leaves_nothing(self):
        big = self.write("big.jsonl", '{"text": "some words of a text"}\n' * 1_500_000)
        for number in (signal.SIGINT, signal.SIGTERM):
            run = subprocess.Popen([CAMBIUM, "preprocess", "--output-prefix", self.path("out", "p"), "--workers", "1",
                                    "--tokenizer", self.path("tokenizer"), "--input", big], stderr=subprocess.PIPE, text=True)
            while run.poll() is None and not os.listdir(self.path("out")):
                time.sleep(0.005)
            run.send_signal(number)
            error = run.communicate(timeout=60)[1]
            self.assertEqual(run.returncode, 1, error)
            self.assertIn("interrupted", error)
            self.assertEqual(os.listdir(self.path("out")), [])


if __name__ == "__main__":
    unittest.main()
