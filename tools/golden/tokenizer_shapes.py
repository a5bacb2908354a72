#!/usr/bin/env python3
"""Writes the golden vectors of tests/text for the shapes of tokenizer.json that models have beside GPT-2's: a small
tokenizer for each, SHAPE/tokenizer.json, and what `tokenizers` makes of texts with it, SHAPE.jsonl.

    tools/golden/tokenizer_shapes.py tests/text/golden [SHAPE...]

Reads corpus.txt in that folder. Made with tokenizers 0.23.3. Each line of a .jsonl is {"hex": the bytes of the text, "ids":
its ids (encode_special_tokens), "special": with special tokens allowed, where these are others, "whole": with what the
post-processor adds, where that is more, "text": the last of these decoded, in hexadecimal, where that is another
text; null where the library takes an added token's characters for bytes}."""
import json
import os
import random
import sys

from tokenizer import END, LLAMA3, PIECES, QWEN2, byte_level, learn_across, pattern_cases
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

MARKS = ["\u0301", "\u0300", "\u0323", "\u0345", "\u0f71", "\u05b0", "\u302a", "\u3099", "\U0001d165", "\U00011d45", "\U000119e0", "\u0cd5", "\u09be", "\u1161", "\u11a8"]
BASES = ["e", "a", "o", "A", "\u1100", "\uac00", "\uac01", "\u0bc6", "\u09c7", "\u304b", "\u0cc6", "\u03b1", "\u1f00", "\u00e9", " ", "\n", "'", "1"]
SINGLES = ["\u212b", "\u2126", "\u0344", "\u0958", "\u2adc", "\u1fef", "\uf900", "\U0002f800", "\u0340", "\ufb1d", "\u2000", "\u037e", "\u1e9b\u0323", "\uac00\u11a7", "\u11a7\u11a8",
           "\U00011935\U00011930", "\U00011938"]
TOOLS = ["<tool>", "</tool>"]
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD, SYMBOLS_AND_SPACES = r"[^\r\n\p{L}\p{N}]?", r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def cased(contraction, numbers):
    return (f"{LEAD}{UPPER}*{LOWER}+{contraction}|{LEAD}{UPPER}+{LOWER}*{contraction}|\\p{{N}}{numbers}" + SYMBOLS_AND_SPACES)


O200K, TEKKEN = cased("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}"), cased("", "")


def split_by(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def with_parts(learned, **parts):
    made = Tokenizer.from_str(learned.to_str())
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def qwen2(across):
    """NFC, and tokens that are not special."""
    made = with_parts(across, normalizer=normalizers.NFC(), pre_tokenizer=split_by(QWEN2))
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    made.add_tokens([AddedToken(name, normalized=False) for name in TOOLS])
    return made


def llama3(across):
    """Tokens before and behind every text."""
    made = with_parts(across, pre_tokenizer=split_by(LLAMA3))
    made.add_special_tokens(["<|begin|>", "<|end|>", "<|eot|>"])
    ids = [(name, made.token_to_id(name)) for name in ("<|begin|>", "<|end|>", "<|eot|>")]
    made.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A <|end|> <|eot|>", pair="<|begin|> $A $B", special_tokens=ids)])
    return made


def added(across):
    """Added tokens of every kind, some of which begin alike, overlap, or are only found in the normal form."""
    made = with_parts(across, normalizer=normalizers.Sequence([normalizers.NFC()]), pre_tokenizer=split_by(QWEN2))
    made.add_special_tokens([AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True), AddedToken("<s|>", normalized=True),
                             AddedToken("<b>", lstrip=True, rstrip=True), "a<>b", AddedToken("<w>", single_word=True)])
    made.add_tokens([AddedToken("plain", single_word=True, normalized=False), AddedToken("\u00e9t", normalized=True),
                     AddedToken("e\u0301te\u0301", normalized=True), AddedToken("e\u0301", normalized=False),
                     AddedToken(" gap ", normalized=False, lstrip=True), AddedToken("<>b>", normalized=False),
                     AddedToken("<tool>", normalized=False), AddedToken("<tool>s", rstrip=True), AddedToken("\u4e2d", single_word=True)])
    return made


NAMES = ["<l>", "<r>", "<s|>", "<b>", "a<>b", "<>b>", "a<>b>", "<w>", "plain", "\u00e9t", "\u00e9t\u00e9", "e\u0301te\u0301", " gap ", "gap",
         "<tool>", "<tool>s", "\u4e2d", "<|im_start|>", "<|begin|>", "<|eot|>", END, END[:-1]]
AROUND = ["", " ", "  ", "\n", "\t \u3000", "x", "_", "1", "\u00e9", "e\u0301", "\u0301", ".", "\u4e2d", "\u200d", "\u2160", "'s"]


def few_texts(corpus):
    yield from ("", " ", "  ", "a", " a", "a ", "\n", "it's", " a  b ", corpus[:1200], corpus[-600:])
    yield from (name + more for name in NAMES for more in ("", " x"))
    yield from (" ".join(NAMES), "".join(NAMES))


def normal_form_texts(corpus):
    yield from (base + mark for base in BASES for mark in MARKS)
    yield from SINGLES
    draw = random.Random(20261126)
    for _ in range(200):
        yield "".join(draw.choice(PIECES + MARKS + BASES + SINGLES) for _ in range(draw.randrange(1, 12)))
    yield "e" + "".join(draw.choice(MARKS) for _ in range(300))


def added_texts(corpus):
    for around in AROUND:
        for name in NAMES[:17]:
            yield around + name + around
            yield "x" + around + name + "y"
    draw = random.Random(20261125)
    for _ in range(300):
        yield "".join(draw.choice(PIECES + NAMES + AROUND) for _ in range(draw.randrange(1, 12)))


def o200k(across):
    return with_parts(across, pre_tokenizer=split_by(O200K))


def tekken(across):
    return with_parts(across, pre_tokenizer=split_by(TEKKEN))


def smollm(across):
    return with_parts(across, pre_tokenizer=pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))


def steps(across):
    """DeepSeek's kind: many patterns behind each other."""
    split = pre_tokenizers.Split
    return with_parts(across, pre_tokenizer=pre_tokenizers.Sequence([
        split(Regex("[\r\n]"), "isolated"), split(Regex(r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u0370-\u0373]+"), "isolated"),
        split(Regex(r"\s?[!-/:-~\uff01-\uff0f\u2018-\u201f\u3000-\u3002]+"), "isolated"), split(Regex(r"\s+$"), "isolated"),
        split(Regex("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), "isolated"), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def behaviors(across):
    """Every behavior of Split, and what Oniguruma and PCRE2 read differently."""
    split = pre_tokenizers.Split
    return with_parts(across, pre_tokenizer=pre_tokenizers.Sequence([
        split(Regex(r"(?<=x)\w+?(?=\W)|\u0416+"), "isolated"), split("e", "merged_with_previous"), split(Regex(r"\d"), "merged_with_next"),
        split(Regex(r"[^\s\w]"), "contiguous"), split(Regex("\u0301|(?i:ve|s)"), "removed"), split(Regex(r"(?=!)"), "isolated"),
        split(Regex(r"\p{L}+|\s"), "removed", invert=True), split(" ", "merged_with_next", invert=True),
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=False)]))


MARK = "\u2581"
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def learn_characters(pattern, byte_tokens, **settings):
    """Merges of characters, in words that `pattern` finds in a text with marks for its spaces."""
    made = Tokenizer(models.BPE(unk_token="<unk>", **settings))
    made.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    made.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    draw = random.Random(20261128)
    words = ["the", "of", "and", "word", "words", "a", "in", "caf\u00e9", "na\u00efve", ",", ".", "  ", "    ", "\n", "x1", "12", "\u0436\u0438\u0437\u043d\u044c", "\u4e2d\u6587", "it's"]
    texts = [" ".join(draw.choice(words) for _ in range(12)) for _ in range(300)]
    made.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=len(byte_tokens) + 300, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], show_progress=False))
    root = json.loads(made.to_str())
    root["added_tokens"] = root["added_tokens"][:3]
    made = Tokenizer.from_str(json.dumps(root))
    made.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(content=" ", left=1)])
    made.pre_tokenizer = None
    return made


def begin_with_s(made):
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                        special_tokens=[("<s>", made.token_to_id("<s>"))])


def llama2(_):
    """As Llama 2 and Phi-3: words of runs of spaces with what follows, all bytes, tokens that take white space along."""
    made = learn_characters(MARK + "+[^" + MARK + "]*|[^" + MARK + "]+", BYTES, byte_fallback=True, fuse_unk=True)
    begin_with_s(made)
    made.add_special_tokens([AddedToken("<r>", rstrip=True), AddedToken("<l>", lstrip=True), AddedToken("<s|>", normalized=True)])
    made.add_tokens([AddedToken("<tool>", normalized=False), AddedToken(MARK + "gap", normalized=False),
                     AddedToken("of a", normalized=True), AddedToken("plain" + MARK + "x", normalized=True, single_word=True)])
    return made


def mistral(_):
    made = learn_characters(MARK + "+[^" + MARK + "]*|[^" + MARK + "]+", BYTES, byte_fallback=True, fuse_unk=True)
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False)
    begin_with_s(made)
    made.add_special_tokens(["<r>", "<l>"])
    made.add_tokens([AddedToken("of a", normalized=True), AddedToken("x" + MARK + "y", normalized=True)])
    return made


def metaspace(_):
    """No bytes: several unknown characters are one token."""
    made = learn_characters(MARK + "[^" + MARK + "]*|[^" + MARK + "]+", [], fuse_unk=True)
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=True)
    made.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="always", split=True)
    made.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("\u00e9t", normalized=True)])
    return made


def whole(_):
    """Merges across spaces, and some bytes that have a token: an unknown character is written behind them."""
    made = learn_characters("[^\n]+|\n", [b for i, b in enumerate(BYTES) if i % 7], byte_fallback=True, fuse_unk=False)
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="never", split=False)
    return made


def gemma(_):
    """Marks without a space before the text, and a split that finds nothing."""
    made = learn_characters(MARK + "+[^" + MARK + "]*|[^" + MARK + "]+", BYTES, byte_fallback=True, fuse_unk=True)
    made.normalizer = normalizers.Replace(" ", MARK)
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


def lost_bytes(_):
    """Byte-level, and some bytes have no token."""
    made = byte_level(models.BPE(unk_token=END, fuse_unk=False))
    made.train_from_iterator(["the cat's mat, caf\u00e9 12 \u4e2d"] * 3, trainers.BpeTrainer(vocab_size=80, special_tokens=[END],
                                                                                  show_progress=False))
    return made


def character_texts(corpus):
    draw = random.Random(20261129)
    words = PIECES + NAMES + MARKS + [" ", " ", "  ", "   ", MARK, MARK * 2, " " + MARK, "the", " of", " of a", "of a ", "a", " word", "words,", "caf\u00e9",
                                      "\u0436\u0438", "<0x41>", "<s>", "</s>", "<unk>", MARK + "gap", "plain" + MARK + "x", "plain x", "x" + MARK + "y", "x y",
                                      "\U0001f600\U0001f601", "\u65e5\u672c"]
    for _ in range(500):
        yield "".join(draw.choice(words) for _ in range(draw.randrange(1, 12)))
    yield "the words of a caf\u00e9 in" * 40


def pattern_texts(corpus):
    draw = random.Random(20261127)
    for case in pattern_cases(corpus):
        try:
            yield case.decode()
        except UnicodeDecodeError:
            pass
    words = PIECES + MARKS + ["ABC", "Abc", "aBC", "\u01c5", "\u02b0", "\u4e2dA", "A\u4e2d", "'S", "'\u017ft", "/", "//\n", "/\r", "x", "ve", "\u0416\u0416", "\u24b6",
                              "\u0301A", "\u200d", "_", "\uff01", "\u00b5", "\ud7ff", "\u180e", "e", "\x1c", "12"]
    for _ in range(500):
        yield "".join(draw.choice(words) for _ in range(draw.randrange(1, 10)))


# Name: how it is made, and the texts beside few_texts.
SHAPES = {"qwen2_nfc": (qwen2, normal_form_texts), "llama3_framed": (llama3, None), "added": (added, added_texts),
          "o200k": (o200k, pattern_texts), "tekken": (tekken, pattern_texts), "smollm": (smollm, pattern_texts),
          "steps": (steps, pattern_texts), "behaviors": (behaviors, pattern_texts),
          "llama2": (llama2, character_texts), "mistral": (mistral, character_texts), "metaspace": (metaspace, character_texts),
          "whole": (whole, character_texts), "gemma": (gemma, character_texts), "lost_bytes": (lost_bytes, character_texts)}


def write_shape(folder, name, made, cases):
    plain, special = Tokenizer.from_str(made.to_str()), Tokenizer.from_str(made.to_str())
    plain.encode_special_tokens = True
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    with open(os.path.join(folder, name, "tokenizer.json"), "w", encoding="utf-8") as out:
        out.write(made.to_str(pretty=False) + "\n")
    with open(os.path.join(folder, name + ".jsonl"), "w", encoding="ascii") as out:
        for text in cases:
            case = {"hex": text.encode().hex(), "ids": plain.encode(text, add_special_tokens=False).ids}
            last = case["ids"]
            for key, ids in (("special", special.encode(text, add_special_tokens=False).ids),
                             ("whole", special.encode(text).ids)):
                if ids != last:
                    case[key] = last = ids
            decoded = special.decode(last, skip_special_tokens=False)
            if "\ufffd" in decoded and "\ufffd" not in text:
                case["text"] = None  # an added token's characters were taken for bytes of the alphabet
            elif decoded != text:
                case["text"] = decoded.encode().hex()
            out.write(json.dumps(case, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    folder, names = sys.argv[1], sys.argv[2:] or SHAPES
    with open(os.path.join(folder, "corpus.txt"), encoding="utf-8", newline="") as file:
        corpus = file.read()
    across = learn_across(700)
    for name in names:
        make, more = SHAPES[name]
        cases = dict.fromkeys([*few_texts(corpus), *(more(corpus) if more else ())])
        write_shape(folder, name, make(across), cases)
