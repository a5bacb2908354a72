"""The program explains itself: help in every form, the version, sections, the order of options, and suggestions."""
import re
import unittest

from model_support import TINY, run

WORDS = {"tokenizer": ["train"], "data": ["show"], "adapter": ["show"], "plan": ["walk"]}  # the second word of a command
OPTION = re.compile(r"(?m)^  --([a-z][\w.-]*)")


def text(*words):
    output, errors = run(*words)
    assert not errors, errors
    return output.decode()


def commands():
    """The words of every command."""
    overview = text("--help")
    names = re.findall(r"(?m)^  ([a-z]+) {2,}", overview)
    return [[name, *WORDS.get(name, [])] for name in names] + [["bench", "serve"], ["plan", "show"]]


def suggestion(words, option):
    _, errors = run(*words, option, expect=2)
    found = re.search(r"did you mean --([\w.-]+)\?", errors)
    return found and found[1]


class Help(unittest.TestCase):
    def test_every_way_to_ask_gives_the_same_text(self):
        self.assertGreater(len(commands()), 12)
        for words in commands():
            with self.subTest(words):
                whole = text(*words, "--help")
                self.assertTrue(whole.startswith(f"usage: cambium {' '.join(words)}"), whole[:80])
                self.assertEqual(text("help", *words), whole)
                self.assertEqual(text(*words, "-h"), whole)
        self.assertEqual(text("help"), text("--help"))
        self.assertEqual(text("help", "help"), text("-h"))
        _, errors = run("help", "finetnue", expect=2)
        self.assertIn("did you mean 'finetune'?", errors)

    def test_the_version_is_printed_for_the_program_and_for_each_command(self):
        version = text("--version")
        self.assertRegex(version, r"^cambium \d+\.\d+\.\d+\n$")
        self.assertEqual(text("-V"), version)
        for words in commands():
            with self.subTest(words):
                self.assertEqual(text(*words, "--version"), version)
                self.assertEqual(text(*words, "-V"), version)
        _, errors = run("generate", "--version=2", expect=2)
        self.assertIn("--version takes no value", errors)

    def test_one_section_can_be_shown(self):
        for words in (["pretrain"], ["finetune"], ["serve"], ["bench", "train"]):
            whole = text(*words, "--help")
            sections = re.findall(r"(?m)^(\w+):\n((?:  .*\n)+)", whole[whole.index("--version"):].split("\nexamples:")[0])
            self.assertGreater(len(sections), 0)
            for name, rows in sections:
                with self.subTest(words, section=name):
                    part = text(*words, f"--help={name}")
                    self.assertTrue(part.startswith(f"{name}:\n{rows}"), part[:200])
                    self.assertEqual({option.split(".")[0] for option in OPTION.findall(part)}, {name})
        for words in (["pretrain", "--help=optm"], ["generate", "--help=prompt"], ["merge", "--help=peft"], ["serve", "--help="]):
            _, errors = run(*words, expect=2)
            self.assertIn("has no such section", errors)
        self.assertIn("expected model, ", run("pretrain", "--help=optm", expect=2)[1])

    def test_each_help_has_an_example_of_its_command(self):
        for words in (*commands(), []):
            with self.subTest(words):
                examples = text(*words, "--help").split("\nexamples:\n")[1]
                self.assertIn(" ".join(["cambium", *words]), examples)

    def test_options_stand_in_the_order_of_their_use(self):
        """Required ones first. What the synopsis names stands before what neither it nor an example names."""
        for words in commands():
            with self.subTest(words):
                head, _, rest = text(*words, "--help").partition("\noptions:\n")
                rows, *_ = re.split(r"(?m)^\S", rest)
                options = [option for option in OPTION.findall(rows) if option not in ("help", "version")]
                required = re.findall(r"(?m)^  --([a-z][\w.-]*)(?:(?!^  --)[\s\S])*?required\)", rows)
                self.assertEqual(options[:len(required)], required)
                synopsis = re.findall(r"--([a-z][\w-]*)", head.split("\n\n")[0])
                examples = re.findall(r"--([a-z][\w-]*)", rest.split("\nexamples:\n")[1])
                named = [option for option in options if option in synopsis]
                unused = [option for option in options if option not in synopsis + examples]
                if named and unused:
                    self.assertLess(options.index(named[-1]), options.index(unused[0]), f"{named[-1]} after {unused[0]}")

    def test_backends_for_tests_are_not_named_but_can_be_chosen(self):
        for words in (*commands(), []):
            self.assertNotRegex(text(*words, "--help"), r"\blate\b")
        words = ("generate", "--model", TINY, "--prompt-tokens", 1, 2, "--max-new-tokens", 4, "--temperature", 0, "--device")
        _, errors = run(*words, "later", expect=1)
        self.assertNotRegex(errors, r"\blate\b")
        self.assertEqual(run(*words, "late"), run(*words, "cpu"))


class Suggestions(unittest.TestCase):
    def test_the_first_option_that_begins_so_is_suggested(self):
        self.assertEqual(suggestion(["generate"], "--temp"), "temperature")
        for words in (["generate"], ["serve"], ["finetune"]):
            options = OPTION.findall(text(*words, "--help"))
            for option in options[::3]:
                prefix = option[:max(2, len(option) // 2)]
                if prefix in options or prefix.endswith("."):
                    continue
                expected = next(name for name in options if name.startswith(prefix))
                keys = [name for name in options if name.split(".")[-1] == prefix.split(".")[-1]]
                with self.subTest(words, prefix=prefix):
                    self.assertIn(suggestion(words, f"--{prefix}"), [expected, *keys])

    def test_a_key_is_found_without_its_section(self):
        self.assertEqual(suggestion(["finetune"], "--lr_warm"), "optim.lr_warmup_iters")
        self.assertEqual(suggestion(["finetune"], "--lr"), "optim.lr")
        self.assertEqual(suggestion(["pretrain"], "--global"), "train.global_batch_size")

    def test_a_command_is_found_by_its_beginning(self):
        _, errors = run("gen", expect=2)
        self.assertIn("did you mean 'generate'?", errors)


if __name__ == "__main__":
    unittest.main()
