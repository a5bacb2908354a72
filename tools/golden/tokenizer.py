#!/usr/bin/env python3
"""Writes the golden vectors of tests/text: what `tokenizers` and `tiktoken` make of hostile texts, the merges that
`tokenizers` learns, and the kind of every code point. `small` has GPT-2's pattern, `llama3` and `qwen2` have theirs.

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
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
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


# The contents of texts for the patterns of Llama 3 and Qwen2: everything that they distinguish.
PIECES = ["a", "s", "t", "re", "VE", "ll", "D", "\u017f", "\u00e9", "\u4e2d", "\u0436", "\u05d0", "\u0e01", "\U00020000",
          "'", "'s", "'S", "'\u017f", "'re", "'Ve", "'LL", "'d", "\u2019s", "1", "2", "12", "345", "\u0663", "\u00bd", "\u2167",
          "!", ".", "--", "(", "\"", "e\u0301", "\u0301", "\U0001f600", "\0", "\u200b", "\ufeff",
          " ", " ", " ", "  ", "   ", "\n", "\n", "\r\n", "\n\n", "\r", "\t", "\x0b", "\x85", "\u00a0", "\u2003", "\u2028",
          "\u3000"]
ENDINGS = ["s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Re", "rE", "VE", "M", "LL", "lL", "D", "\u017f"]
# Words that no merge leads to, for `ignore_merges`.
WHOLE_WORDS = [" ignored", "Merges", "987", "'xyz", " \u6771\u4eac", "\t\u03ba\u03b1\u03b9", " %$#\r\n", "\n\t\n", "\u00a0\u00a0\u00a0\u00a0\u00a0",
               "\U0001f469\u200d\U0001f467"]


def mixed_text(draw, most):
    return "".join(draw.choice(PIECES) for _ in range(draw.randrange(1, most)))


def learn_across(size):
    """Merges across all that a pattern holds apart: a word that ends at the wrong place has other ids."""
    made = byte_level(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    draw = random.Random(20261123)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    contractions = [f"'{ending}x" for ending in ENDINGS] * 400
    made.train_from_iterator(contractions + [mixed_text(draw, 6) for _ in range(20000)], trainer)
    return made


def with_pattern(learned, pattern, whole_words):
    """The same vocabulary with a pattern, as the files of the models have it, and with words that no merge leads to."""
    root = json.loads(learned.to_str())
    vocab = root["model"]["vocab"]
    for word in whole_words:
        data = word.encode()
        names = ["".join(CHARACTER[b] for b in part) for part in (data, *(data[:i] for i in range(1, len(data))),
                                                                  *(data[i:] for i in range(1, len(data))))]
        halves = names[1:]
        assert not any(halves[i] in vocab and halves[i + len(data) - 1] in vocab for i in range(len(data) - 1)), word
        vocab[names[0]] = len(vocab)
    root["model"]["ignore_merges"] = bool(whole_words)
    made = Tokenizer.from_str(json.dumps(root))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return made


class Both:
    """`tokenizers`, and `tiktoken` made from the same merges; ids are those of the former."""

    def __init__(self, hugging_face, pattern=PATTERN, whole_words=()):
        self.plain, self.special = (Tokenizer.from_str(hugging_face.to_str()) for _ in range(2))
        self.plain.encode_special_tokens = True
        model = json.loads(hugging_face.to_str())["model"]
        names = [CHARACTER[b] for b in range(256)] + ["".join(pair) for pair in model["merges"]]
        names += ["".join(CHARACTER[b] for b in word.encode()) for word in whole_words]
        self.end = model["vocab"][END]
        self.ids = [model["vocab"][name] for name in names]
        ranks = {bytes(BYTE[c] for c in name): rank for rank, name in enumerate(names)}
        self.tiktoken = tiktoken.Encoding(
            "golden", pat_str=pattern, mergeable_ranks=ranks, special_tokens={END: len(ranks)}
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


def pattern_cases(corpus):
    """Contractions in both cases, numbers, ends of lines and blanks in every neighbourhood, many scripts."""
    marks = ("'", "\u2019", "!", " ", "\n", "\r", "\t", "\x85", "\u00a0", "\u3000", "1", "\u0663", "a", "\u4e2d", "\0", "\u0301")
    yield from ((a + b).encode() for a in marks for b in marks)
    yield from ((a + b + "x").encode() for a in ("!", " ", "  ", "\n", " \n ", "\r\n\t") for b in marks)
    for ending in (*ENDINGS, "\u017f\u017f", "r", "v", "l", "le", "e", "\u212a", "\ufb06", "\u00df", "sst"):
        for before in ("it", " ", "!", "", "'"):
            yield (before + "'" + ending + "x").encode()
            yield (before + "'" + ending).encode()
    for text in ("", "1234567", "12 345", "a1b22c333d4444", "\u0661\u0662\u0663\u0664", "1\u00bd2\u21673", "3.14159", "1,000,000", "-42",
                 "x\n", "x \n", "x\n ", "x \n y", "x\n\n\n  y", "!\n\n", "! \n", "!\r\n!", " !\n x", "  !\n", "\n!\n", "\t!", "\t\tx",
                 "\u3000x", "\u3000\u3000x", "\x85\x85\n\x85x", "\x0b\x0c\r x", "a\u00a0b", "a\u00a0\u00a0b", "   \n   ", "   x   ",
                 " \u200bx", "def f(x):\r\n\treturn x  # 1\r\n\r\n", "http://a.b/c?d=e&f=1234", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0662\u0660",
                 "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e44\u0e17\u0e22 \u0e51\u0e52", "\ud55c\uad6d\uc5b4 \u6f22\u5b57\u3001\u304b\u306a\u3002",
                 "\u0391\u03b2\u03b3's \u0416'LL \u05d0'd", "e\u0301t\u00e9 E\u0301", "\U0001f469\u200d\U0001f467\n\U0001f600a", "\U00020000\U0002a6df1",
                 END, "a" + END + "'s", " " + END + "\n", END + END[:-1], *WHOLE_WORDS, *(w + "x" for w in WHOLE_WORDS),
                 *("x" + w for w in WHOLE_WORDS), corpus[:1500]):
        yield text.encode()
    for data in (b"\xff", b"it's\xff", b"a\n\xff", b"a \n \xff", b"!\n\xe2\x82", b"12\xff3", b"1234\xff", b" \xff x", b"\t\t\xf0\x9f\x98",
                 b"'\xc5", b"'\xc5\xff", b"a'\xc5\xbf\xc5", b"\xed\xa0\x80x", b"\xc0\xaf's", b" %$#\r\n\xff", b"987\xff"):
        yield data
    draw = random.Random(20261124)
    for i in range(300):
        data = bytearray(mixed_text(draw, 12).encode())
        if i % 4 == 3:
            at = draw.randrange(len(data) + 1)
            data[at:at] = bytes([draw.choice([0xFF, 0xC3, 0xE2, 0xF0, 0x80])])
        yield bytes(data)


def write_cases(path, both, cases):
    with open(path, "w", encoding="ascii") as out:
        for data in cases:
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


if __name__ == "__main__":
    folder = sys.argv[1]
    with open(os.path.join(folder, "corpus.txt"), encoding="utf-8", newline="") as file:
        corpus = file.read()
    small_cases = [*fixed_cases(corpus), *random_cases(corpus, 300, 20261121)]
    small = learn(corpus, 900)
    os.makedirs(os.path.join(folder, "small"), exist_ok=True)
    with open(os.path.join(folder, "small", "tokenizer.json"), "w", encoding="utf-8") as out:
        out.write(small.to_str(pretty=False) + "\n")
    write_cases(os.path.join(folder, "small.jsonl"), Both(small), small_cases)
    across = learn_across(900)
    for name, pattern, words in (("llama3", LLAMA3, WHOLE_WORDS), ("qwen2", QWEN2, ())):
        made = with_pattern(across, pattern, words)
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        with open(os.path.join(folder, name, "tokenizer.json"), "w", encoding="utf-8") as out:
            out.write(made.to_str(pretty=False) + "\n")
        write_cases(os.path.join(folder, name + ".jsonl"), Both(made, pattern, words), pattern_cases(corpus))
    write_kinds(os.path.join(folder, "kinds.txt"))
    if len(sys.argv) > 2:
        vocab, merges = (os.path.join(sys.argv[2], name) for name in ("vocab.json", "merges.txt"))
        gpt2 = byte_level(models.BPE.from_file(vocab, merges))
        gpt2.add_special_tokens([END])
        write_cases(os.path.join(folder, "gpt2.jsonl"), Both(gpt2), small_cases)
        if len(sys.argv) > 3:
            with open(sys.argv[3], "rb") as file:
                write_text(os.path.join(folder, "gpt2_text.json"), Both(gpt2), file.read())
