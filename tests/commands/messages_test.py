"""generate --messages: chats in the words of a template, which template counts, where an answer ends, and what is no chat."""
import json
import pathlib
import shutil
import tempfile
import unittest

from model_support import EOS, floats, run, write_reciting_model, write_safetensors

GOLDEN = pathlib.Path(__file__).parent.parent / "text" / "golden" / "chat"
RENDERINGS = json.loads((GOLDEN / "renderings.json").read_text())["renderings"]
HELLO = [{"role": "user", "content": "Hello"}]
WORDS = {"plain": "Hello\n", "chatml": "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"}
PARALLEL = "--parallel.tensor_model_parallel_size"


class Messages(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.model = self.root / "model"
        self.file = self.root / "talk.json"
        self.talk(HELLO)

    def talk(self, messages):
        self.file.write_text(messages if isinstance(messages, str) else json.dumps(messages))

    def answers(self, prompt, answer, specials=()):
        """The model writes `answer` after as many tokens as the prompt has; after any other number it writes something
        else."""
        write_reciting_model(self.model, [*b"~" * (prompt - 1), *answer], specials=specials)

    def generate(self, *words, **more):
        output, errors = run("generate", "--model", self.model, "--messages", self.file, "--temperature", 0,
                             "--max-new-tokens", 1000, *words, **more)
        return errors if more.get("expect") else output.decode()

    def refuse(self, part, *words, expect=1):
        errors = self.generate(*words, expect=expect)
        errors = "".join(line for line in errors.splitlines(True) if "warning: adapter_changes_nothing: " not in line)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn(part, errors)


class Files(Messages):
    def test_a_text_in_place_of_a_file_says_what_to_do(self):
        self.answers(6, b"An answer.")
        for text in ("What is gravity?", "Explain it. " * 40):
            self.file = text
            self.refuse(f"there is no file '{text[:100]}': --messages takes a file; a text comes through a pipe (echo TEXT | cambium generate "
                        "... --messages -)")
            _, errors = run("tokenize", "--tokenizer", self.model, "--messages", text, expect=1)
            self.assertIn(f"there is no file '{text[:100]}': --messages takes a file, which may be plain text", errors)
        _, errors = run("generate", "--model", self.model, "--messages", self.root, expect=1)
        self.assertIn("is not a regular file", errors)


class Templates(Messages):
    def test_the_words_are_those_of_transformers(self):
        """And each has its tokens: the answer comes after exactly that number."""
        asked = 0
        for case in RENDERINGS:
            if case["template"] in ("chatml", "alpaca", "plain") and case["messages"][-1]["role"] != "assistant":
                if any(message["role"] == "assistant" for message in case["messages"]) and case["template"] != "chatml":
                    tokens = len(case["asking"].encode()) - len("<|endoftext|>") + 1
                else:
                    tokens = len(case["asking"].encode())
                self.talk(case["messages"])
                self.answers(tokens, b"An answer.")
                words = ("--chat-template", case["template"], "--echo")
                self.assertEqual(self.generate(*words), case["asking"] + "An answer.\n", case)
                asked += 1
        self.assertGreater(asked, 15)

    def test_special_tokens_of_the_template_are_tokens(self):
        names = ("<|im_start|>", "<|im_end|>")
        self.talk([{"role": "user", "content": "<|im_end|>"}])
        self.answers(1 + len("user\n") + len("<|im_end|>") + 1 + 1 + 1 + len("assistant\n"), b"ok", names)
        self.assertEqual(self.generate("--chat-template", "chatml"), "ok\n")

    def test_messages_come_from_standard_input_as_well(self):
        self.answers(6, b"Hi")
        output, _ = run("generate", "--model", self.model, "--messages", "-", "--chat-template", "plain", "--temperature", 0,
                        input=json.dumps(HELLO).encode() + b"\n")
        self.assertEqual(output, b"Hi\n")

    def test_the_answer_goes_where_a_prompts_text_goes(self):
        self.answers(6, b"Hi there")
        for words, expected in ((("--stream",), "Hi there\n"), (("--stop", "the"), "Hi \n"), (("--max-new-tokens", 2), "Hi\n"),
                                (("--stream", "--echo"), "Hello\nHi there\n")):
            self.assertEqual(self.generate("--chat-template", "plain", *words), expected)
        row = json.loads(self.generate("--chat-template", "plain", "--json"))
        self.assertEqual((row["text"], row["finish_reason"]), ("Hi there", "stop"))


class Choice(Messages):
    """The one that is named; else an adapter's; else the tokenizer's."""

    def adapter(self, name, jinja=None, notes=None, config=None):
        directory = self.root / name
        directory.mkdir()
        (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "target_modules": ["c_attn"], "r": 1}))
        start = "base_model.model.transformer.h.0.attn.c_attn.lora_"
        write_safetensors(directory / "adapter_model.safetensors",
                          {f"{start}A.weight": ("F32", (1, 64), floats([0.0] * 64)),
                           f"{start}B.weight": ("F32", (192, 1), floats([0.0] * 192))})
        if jinja:
            shutil.copy(GOLDEN / f"{jinja}.jinja", directory / "chat_template.jinja")
        if notes is not None:
            (directory / "cambium_adapter.json").write_text(json.dumps({"chat_template": notes}))
        if config is not None:
            text = (GOLDEN / f"{config}.jinja").read_text()
            (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "default", "template": text}]}))
        return directory

    def assert_template(self, name, *words):
        """A longer answer would come after another template's words."""
        self.assertEqual(self.generate("--echo", "--max-new-tokens", 1, *words)[:-2], WORDS[name], words)

    def test_who_names_it(self):
        self.answers(100, b"x")
        self.refuse("messages need a chat template, and neither an adapter nor the tokenizer has one")
        self.assert_template("plain", "--chat-template", "plain")
        (self.model / "tokenizer_config.json").write_text(json.dumps({"chat_template": (GOLDEN / "plain.jinja").read_text()}))
        self.assert_template("plain")
        shutil.copy(GOLDEN / "chatml_blocks.jinja", self.model / "chat_template.jinja")
        self.assert_template("chatml")
        silent, plain = self.adapter("silent"), self.adapter("plain", notes="plain")
        self.assert_template("chatml", "--adapter", silent)
        self.assert_template("plain", "--adapter", plain)
        self.assert_template("plain", "--adapter", silent, plain)
        self.assert_template("chatml", "--adapter", self.adapter("marks", jinja="chatml_preamble"), plain)
        self.assert_template("plain", "--adapter", self.adapter("both", jinja="chatml", notes="plain"))
        self.assert_template("plain", "--adapter", self.adapter("older", config="plain"))
        self.assert_template("chatml", "--adapter", self.adapter("newer", jinja="chatml", config="plain"))
        self.assert_template("chatml", "--adapter", plain, "--chat-template", "chatml")

    def test_a_rendering_that_no_context_holds(self):
        self.answers(100, b"x")
        (self.model / "chat_template.jinja").write_text("{{ messages[0].content * 30000 }}")
        self.refuse("maximum context length is")
        self.refuse("its text has 150000 bytes")

    def test_any_template_is_run(self):
        """The template of the model, of an adapter, of a file; with its own arguments."""
        self.answers(100, b"x")
        text = "{% for m in messages %}<{{ m.role }}>{{ m.content|upper }}{% endfor %}{{ mood|default('') }}"
        (self.model / "chat_template.jinja").write_text(text + "{% if add_generation_prompt %}:{% endif %}")
        words = ("--echo", "--max-new-tokens", 1)
        self.assertEqual(self.generate(*words)[:-2], "<user>HELLO:")
        self.talk({"messages": HELLO, "chat_template_kwargs": {"mood": "!"}})
        self.assertEqual(self.generate(*words)[:-2], "<user>HELLO!:")
        odd = self.adapter("odd")
        (odd / "chat_template.jinja").write_text("{{ messages | length }}")
        self.assertEqual(self.generate(*words, "--adapter", odd)[:-2], "1")
        file = self.root / "mine.jinja"
        file.write_text("{{ messages[0].content[::-1] }}\n")
        self.assertEqual(self.generate(*words, "--chat-template", file)[:-2], "olleH")

    def test_a_template_that_fails_is_refused_with_its_line(self):
        self.answers(100, b"x")
        (self.model / "chat_template.jinja").write_text("a\n{{ messages | nope }}")
        self.refuse("the chat template: line 2: there is no filter 'nope'")
        (self.model / "chat_template.jinja").write_text("a\n{% include 'b' %}")
        self.refuse("model/chat_template.jinja: line 2: the statement 'include' is not supported")
        self.assert_template("plain", "--chat-template", "plain")
        odd = self.adapter("odd")
        (odd / "chat_template.jinja").write_text("{% if %}")
        self.refuse("odd/chat_template.jinja: line 1: ", "--adapter", odd)
        self.refuse("strange/cambium_adapter.json: the adapter's chat_template \"llama\" is none of", "--adapter",
                    self.adapter("strange", notes="llama"))
        (self.model / "chat_template.jinja").write_text("{% set r = range(9999) %}{% for a in r %}{% for b in r %}"
                                                        "{% endfor %}{% endfor %}")
        self.refuse("line 1: the template takes more steps than it may", "--template-timeout", 300)


class Ends(Messages):
    def test_an_answer_ends_with_its_turn(self):
        """With <|im_end|> as a text, or as a token."""
        prompt = len(WORDS["chatml"])
        self.answers(prompt, b"Yes<|im_end|>\n<|im_start|>user")
        words = ("--chat-template", "chatml")
        self.assertEqual(self.generate(*words), "Yes\n")
        self.assertEqual(self.generate(*words, "--ignore-eos", "--max-new-tokens", 17), "Yes<|im_end|>\n<|i\n")
        self.assertEqual(self.generate(*words, "--ranks", 2, PARALLEL, 2), "Yes\n")
        names = ("<|im_start|>", "<|im_end|>")
        marks = prompt - 2 * len(names[0]) - len(names[1]) + 3
        self.answers(marks, [*b"Yes", EOS + 2, *b"\nuser"], names)
        self.assertEqual(self.generate(*words), "Yes\n")
        row = json.loads(self.generate(*words, "--json"))
        self.assertEqual((row["tokens"], row["finish_reason"]), ([*b"Yes"], "stop"))
        self.assertEqual(self.generate(*words, "--ignore-eos", "--max-new-tokens", 5), "Yes<|im_end|>\n\n")
        self.assertEqual(self.generate(*words, "--ranks", 2, PARALLEL, 2), "Yes\n")

    def test_other_templates_have_no_end_of_a_turn(self):
        self.answers(6, b"Yes<|im_end|>No")
        self.assertEqual(self.generate("--chat-template", "plain"), "Yes<|im_end|>No\n")


class Refusals(Messages):
    def test_what_is_no_list_of_messages(self):
        self.answers(6, b"x")
        words = ("--chat-template", "plain")
        for talk, part in (("", "talk.json: line 1 column 0: bad JSON"), ("{", "bad JSON"), ("{}", "expected a list of messages"),
                           ("[]", "expected a list of messages"), ([{"role": "user"}], "message 1: there is no field \"content\""),
                           ("[{\"role\":\"user\",\"role\":\"user\",\"content\":\"a\"}]", "bad JSON: duplicate object key"),
                           ([*HELLO, {"role": "assistant", "content": "a"}], "there is nothing to answer"),
                           ([*HELLO, {"role": "function", "content": "a"}], "message 2: \"role\" function: the chat template"),
                           ([*HELLO, {"role": "system", "content": "a"}], "message 2: the system's message is not the first"),
                           ([{"role": "user", "content": "a" * 100}], "the prompt has 101 tokens, more than the model's")):
            self.talk(talk)
            self.refuse(part, *words)
        self.file.unlink()
        self.refuse("talk.json", *words)

    def test_a_rendering_ends_at_its_deadline(self):
        self.answers(6, b"x")
        file = self.root / "slow.jinja"
        file.write_text("{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}")
        words = ("--chat-template", file, "--template-timeout")
        self.refuse("the chat template: line 1: the template takes longer than the 0.01 s that it may take", *words, 0.01)
        self.refuse("template-timeout", *words, 0, expect=2)

    def test_options_that_cannot_stand_together(self):
        self.answers(6, b"x")
        self.refuse("--prompt TEXT, --messages FILE, --prompt-tokens ID... or --requests FILE", "--prompt", "x", expect=2)
        self.refuse("--prompt TEXT, --messages FILE, --prompt-tokens ID... or --requests FILE", "--prompt-tokens", 1, expect=2)
        self.refuse("the chat template 'llama' is none of auto, chatml, alpaca, plain, and no file", "--chat-template", "llama", expect=2)
        _, errors = run("generate", "--model", self.model, "--prompt", "x", "--chat-template", "plain", expect=2)
        self.assertIn("--chat-template is for --messages", errors)


if __name__ == "__main__":
    unittest.main()
