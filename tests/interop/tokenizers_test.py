"""Token ids and tokenizer files against live tokenizers, tiktoken and transformers."""
import json
import random
import struct
import subprocess
import unittest

import tiktoken
from interop_support import CAMBIUM, SEED, SOURCE, Case
from model_support import bytes_to_unicode
from tokenizers import (ByteLevelBPETokenizer, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)
from transformers import AutoTokenizer, GPT2TokenizerFast, PreTrainedTokenizerFast

END = "<|endoftext|>"
TEXT = ("--special-tokens", "text")
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
BYTE = {character: byte for byte, character in bytes_to_unicode().items()}
CORPUS = (SOURCE / "tests/text/golden/corpus.txt").read_text()
SPACES = "    \n\n\t\r\u00a0\u2003\u3000\x0b\x1c\x85"
SURROGATES = range(0xD800, 0xE000)


def code_point(draw):
    while True:
        point = draw.choice((draw.randrange(128), draw.randrange(0x3000), draw.randrange(0x110000)))
        if point not in SURROGATES:
            return chr(point)


def random_text(draw):
    """Words, runs of anything, white space of every kind, apostrophes, pieces of special tokens."""
    pieces = []
    for _ in range(draw.randrange(1, 9)):
        kind = draw.randrange(6)
        if kind == 0:
            pieces.append("".join(code_point(draw) for _ in range(draw.randrange(1, 6))))
        elif kind == 1:
            pieces.append("".join(draw.choice(SPACES) for _ in range(draw.randrange(1, 6))))
        elif kind == 2:
            pieces.append(draw.choice(("'s", "'t", "'re", "'LL", "'", "''", END, END[:-1], "|>", "\0", "<|pad|>")))
        elif kind == 3:
            pieces.append(draw.choice("ab1 !'\n中é") * draw.randrange(1, 200))
        else:
            start = draw.randrange(len(CORPUS) - 60)
            pieces.append(CORPUS[start:start + draw.randrange(1, 60)])
    return "".join(pieces)


def random_bytes(draw):
    data = bytearray(random_text(draw).encode())
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(data) + 1)
        parts = (draw.randrange(256), 0xFF, 0xC3, 0xE2, 0xF0, 0x80, 0xED)
        data[at:at] = bytes(draw.choice(parts) for _ in range(draw.randrange(1, 4)))
    return bytes(data)


def byte_level(special=(END,), size=1500, text=CORPUS):
    """A tokenizer that the library itself has trained."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([text], trainers.BpeTrainer(vocab_size=size, special_tokens=list(special),
                                                         show_progress=False, initial_alphabet=alphabet))
    return made


class Tokenizing(Case):
    def tokenize(self, directory, lines, *words):
        data = b"".join(line + b"\n" for line in lines)
        output = self.run_program("tokenize", "--tokenizer", directory, *words, data=data).decode().split("\n")
        return [[int(word) for word in line.split()] for line in output[:-1]]

    def assert_all_equal(self, cases, ours, theirs):
        for case, a, b in zip(cases, ours, theirs, strict=True):
            self.assertEqual(a, b, repr(case))

    def train(self, text=CORPUS, size=1500):
        path, directory = self.directory / "text.txt", self.directory / "trained"
        path.write_text(text, newline="")
        self.run_program("tokenizer", "train", "--input", path, "--vocab-size", size, "--output", directory)
        return directory


def texts_without_line_feeds(count, seed=0):
    draw = random.Random(SEED * 100 + seed)
    return [random_text(draw).replace("\n", "\r") for _ in range(count)]


class Ids(Tokenizing):
    """Any bytes: what the libraries make of them, the program makes."""

    def libraries(self, directory):
        """tokenizers' ids of a text, and tiktoken's of bytes as the same ids."""
        library = Tokenizer.from_file(str(directory / "tokenizer.json"))
        library.encode_special_tokens = True
        model = json.loads((directory / "tokenizer.json").read_text())["model"]
        merges = ["".join(pair if isinstance(pair, list) else pair.split(" ")) for pair in model["merges"]]
        names = [*bytes_to_unicode().values(), *merges]
        ranks = {bytes(BYTE[c] for c in name): rank for rank, name in enumerate(names)}
        ids = [*(model["vocab"][name] for name in names), model["vocab"][END]]
        other = tiktoken.Encoding("interop", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END: len(ranks)})
        return library, other, ids

    def test_random_texts_and_bytes(self):
        directory = self.train()
        library, other, ids = self.libraries(directory)
        texts = texts_without_line_feeds(4000)
        ours = self.tokenize(directory, [text.encode() for text in texts], *TEXT)
        self.assert_all_equal(texts, ours, [library.encode(text, add_special_tokens=False).ids for text in texts])
        draw = random.Random(SEED * 100 + 1)
        lines = [random_bytes(draw).replace(b"\n", b"\r") for _ in range(4000)]
        lines += [draw.randbytes(draw.randrange(200)).replace(b"\n", b"\0") for _ in range(1000)]
        ours = self.tokenize(directory, lines, *TEXT)
        self.assert_all_equal(lines, ours, [[ids[rank] for rank in other._encode_bytes(line)] for line in lines])
        back = self.run_program("detokenize", "--tokenizer", directory,
                                data="".join(" ".join(map(str, row)) + "\n" for row in ours).encode())
        self.assertEqual(back, b"".join(line + b"\n" for line in lines))

    def test_every_code_point(self):
        directory = self.train(size=600)
        library, other, ids = self.libraries(directory)
        points = [chr(p) for p in range(0x110000) if p not in SURROGATES and p != 10]
        for form in ("a{0}b ", "{0}1{0}", " {0}{0}'s"):
            texts = ["".join(form.format(c) for c in points[i:i + 200]) for i in range(0, len(points), 200)]
            ours = self.tokenize(directory, [text.encode() for text in texts], *TEXT)
            self.assert_all_equal(texts, ours, [r.ids for r in library.encode_batch(texts, add_special_tokens=False)])
        self.assert_all_equal(texts, ours, [[ids[rank] for rank in other.encode_ordinary(text)] for text in texts])

    def test_special_tokens_inside_text(self):
        directory = self.train()
        library, other, ids = self.libraries(directory)
        library.encode_special_tokens = False
        draw = random.Random(SEED * 100 + 2)
        texts = [END.join(text[:draw.randrange(80)] for text in texts_without_line_feeds(draw.randrange(1, 5), i))
                 for i in range(500)]
        ours = self.tokenize(directory, [text.encode() for text in texts])
        self.assert_all_equal(texts, ours, [library.encode(text, add_special_tokens=False).ids for text in texts])
        theirs = [[ids[rank] for rank in other.encode(text, allowed_special="all")] for text in texts]
        self.assert_all_equal(texts, ours, theirs)

    def test_a_megabyte_without_a_space(self):
        directory = self.train()
        library, _, _ = self.libraries(directory)
        draw = random.Random(SEED * 100 + 3)
        for text in ("a" * 1_000_000, "".join(draw.choice("abcdefgh") for _ in range(1_000_000)), "中文" * 170_000,
                     " " * 1_000_000, "!?" * 500_000, "0123456789" * 100_000):
            expected = library.encode(text, add_special_tokens=False).ids
            self.assertEqual(self.tokenize(directory, [text.encode()]), [expected])

    def test_documents_with_line_feeds(self):
        directory = self.train()
        library, _, _ = self.libraries(directory)
        draw = random.Random(SEED * 100 + 4)
        texts = [random_text(draw) for _ in range(2000)]
        path = self.directory / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}, ensure_ascii=draw.random() < 0.5) + "\n" for text in texts))
        self.run_program("preprocess", "--input", path, "--tokenizer", directory, "--output-prefix",
                         self.directory / "d")
        index = (self.directory / "d_text_document.idx").read_bytes()
        count, = struct.unpack_from("<Q", index, 18)
        lengths = struct.unpack_from(f"<{count}i", index, 34)
        data = (self.directory / "d_text_document.bin").read_bytes()
        tokens, at = struct.unpack(f"<{len(data) // 2}H", data), 0
        expected = [ids for ids in (library.encode(text, add_special_tokens=False).ids for text in texts) if ids]
        self.assertEqual(len(expected), count)
        for ids, length in zip(expected, lengths, strict=True):
            self.assertEqual(list(tokens[at:at + length]), ids)
            at += length


class OursOpened(Tokenizing):
    """The files of `tokenizer train`, in each way that the libraries open them."""

    def test_each_way_gives_equal_ids(self):
        directory = self.train()
        texts = texts_without_line_feeds(300, 7)
        ours = self.tokenize(directory, [text.encode() for text in texts], *TEXT)
        pair = [str(directory / name) for name in ("vocab.json", "merges.txt")]
        # GPT-2's class takes special tokens in a text for tokens unless told otherwise.
        plain = {"add_special_tokens": False, "split_special_tokens": True}
        ways = {"AutoTokenizer": AutoTokenizer.from_pretrained(directory),
                "GPT2TokenizerFast": GPT2TokenizerFast.from_pretrained(directory),
                "PreTrainedTokenizerFast": PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))}
        for name, library in ways.items():
            with self.subTest(name):
                self.assert_all_equal(texts, ours, [library.encode(text, **plain) for text in texts])
                self.assertEqual([library.decode(ids) for ids in ours], texts)
        library = ByteLevelBPETokenizer.from_file(*pair)
        self.assert_all_equal(texts, ours, [library.encode(text).ids for text in texts])
        for library in ways.values():
            self.assertEqual(len(library), 1500)
            self.assertEqual(library.convert_tokens_to_ids(END), 1499)
        for name in ("AutoTokenizer", "GPT2TokenizerFast"):
            self.assertEqual((ways[name].eos_token, ways[name].eos_token_id), (END, 1499))

    def test_training_learns_the_libraries_merges(self):
        draw = random.Random(SEED * 100 + 5)
        for number in range(20):
            text = "".join(random_text(draw).replace(END, "") + " " for _ in range(draw.choice((3, 100, 1000))))
            if number % 2:  # pairs that overlap themselves and each other, and many ties
                text = " ".join(draw.choice("ab") * draw.randrange(9) + "".join(draw.choice("abc") for _ in range(90))
                                for _ in range(draw.choice((1, 5, 50))))
            size = draw.choice((300, 700, 2000))
            theirs = json.loads(byte_level(size=size, text=text).to_str())["model"]
            ours = json.loads((self.train(text, size) / "tokenizer.json").read_text())["model"]
            self.assertEqual(ours["merges"], theirs["merges"], f"text {number}, {len(text)} characters, {size} tokens")


class TheirsOpened(Tokenizing):
    """The libraries' files, opened by the program."""

    def check(self, directory, library, allow_special=False):
        texts = texts_without_line_feeds(400, 9)
        words = [] if allow_special else TEXT
        ours = self.tokenize(directory, [text.encode() for text in texts], *words)
        library.encode_special_tokens = not allow_special
        self.assert_all_equal(texts, ours, [library.encode(text, add_special_tokens=False).ids for text in texts])

    def test_tokenizer_json(self):
        for special in ((END,), ("<s>", END, "<|pad|>", "<|p"), ()):
            for allow_special in (False, True):
                with self.subTest(special=special, allow_special=allow_special):
                    library = byte_level(special)
                    library.save(str(self.directory / "tokenizer.json"))
                    self.check(self.directory, library, allow_special)

    def test_settings_that_keep_the_kind(self):
        library = byte_level()
        library.post_processor = processors.ByteLevel(trim_offsets=False)
        library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        library.save(str(self.directory / "tokenizer.json"))
        self.check(self.directory, library, True)
        library = byte_level()
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        library.save(str(self.directory / "tokenizer.json"))
        self.check(self.directory, library)

    def test_the_pair_of_files(self):
        library = byte_level()
        library.model.save(str(self.directory))
        self.check(self.directory, library)

    def test_save_pretrained(self):
        library = byte_level()
        made = PreTrainedTokenizerFast(tokenizer_object=library, eos_token=END, bos_token=END, pad_token="<|pad|>")
        made.save_pretrained(self.directory)
        self.check(self.directory, Tokenizer.from_file(str(self.directory / "tokenizer.json")), True)
        GPT2TokenizerFast.from_pretrained(self.directory).save_pretrained(self.directory / "gpt2")
        self.check(self.directory / "gpt2", Tokenizer.from_file(str(self.directory / "gpt2" / "tokenizer.json")), True)

    def test_tokens_around_a_text(self):
        """As `transformers` adds them: by the post-processor, or where there is no tokenizer.json by its configuration."""
        texts = texts_without_line_feeds(100, 11)
        for post_processor in (False, True):
            for asked in ({}, {"add_bos_token": True}, {"add_eos_token": True}, {"add_bos_token": True, "add_eos_token": True},
                          {"add_bos_token": True, "bos_token": "<|pad|>"}):
                with self.subTest(post_processor=post_processor, asked=asked):
                    library = byte_level((END, "<|pad|>"))
                    if post_processor:
                        library.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
                            single="<|pad|> $A " + END, pair="$A $B", special_tokens=[("<|pad|>", 1), (END, 0)])])
                        library.save(str(self.directory / "tokenizer.json"))
                    library.model.save(str(self.directory))
                    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": END, "bos_token": END} | asked
                    (self.directory / "tokenizer_config.json").write_text(json.dumps(config))
                    theirs = GPT2TokenizerFast.from_pretrained(self.directory)
                    if post_processor:  # the class builds a tokenizer of its own; the generic one takes the file as it is
                        theirs = PreTrainedTokenizerFast.from_pretrained(self.directory)
                    ours = self.tokenize(self.directory, [text.encode() for text in texts], "--add-special", *TEXT)
                    self.assert_all_equal(texts, ours, [theirs.encode(text, split_special_tokens=True) for text in texts])

    def test_what_gives_other_ids_is_refused(self):
        for name, change in (("normalizer", lambda t: setattr(t, "normalizer", normalizers.NFKC())),
                             ("pre_tokenizer", lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Whitespace())),
                             ("dropout", lambda t: setattr(t.model, "dropout", 0.1))):
            library = byte_level()
            change(library)
            library.save(str(self.directory / "tokenizer.json"))
            done = subprocess.run([CAMBIUM, "tokenize", "--tokenizer", self.directory], input=b"", capture_output=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn(name, done.stderr.decode())


if __name__ == "__main__":
    unittest.main()
