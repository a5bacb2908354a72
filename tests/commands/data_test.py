"""cambium data show as its user meets it, against a slow and plain Python version of Megatron-LM's rules."""
import json
import math
import os
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

CAMBIUM = os.environ["CAMBIUM"]
LONG = os.environ.get("CAMBIUM_TEST_LONG", "0") not in ("", "0")


class RandomState:
    """numpy's legacy generator: MT19937 seeded by init_genrand."""

    def __init__(self, seed):
        self.words, self.next = [seed], 624
        for i in range(1, 624):
            last = self.words[-1]
            self.words.append((1812433253 * (last ^ last >> 30) + i) & 0xffffffff)

    def draw(self):
        if self.next == 624:
            w = self.words
            for i in range(624):
                y = w[i] & 0x80000000 | w[(i + 1) % 624] & 0x7fffffff
                w[i] = w[(i + 397) % 624] ^ y >> 1 ^ (0x9908b0df if y & 1 else 0)
            self.next = 0
        y = self.words[self.next]
        self.next += 1
        y ^= y >> 11
        y ^= y << 7 & 0x9d2c5680
        y ^= y << 15 & 0xefc60000
        return y ^ y >> 18

    def shuffle(self, values):
        for i in range(len(values) - 1, 0, -1):
            mask = (1 << i.bit_length()) - 1
            j = self.draw() & mask
            while j > i:
                j = self.draw() & mask
            values[i], values[j] = values[j], values[i]
        return values


def gpt_indexes(lengths, first, last, s, k, seed):
    """document_index, sample_index, shuffle_index of sequences [first, last)."""
    random_state = RandomState(seed)
    tokens, epochs = sum(lengths[first:last]), 1
    while k and epochs * tokens < k * s + 1:
        epochs += 1
    apart = False
    if epochs > 1:
        before = ((epochs - 1) * tokens - 1) // s
        apart = k - before < int(0.80 * ((tokens - 1) // s))
    span = list(range(first, last))
    if apart:
        documents = random_state.shuffle(span * (epochs - 1)) + random_state.shuffle(span[:])
    else:
        documents = random_state.shuffle(span * epochs)
    n = (epochs * tokens - 1) // s
    # A sample begins where its first token lies; an empty document holds no token, but the very first may be empty.
    places = [(d, o) for d, document in enumerate(documents) for o in range(lengths[document])]
    samples = [[0, 0]] + [list(places[j * s]) for j in range(1, n + 1)]
    order = list(range(n))
    if apart:
        order = random_state.shuffle(order[:before]) + random_state.shuffle(order[before:])
    else:
        order = random_state.shuffle(order)
    return {"document_index": documents, "sample_index": samples, "shuffle_index": order}


def split_ranges(split, n):
    weights = [float(w) for w in split.split(",")] if split else [1.0]
    weights += [0.0] * (3 - len(weights))
    total, ends = sum(weights), [0]
    for w in weights:
        ends.append(ends[-1] + w / total)
    return [(int(round(a * n)), int(round(b * n))) if b > a else (0, 0) for a, b in zip(ends, ends[1:])]


def blend_indexes(weights, size):
    drawn, datasets, samples = [0] * len(weights), [], []
    for i in range(size):
        errors = [w * max(i, 1.0) - d for w, d in zip(weights, drawn)]
        chosen = errors.index(max(errors))
        datasets.append(chosen)
        samples.append(drawn[chosen])
        drawn[chosen] += 1
    return {"dataset_index": datasets, "dataset_sample_index": samples}


def write_dataset(prefix, documents, empty_between=False):
    """One sequence a document; with empty_between, documents without any as well."""
    lengths = [len(d) for d in documents]
    n = len(documents)
    ends = [i for i in range(n + 1) for _ in range(2 if empty_between else 1)][1 if empty_between else 0:]
    with open(prefix + ".bin", "wb") as f:
        for d in documents:
            f.write(struct.pack(f"<{len(d)}H", *d))
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, len(ends)) + struct.pack(f"<{n}i", *lengths))
        f.write(struct.pack(f"<{n}q", *(2 * sum(lengths[:i]) for i in range(n))) + struct.pack(f"<{len(ends)}q", *ends))


class DataShow(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name
        self.prefix = self.path("corpus")

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def run_show(self, *words):
        return subprocess.run([CAMBIUM, "data", "show", *map(str, words)], capture_output=True, text=True, timeout=300)

    def show(self, *words, quiet=True):
        run = self.run_show(*words)
        self.assertEqual(run.returncode, 0, run.stderr)
        if quiet:
            self.assertEqual(run.stderr, "")
        return json.loads(run.stdout)

    def assert_fails(self, run, status, *parts):
        self.assertEqual(run.returncode, status, run.stderr)
        self.assertEqual(run.stdout, "")
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        for part in parts:
            self.assertIn(part, run.stderr)

    def test_the_vectors_of_the_format(self):
        write_dataset(self.prefix, [[1] * n for n in (10, 3, 7, 5, 12, 4)])
        got = self.show("--data-path", self.prefix, "--seq-length", 8, "--num-samples", 5, "--seed", 1234)
        self.assertEqual(got, {"document_index": [2, 1, 5, 0, 4, 3],
                               "sample_index": [[0, 0], [1, 1], [3, 2], [4, 0], [4, 8], [5, 4]],
                               "shuffle_index": [2, 0, 4, 3, 1]})
        got = self.show("--data-path", self.prefix, "--seq-length", 8, "--num-samples", 12, "--seed", 1234)
        self.assertEqual(got["document_index"], [1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3, 1, 0, 3, 2, 5, 4])
        self.assertEqual(got["shuffle_index"], [7, 6, 2, 3, 1, 9, 5, 4, 0, 8, 14, 11, 13, 10, 12])

    def test_random_datasets_equal_the_rules(self):
        r = random.Random(11)
        for number in range(200 if LONG else 25):
            lengths = [r.choice((0, 1, 2, r.randint(0, 40))) for _ in range(r.randint(1, 40))] + [9]
            s, seed = r.choice((1, 2, 7, 16)), r.choice((0, 1234, 2 ** 32 - 1))
            k = r.choice((0, 1, r.randint(1, 60), r.randint(1, 500)))
            split, which = r.choice(((None, 0), ("969, 30, 1", 0), ("1,1", 1), ("3,1,2", 2)))
            first, last = split_ranges(split, len(lengths))[which]
            if sum(lengths[first:last]) == 0:
                continue
            prefix = f"{self.prefix}{number}"
            write_dataset(prefix, [[1] * n for n in lengths], empty_between=number % 2 == 1)
            words = ["--data-path", prefix, "--seq-length", s, "--seed", seed]
            words += ["--num-samples", k] if k else []
            words += ["--split", split, "--which", ("train", "valid", "test")[which]] if split else []
            expected = gpt_indexes(lengths, first, last, s, k, seed)
            with self.subTest(lengths=lengths, s=s, k=k, seed=seed, split=split, which=which):
                self.assertEqual(self.show(*words), expected)
                self.assertEqual(self.show(*words), expected)  # out of the cache

    def test_blends_equal_the_rules(self):
        r = random.Random(12)
        for number in range(30 if LONG else 6):
            prefixes, weights, words = [], [], []
            for i in range(r.randint(1, 7)):  # fewer than 8 weights are added in order
                prefixes.append(self.path(f"b{number}_{i}"))
                write_dataset(prefixes[-1], [[1] * r.randint(1, 50) for _ in range(10)])
                weights.append(r.choice((r.randint(1, 9), round(r.random() + .01, 3))))
                words += [weights[-1], prefixes[-1]]
            k = r.randint(100, 2000)
            once = [w / sum(map(float, weights)) for w in weights]
            twice = [w / sum(once) for w in once]
            size = sum(math.ceil(k * w) for w in once)
            got = self.show("--data-path", *words, "--seq-length", 8, "--num-samples", k)
            self.assertEqual(got, blend_indexes(twice, size))

    def test_datasets_without_weights_are_blended_by_length(self):
        counts = (30, 5, 11)
        for i, n in enumerate(counts):
            write_dataset(self.path(f"d{i}"), [[1] * (8 * n + 1)])
        words = ["--data-path", *(self.path(f"d{i}") for i in range(3)), "--seq-length", 8]
        weights = [n / sum(counts) for n in counts]
        self.assertEqual(self.show(*words, "--num-samples", 20), blend_indexes(weights, 20))
        for more in ([], ["--num-samples", 1000]):
            got = self.show(*words, *more)
            pairs = sorted(zip(got["dataset_index"], got["dataset_sample_index"]))
            self.assertEqual(pairs, [(d, i) for d, n in enumerate(counts) for i in range(n)])

    def test_a_sample_is_what_the_trainer_sees(self):
        r = random.Random(13)
        documents = [[r.randrange(10) for _ in range(r.randint(3, 20))] + [10] for _ in range(20)]
        write_dataset(self.prefix, documents)
        lengths = [len(d) for d in documents]
        words = ["--data-path", self.prefix, "--seq-length", 16, "--num-samples", 30, "--seed", 3]
        indexes = gpt_indexes(lengths, 0, 20, 16, 30, 3)
        stream = [t for d in indexes["document_index"] for t in documents[d]]
        for k in (0, 7, 29):
            at = 16 * indexes["shuffle_index"][k]
            text = stream[at:at + 17]
            got = self.show(*words, "--sample", k)
            self.assertEqual(got["tokens"], text[:-1])
            self.assertEqual(got["labels"], text[1:])
            self.assertEqual(got["loss_mask"], [1] * 16)
            self.assertEqual(got["position_ids"], list(range(16)))
            self.assertEqual(got["segment_starts"], [0])
            got = self.show(*words, "--sample", k, "--eod-id", 10, "--eod-mask-loss", "--reset-position-ids",
                            "--reset-attention-mask")
            starts = [0] + [i + 1 for i, t in enumerate(text[:15]) if t == 10]
            self.assertEqual(got["loss_mask"], [0 if t == 10 else 1 for t in text[:-1]])
            self.assertEqual(got["position_ids"], [i - max(s for s in starts if s <= i) for i in range(16)])
            self.assertEqual(got["segment_starts"], starts)
        count = len(indexes["shuffle_index"])
        self.assert_fails(self.run_show(*words, "--sample", count), 1, f"sample {count}")

    def test_a_tokenizer_adds_the_text(self):
        tokenizer = self.path("tokenizer")
        os.mkdir(tokenizer)
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in plain]
        characters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
        with open(os.path.join(tokenizer, "vocab.json"), "w") as f:
            json.dump({c: b for b, c in characters.items()} | {"<|endoftext|>": 256}, f)
        with open(os.path.join(tokenizer, "merges.txt"), "w") as f:
            f.write("#version: 0.2\n")
        data = 'é "q"\\\n\x01\x7f\U0001F600'.encode() + b"\xff\xe2\x82x\xf0\x9f\x98y\xed\xa0\x80z\xc0\xaf"
        write_dataset(self.prefix, [list(data) + [256]])
        words = ["--data-path", self.prefix, "--seq-length", len(data), "--sample", 0, "--tokenizer", tokenizer]
        got = self.show(*words, "--eod-mask-loss")
        self.assertEqual(got["tokens"], list(data))
        self.assertEqual(got["labels"], list(data[1:]) + [256])
        self.assertEqual(got["text"], data.decode("utf-8", "replace"))
        write_dataset(self.prefix, [list(data) + [257]])
        self.assert_fails(self.run_show(*words), 1, "corpus.bin", "is 257, expected 0 to 256")

    def test_empty_splits_are_shown_empty(self):
        write_dataset(self.prefix, [[1] * n for n in (10, 3, 7, 5, 12, 4)])
        for which in ("valid", "test"):
            got = self.show("--data-path", self.prefix, "--seq-length", 8, "--num-samples", 5, "--split", "99990,8,2",
                            "--which", which)
            self.assertEqual(got, {"document_index": [], "sample_index": [[0, 0]], "shuffle_index": []})
        got = self.show("--data-path", self.prefix, "--seq-length", 800)
        self.assertEqual(got["shuffle_index"], [])
        write_dataset(self.prefix, [])
        self.assertEqual(self.show("--data-path", self.prefix, "--seq-length", 8)["document_index"], [])
        self.assert_fails(self.run_show("--data-path", self.prefix, "--seq-length", 8, "--num-samples", 1), 1, "no tokens")

    def test_caches_are_rebuilt_when_stale_or_damaged(self):
        words = ["--data-path", self.prefix, "--seq-length", 8, "--num-samples", 40]
        documents = [[1] * n for n in (10, 3, 7, 5, 12, 4)]
        write_dataset(self.prefix, documents)
        expected = gpt_indexes([len(d) for d in documents], 0, 6, 8, 40, 1234)
        self.assertEqual(self.show(*words), expected)
        cache = self.path("cache", "GPTDataset_indices")
        names = os.listdir(cache)
        self.assertEqual(len(names), 1)
        with open(os.path.join(cache, names[0]), "rb") as f:
            whole = f.read()
        r = random.Random(14)
        for _ in range(10):
            at = r.randrange(len(whole))
            for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1 << r.randrange(8)]) + whole[at + 1:]):
                with open(os.path.join(cache, names[0]), "wb") as f:
                    f.write(damaged)
                self.assertEqual(self.show(*words, quiet=False), expected)
        documents[2], documents[3] = documents[3], documents[2]  # as many documents and tokens as before
        write_dataset(self.prefix, documents)
        expected = gpt_indexes([len(d) for d in documents], 0, 6, 8, 40, 1234)
        self.assertEqual(self.show(*words, quiet=False), expected)
        self.assertEqual(os.listdir(cache), names)
        shutil.rmtree(self.path("cache"))
        with open(self.path("cache"), "w"):
            pass
        run = self.run_show(*words)
        self.assertEqual((run.returncode, json.loads(run.stdout)), (0, expected))
        self.assertIn("warning", run.stderr)
        self.assertEqual(self.show(*words, "--data-cache-path", self.path("elsewhere")), expected)
        self.assertEqual(len(os.listdir(self.path("elsewhere"))), 1)

    def test_damaged_files_give_one_line(self):
        write_dataset(self.prefix, [[1] * n for n in (10, 3, 7)])
        with open(self.prefix + ".idx", "rb") as f:
            whole = f.read()
        words = ["--data-path", self.prefix, "--seq-length", 4]
        for at, value, part in ((0, b"X", "magic at byte 0"), (9, b"\2", "version at byte 9"), (17, b"\x09", "byte 17"),
                                (18, b"\4", "byte 18"), (26, b"\xff", "byte 26"), (34, b"\xff\xff\xff\xff", "byte 34"),
                                (38, b"\4", "byte 62"), (54, b"\1", "byte 54"), (70, b"\1", "byte 70"), (94, b"\2", "byte 94")):
            with open(self.prefix + ".idx", "wb") as f:
                f.write(whole[:at] + value + whole[at + len(value):])
            self.assert_fails(self.run_show(*words), 1, "corpus.idx", part if at != 18 else "corpus.idx")
        with open(self.prefix + ".idx", "wb") as f:
            f.write(whole[:-1])
        self.assert_fails(self.run_show(*words), 1, "corpus.idx")
        with open(self.prefix + ".idx", "wb") as f:
            f.write(whole)
        with open(self.prefix + ".bin", "ab") as f:
            f.write(b"\0\0")
        self.assert_fails(self.run_show(*words), 1, "corpus.bin: 42 bytes, expected 40")
        os.remove(self.prefix + ".bin")
        self.assert_fails(self.run_show(*words), 1, "corpus.bin does not exist")

    def test_bad_usage_is_status_2(self):
        write_dataset(self.prefix, [[1] * 30])
        base = ["--data-path", self.prefix, "--seq-length", 8]
        for more, part in ((["--split", "1,2,3,4"], "split"), (["--seed", "4294967296"], "--seed"), (["--which", "tset"], "test"),
                           (["--num-sample", "4"], "--num-samples"), (["--eod-mask-loss"], "tokenizer")):
            self.assert_fails(self.run_show(*base, *more), 2, part)
        self.assert_fails(self.run_show("--seq-length", 8), 2, "either --data-path or --data")
        self.assert_fails(self.run_show("--data-path", self.prefix), 2, "--seq-length is not given")
        self.assert_fails(self.run_show("--data-path", "1", self.prefix, "--seq-length", 8), 2, "number of samples")
        self.assert_fails(self.run_show("--data-path", "0", self.prefix, "--seq-length", 8), 2, "weight '0'")
        for words in ([], ["shwo"]):
            run = subprocess.run([CAMBIUM, "data", *words], capture_output=True, text=True)
            self.assert_fails(run, 2, "cambium data show")


if __name__ == "__main__":
    unittest.main()
