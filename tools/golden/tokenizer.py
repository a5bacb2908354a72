#!/usr/bin/env python3
"""Writes the golden vectors of tests/text: what `tokenizers` and `tiktoken` make of hostile texts, the merges that
`tokenizers` learns, and the kind of every code point.

    tools/golden/tokenizer.py tests/text/golden [FOLDER WITH GPT-2's vocab.json AND merges.txt [TEXT]]

Reads corpus.txt in the first folder. TEXT is a real text, of whose ids by GPT-2 digests are kept (gpt2_text.json); it is
Karpathy's tinyshakespeare.txt. Made with tokenizers 0.23.3 and tiktoken 0.14.0; wherever both define the ids, they
must agree here. Each line of a .jsonl is {"hex": the bytes, "ids": plain, "special": with special tokens allowed, null
where the bytes are no UTF-8}."""
import hashlib
import json
import os
import random
import struct
import sys

import tiktoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
CHARACTER = {b: chr(b) for b in PRINTABLE}
CHARACTER.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in PRINTABLE)})
BYTE = {c: b for b, c in CHARACTER.items()}


def byte_level(model):
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def learn(text, size):
    made = byte_level(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([text], trainer)
    return made


class Both:
    """`tokenizers`, and `tiktoken` made from the same merges; ids are those of the former."""

    def __init__(self, hugging_face):
        self.plain, self.special = (Tokenizer.from_str(hugging_face.to_str()) for _ in range(2))
        self.plain.encode_special_tokens = True
        model = json.loads(hugging_face.to_str())["model"]
        names = [CHARACTER[b] for b in range(256)] + ["".join(pair) for pair in model["merges"]]
        self.end = model["vocab"][END]
        self.ids = [model["vocab"][name] for name in names]
        ranks = {bytes(BYTE[c] for c in name): rank for rank, name in enumerate(names)}
        self.tiktoken = tiktoken.Encoding(
            "golden", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END: len(ranks)}
        )
        self.ids.append(self.end)

    def case(self, data):
        plain = [self.ids[rank] for rank in self.tiktoken._encode_bytes(data)]
        special = None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            pass
        else:
            assert plain == self.plain.encode(text, add_special_tokens=False).ids, data
            special = [self.ids[rank] for rank in self.tiktoken.encode(text, allowed_special="all")]
            assert special == self.special.encode(text, add_special_tokens=False).ids, data
        return {"hex": data.hex(), "ids": plain, "special": special}


def fixed_cases(corpus):
    yield from (bytes([b]) for b in range(256))
    yield from (b"a" + bytes([b]) + b" b" for b in range(256))
    for text in ("", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", " a", "  a", "a ", "a  ", "a  b", "a\n\n b", "\t\tx",
                 "a\u00a0\u00a0b", "\u3000 x", "\u2028\u2029", "\x85 \x85", "\u180e\u200b\ufeff", "\u1680a",
                 "'s", "'S", "it's", "we'll've", "'re're", "'l", "''s", "'ve'", " 's", "!'s", "'\u017f", "don't'",
                 "a1b2", "12 345", "\u0663\u00bd\u2167x", "e\u0301e\u0300", "\u0e01\u0e33", "\U0001f600\U0001f600",
                 "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U00020000\U0002a6df", "\U000e0041\U0010ffff",
                 "\ud7ff\ue000\uffff", END, "a" + END + "b", " " + END + " ", END * 3, END[:-1], "<|" + END + "|>",
                 "a  " + END + "  b", END.upper(), corpus):
        yield text.encode()
    for data in (b"\x80", b"\xff", b"ab\xff", b"ab \xff cd", b"  \xff", b"a \n\t \xff x", b"a\r\xff", b"\xc0\x80",
                 b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xe0\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98",
                 b"caf\xe9 au lait", b"\xe2\x82 \xe2\x82\xac", END.encode() + b"\xff" + END.encode(),
                 # white space at the end of a word, before a word that begins with a space of its own
                 *(b"a" + space + b" " + c + b"\xff" for space in (b"\r ", b"\n \n ", b"\t\t", b"  ", b"\xc2\x85 ")
                   for c in (b"\0", b"\xe4\xb8\xad", b"\xf0\x9f\x8c\xb2"))):
        yield data


def random_cases(corpus, count, seed):
    draw = random.Random(seed)
    spaces = [" "] * 8 + ["\n"] * 3 + ["\t", "\r", "\u00a0", "\u2003", "\u3000", "\x0b", "\x1c"]

    def point():
        while True:
            p = draw.choice([draw.randrange(128), draw.randrange(0x3000), draw.randrange(0x11000), draw.randrange(0x110000)])
            if not 0xD800 <= p < 0xE000:
                return chr(p)

    def piece():
        kind = draw.random()
        if kind < 0.3:
            return "".join(point() for _ in range(draw.randrange(1, 6)))
        if kind < 0.5:
            return "".join(draw.choice(spaces) for _ in range(draw.randrange(1, 5)))
        if kind < 0.6:
            return draw.choice(["'s", "'t", "'re", "'", "''", END, END[:-1], "|>", "\0"])
        if kind < 0.7:
            return draw.choice("ab1 !'\n\u4e2d") * draw.randrange(1, 150)
        start = draw.randrange(len(corpus) - 40)
        return corpus[start : start + draw.randrange(1, 40)]

    for i in range(count):
        data = bytearray("".join(piece() for _ in range(draw.randrange(1, 8))).encode())
        if i % 2:
            for _ in range(draw.randrange(1, 4)):
                at = draw.randrange(len(data) + 1)
                data[at:at] = bytes([draw.choice([draw.randrange(256), 0xFF, 0xC3, 0xE2, 0xF0, 0x80])])
        yield bytes(data)


def write_cases(path, both, corpus):
    with open(path, "w", encoding="ascii") as out:
        for data in [*fixed_cases(corpus), *random_cases(corpus, 300, 20261121)]:
            out.write(json.dumps(both.case(data), separators=(",", ":")) + "\n")


def write_kinds(path):
    """Lines "FIRST KIND" in hexadecimal: from this code point on they are letters, numbers, spaces or others."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    last = None
    with open(path, "w", encoding="ascii") as out:
        for p in range(0x110000):
            kind = "O"
            if not 0xD800 <= p < 0xE000:
                kind = next((k for probe, k in (("a", "L"), ("1", "N"), ("!", "O")) if len(split(probe + chr(p))) == 1), "S")
            if kind != last:
                out.write("%x %s\n" % (p, kind))
            last = kind


def write_text(path, both, data):
    """Digests of a text's ids as little-endian 16-bit numbers, and of those of each line, as `tokenize` prints them."""
    ids = both.case(data)["ids"]
    lines = "".join(" ".join(map(str, both.case(line)["ids"])) + "\n" for line in data.split(b"\n")[:-1])
    expected = {"text": hashlib.sha256(data).hexdigest(), "tokens": len(ids), "first": ids[:12],
                "ids": hashlib.sha256(struct.pack(f"<{len(ids)}H", *ids)).hexdigest(),
                "lines": hashlib.sha256(lines.encode()).hexdigest()}
    with open(path, "w", encoding="ascii") as out:
        out.write(json.dumps(expected, indent=1) + "\n")


folder = sys.argv[1]
with open(os.path.join(folder, "corpus.txt"), encoding="utf-8", newline="") as file:
    corpus = file.read()
small = learn(corpus, 900)
os.makedirs(os.path.join(folder, "small"), exist_ok=True)
with open(os.path.join(folder, "small", "tokenizer.json"), "w", encoding="utf-8") as out:
    out.write(small.to_str(pretty=False) + "\n")
write_cases(os.path.join(folder, "small.jsonl"), Both(small), corpus)
write_kinds(os.path.join(folder, "kinds.txt"))
if len(sys.argv) > 2:
    vocab, merges = (os.path.join(sys.argv[2], name) for name in ("vocab.json", "merges.txt"))
    gpt2 = byte_level(models.BPE.from_file(vocab, merges))
    gpt2.add_special_tokens([END])
    write_cases(os.path.join(folder, "gpt2.jsonl"), Both(gpt2), corpus)
    if len(sys.argv) > 3:
        with open(sys.argv[3], "rb") as file:
            write_text(os.path.join(folder, "gpt2_text.json"), Both(gpt2), file.read())
