"""The program explains itself: help in every form, the version, sections, the order of options, and suggestions."""
import concurrent.futures
import re
import unittest

from model_support import SOURCE, TINY, run

WORDS = {"tokenizer": ["train"], "data": ["show"], "adapter": ["show"], "plan": ["walk"],
         "verify": ["serving"]}  # the second word of a command
OPTION = re.compile(r"(?m)^  --([a-z][\w.-]*)")


def text(*words):
    output, errors = run(*words)
    assert not errors, errors
    return output.decode()


def commands():
    """The words of every command."""
    overview = text("--help")
    names = re.findall(r"(?m)^  ([a-z]+) {2,}", overview)
    return [[name, *WORDS.get(name, [])] for name in names] + [["bench", "serve"], ["plan", "show"], ["verify", "layout"]]


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

    def test_what_loads_adapters_takes_receipts(self):
        for words in commands():
            options = OPTION.findall(text(*words, "--help"))
            if {"adapter", "adapter-root"} & {*options}:
                with self.subTest(words):
                    self.assertIn("receipts", options)

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
        known = {name for names, _ in other_names() for name in names}  # these have answers of their own
        for words in (["generate"], ["serve"], ["finetune"]):
            options = OPTION.findall(text(*words, "--help"))
            for option in options[::3]:
                prefix = option[:max(2, len(option) // 2)]
                if prefix in options or prefix.endswith(".") or prefix.replace("-", "_") in known:
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


C_TEXT = r'"((?:[^"\\]|\\.)*)"'
NAMED = re.compile(r"--([a-z][a-z0-9._-]*)")


def other_names():
    """The table of other programs' names: [(names, [advice])]."""
    source = (SOURCE / "src/config/other_names.c").read_text()
    for name, value in re.findall(r'(?m)^#define ([A-Z]+)\s+(".*)$', source):
        source = re.sub(rf"\b{name}\b(?=[,}}])", lambda _: value, source)
    source = re.sub(r'\bREQUEST\("(\w+)"\)', r'"@serve each request has it: \\"\1\\""', source)
    table = source[source.index("others[] = {"):source.index("\n};")]
    return [("".join(re.findall(C_TEXT, names)).split(), [advice.replace('\\"', '"') for advice in re.findall(C_TEXT, advices)])
            for names, _, advices in re.findall(rf"\{{((?:{C_TEXT}\s*)+),\s*\{{([^{{}}]*)\}}\}}", table)]


class OtherNames(unittest.TestCase):
    """Names that people know from other programs give our option for that command, or a phrase."""
    @classmethod
    def setUpClass(cls):
        cls.table = other_names()
        every = [*commands(), ["plan", "train"], ["plan", "serve"], ["bench", "train"]]
        cls.options = {" ".join(words): {*OPTION.findall(text(*words, "--help"))} for words in every}

    def advice(self, command, advices):
        """The first advice that applies to a command."""
        for advice in advices:
            only, _, rest = advice.partition(" ") if advice.startswith("@") else ("", "", advice)
            if only in ("", f"@{command}") and {*NAMED.findall(rest)} <= self.options[command]:
                return rest
        return None

    def test_the_table_is_large_and_each_name_and_advice_counts(self):
        names = [name.replace("_", "-") for row, _ in self.table for name in row]
        self.assertGreater(len(names), 500)
        self.assertEqual(sorted(names), sorted({*names}))
        for row, advices in self.table:
            for advice in advices:  # each option exists, in a command for which no advice before it applies
                with self.subTest(row[0], advice=advice):
                    text = advice.partition(" ")[2] if advice.startswith("@") else advice
                    self.assertIn(text, [self.advice(command, advices) for command in self.options])
                    if text.startswith("--"):  # "did you mean ...?" asks for an option, not for a sentence
                        self.assertLessEqual(len(text.split()), 4)

    def test_each_name_gives_its_advice_in_each_command(self):
        cases = []
        for row, advices in self.table:  # each name in one command, and one name in each
            fitting = [c for c in ("finetune", "serve", "generate", "pretrain") if self.advice(c, advices)]
            cases += [(command, name, self.advice(command, advices)) for command in fitting
                      for name in (row if command == fitting[0] else row[:1])]
        cases = [case for case in cases if case[2] and case[1].replace("_", "-").lstrip("-") not in self.options[case[0]]]
        self.assertGreater(len(cases), 500)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for (command, name, advice), errors in zip(cases, pool.map(self.ask, cases)):
                with self.subTest(command, name=name):
                    part = f" (did you mean {advice}?)" if advice.startswith("--") else f": {advice};"
                    self.assertIn(part, errors)

    @staticmethod
    def ask(case):
        return run(case[0], case[1] if case[1].startswith("-") else f"--{case[1]}", expect=2)[1]

    def test_advice_fits_the_command(self):
        for line, expected in {
                "generate --max_tokens": "--max-new-tokens", "serve --max-new-tokens": 'each request has it: "max_tokens"',
                "serve --port": "--listen HOST:PORT", "serve --gpu-memory-utilization": "--kv-cache-memory", "serve -ngl": "--device=cuda",
                "serve -c": "--max-model-len", "finetune --max-seq-length": "--data.seq_length", "serve --lora-modules": "--adapter NAME=DIR",
                "generate --lora-path": "--adapter", "pretrain --tp-size": "--parallel.tensor_model_parallel_size",
                "plan serve 1B h100 --tp-size": "--tensor", "eval --batch-size": "the program chooses the batches",
                "finetune --batch-size": "--train.micro_batch_size", "finetune --output_dir": "--output", "pretrain --output-dir": "--checkpoint.save",
                "finetune --warmup_ratio": "--optim.lr_warmup_iters", "serve --learning-rate": "cambium help finetune",
                "finetune --peft.lora_rank": "--peft.r", "serve model": "--model model", "score -m": "--model", "convert a.gguf": "--from a.gguf",
                f"generate --model {TINY} hello": "--prompt hello"}.items():
            with self.subTest(line):
                self.assertIn(expected, run(*line.split(), expect=2)[1])


if __name__ == "__main__":
    unittest.main()
