"""tokenize --messages and data show --data: what a chat and a row to tune on become."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

CAMBIUM = os.environ["CAMBIUM"]
TALK = [{"role": "user", "content": "Who? <|im_end|>"}]
ANSWERED = [*TALK, {"role": "assistant", "content": "Me"}]
TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
            "{% if tools %}{{ tools|length }}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
START, END = 257, 258


class Chats(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.tokenizer = self.root / "tokenizer"
        self.tokenizer.mkdir()
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in plain]
        names = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
        (self.tokenizer / "vocab.json").write_text(json.dumps(names | {"<|endoftext|>": 256}))
        (self.tokenizer / "merges.txt").write_text("#version: 0.2\n")
        (self.tokenizer / "added_tokens.json").write_text(json.dumps({"<|im_start|>": START, "<|im_end|>": END}))
        (self.tokenizer / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))

    def run_command(self, *words, expect=0):
        done = subprocess.run([CAMBIUM, *map(str, words)], capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, expect, done.stderr.decode())
        if not expect:
            return done.stdout.decode()
        self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)
        return done.stderr.decode()

    def write(self, name, value):
        file = self.root / name
        file.write_text(value if isinstance(value, str) else json.dumps(value))
        return file

    def tokenize(self, messages, *words, **more):
        return self.run_command("tokenize", "--tokenizer", self.tokenizer, "--messages", self.write("talk.json", messages),
                                *words, **more)


class Tokenize(Chats):
    def test_ids_and_text_of_a_conversation(self):
        self.write("tokenizer/chat_template.jinja", TEMPLATE)
        text = "<|im_start|>user\nWho? <|im_end|><|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(self.tokenize(TALK, "--render"), text)
        ids = [START, *b"user\nWho? <|im_end|>", END, 10, START, *b"assistant\n"]
        self.assertEqual([int(word) for word in self.tokenize(TALK).split()], ids)
        self.assertEqual(self.tokenize("\ufeff" + json.dumps(TALK)), self.tokenize(TALK))  # a byte-order mark is dropped
        self.assertEqual([int(word) for word in re.findall(r'(\d+):"', self.tokenize(TALK, "--show"))], ids)
        self.assertEqual(self.tokenize(ANSWERED, "--render"), text + "Me<|im_end|>\n")
        tools = {"messages": ANSWERED, "tools": [{}, {}], "documents": None}
        self.assertEqual(self.tokenize(tools, "--render"), text + "Me<|im_end|>\n2")

    def test_the_template_is_the_options_or_the_tokenizers(self):
        self.assertIn("has no chat template: name chatml, alpaca, plain or a file", self.tokenize(TALK, expect=1))
        self.assertEqual(self.tokenize(ANSWERED, "--render", "--chat-template", "plain"),
                         "Who? <|im_end|>\nMe<|endoftext|>")
        file = self.write("mine.jinja", "{{ bos_token is defined }} {{ eos_token }} {{ messages|length }}")
        self.assertEqual(self.tokenize(TALK, "--render", "--chat-template", file), "False <|endoftext|> 1")
        both = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "{{ tools|length }} tools"}]
        self.write("tokenizer/tokenizer_config.json", {"eos_token": "<|endoftext|>", "chat_template": both})
        self.assertEqual(self.tokenize(TALK, "--render"), "one")
        self.assertEqual(self.tokenize({"messages": TALK, "tools": [1]}, "--render"), "1 tools")

    def test_a_rendering_ends_at_its_deadline(self):
        file = self.write("slow.jinja", "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}")
        words = ("--chat-template", file, "--template-timeout")
        self.assertIn("the chat template: line 1: the template takes longer than the 0.01 s that it may take",
                      self.tokenize(TALK, *words, 0.01, expect=1))
        self.assertIn("template-timeout", self.tokenize(TALK, *words, 0, expect=2))

    def test_what_is_refused(self):
        self.assertIn("--render needs --messages", self.run_command("tokenize", "--tokenizer", self.tokenizer, "--render", expect=2))
        self.assertIn("--template-timeout needs --messages",
                      self.run_command("tokenize", "--tokenizer", self.tokenizer, "--template-timeout", 2, expect=2))
        for word in ("--add-special", "--allow-special", "--special-tokens=text"):
            self.assertIn(f"{word.split('=')[0]} is for lines", self.tokenize(TALK, word, expect=2))
        self.assertIn("--show prints ids", self.tokenize(TALK, "--show", "--render", "--chat-template", "chatml", expect=2))
        self.assertIn("talk.json: message 1: there is no field \"role\"", self.tokenize([{}], expect=1))
        self.assertIn("talk.json: line 1 column", self.tokenize("[", expect=1))


class Rows(Chats):
    def show(self, rows, *words, **more):
        file = self.write("rows.jsonl", "\n".join(map(json.dumps, rows)))
        out = self.run_command("data", "show", "--data", file, "--tokenizer", self.tokenizer, *words, **more)
        return out if more.get("expect") else json.loads(out)

    def test_a_row_is_shown_with_what_is_trained(self):
        self.write("tokenizer/chat_template.jinja", TEMPLATE)
        row = self.show([{"prompt": "a", "completion": "b"}, {"messages": ANSWERED}], "--row", 1)
        head = [START, *b"user\nWho? <|im_end|>", END, 10, START, *b"assistant\n"]
        self.assertEqual(row["tokens"], [*head, *b"Me", END])
        self.assertEqual(row["trained"], [0] * len(head) + [1] * 3)
        self.assertEqual(row["parts"], [
            {"is_trained": False, "text": "<|im_start|>user\nWho? <|im_end|><|im_end|>\n<|im_start|>assistant\n"},
            {"is_trained": True, "text": "Me<|im_end|>"}])
        self.assertEqual(self.show([{"prompt": "a", "completion": "b"}])["parts"],
                         [{"is_trained": False, "text": "a"}, {"is_trained": True, "text": "b<|endoftext|>"}])

    def test_the_end_of_an_answer(self):
        """The marker of the next turn, if a generator stops at it; the last answer gets the user's."""
        tool = 259
        self.write("tokenizer/added_tokens.json", {"<|im_start|>": START, "<|im_end|>": END, "<|tool|>": tool})
        self.write("tokenizer/tokenizer_config.json", {"eos_token": "<|endoftext|>", "added_tokens_decoder": {
            str(token): {"content": name, "special": True} for name, token in (("<|im_start|>", START), ("<|im_end|>", END), ("<|tool|>", tool))}})
        self.write("tokenizer/chat_template.jinja",
                   "{% for m in messages %}{{ {'user': '<|im_start|>', 'assistant': '<|im_end|>', 'tool': '<|tool|>'}[m.role] + m.content }}"
                   "{% endfor %}{% if add_generation_prompt %}<|im_end|>{% endif %}")
        turns = [("user", "a"), ("assistant", "b"), ("tool", "c"), ("assistant", "d")]
        rows = [{"messages": [{"role": role, "content": text} for role, text in turns]}]
        tokens = [START, *b"a", END, *b"b", tool, *b"c", END, *b"d", START]
        for ends, trained in ((None, [3, 7, 8]), ([256, tool], [3, 4, 7, 8])):
            if ends:
                self.write("tokenizer/generation_config.json", {"eos_token_id": ends})
            file = self.write("rows.jsonl", json.dumps(rows[0]))
            done = subprocess.run([CAMBIUM, "data", "show", "--data", file, "--tokenizer", self.tokenizer], capture_output=True, timeout=60)
            row = json.loads(done.stdout)
            self.assertEqual(row["tokens"], tokens)
            self.assertEqual([i for i, is_trained in enumerate(row["trained"]) if is_trained], trained)
            self.assertEqual(b"in 1 of 1 rows the template writes no end after earlier answers" in done.stderr, not ends)
    def test_a_row_shows_whether_names_of_special_tokens_are_tokens(self):
        rows, end = [{"prompt": "<|endoftext|>a", "completion": "b", "weight": 0.1}], "<|endoftext|>"
        for words, token in (((), [end]), (("--special-tokens", "parse"), [end]), (("--special-tokens", "text"), [*end])):
            shown = self.show(rows, *words)
            self.assertEqual(shown["token_texts"], [*token, "a", "b", end])
            self.assertEqual(len(shown["tokens"]), len(shown["token_texts"]))
            self.assertEqual(shown["weight"], 0.100000001)
        self.assertIn("--special-tokens needs --data",
                      self.run_command("data", "show", "--data-path", "x", "--seq-length", 4, "--special-tokens", "text", expect=2))

    def test_answers_that_a_template_changes(self):
        file = self.write("drop.jinja", "{% for m in messages %}{{ m.role[0] }}{{ m.content.split('/')[-1] if not loop.last else "
                          "m.content }};{% endfor %}{% if add_generation_prompt %}a{% endif %}")
        rows = [{"messages": [*ANSWERED[:1], {"role": "assistant", "content": "x/y"}, *ANSWERED]}]
        words = ("--chat-template", file)
        self.assertIn("rows.jsonl:1: the chat template writes answer 2 differently when more messages follow", self.show(rows, *words, expect=1))
        shown = self.show(rows, *words, "--answers", "last")
        self.assertEqual(shown["parts"][1:], [{"is_trained": True, "text": "Me;"}])

    def test_a_rendering_ends_at_its_deadline(self):
        file = self.write("slow.jinja", "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}")
        words = ("--chat-template", file, "--template-timeout", 0.01)
        self.assertIn("rows.jsonl:1: the chat template: line 1: the template takes longer than the 0.01 s",
                      self.show([{"messages": ANSWERED}], *words, expect=1))

    def test_what_is_refused(self):
        row = {"prompt": "a", "completion": "b"}
        self.assertIn("row 1 is not there: 1 rows are kept", self.show([row], "--row", 1, expect=1))
        self.assertIn("either --data-path or --data", self.show([row], "--data-path", "x", expect=2))
        self.assertIn("--data needs --tokenizer", self.run_command("data", "show", "--data", "x", expect=2))
        self.assertIn("--row needs --data", self.run_command("data", "show", "--data-path", "x", "--seq-length", 8, "--row", 1, expect=2))
        self.assertIn("goes with \"messages\" alone", self.show([row | {"tools": []}], expect=1))


if __name__ == "__main__":
    unittest.main()
