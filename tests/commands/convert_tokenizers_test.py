"""cambium convert: the tokenizer of a GGUF file becomes a directory's, and back. Both give the same ids."""
import json
import re
import shutil
import unittest

from convert_support import Convert
from gguf_support import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, byte_tokens, read_gguf, tokenizer_keys
from model_support import SOURCE, run

TOKENIZERS = SOURCE / "tests/text/golden"


def sentencepiece(text, pieces):
    """SentencePiece's BPE by its definition: of all neighbours, those whose union has the best score are merged first."""
    parts = list("\u2581" + text.replace(" ", "\u2581"))
    while True:
        found = [(-pieces[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in pieces]
        if not found:
            return parts
        i = min(found)[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]


class Tokenizers(Convert):
    def write(self, lists, more=0):
        keys, tensors = self.smallest_model(len(lists["tokenizer.ggml.tokens"]) + more)
        self.convert(keys | lists, tensors)

    def ids(self, directory, text, *words):
        return run("tokenize", "--tokenizer", directory, *words, input=text.encode())[0]

    def again(self):
        """The directory as a GGUF file, and as a directory again; returns the file's keys."""
        self.file.unlink()
        run("convert", "--from", self.output, "--to", "gguf", "--output", self.file)
        run("convert", "--from", self.file, "--to", "model", "--output", self.root / "again")
        return read_gguf(self.file)[0]

    def test_patterns_give_the_same_ids(self):
        text = "".join((TOKENIZERS / name).read_text() for name in ("corpus.txt", "kinds.txt"))[:20000]
        text += "\nIt's 12345 o'clock, e\u0301 \u00e9; <|endoftext|>\n"
        for name, pattern in (("llama3", "llama-bpe"), ("qwen2_nfc", "qwen2"), ("smollm", "smollm"), ("tekken", "tekken")):
            source = TOKENIZERS / name
            tokenizer = json.loads((source / "tokenizer.json").read_text())
            self.write(tokenizer_keys(tokenizer, pattern))
            written = json.loads((self.output / "tokenizer.json").read_text())
            tokenizer["model"]["ignore_merges"] = written["model"]["ignore_merges"]
            same = self.root / "same"
            same.mkdir(exist_ok=True)
            (same / "tokenizer.json").write_text(json.dumps(tokenizer))
            self.assertEqual(self.again()["tokenizer.ggml.pre"], pattern)
            for words in ((), ("--special-tokens", "text")):
                self.assertEqual(self.ids(self.output, text, *words), self.ids(same, text, *words), name)
                self.assertEqual(self.ids(self.root / "again", text, *words), self.ids(same, text, *words), name)

    def test_scores_merge_as_sentencepiece_does(self):
        letters = "abcdeghilnorstuw\u2581"
        pieces = {letter: -1000.0 for letter in letters}
        for rank, piece in enumerate("\u2581t he in er \u2581the on at re en th \u2581a is ing \u2581in te ll \u2581hello hell ello nd and".split()):
            pieces[piece] = float(-rank)
        pieces = dict(sorted(pieces.items()))  # so that ids have another order than scores
        names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
        kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
        self.write({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": kinds,
                    "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()), "tokenizer.ggml.bos_token_id": 1,
                    "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0, "tokenizer.chat_template": "{{ 'hi' }}"})
        for line in ("the other in the end", "hello and hello then", "a tinier ing on  the  air", "shell rest"):
            expected = [names.index(part) for part in sentencepiece(line, pieces)]
            self.assertEqual([int(id) for id in self.ids(self.output, line + "\n").split()], expected, line)
        keys = self.again()
        self.assertEqual((keys["tokenizer.ggml.model"], keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]), ("llama", names, kinds))
        self.assertEqual([keys[f"tokenizer.ggml.{key}"] for key in ("bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token")],
                         [1, 2, 0, True])
        self.assertEqual(keys["tokenizer.chat_template"], "{{ 'hi' }}")
        for line in ("the other in the end", "a tinier ing on  the  air"):
            self.assertEqual(self.ids(self.root / "again", line + "\n"), self.ids(self.output, line + "\n"))
        with_begin = self.ids(self.output, "the\n", "--add-special").split()
        self.assertEqual(int(with_begin[0]), 1)
        self.assertIn(names.index("<0x7A>"), map(int, self.ids(self.output, "z\n").split()))
        config = json.loads((self.output / "tokenizer_config.json").read_text())
        self.assertEqual((config["chat_template"], config["eos_token"]), ("{{ 'hi' }}", "</s>"))

    def test_padding_is_left_out_and_a_turns_end_ends_a_text(self):
        lists = byte_tokens(20)
        lists["tokenizer.ggml.tokens"] += ["<|eot|>", "[PAD21]", "[PAD22]"]
        lists["tokenizer.ggml.token_type"] += [CONTROL, UNUSED, UNUSED]
        self.write(lists | {"tokenizer.ggml.eot_token_id": 20}, more=3)
        self.assertEqual(json.loads((self.output / "config.json").read_text())["eos_token_id"], [19, 20])
        self.assertNotIn("PAD", (self.output / "tokenizer.json").read_text())

    def test_lists_that_contradict_each_other_are_refused(self):
        keys, tensors = self.smallest_model(20)
        lists = byte_tokens(20)
        for part, change in {
            "there are 20 tokens, but 19 kinds of them": {"token_type": [NORMAL] * 19},
            "'tokenizer.ggml.pre' is other, which is not supported (supported: gpt-2,": {"pre": "other"},
            "'tokenizer.ggml.model' is bert, which is not supported": {"model": "bert"},
            "'tokenizer.ggml.eos_token_id' must be an integer from 0 to 19": {"eos_token_id": 20},
            "merge 1": {"merges": ["A"]},
            "'tokenizer.ggml.scores' is missing": {"model": "llama"},
            "there are 21 tokens, but the embedding has 20": {"tokens": lists["tokenizer.ggml.tokens"] + ["x"],
                                                              "token_type": [NORMAL] * 21},
            "token 0 is empty": {"tokens": ["", *lists["tokenizer.ggml.tokens"][1:]]},
            "'tokenizer.ggml.tokens' must be an array of strings": {"tokens": [1, 2]},
        }.items():
            with self.subTest(part):
                self.refuse(part, keys | lists | {f"tokenizer.ggml.{key}": value for key, value in change.items()}, tensors)
        for size in (19, 21):
            self.refuse(f"'llama.vocab_size' is {size}, but token_embd.weight has 20 rows", keys | lists | {"llama.vocab_size": size}, tensors)
        self.convert(keys | lists | {"llama.vocab_size": 20}, tensors)

    def test_a_file_has_the_ends_of_model_and_tokenizer(self):
        lists = byte_tokens(20)
        lists["tokenizer.ggml.tokens"][17:19] = ["<|a|>", "<|b|>"]
        lists["tokenizer.ggml.token_type"][17:19] = [CONTROL, CONTROL]
        self.write(lists)  # the tokenizer's is 19
        config = json.loads((self.output / "config.json").read_text())
        for ends, expected in (([17, 18], [17, 18, 19]), ([17], [17, 19]), ([19, 17], [19, 17]), ([], [19])):
            (self.output / "config.json").write_text(json.dumps(config | {"eos_token_id": ends}))
            keys = self.again()
            self.assertEqual([keys[name] for name in (f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom")) if name in keys], expected)
            self.assertEqual(json.loads((self.root / "again/config.json").read_text())["eos_token_id"], expected if len(expected) > 1 else expected[0])
            self.file.write_bytes(b"")
            shutil.rmtree(self.root / "again")


if __name__ == "__main__":
    unittest.main()
