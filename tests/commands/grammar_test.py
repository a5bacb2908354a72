"""cambium grammar: constraints checked without a model."""
import json
import os
import re
import tempfile
import unittest

from model_support import SOURCE, rows, run
from requests_support import as_lines

GOLDEN = SOURCE / "tests/text/golden"
GPT2 = GOLDEN / "small"
LLAMA2 = GOLDEN / "llama2"
FIELDS = {"id", "status", "error", "ignored", "compile_us", "bytes", "texts", "mask_us"}
PAIR = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


# Patterns, each with one for the beginnings of its texts, and texts that are such beginnings.
BEGINNINGS = ((r"[0-9]{2}", r"[0-9]{0,2}", ["12", "7"]), (r"(cat|car|dog)s?", r"(c(a(t|r)?)?|d(o(g)?)?)?|(cat|car|dog)s", ["cars", "do"]),
              (r"-?(0|[1-9][0-9]*)", r"-?(0|[1-9][0-9]*)?", ["-105", "0"]),
              (r'"[^"\\\x00-\x1f]*"', r'("([^"\\\x00-\x1f]*"?)?)?', ['"so"', '" \u00e9\u2603"']),
              (r"[\u00e9\u2603 ]{3}|\u2603x", r"[\u00e9\u2603 ]{0,3}|\u2603x", ["\u2603\u00e9 ", "\u2603x"]))


def tokens_of(directory):
    """The bytes of each id that a constraint may allow, by the definitions of byte-level BPE and of SentencePiece."""
    model = json.loads((directory / "tokenizer.json").read_text())
    special = {token["id"] for token in model["added_tokens"] if token["special"]}
    pieces = {number: piece for piece, number in model["model"]["vocab"].items()} | {
        token["id"]: token["content"] for token in model["added_tokens"]}
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    of_bytes = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - {*plain}))}
    is_of_bytes = "ByteLevel" in json.dumps(model.get("decoder"))
    added = {token["id"] for token in model["added_tokens"]}
    for number, piece in pieces.items():
        if number not in special:
            byte = re.fullmatch("<0x([0-9A-F]{2})>", piece)
            yield (piece.encode() if number in added else bytes(of_bytes[c] for c in piece) if is_of_bytes
                   else bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode())


def can_begin(pattern, text):
    """Whether some continuation of the bytes matches: they are whole characters, or the last one can still be completed."""
    for end in ([b""] + [bytes(tail) for tail in ENDS]):
        try:
            if re.fullmatch(pattern, (text + end).decode()):
                return True
        except UnicodeDecodeError:
            pass
    return False


ENDS = [[0xa9], *([a] for a in (0x83, 0xbf)), *([a, b] for a in (0x98, 0xa0, 0xbf) for b in (0x83, 0xbf)), [0x90, 0x80, 0x80], [0x80, 0x80, 0x80]]


def check(lines, *words, tokenizer=GPT2, expect=0):
    output, errors = run("grammar", "--tokenizer", tokenizer, "--input", "-", *words, input=as_lines(lines), expect=expect)
    return rows(output), errors


def check_one(line, *words, **more):
    (answer,), _ = check([line], *words, **more)
    return answer


class GrammarTest(unittest.TestCase):
    def verdicts(self, line, **more):
        answer = check_one(line, **more)
        self.assertEqual((answer["status"], answer["error"]), ("ok", None), answer)
        return [(text["accepted"], text["complete"]) for text in answer["texts"]]

    def test_each_kind_says_what_it_allows(self):
        whole, open_, never = (True, True), (True, False), (False, False)
        for constraint, texts in (
                ({"regex": "[0-9]{2}"}, {"42": whole, "4": open_, "4x": never, "": open_, "422": never}),
                ({"structured_outputs": {"choice": ["cat", "cats", "dog"]}}, {"cat": whole, "cats": whole, "do": open_, "cow": never}),
                ({"grammar": 'root ::= "a" root | "b"'}, {"aab": whole, "aa": open_, "ba": never}),
                ({"json_schema": PAIR}, {'{"a": 1}': whole, '{"a":': open_, '{"b": 1}': never, "{}": never}),
                ({"json_schema": json.dumps(PAIR)}, {'{"a":1}': whole}),
                ({"structured_outputs": {"json": PAIR, "disable_any_whitespace": True}}, {'{"a":1}': whole, '{"a": 1}': never}),
                ({"response_format": {"type": "json_object"}}, {'{"x": [1, "é"]}': whole, "[]": never}),
                ({"response_format": {"type": "structural_tag", "structures": [{"begin": "<f>", "schema": PAIR, "end": "</f>"}],
                                      "triggers": ["<f"]}}, {'so <f>{"a": 1}</f>.': whole, "so <g": whole, "so <fa": never})):
            self.assertEqual(self.verdicts(constraint | {"texts": list(texts)}), list(texts.values()), constraint)

    def test_an_answer_has_all_fields(self):
        answer = check_one({"id": {"any": [1]}, "regex": "ab", "texts": ["ab", "ax"], "counts": True})
        self.assertEqual(set(answer), FIELDS)
        self.assertEqual(answer["id"], {"any": [1]})
        self.assertEqual(set(answer["mask_us"]), {"count", "mean", "p50", "p90", "p99", "max"})
        first, second = answer["texts"]
        self.assertEqual(set(first), {"accepted", "complete", "at", "tokens", "forced", "allowed"})
        self.assertEqual((first["at"], first["allowed"][-1]), (2, 1))  # only the end may follow
        self.assertEqual(len(first["allowed"]), first["tokens"] + 1)
        self.assertEqual(second["at"], 1 if second["tokens"] == 2 else 0)
        self.assertEqual(answer["mask_us"]["count"], first["tokens"] + len(second["allowed"]))
        self.assertGreater(answer["compile_us"], 0)
        self.assertGreater(answer["bytes"], 0)
        alone = check_one({"regex": "ab"})
        self.assertEqual((alone["id"], alone["texts"], alone["mask_us"]), (None, [], dict.fromkeys(answer["mask_us"], 0)))

    def test_ids_are_followed_as_they_are(self):
        ids = [list(b"42")]  # the ids of bytes in this order
        output, _ = run("tokenize", "--tokenizer", GPT2, input=b"42\n")
        ids = [int(word) for word in output.split()]
        answer = check_one({"regex": "[0-9]{2}", "tokens": [ids, ids + ids, [10 ** 6], []]})
        self.assertEqual([text["accepted"] for text in answer["texts"]], [True, False, False, True])
        self.assertEqual([text["tokens"] for text in answer["texts"]], [len(ids), 2 * len(ids), 1, 0])

    def test_forced_places_are_counted(self):
        (text,) = check_one({"regex": "x", "texts": ["x"], "counts": True})["texts"]
        self.assertEqual((text["forced"], text["allowed"]), (1, [1, 1]))

    def test_spaces_and_bytes_of_sentencepiece(self):
        for constraint, text in (({"json_schema": PAIR}, '{"a": 12}'), ({"regex": " ?a b"}, "a b"), ({"regex": " ?a b"}, " a b"),
                                 ({"regex": "\u2603\U0001f600{2}"}, "\u2603\U0001f600\U0001f600")):
            self.assertEqual(self.verdicts(constraint | {"texts": [text]}, tokenizer=LLAMA2), [(True, True)], text)

    def test_masks_of_tokenizers_are_those_of_brute_force(self):
        for name in ("small", "llama2", "llama3", "gemma", "mistral"):
            known = list(tokens_of(GOLDEN / name))
            cases = [(pattern, beginnings, text[:i]) for pattern, beginnings, texts in BEGINNINGS for text in texts for i in range(len(text) + 1)]
            lines = [{"regex": pattern, "texts": [text], "counts": True} for pattern, _, text in [("x", "", "x"), *cases]]
            counts = [answer["texts"][0]["allowed"][-1] for answer in check(lines, tokenizer=GOLDEN / name)[0]]
            ends = counts.pop(0)  # after "x", only they may follow
            for (pattern, beginnings, text), count in zip(cases, counts, strict=True):
                with self.subTest(tokenizer=name, pattern=pattern, after=text):
                    allowed = sum(bool(token) and can_begin(beginnings, text.encode() + token) for token in known)
                    self.assertEqual(count, allowed + ends * bool(re.fullmatch(pattern, text)))

    def test_refusals_name_field_place_and_code(self):
        for line, code, param, part in (
                ({"guided_regex": "(a"}, "constraint_invalid", "guided_regex", "guided_regex: a ( without )"),
                ({"regex": "(a)\\1"}, "constraint_unsupported", "regex", "regex: "),
                ({"json_schema": {"properties": {"a": {"pattern": "("}}}}, "constraint_invalid", "json_schema", "$.properties.a.pattern: "),
                ({"json_schema": False}, "constraint_invalid", "json_schema", "json_schema: "),
                ({"grammar": "root ::= b"}, "constraint_invalid", "grammar", "grammar: line 1, column 10: no rule is named b"),
                ({"regex": "a", "ebnf": "b"}, "constraint_invalid", "ebnf", "ebnf: the request has another constraint, regex"),
                ({"structured_outputs": {}}, "constraint_invalid", "structured_outputs", "expected one of"),
                ({"texts": ["a"]}, "constraint_invalid", "structured_outputs", "the line has no constraint"),
                ({"regex": "a", "texts": "a"}, "constraint_invalid", "texts", "expected a list of texts"),
                ({"regex": "a", "tokens": [["a"]]}, "constraint_invalid", "tokens", "expected a list of lists"),
                ({"regex": "a", "counts": 1}, "constraint_invalid", "counts", "expected true or false"),
                ({"regex": "a", "temperature": 1}, "constraint_invalid", "temperature", "there is no such field")):
            answer = check_one({"id": 1} | line)
            self.assertEqual((answer["id"], answer["status"]), (1, "refused"), line)
            self.assertEqual((answer["error"]["code"], answer["error"]["param"]), (code, param), answer)
            self.assertIn(part, answer["error"]["message"])
            self.assertEqual((answer["texts"], answer["mask_us"]["count"]), ([], 0))

    def test_keywords_that_are_not_enforced_are_named(self):
        schema = {"properties": {"a": {"type": "integer", "format": "int64"}, "b": {"unevaluatedItems": False}}}
        self.assertEqual(check_one({"json_schema": schema})["error"]["code"], "constraint_unsupported")
        loose = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": False}}
        answer = check_one({"response_format": loose, "texts": ['{"a": 1}']})
        self.assertEqual(answer["status"], "ok", answer)
        self.assertEqual(answer["ignored"], ["response_format: /properties/a/format: int64", "response_format: /properties/b/unevaluatedItems"])

    def test_answers_keep_the_order_on_any_number_of_threads(self):
        lines = [{"id": i, "regex": f"a{{{i % 50}}}", "texts": ["a" * (i % 50)]} for i in range(200)]
        with tempfile.TemporaryDirectory() as directory:
            source, target = os.path.join(directory, "in.jsonl"), os.path.join(directory, "out.jsonl")
            with open(source, "wb") as out:
                out.write(as_lines(lines))
            for threads in ("1", "3"):
                run("grammar", "--tokenizer", GPT2, "--input", source, "--output", target, "--threads", threads)
                with open(target, "rb") as answers:
                    found = rows(answers.read())
                self.assertEqual([answer["id"] for answer in found], list(range(200)))
                self.assertTrue(all(answer["texts"][0]["complete"] for answer in found))

    def test_input_that_is_not_json_lines_ends_with_1(self):
        for bad, part in ((b"{", "bad JSON"), (b"[1]", "expected an object"), (b'{"a": 1, "a": 2}', "bad JSON")):
            answers, errors = check([{"id": 1, "regex": "a"}, bad, {"id": 3, "regex": "a"}], expect=1)
            self.assertEqual([answer["id"] for answer in answers], [1])  # those before it are answered
            self.assertIn(part, errors)
            self.assertIn("standard input:2", errors)

    def test_a_compile_has_a_limit_of_time(self):
        schema = {"$defs": {f"d{i}": {"properties": {f"k{j}": {"$ref": f"#/$defs/d{(i * 7 + j) % 300}"} for j in range(60)}}
                            for i in range(300)}, "$ref": "#/$defs/d0"}
        answer = check_one({"json_schema": schema}, "--grammar-timeout", "0.001")
        self.assertEqual(answer["error"]["code"], "constraint_too_large", answer)


if __name__ == "__main__":
    unittest.main()
