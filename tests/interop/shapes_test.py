"""The shapes of tokenizer.json that models have beside GPT-2's, on much text, against live tokenizers."""
import json
import os
import pathlib
import random
import struct
import sys
import unicodedata
import unittest

from debian_texts import SCRIPTS, assigned, texts_of
from interop_support import SEED, SOURCE
from tokenizers import Tokenizer
from tokenizers_test import CORPUS, Tokenizing, random_text

sys.path.insert(0, str(SOURCE / "tools/golden"))
import tokenizer_shapes  # noqa: E402

ASSIGNED = [chr(p) for p in range(0x110000) if unicodedata.category(chr(p)) not in ("Cn", "Cs")]
MARK = tokenizer_shapes.MARK
LONG = os.environ.get("CAMBIUM_TEST_LONG", "0") not in ("", "0")
# One more folder with a tokenizer.json, or several, as those of real models.
FOLDERS = os.environ.get("CAMBIUM_INTEROP_TOKENIZERS", "").split()


def random_characters(draw):
    """Characters of every script, next to each other and to blanks."""
    base = draw.randrange(len(ASSIGNED))
    near = ASSIGNED[max(0, base - 40):base + 40]
    return "".join(draw.choice((draw.choice(near), draw.choice(ASSIGNED), " ", "\u0301", "a", "\n", "7"))
                   for _ in range(draw.randrange(1, 30)))


def source_texts(draw, count):
    """Pieces of C and Python, with all their white space."""
    files = [*SOURCE.glob("src/**/*.c"), *pathlib.Path(os.__file__).parent.glob("*.py")]
    for path in draw.sample(sorted(files), count):
        text = path.read_text(encoding="utf-8", errors="ignore")
        start = draw.randrange(max(1, len(text) - 6000))
        yield text[start:start + 6000]


def random_texts(seed, names):
    draw = random.Random(SEED * 100 + seed)
    yield from ("", " ", "\n", CORPUS)
    yield from source_texts(draw, 40)
    for _ in range(1500):
        yield assigned(random_text(draw))
        yield random_characters(draw)
        yield "".join(draw.choice((draw.choice(names), random_characters(draw), " ", "x")) for _ in range(4))
        yield "".join(draw.choice((draw.choice(names), draw.choice(tokenizer_shapes.BESIDE), " ", MARK))
                      for _ in range(draw.randrange(1, 12)))


class Shapes(Tokenizing):
    def encode(self, directory, texts):
        """The ids of documents, of which only empty ones have none."""
        path = self.directory / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.run_program("preprocess", "--input", path, "--tokenizer", directory, "--output-prefix", self.directory / "d")
        index = (self.directory / "d_text_document.idx").read_bytes()
        count, = struct.unpack_from("<Q", index, 18)
        letter = {8: "H", 4: "i"}[index[17]]
        lengths = struct.unpack_from(f"<{count}i", index, 34)
        data = (self.directory / "d_text_document.bin").read_bytes()
        tokens, at = struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data), 0
        for length in lengths:
            yield list(tokens[at:at + length])
            at += length

    def check_texts(self, directory, library, texts):
        expected = [library.encode(text).ids for text in texts]
        # A text that nothing is left of is no sequence.
        kept = [(text, ids) for text, ids in zip(texts, expected) if ids]
        self.assert_all_equal([text for text, _ in kept], list(self.encode(directory, texts)), [ids for _, ids in kept])

    def check_decoding(self, directory, library, draw):
        """Random ids, of which no encoding may make some; but for those that are no UTF-8, which stay bytes here."""
        vocabulary = library.get_vocab()
        marked = [id for name, id in vocabulary.items() if MARK in name or name.startswith("<")] or [0]
        every = [id for id in vocabulary.values() if "\n" not in library.decode([id], skip_special_tokens=False)]
        rows = [[draw.choice(draw.choice((every, marked))) for _ in range(draw.randrange(1, 9))] for _ in range(4000)]
        texts = library.decode_batch(rows, skip_special_tokens=False)
        kept = [(row, text) for row, text in zip(rows, texts) if not any(c in text for c in "\n\ufffd")]
        self.assertGreater(len(kept), 500)
        decoded = self.run_program("detokenize", "--tokenizer", directory,
                                   data="".join(" ".join(map(str, row)) + "\n" for row, _ in kept).encode())
        ours = decoded.decode().split("\n")[:-1]
        self.assert_all_equal([row for row, _ in kept], ours, [text for _, text in kept])

    def check(self, directory, seed):
        library = Tokenizer.from_file(str(directory / "tokenizer.json"))
        library.encode_special_tokens = True
        root = json.loads((directory / "tokenizer.json").read_text())
        names = [token["content"] for token in root["added_tokens"]][:40] or ["<s>"]
        texts = [text for text in random_texts(seed, names) if text]
        self.check_texts(directory, library, texts)
        lines = [text.replace("\n", "\r").encode() for text in texts[:1500]]
        library.encode_special_tokens = False
        ours = self.tokenize(directory, lines)
        self.assert_all_equal(lines, ours, [library.encode(line.decode(), add_special_tokens=False).ids for line in lines])
        draw = random.Random(SEED * 100 + seed)
        noise = [draw.randbytes(draw.randrange(300)).replace(b"\n", b"") for _ in range(500)]
        rows = self.tokenize(directory, noise, "--special-tokens", "text")
        back = self.run_program("detokenize", "--tokenizer", directory,
                                data="".join(" ".join(map(str, row)) + "\n" for row in rows).encode())
        self.assertEqual(back.count(b"\n"), len(noise))
        self.check_decoding(directory, library, draw)

    def test_small_tokenizers_of_every_shape(self):
        across = tokenizer_shapes.learn_across(1500)
        for seed, (name, (make, _)) in enumerate(tokenizer_shapes.SHAPES.items()):
            with self.subTest(name):
                make(across).save(str(self.directory / "tokenizer.json"))
                self.check(self.directory, seed)

    def test_texts_in_many_scripts(self):
        """A share of 20 MB for each shape, and all of it for each in the long run."""
        across = tokenizer_shapes.learn_across(1500)
        texts = {script: texts_of(script) for script in SCRIPTS}
        for seed, (name, (make, _)) in enumerate(tokenizer_shapes.SHAPES.items()):
            draw = random.Random(SEED * 100 + seed)
            for script, pieces in texts.items():
                with self.subTest(shape=name, script=script):
                    library = make(across)
                    library.save(str(self.directory / "tokenizer.json"))
                    library.encode_special_tokens = True
                    self.check_texts(self.directory, library, pieces if LONG else draw.sample(pieces, 20))

    @unittest.skipUnless(FOLDERS, "CAMBIUM_INTEROP_TOKENIZERS names no folders with a tokenizer.json")
    def test_tokenizers_of_models(self):
        for seed, folder in enumerate(FOLDERS):
            with self.subTest(folder):
                self.check(pathlib.Path(folder), 100 + seed)


if __name__ == "__main__":
    unittest.main()
