"""cambium preprocess on several ranks: the dataset of one, byte for byte, whole or not at all."""
import gzip
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from mpi_support import AT_ONCE_ENDED, HAS_MPIRUN, MPIRUN, needs_mpirun, rank_processes
from preprocess_test import CAMBIUM, write_tokenizer

AT_ONCE = 2

PLAIN = ["--format", "line"], ["--format", "delimiter"], ["--format", "file"], ["--format", "delimiter", "--delimiter", "ab"]


class Ranks(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name
        write_tokenizer(self.path("tokenizer"))

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def write(self, name, data):
        data = data.encode() if isinstance(data, str) else data
        with open(self.path(name), "wb") as f:
            f.write(gzip.compress(data) if name.endswith(".gz") else data)
        return self.path(name)

    def command(self, *words, out="out"):
        return [CAMBIUM, "preprocess", "--tokenizer", self.path("tokenizer"), "--output-prefix", self.path(out, "p"), *map(str, words)]

    def run_command(self, command, out="out", **more):
        shutil.rmtree(self.path(out), ignore_errors=True)
        os.mkdir(self.path(out))
        return subprocess.run(command, capture_output=True, text=True, timeout=300, **more)

    def written(self, *words, launcher=()):
        run = self.run_command([*launcher, *self.command(*words)])
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stderr.count(" tokens, "), len(run.stdout.splitlines()), run.stderr)
        files = {}
        for name in sorted(os.listdir(self.path("out"))):
            with open(self.path("out", name), "rb") as f:
                files[name] = f.read()
        return run.stdout, files

    def assert_same(self, *words, threads=(2, 7), processes=()):
        expected = self.written(*words)
        for ranks in threads:
            with self.subTest(words=words, threads=ranks):
                self.assertEqual(self.written(*words, "--ranks", ranks), expected)
        for ranks in processes if HAS_MPIRUN else ():
            with self.subTest(words=words, processes=ranks):
                self.assertEqual(self.written(*words, launcher=[*MPIRUN, "-n", str(ranks)]), expected)

    def test_several_files_of_every_kind(self):
        r = random.Random(5)
        texts = ["".join(r.choice("abc é\n") for _ in range(r.choice((0, 1, 20, 300, 3000)))) for _ in range(400)]
        texts[150] = "x" * 700_000  # longer than what is read at once, and than a rank's share
        lines = [json.dumps({"text": t, "body": ["one", t]}) + "\n" for t in texts]
        files = [self.write("a.jsonl", "".join(lines[:100])), self.write("empty.jsonl", ""),
                 self.write("b.jsonl", "\n \n" + "".join(lines[100:300]).rstrip("\n")), self.write("c.jsonl.gz", "".join(lines[300:350])),
                 self.write("d.jsonl", "".join(lines[350:])), self.write("end.jsonl", "")]
        self.assert_same("--input", *files, "--append-eod", processes=(2, 4))
        self.assert_same("--input", *files, "--json-keys", "text", "body", processes=(3,))

    def test_more_ranks_than_lines(self):
        one, two = self.write("one.jsonl", '{"text": "a"}'), self.write("two.jsonl", '\n\n{"text": "b"}\n{"text": "c"}\n\n')
        for files in ((one,), (two,), (one, two), (two, one, one)):
            self.assert_same("--input", *files, threads=(2, 33), processes=(4,) if files == (one, two) else ())

    def test_plain_texts_are_cut_between_documents(self):
        """tests/data/preprocess_ranks_test.c has more texts, and every border."""
        texts = ("-a\n%\n\nbc\r\n%\r\n%\n%x\n" + "x" * 70_000 + "\n%\nend", "-ab\nab\r\nword é\n%\n" * 40, "-\x1f\x8b")
        files = [self.write(f"{i}.txt", text.encode("latin-1")) for i, text in enumerate(texts)]
        for words in PLAIN:
            self.assert_same("--input", *files, *words, threads=(3,), processes=(2,) if words == PLAIN[1] else ())

    def test_a_pipe_is_read_by_the_first_rank(self):
        pipe, file = self.path("pipe"), self.write("a.txt", "before\nit\n")
        os.mkfifo(pipe)

        def written(*more, launcher=()):
            writer = subprocess.Popen(["dd", "of=" + pipe, "status=none"], stdin=subprocess.PIPE)
            writer.stdin.write(b"a line\nof text")
            writer.stdin.close()
            result = self.written("--input", file, pipe, file, "--format", "line", *more, launcher=launcher)
            self.assertEqual(writer.wait(), 0)
            return result

        expected = written()
        self.assertEqual(written("--ranks", 3), expected)
        if HAS_MPIRUN:
            self.assertEqual(written(launcher=[*MPIRUN, "-n", "2"]), expected)

    def assert_fails(self, run, status, *parts):
        """One error that has the parts, and nothing remains."""
        self.assertEqual(run.returncode, status, run.stderr)
        errors = [line for line in run.stderr.splitlines() if line.startswith("cambium: error: ")]
        self.assertEqual(len(errors), 1, run.stderr)
        for part in parts:
            self.assertIn(part, errors[0])
        self.assertEqual(os.listdir(self.path("out")), [])

    def each_kind(self, *words, ranks=3):
        yield self.run_command(self.command(*words, "--ranks", ranks))
        if HAS_MPIRUN:
            yield self.run_command([*MPIRUN, *AT_ONCE_ENDED, "-n", str(ranks), *self.command(*words)])

    def test_bad_lines_have_their_number_in_the_whole_file(self):
        good = self.write("good.jsonl", '{"text": "fine"}\n' * 50)
        for number in (1, 100, 199):
            lines = [b'{"text": "fine"}', b""] * 100
            lines[number - 1] = b'{"text": "\xff"}'
            lines[199] = b"bad"
            bad = self.write("bad.jsonl", b"\n".join(lines))
            for run in self.each_kind("--input", good, bad, good):
                self.assert_fails(run, 1, f"bad.jsonl:{number}: column ", "bad JSON")

    def test_what_cannot_be_is_said_once(self):
        file = self.write("a.jsonl", '{"text": "a"}\n' * 9)
        gz = self.write("a.jsonl.gz", '{"text": "abc"}\n' * 1000)
        with open(gz, "r+b") as f:
            f.truncate(40)
        for status, words, part in ((1, ("--input", file, "/nowhere"), "/nowhere"), (1, ("--input", file, gz), "a.jsonl.gz"),
                                    (1, ("--input", self.write("empty.jsonl", "\n")), "no text in"),
                                    (2, ("--input", file, "--json-keys", "a/b"), "a/b"),
                                    (1, ("--input", file, "--tokenizer", "/nowhere"), "/nowhere"),
                                    (1, ("--input", file, "--output-prefix", self.path("no", "p")), "no/p_text"),
                                    (2, ("--input", file, "--rnaks", "2"), "--ranks")):
            for run in self.each_kind(*words):
                self.assert_fails(run, status, part)

    def test_a_full_disk_leaves_nothing(self):
        """At a rank whose part does not fit, and at the first, when the others' parts come."""
        def limit(size):
            def set_limit():
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            return set_limit

        file = self.write("a.jsonl", '{"text": "words"}\n' * 30_000)
        for size in (50_000, 200_000):
            run = self.run_command(self.command("--input", file, "--ranks", 3), preexec_fn=limit(size))
            self.assert_fails(run, 1, "cannot write", "p_text_document")

    def test_a_failure_keeps_the_dataset_of_before(self):
        self.written("--input", self.write("a.jsonl", '{"text": "good"}'))
        run = subprocess.run(self.command("--input", self.write("b.jsonl", '{"text": "good"}\nbad'), "--ranks", 2), capture_output=True)
        self.assertEqual(run.returncode, 1)
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["p_text_document.bin", "p_text_document.idx"])

    def start_long(self, launcher, *words):
        big = self.write("big.jsonl", '{"text": "some words of a text"}\n' * 1_500_000)
        shutil.rmtree(self.path("out"), ignore_errors=True)
        os.mkdir(self.path("out"))
        process = subprocess.Popen([*launcher, *self.command("--workers", 1, "--input", big, *words)], stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not os.listdir(self.path("out")):
            time.sleep(0.005)
        return process

    def test_a_signal_leaves_nothing(self):
        process = self.start_long([], "--ranks", 2)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 1, errors)
        self.assertEqual(errors.count("interrupted, and nothing was written"), 1, errors)
        self.assertEqual(os.listdir(self.path("out")), [])

    @needs_mpirun
    def test_a_rank_that_dies_leaves_no_dataset(self):
        for victim in (0, 1):
            process = self.start_long([*MPIRUN, "-n", "2"])
            ranks = rank_processes(self.path("big.jsonl"))
            self.assertEqual(sorted(ranks), [0, 1])
            os.kill(ranks[victim], signal.SIGKILL)
            errors = process.communicate(timeout=60)[1]
            self.assertNotEqual(process.returncode, 0, errors)
            self.assertEqual([name for name in os.listdir(self.path("out")) if name.endswith((".bin", ".idx"))], [])


if __name__ == "__main__":
    unittest.main()
