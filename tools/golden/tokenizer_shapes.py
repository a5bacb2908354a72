#!/usr/bin/env python3
"""Writes the golden vectors of tests/text for shapes of tokenizer.json other than GPT-2's. For each there is a small
tokenizer, SHAPE/tokenizer.json, and the results of `tokenizers` with it, SHAPE.jsonl.

    tools/golden/tokenizer_shapes.py tests/text/golden [SHAPE...]

Reads corpus.txt in that folder. Made with tokenizers 0.23.3. Each line of a .jsonl is an object:

- "hex": the bytes of the text
- "ids": its ids (encode_special_tokens)
- "special": the ids with special tokens allowed, if they differ
- "whole": the ids with those that the post-processor adds, if it adds any
- "text": the last of these decoded, in hexadecimal, if that is another text; null if the library takes an added token's
  characters for bytes"""
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
MARK = "\u2581"
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
    """Tokens before and after every text."""
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


BESIDE = ["  ", MARK * 2, "\t", "\u3000", "\u00a0", "\r\n", "the", "of", "a", "word", "x", "_", "1", "12", "1234", "\u0663", "\u00b2", "it's", "'S", "Ab",
          "\u00e9", "e\u0301", "\u0301", "\u0323", "\u4e2d", "\u65e5\u672c", "\U0001f600", "\U0001f468\u200d\U0001f469", "<0xC5><0xBF>", "<0x41>", "<", "<s>", ">", ".",
          "\u1100\u1161", "\u01c5", "\u200d", "\x00", "\u0085", "\ue000", "'\u017f"]


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
    """DeepSeek's kind: many patterns in a row."""
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
    """Merges across spaces, and some bytes that have a token: an unknown character is written after them."""
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


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def every_flag(names):
    """An added token for each set of flags."""
    for i, name in enumerate(names):
        flags = {flag: bool(i >> k & 1) for k, flag in enumerate(FLAGS)}
        yield AddedToken(name, **flags)


def add_every_flag(made, words):
    """Names that begin alike, with each set of flags; and words that stand in texts by themselves."""
    tokens = [*every_flag([f"<{i}>" for i in range(32)]), *(AddedToken(word, single_word=True, normalized=False) for word in words)]
    made.add_tokens([token for token in tokens if not token.special])
    made.add_special_tokens([token for token in tokens if token.special])


def ignored_merges(across):
    """Llama 3's way with words that are tokens; those that only the list of added tokens has are no such words."""
    made = with_parts(across, pre_tokenizer=split_by(LLAMA3))
    root = json.loads(made.to_str())
    root["model"]["ignore_merges"] = True
    for word in ("unmerged", "\u0120unmerged", "alo"):
        root["model"]["vocab"][word] = len(root["model"]["vocab"])
    root["added_tokens"] = []
    made = Tokenizer.from_str(json.dumps(root))
    made.add_tokens([AddedToken("alone", single_word=True, normalized=False), AddedToken("How", single_word=True, normalized=True),
                     AddedToken("unmerged", single_word=True, normalized=False)])
    made.add_special_tokens([AddedToken("whole", single_word=True)])
    return made


def flags_of_bytes(across):
    """GPT-2's way with a space before every text, the normal form, and every kind of added token."""
    made = with_parts(across, normalizer=normalizers.NFC(), pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True),
                      decoder=decoders.ByteLevel())
    add_every_flag(made, ["alone", "How"])
    return made


def flags_of_marks(_):
    """Llama 2's normalizer, and every kind of added token: what is a mark already is no white space to them."""
    made = llama2_words(byte_fallback=True)
    add_every_flag(made, ["alone", "How", MARK + "of"])
    return made


def flags_of_replaced(_):
    """The same without a space before the text, as Gemma has it."""
    made = llama2_words(byte_fallback=True)
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", MARK)])
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    add_every_flag(made, ["alone", "How", " of"])
    return made


def flags_of_metaspace(_):
    """The same where a pre-tokenizer puts the marks, before the first stretch of text alone."""
    made = llama2_words(byte_fallback=True)
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=True)
    made.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="first", split=True)
    add_every_flag(made, ["alone", "How", MARK + "of"])
    return made


def llama2_words(**settings):
    return learn_characters(MARK + "+[^" + MARK + "]*|[^" + MARK + "]+", BYTES, fuse_unk=True, **settings)


def metaspace_bytes(_):
    """Metaspace alone decodes: it knows no bytes, and takes every mark of the first token away."""
    made = learn_characters("[^\n]+|\n", BYTES, byte_fallback=True, fuse_unk=True)
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=False)
    made.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="always", split=False)
    made.add_tokens([AddedToken("a" + MARK + "b c", normalized=False)])
    return made


def names_of_bytes(_):
    """The tokens are called like bytes, which the decoder believes and the model does not."""
    made = learn_characters(MARK + "[^" + MARK + "]*|[^" + MARK + "]+", BYTES, byte_fallback=False, fuse_unk=False)
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="never", split=True)
    made.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(content=" ", left=1)])
    return made


def ignored_characters(_):
    """Words of characters that are tokens, unless only the list of added tokens has them."""
    made = llama2_words(byte_fallback=True, ignore_merges=True)
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=True)
    made.add_tokens([AddedToken(MARK + "alone", single_word=True, normalized=False), AddedToken("How", single_word=True)])
    begin_with_s(made)
    return made


def custom(across):
    """A pattern without a scanner, after digits."""
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
    made = with_parts(across, normalizer=normalizers.NFC(), pre_tokenizer=pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex(pattern), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    made.add_tokens([AddedToken("alone", single_word=True, normalized=False)])
    return made


def lost_bytes(_):
    """Byte-level, and some bytes have no token."""
    made = byte_level(models.BPE(unk_token=END, fuse_unk=False))
    made.train_from_iterator(["the cat's mat, caf\u00e9 12 \u4e2d"] * 3, trainers.BpeTrainer(vocab_size=80, special_tokens=[END],
                                                                                  show_progress=False))
    return made


def switch_texts(corpus):
    """Added tokens of every kind beside blanks, marks, words, digits, marks above, and each other."""
    draw = random.Random(20261130)
    names = [f"<{i}>" for i in range(32)] + ["alone", "How", "unmerged", " unmerged", "whole", MARK + "of", " of", MARK + "alone", "a" + MARK + "b c"]
    beside = [*BESIDE, " ", " ", MARK, "\n"]
    yield from ("aloneHow", "alone How", "unmergedHow", "of", " of", "wholeHow", "<0xC5><0xBF>", "\u017f", "a\u0301lone")
    for name in names:
        yield from (around + name + around for around in (" ", MARK, "  ", " " + MARK, "\n", "x", "1"))
    for _ in range(250):
        yield "".join(draw.choice(draw.choice((names, beside))) for _ in range(draw.randrange(1, 12)))


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
          "whole": (whole, character_texts), "gemma": (gemma, character_texts), "lost_bytes": (lost_bytes, character_texts),
          "ignored_merges": (ignored_merges, switch_texts), "flags_of_bytes": (flags_of_bytes, switch_texts),
          "flags_of_marks": (flags_of_marks, switch_texts), "flags_of_replaced": (flags_of_replaced, switch_texts),
          "flags_of_metaspace": (flags_of_metaspace, switch_texts), "metaspace_bytes": (metaspace_bytes, switch_texts),
          "names_of_bytes": (names_of_bytes, switch_texts), "ignored_characters": (ignored_characters, switch_texts),
          "custom": (custom, switch_texts)}


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
