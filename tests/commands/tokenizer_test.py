"""tokenizer train, tokenize and detokenize as a user meets them."""
import gzip
import json
import os
import random
import resource
import select
import signal
import subprocess
import tempfile
import unittest

from model_support import counts_memory

CAMBIUM = os.environ["CAMBIUM"]
SOURCE = os.environ.get("CAMBIUM_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(SOURCE, "tests", "text", "golden")
SMALL = os.path.join(GOLDEN, "small")
CORPUS = os.path.join(GOLDEN, "corpus.txt")


def run(*words, data=b"", **more):
    return subprocess.run([CAMBIUM, *words], input=data, capture_output=True, timeout=600, **more)


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def write(self, name, data):
        with open(self.path(name), "wb") as out:
            out.write(data)
        return self.path(name)

    def run_ok(self, *words, **more):
        done = run(*words, **more)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done

    def assert_fails(self, done, status, *parts):
        """One line on standard error, with every part."""
        error = done.stderr.decode()
        self.assertEqual(done.returncode, status, error)
        self.assertEqual(error.count("\n"), 1, error)
        for part in parts:
            self.assertIn(part, error)


class Train(Case):
    def test_a_directory_with_four_files_appears(self):
        done = self.run_ok("tokenizer", "train", "--input", CORPUS, "--vocab-size", "900", "--output", self.path("t", "u"))
        self.assertEqual(done.stdout, b"")
        self.assertNotIn("warning", done.stderr.decode())
        names = ["merges.txt", "tokenizer.json", "tokenizer_config.json", "vocab.json"]
        self.assertEqual(sorted(os.listdir(self.path("t", "u"))), names)
        with open(self.path("t", "u", "tokenizer.json"), encoding="utf-8") as file:
            root = json.load(file)
        with open(self.path("t", "u", "vocab.json"), encoding="utf-8") as file:
            vocab = json.load(file)
        with open(os.path.join(SMALL, "tokenizer.json"), encoding="utf-8") as file:
            golden = json.load(file)
        self.assertEqual(root["model"]["vocab"], vocab)
        self.assertEqual(root["model"]["merges"], golden["model"]["merges"])
        self.assertEqual(vocab["<|endoftext|>"], 899)
        self.assertEqual(sorted(vocab.values()), list(range(900)))
        self.assertEqual([t["content"] for t in root["added_tokens"]], ["<|endoftext|>"])

    def test_several_files_and_gzip(self):
        with open(CORPUS, "rb") as file:
            text = file.read()
        packed = self.write("b.txt.gz", gzip.compress(text))
        for i, inputs in enumerate([[CORPUS, packed], [packed, CORPUS]]):
            self.run_ok("tokenizer", "train", "--input", *inputs, "--vocab-size=600", "--output", self.path(str(i)))
        merges = []
        for i in range(2):
            with open(self.path(str(i), "merges.txt"), "rb") as file:
                merges.append(file.read())
        self.assertEqual(merges[0], merges[1])

    @counts_memory
    def test_memory_is_bounded_by_the_distinct_words(self):
        draw = random.Random(5)
        words = ["".join(draw.choice("abcdefgh") for _ in range(draw.randrange(2, 9))) for _ in range(2000)]
        block = "".join(" ".join(draw.choice(words) for _ in range(100)) + "\n" for _ in range(2000)).encode()
        peaks = []
        for count in (1, 40):
            with open(self.path("text"), "wb") as file:
                for _ in range(count):  # never whole in this process, whose size a child's peak begins with
                    file.write(block)
            process = subprocess.Popen([CAMBIUM, "tokenizer", "train", "--input", self.path("text"), "--vocab-size",
                                        "1000", "--output", self.path("t")])
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            peaks.append(used.ru_maxrss << 10)
        self.assertLess(peaks[1] - peaks[0], 8 << 20)  # of 46 MB more text

    def test_a_small_text_gives_fewer_tokens_and_a_warning(self):
        done = self.run_ok("tokenizer", "train", "--input", self.write("a", b"hello hello"), "--vocab-size", "1000",
                           "--output", self.path("t"))
        self.assertIn("warning: the text has no more than 262 tokens to learn, fewer than the 1000 asked for",
                      done.stderr.decode())

    def test_a_mark_at_the_start_is_dropped_and_wide_text_refused(self):
        files = [self.write(name, data) for name, data in (("a", b"some text "), ("b", b"\xef\xbb\xbfsome text "), ("w", "some text".encode("utf-16")))]
        for number, file in enumerate(files[:2]):
            self.run_ok("tokenizer", "train", "--input", file, file, "--vocab-size", "260", "--output", self.path(f"m{number}"))
        self.assertEqual(*(open(self.path(f"m{number}", "merges.txt"), "rb").read() for number in range(2)))
        done = run("tokenizer", "train", "--input", *files, "--vocab-size", "260", "--output", self.path("w2"))
        self.assert_fails(done, 1, "w is UTF-16 text (it begins with FF FE): convert it to UTF-8")

    def test_bad_input_is_one_line_and_leaves_nothing(self):
        empty = self.write("empty", b"")
        train = ["tokenizer", "train", "--vocab-size", "300", "--output", self.path("t"), "--input"]
        self.assert_fails(run(*train, empty), 1, "no text to learn from", empty)
        self.assert_fails(run(*train, self.path("nothing")), 1, "cannot open", self.path("nothing"))
        self.assert_fails(run(*train, CORPUS, self.directory), 1, "cannot read", self.directory)
        self.assert_fails(run(*train, self.write("cut.gz", gzip.compress(b"a b" * 9)[:-9])), 1, "cut.gz", "damaged gzip")
        self.assertFalse(os.path.exists(self.path("t")))
        self.assert_fails(run("tokenizer", "train", "--input", CORPUS, "--vocab-size", "300", "--output", empty), 1, empty)

    def test_bad_usage_ends_with_2(self):
        self.assert_fails(run("tokenizer"), 2, "cambium tokenizer train --input")
        self.assert_fails(run("tokenizer", "learn"), 2, "learn", "cambium tokenizer train")
        train = ["tokenizer", "train", "--input", CORPUS, "--output", self.path("t")]
        self.assert_fails(run(*train), 2, "vocab-size")
        self.assert_fails(run(*train, "--vocab-size", "256"), 2, "256", "257")
        self.assert_fails(run(*train, "--vocab-size", "many"), 2, "many")
        self.assert_fails(run(*train, "--vocab-sise", "300"), 2, "vocab-sise", "vocab-size")
        self.assertFalse(os.path.exists(self.path("t")))

    def test_a_full_disk_leaves_no_file(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        done = run("tokenizer", "train", "--input", CORPUS, "--vocab-size", "900", "--output", self.path("t"),
                   preexec_fn=limit)
        self.assert_fails(done, 1, "cannot write", self.path("t"))
        self.assertEqual(os.listdir(self.directory), [])

    def test_a_directory_with_other_files_is_refused_and_stays(self):
        train = ["tokenizer", "train", "--input", CORPUS, "--vocab-size", "300", "--output", self.path("t")]
        self.run_ok(*train)
        first = os.stat(self.path("t"))
        self.run_ok(*train)  # a tokenizer of our own is replaced
        self.assertNotEqual(first.st_ino, os.stat(self.path("t")).st_ino)
        before = sorted(os.listdir(self.path("t")))
        for name in ("config.json", "model.safetensors", "chat_template.jinja"):
            self.write(os.path.join("t", name), b"{}")
            self.assert_fails(run(*train), 1, f"{self.path('t')} holds {name}", "name another directory")
            self.assertEqual(sorted(os.listdir(self.path("t"))), sorted([*before, name]))
            os.remove(self.path("t", name))
        os.mkdir(self.path("t", "sub"))
        self.assert_fails(run(*train), 1, "holds sub")
        train[train.index(CORPUS)] = self.path("none")  # it shows before anything is read
        self.assert_fails(run(*train), 1, "holds sub")
        self.assertEqual(sorted(os.listdir(self.directory)), ["t"])


class Filters(Case):
    def tokenize(self, data, *more):
        return self.run_ok("tokenize", "--tokenizer", SMALL, *more, data=data).stdout

    def detokenize(self, data):
        return self.run_ok("detokenize", "--tokenizer", SMALL, data=data).stdout

    def test_golden_lines(self):
        plain, special, lines = [], [], []
        with open(os.path.join(GOLDEN, "small.jsonl"), encoding="ascii") as file:
            for entry in map(json.loads, file):
                data = bytes.fromhex(entry["hex"])
                if b"\n" not in data and entry["special"] is not None:
                    lines.append(data)
                    plain.append(" ".join(map(str, entry["ids"])))
                    special.append(" ".join(map(str, entry["special"])))
        text = b"\n".join(lines) + b"\n"
        self.assertGreater(len(lines), 300)
        for words in (("--special-tokens", "text"), ("--special-tokens", "text", "--allow-special")):
            self.assertEqual(self.tokenize(text, *words).decode().split("\n")[:-1], plain)
        for words in ((), ("--special-tokens", "parse"), ("--allow-special",)):
            self.assertEqual(self.tokenize(text, *words).decode().split("\n")[:-1], special)

    def test_tokens_are_shown(self):
        self.assertEqual(self.tokenize(b"a<|endoftext|>\n\n\t\xff\"\n", "--show"), b'65:"a" 0:"<|endoftext|>"\n\n198:"\\t" 188:"\xef\xbf\xbd" 2:"\\""\n')
        self.assertEqual(self.tokenize(b"<|e\n", "--show", "--special-tokens", "text"), b'28:"<" 92:"|" 69:"e"\n')

    def test_tokens_around_a_line_on_request(self):
        framed = os.path.join(GOLDEN, "llama3_framed")
        lines = [b"", b"a", b"<|begin|>"]
        for words in ((), ("--special-tokens", "text")):
            plain = self.run_ok("tokenize", "--tokenizer", framed, *words, data=b"\n".join(lines)).stdout.split(b"\n")
            whole = self.run_ok("tokenize", "--tokenizer", framed, "--add-special", *words, data=b"\n".join(lines))
            expected = [b" ".join([b"700", *line.split(), b"701", b"702"]) for line in plain[:len(lines)]]
            self.assertEqual(whole.stdout.split(b"\n")[:len(expected)], expected)

    def test_any_lines_come_back(self):
        draw = random.Random(1)
        lines = [bytes(draw.choice([draw.randrange(256), 32, 97]) for _ in range(draw.randrange(60))) for _ in range(3000)]
        text = b"".join(line.replace(b"\n", b"\0") + b"\n" for line in lines)
        self.assertEqual(self.detokenize(self.tokenize(text)), text)

    def test_a_line_longer_than_every_buffer_comes_back(self):
        text = b"x" * 3000000 + b"\n" + b"the cat " * 100000 + b"\n\nend\n"
        self.assertEqual(self.detokenize(self.tokenize(text)), text)

    def test_the_last_newline_may_be_missing(self):
        self.assertEqual(self.tokenize(b"a\nb"), self.tokenize(b"a\nb\n"))
        self.assertEqual(self.tokenize(b""), b"")
        self.assertEqual(self.tokenize(b"\n\n"), b"\n\n")
        self.assertEqual(self.detokenize(self.tokenize(b"a\nb").rstrip(b"\n")), b"a\nb\n")

    def test_ids_may_stand_apart(self):
        ids = self.tokenize(b"the cat").split()
        self.assertEqual(self.detokenize(b"\t " + b" \t ".join(ids) + b" \r\n"), b"the cat\n")

    def test_an_answer_comes_before_the_end_of_the_input(self):
        for command, line in (("tokenize", b"the cat\n"), ("detokenize", b"65 66\n")):
            with subprocess.Popen([CAMBIUM, command, "--tokenizer", SMALL], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE) as process:
                for _ in range(3):
                    process.stdin.write(line)
                    process.stdin.flush()
                    ready, _, _ = select.select([process.stdout], [], [], 60)
                    self.assertTrue(ready, "no answer")
                    self.assertTrue(os.read(process.stdout.fileno(), 1000).endswith(b"\n"))
                process.stdin.close()
                self.assertEqual(process.wait(60), 0)

    def test_bad_ids_name_the_line(self):
        for bad, part in ((b"900", "token id 900"), (b"-1", "'-1'"), (b"1.5", "'1.5'"), (b"cat", "'cat'"),
                          (b"99999999999999999999", "9999"), (b"0x1", "'0x1'"), (b"1,2", "'1,2'")):
            done = run("detokenize", "--tokenizer", SMALL, data=b"65 66\n\n1 " + bad + b" 2\n3\n")
            self.assert_fails(done, 1, "line 3", part)
            self.assertEqual(done.stdout, self.detokenize(b"65 66\n\n"))

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([CAMBIUM, "tokenize", "--tokenizer", SMALL], input=b"a\n" * 1000, stdout=full,
                                  stderr=subprocess.PIPE, timeout=60)
        self.assert_fails(done, 1, "standard output", "No space left")

    def test_what_is_no_tokenizer_is_named(self):
        for command in ("tokenize", "detokenize"):
            self.assert_fails(run(command), 2, "tokenizer")
            self.assert_fails(run(command, "--tokenizer", self.path("nothing")), 1, self.path("nothing"))
            self.assert_fails(run(command, "--tokenizer", self.directory), 1, self.directory, "tokenizer.json")
            self.assert_fails(run(command, "--tokenizer", SMALL, "x"), 2, "x")
        self.write("tokenizer.json", b'{"model": {"vocab": {"a": 0},\n "merges": [}}')
        self.assert_fails(run("tokenize", "--tokenizer", self.directory), 1, self.path("tokenizer.json"), "line 2")
        self.assert_fails(run("detokenize", "--tokenizer", SMALL, "--allow-special"), 2, "allow-special")

    def test_help_is_printed(self):
        for words in (("tokenizer", "--help"), ("tokenizer", "train", "--help"), ("tokenize", "--help"),
                      ("detokenize", "--help")):
            done = self.run_ok(*words)
            self.assertIn(b"usage: cambium " + words[0].encode(), done.stdout)
            self.assertEqual(done.stderr, b"")


if __name__ == "__main__":
    unittest.main()
