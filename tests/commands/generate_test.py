"""The generate command: transformers' greedy continuations, the distributions it draws from, stop strings, streaming, and
what it prints where."""
import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import unittest

from model_support import (CAMBIUM, EOS, EXPECTED, TINY, gpt2_config, read_safetensors, rows, run, without_notices,
                           write_model, write_reciting_model, write_safetensors)

GREEDY = ("--temperature", "0", "--max-new-tokens", EXPECTED["new_tokens"])


def generate(*words, **more):
    return run("generate", "--model", TINY, *words, **more)


def tokens_of(*words, **more):
    return [row["tokens"] for row in rows(generate("--json", *words, **more)[0])]


class Golden(unittest.TestCase):
    def test_greedy_equals_transformers(self):
        for case in EXPECTED["greedy"]:
            self.assertEqual(tokens_of("--prompt", case["prompt"], *GREEDY), [case["tokens"]], case["prompt"])
            output, _ = generate("--prompt-tokens", *case["prompt_tokens"], *GREEDY)
            self.assertEqual(output.decode(), " ".join(map(str, case["tokens"])) + "\n")

    def test_greedy_does_not_depend_on_threads_samples_or_seed(self):
        case = EXPECTED["greedy"][1]
        for words in (("--threads", 1), ("--threads", 3), ("--seed", 99), ("--num-samples", 4), ("--top-k", 5),
                      ("--top-p", 0.3), ("--precision", "fp32")):
            for tokens in tokens_of("--prompt", case["prompt"], *GREEDY, *words):
                self.assertEqual(tokens, case["tokens"], words)

    def test_the_repetition_penalty_equals_transformers(self):
        for case in EXPECTED["greedy"]:
            self.assertEqual(tokens_of("--prompt", case["prompt"], *GREEDY, "--repetition-penalty", EXPECTED["penalty"]),
                             [case["penalised"]], case["prompt"])

    def test_an_empty_prompt_begins_a_document(self):
        self.assertEqual(tokens_of("--prompt", "", *GREEDY), tokens_of("--prompt-tokens", EXPECTED["eos"], *GREEDY))

    def test_names_of_special_tokens_are_tokens_or_text(self):
        text, name = "a<|endoftext|>b", [int(id) for id in run("tokenize", "--tokenizer", TINY, input=b"a<|endoftext|>b\n")[0].split()]
        self.assertEqual(name[1], EXPECTED["eos"])
        apart = run("tokenize", "--tokenizer", TINY, "--special-tokens", "text", input=b"a<|endoftext|>b\n")[0].split()
        for words in ((), ("--special-tokens", "parse")):
            self.assertEqual(tokens_of("--prompt", text, *GREEDY, *words), tokens_of("--prompt-tokens", *name, *GREEDY))
        self.assertEqual(tokens_of("--prompt", text, *GREEDY, "--special-tokens", "text"), tokens_of("--prompt-tokens", *map(int, apart), *GREEDY))
        for words in (("--prompt-tokens", 1), ("--messages", "x")):
            self.assertIn("--special-tokens is for --prompt", generate(*words, "--special-tokens", "text", expect=2)[1])

    def test_the_data_types_of_files(self):
        """The same weights, cut to bf16 and stored as bf16 and as fp32: with --precision bf16 the same computation."""
        with tempfile.TemporaryDirectory() as temporary:
            tensors = read_safetensors(TINY / "model.safetensors")
            short = {name: ("BF16", shape, b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4)))
                     for name, (_, shape, data) in tensors.items()}
            long = {name: ("F32", shape, b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))
                    for name, (_, shape, data) in short.items()}
            config = json.loads((TINY / "config.json").read_text())
            texts = []
            for name, made, kind in (("short", short, "bfloat16"), ("long", long, "float32")):
                directory = pathlib.Path(temporary, name)
                directory.mkdir()
                write_safetensors(directory / "model.safetensors", made)
                (directory / "config.json").write_text(json.dumps(config | {"dtype": kind}))
                for precision in ("auto", "bf16", "fp32"):
                    texts.append(run("generate", "--model", directory, "--prompt-tokens", 5, 6, 7, *GREEDY, "--precision",
                                     precision)[0])
            self.assertEqual(texts[0], texts[1])  # bf16 files are computed in bf16
            self.assertEqual(texts[1], texts[4])
            self.assertEqual(texts[2], texts[3])  # and fp32 files in fp32
            self.assertEqual(texts[3], texts[5])


class Sampling(unittest.TestCase):
    DRAWS = 256

    def draw(self, *words, seeds=range(4)):
        """The first token of DRAWS samples for each seed."""
        drawn = []
        for seed in seeds:
            drawn += [t[0] if t else EXPECTED["eos"] for t in
                      tokens_of("--prompt", EXPECTED["next_prompt"], "--max-new-tokens", 1, "--num-samples", self.DRAWS,
                                "--seed", seed, *words)]
        return drawn

    def probabilities(self, temperature):
        weights = [math.exp(x / temperature) for x in EXPECTED["next_logits"]]
        return [w / sum(weights) for w in weights]

    def check(self, drawn, probabilities):
        """Every count within five standard deviations of its binomial, and nothing drawn that cannot be."""
        for token, p in enumerate(probabilities):
            expected, spread = p * len(drawn), math.sqrt(len(drawn) * p * (1 - p))
            self.assertLessEqual(abs(drawn.count(token) - expected), 5 * spread + (1 if p else 0), f"token {token}")

    def kept(self, probabilities, tokens):
        total = sum(probabilities[t] for t in tokens)
        return [p / total if t in tokens else 0 for t, p in enumerate(probabilities)]

    def test_temperature(self):
        for temperature in (0.5, 1, 2):
            self.check(self.draw("--temperature", temperature), self.probabilities(temperature))

    def test_top_k(self):
        p = self.probabilities(1)
        for k in (1, 3, 20):
            best = sorted(range(len(p)), key=lambda t: -p[t])[:k]
            self.check(self.draw("--temperature", 1, "--top-k", k, seeds=range(2)), self.kept(p, best))

    def test_top_p(self):
        p = self.probabilities(1)
        order = sorted(range(len(p)), key=lambda t: -p[t])
        for top_p in (0, 1e-6, 0.3, 0.8):
            best, reached = [], 0
            for token in order:
                best.append(token)
                reached += p[token]
                if reached >= top_p:
                    break
            self.check(self.draw("--temperature", 1, "--top-p", top_p, seeds=range(2)), self.kept(p, best))

    def test_equal_seeds_give_equal_texts(self):
        words = ("--prompt", "The cat", "--num-samples", 3, "--max-new-tokens", 20)
        one, again, other = (tokens_of(*words, "--seed", seed) for seed in (5, 5, 6))
        self.assertEqual(one, again)
        self.assertNotEqual(one, other)
        self.assertEqual(len({tuple(t) for t in one}), 3)
        # A sample's draws are keyed by its number alone: more samples beside it, or other threads, change nothing.
        self.assertEqual(one[:1], tokens_of(*words, "--seed", 5, "--num-samples", 1))
        self.assertEqual(one, tokens_of(*words, "--seed", 5, "--threads", 1))
        self.assertEqual(one, [row["tokens"] for row in rows(generate(*words, "--seed", 5, "--json")[0])])


    def test_draws_are_keyed_by_position(self):
        """With a longer prompt, the remaining tokens are drawn as after the shorter one."""
        prompt = EXPECTED["whole"]["tokens"][:4]
        words = ("--seed", 9, "--ignore-eos", "--prompt-tokens")
        whole = tokens_of("--max-new-tokens", 16, *words, *prompt)[0]
        for given in (1, 5, 15):
            rest = tokens_of("--max-new-tokens", 16 - given, *words, *prompt, *whole[:given])[0]
            self.assertEqual(rest, whole[given:])
        self.assertNotEqual(tokens_of("--max-new-tokens", 11, *words, *prompt[1:], *whole[:5])[0], whole[5:])

    def test_every_draw_has_a_random_number_of_its_own(self):
        with tempfile.TemporaryDirectory() as temporary:  # a model to which all tokens are alike
            config = gpt2_config(vocab_size=300, n_positions=64)
            write_model(temporary, config, **{"transformer.wte.weight": ("F32", (300, 8), bytes(300 * 8 * 4))})
            output, _ = run("generate", "--model", temporary, "--prompt-tokens", 1, "--max-new-tokens", 60, "--temperature",
                            1, "--num-samples", 4, "--json")
            texts = [row["tokens"] for row in rows(output)]
        # 60 draws of 300 hit 54 on average, by 2 more or less, and 240 hit 165
        for text in texts:
            self.assertGreater(len(set(text)), 44)
        self.assertGreater(len({token for text in texts for token in text}), 130)


class Output(unittest.TestCase):
    """With models that recite a text, one byte a token, after a prompt of one byte."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.text = "Es grünt so grün, 春眠不觉晓 🌲🌳. The end. Of it."
        cls.model = pathlib.Path(cls.temporary.name, "recites")
        write_reciting_model(cls.model, cls.text.encode())

    def recite(self, *words, model=None, **more):
        output, _ = run("generate", "--model", model or self.model, "--prompt", "x", "--temperature", 0,
                        "--max-new-tokens", 1000, *words, **more)
        return output.decode(**({} if model is None else {"errors": "replace"}))

    def test_the_text_ends_at_an_end_of_text(self):
        self.assertEqual(self.recite(), self.text + "\n")
        row = json.loads(self.recite("--json"))
        self.assertEqual(list(row), ["index", "text", "tokens", "finish_reason"])
        self.assertEqual(row, {"index": 0, "text": self.text, "tokens": list(self.text.encode()), "finish_reason": "stop"})
        ids = self.recite("--json", "--ignore-eos")
        self.assertEqual(json.loads(ids)["tokens"], [*self.text.encode(), EOS])
        self.assertEqual(json.loads(ids)["finish_reason"], "length")

    def test_any_end_of_the_models_files_ends_the_text(self):
        with tempfile.TemporaryDirectory() as temporary:
            model = shutil.copytree(self.model, pathlib.Path(temporary, "model"))
            config = json.loads((model / "config.json").read_text())
            for of_config, of_generation, end in (([EOS, ord("T")], None, "T"), (EOS, ord("T"), "T"), (ord("T"), [EOS, ord(".")], "."),
                                                  ([ord("T"), ord("O")], [ord("t")], "t"), (None, None, None)):
                (model / "config.json").write_text(json.dumps(config | {"eos_token_id": of_config}))
                (model / "generation_config.json").write_text(json.dumps({"eos_token_id": of_generation}))
                expected = self.text[:self.text.index(end)] if end else self.text
                row = json.loads(self.recite("--json", model=model))
                self.assertEqual((row["text"], row["finish_reason"]), (expected, "stop"), (of_config, of_generation))
                self.assertEqual(json.loads(self.recite("--json", "--ignore-eos", model=model))["finish_reason"], "length")
            (model / "generation_config.json").write_text('{"eos_token_id": [')
            _, error = run("generate", "--model", model, "--prompt", "x", expect=1)
            self.assertIn("generation_config.json:1:", error)

    def test_the_length_is_bounded_by_option_and_positions(self):
        row = json.loads(self.recite("--json", "--max-new-tokens", 7))
        self.assertEqual((row["text"], row["finish_reason"]), ("Es gr\N{LATIN SMALL LETTER U WITH DIAERESIS}", "length"))
        with tempfile.TemporaryDirectory() as temporary:
            write_reciting_model(temporary, b"abcdefghij", positions=6)
            row = json.loads(self.recite("--json", model=temporary))
            self.assertEqual((row["text"], row["finish_reason"]), ("abcdef", "length"))

    def test_half_a_character_at_the_end(self):
        cut = 6  # within the u with diaeresis
        output, _ = run("generate", "--model", self.model, "--prompt", "x", "--temperature", 0, "--max-new-tokens", cut)
        self.assertEqual(output, self.text.encode()[:cut] + b"\n")
        self.assertEqual(json.loads(self.recite("--json", "--max-new-tokens", cut))["text"], "Es gr\N{REPLACEMENT CHARACTER}")

    def test_what_is_no_utf8_is_replaced_in_json_as_python_does(self):
        with tempfile.TemporaryDirectory() as temporary:
            raw = b"a\xffb\xc3(\xe2\x82(\xf0\x9f\x8c\xed\xa0\x80\xc0\xaf\xf4\x90\x80\x80\0z\xe0\x80\xf0\x9f\x8c"
            write_reciting_model(temporary, raw)
            row = json.loads(self.recite("--json", model=temporary))
            self.assertEqual(row["text"], raw.decode(errors="replace"))
            plain, _ = run("generate", "--model", temporary, "--prompt", "x", "--temperature", 0)
            self.assertEqual(plain, raw + b"\n")

    def test_stop_strings_end_the_text_before_them(self):
        for stop, end in ((". The", self.text.index(". The")), (".", self.text.index(".")), ("不觉", self.text.index("不觉")),
                          (self.text[-1], self.text.index(self.text[-1])), ("E", 0), ("Of it.", self.text.index("Of it."))):
            for stream in ((), ("--stream",)):
                self.assertEqual(self.recite("--stop", stop, *stream), self.text[:end] + "\n", stop)
            self.assertEqual(json.loads(self.recite("--stop", stop, "--json"))["finish_reason"], "stop")
        # The first in the text counts, whatever their order; one that is not in it changes nothing.
        self.assertEqual(self.recite("--stop", "The", "grün", "zzz"), "Es \n")
        self.assertEqual(self.recite("--stop", "The end?", "grünt?"), self.text + "\n")

    def test_tokens_that_hold_more_than_a_byte_end_within_a_stop_string(self):
        case = EXPECTED["greedy"][0]
        whole, _ = generate("--prompt", case["prompt"], *GREEDY)
        text = whole[:-1]
        for start in range(0, len(text) - 3, 3):
            try:
                stop = text[start:start + 3].decode()
            except UnicodeDecodeError:
                continue
            end = text.index(stop.encode())
            for stream in ((), ("--stream",)):
                self.assertEqual(generate("--prompt", case["prompt"], *GREEDY, "--stop", stop, *stream)[0], text[:end] + b"\n")

    def test_streaming_gives_the_same_bytes(self):
        self.assertEqual(self.recite("--stream"), self.recite())
        self.assertEqual(self.recite("--stream", "--echo"), self.recite("--echo"))
        for seed in range(5):
            words = ("--prompt", "Où est", "--seed", seed, "--temperature", 1.5)
            self.assertEqual(generate(*words, "--stream")[0], generate(*words)[0])

    def test_streaming_never_splits_a_character(self):
        """Standard output is a socket that keeps every write as a message of its own."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, its:
            done = subprocess.Popen([CAMBIUM, "generate", "--model", self.model, "--prompt", "x", "--temperature", "0",
                                     "--stream", "--stop", "Of it"], stdout=its)
            its.close()
            pieces = []
            while piece := ours.recv(1 << 16):
                pieces.append(piece.decode())  # fails on half a character
            self.assertEqual(done.wait(), 0)
        text = self.text[:self.text.index("Of it")] + "\n"
        self.assertEqual("".join(pieces), text)
        self.assertEqual(len(pieces), len(text))  # and no character waits for the next one

    def test_echo_and_several_samples(self):
        self.assertEqual(self.recite("--echo"), "x" + self.text + "\n")
        self.assertEqual(json.loads(self.recite("--echo", "--json"))["text"], "x" + self.text)
        self.assertEqual(self.recite("--num-samples", 3), "----\n".join([self.text + "\n"] * 3))
        self.assertEqual([json.loads(line)["index"] for line in self.recite("--num-samples", 3, "--json").splitlines()], [0, 1, 2])

    def test_a_prompt_from_standard_input(self):
        for prompt in ("The cat", "It was the", "", "Où est"):
            expected, _ = generate("--prompt", prompt, *GREEDY, "--echo")
            for end in ("", "\n"):  # the line feed of `echo` is not part of it
                for mark in ("", "\ufeff"):
                    self.assertEqual(generate("--prompt", "-", *GREEDY, "--echo", input=(mark + prompt + end).encode())[0], expected)

    def test_ids_without_a_tokenizer(self):
        with tempfile.TemporaryDirectory() as temporary:
            write_model(temporary)
            words = ("generate", "--model", temporary, "--temperature", 0, "--max-new-tokens", 5, "--prompt-tokens")
            output, _ = run(*words, 1, 2, 3)
            self.assertRegex(output.decode(), r"^\d+( \d+){4}\n$")
            for other in (("1,2,3",), ("1 2", "3"), ("1, 2,", "3")):
                self.assertEqual(run(*words, *other)[0], output)
            self.assertEqual(run(*words, 1, 2, 3, "--echo")[0], b"1 2 3 " + output)
            row = json.loads(run(*words, 1, 2, 3, "--json")[0])
            self.assertEqual((row["text"], row["tokens"]), (None, [int(t) for t in output.split()]))
            _, errors = run("generate", "--model", temporary, "--prompt", "x", expect=1)
            self.assertIn("tokenizer", errors)
            with_one, _ = run("generate", "--model", temporary, "--tokenizer", self.model, "--prompt-tokens", 1, "--json")
            self.assertIsInstance(json.loads(with_one)["text"], str)

    def test_stop_strings_end_ids_where_there_is_a_tokenizer(self):
        for stop, end in (("n", self.text.index("n")), ("The", self.text.index("The"))):
            words = ("generate", "--model", self.model, "--prompt-tokens", ord("x"), "--temperature", 0)
            row = json.loads(run(*words, "--stop", stop, "--json")[0])
            self.assertEqual((row["text"], row["finish_reason"]), (self.text[:end], "stop"))
            self.assertEqual(row["tokens"], [*(self.text[:end] + stop).encode()])  # the one that ends the string is the last
            self.assertEqual(run(*words, "--stop", stop)[0].split(), [str(i).encode() for i in row["tokens"]])
        with tempfile.TemporaryDirectory() as temporary:
            write_model(temporary)
            _, errors = run("generate", "--model", temporary, "--prompt-tokens", 1, "--stop", "x", expect=2)
            self.assertEqual(errors, f"cambium: error: --stop needs a tokenizer, and {temporary} has none\n")

    def test_results_alone_go_to_standard_output(self):
        _, errors = generate("--prompt", "The cat", *GREEDY)
        self.assertEqual(errors, "")

    def test_what_is_loaded_is_said_first_and_on_standard_error(self):
        """At once, before a file is read: config.json is a pipe that nobody writes to."""
        with tempfile.TemporaryDirectory() as temporary:
            directory = pathlib.Path(temporary)
            for path in TINY.iterdir():
                (directory / path.name).symlink_to(path)
            (directory / "config.json").unlink()
            os.mkfifo(directory / "config.json")
            for words in (("generate", "--prompt", "x"), ("generate", "--requests", "/dev/null"), ("score", "--input", "/dev/null"),
                          ("serve", "--listen", "127.0.0.1:0", "--control", "none"), ("merge", "--adapter", "a", "--output", "b"),
                          ("generate", "--prompt", "x", "--ranks", "2", "--parallel.tensor_model_parallel_size", "2"),
                          ("finetune", "--peft", "ia3", "--data", "/dev/null", "--output", f"{temporary}/out")):
                with subprocess.Popen([CAMBIUM, *words, "--model", temporary], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                    self.assertEqual(process.stderr.readline().decode(), f"cambium: loading {temporary}\n", words)
                    process.kill()
                    self.assertNotIn(b"loading", process.stderr.read())


class Pipes(unittest.TestCase):
    def test_a_reader_that_leaves_ends_the_program(self):
        for words in ((), ("--stream",), ("--json", "--num-samples", "200")):
            command = [CAMBIUM, "generate", "--model", str(TINY), "--prompt", "The", *words]
            done = subprocess.run(["bash", "-c", '"$@" | head -c 1 >/dev/null', "-", *command], capture_output=True, text=True,
                                  timeout=120)
            self.assertEqual(without_notices(done.stderr), "")

    def test_a_full_output_is_an_error(self):
        for words in ((), ("--stream",), ("--json",)):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([CAMBIUM, "generate", "--model", TINY, "--prompt", "The cat", *words], stdout=full,
                                      stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(without_notices(done.stderr), "cambium: error: cannot write to standard output: No space left on device\n")


class Checkpoints(unittest.TestCase):
    def test_a_directory_of_checkpoints_means_the_newest(self):
        with tempfile.TemporaryDirectory() as temporary:
            save = pathlib.Path(temporary)
            for number, text in ((9, b"nine"), (100, b"a hundred"), (20, b"twenty")):
                write_reciting_model(save / f"iter_{number:07d}", text)
                (save / f"iter_{number:07d}" / "trainer_state.json").write_text(json.dumps({"iteration": number}))
            (save / ".cambium-0123456789abcdef").mkdir()
            words = ("generate", "--prompt", "x", "--temperature", 0, "--model")
            self.assertEqual(run(*words, save)[0], b"a hundred\n")
            self.assertEqual(run(*words, save / "iter_0000020")[0], b"twenty\n")
            self.assertEqual(run(*words, f"{save}/")[0], b"a hundred\n")


class BadUsage(unittest.TestCase):
    def test_options_that_cannot_stand_together(self):
        text = ("--prompt", "x")
        for words, part in (((), "generate needs --prompt TEXT, "), ((*text, "--prompt-tokens", 1), "generate needs --prompt TEXT, "),
                            ((*text, "--stream", "--json"), "--stream prints one completion"),
                            ((*text, "--stream", "--num-samples", 2), "--stream prints one completion"),
                            (("--prompt-tokens", 1, "--stream"), "--stream works on text"),
                            ((*text, "--stop", "x", ""), "--stop: stop string 2 is empty"),
                            ((*text, "--stop", *["x"] * 65), "--stop: 65 stop strings"),
                            ((*text, "--stop", "x" * 1025), "--stop: stop string 1 has 1025 bytes"),
                            (("--prompt-tokens", "a"), "'a' is not a token id"),
                            (("--prompt-tokens", "1,x2"), "'x2' is not a token id"),
                            (("--prompt-tokens", "99999999999999999999"), "is not a token id"),
                            (("--prompt-tokens", ","), "at least one token id")):
            output, errors = generate(*words, expect=2)
            self.assertEqual((output, errors.count("\n")), (b"", 1), errors)
            self.assertIn(part, errors)

    def test_prompts_that_do_not_fit(self):
        positions = len(EXPECTED["whole"]["tokens"])
        self.assertEqual(len(tokens_of("--prompt-tokens", *EXPECTED["whole"]["tokens"], *GREEDY)[0]), 1)
        for words, part in ((("--prompt", "a" * 200), rf"the prompt has \d+ tokens, more than the model's {positions}"),
                            (("--prompt-tokens", 5, 300), "token 300 is not in the vocabulary of 300"),
                            (("--prompt-tokens", 300), "token 300 is not in the vocabulary of 300")):
            output, errors = generate(*words, expect=1)
            self.assertEqual((output, errors.count("\n")), (b"", 1), errors)
            self.assertTrue(re.search(part, errors), errors)


if __name__ == "__main__":
    unittest.main()
