"""generate and score on several ranks: the answers of one, said once, and layouts refused by name."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from model_support import CAMBIUM, EXPECTED, TINY, read_safetensors, rows, run, without_notices, write_reciting_model, write_safetensors
from mpi_support import HAS_MPIRUN, MPIRUN

AT_ONCE = 2

TENSOR, PIPELINE = "--parallel.tensor_model_parallel_size", "--parallel.pipeline_model_parallel_size"
LINES = [{"text": "The cat sat on the mat."}, {"tokens": EXPECTED["whole"]["tokens"]}, {"text": ""}, {"text": "Où est"}, {"tokens": [1]},
         {"tokens": list(range(40))}]


def layout(ranks, tensor, pipeline=1):
    return ("--ranks", ranks, TENSOR, tensor, PIPELINE, pipeline)


def launched(ranks, *words, input=b"", expect=0):
    done = subprocess.run([*MPIRUN, "-n", str(ranks), CAMBIUM, *map(str, words)], input=input, capture_output=True, timeout=300)
    errors = without_notices(done.stderr.decode())
    assert done.returncode == expect, f"exit status {done.returncode}, expected {expect}: {words}\n{errors}"
    return done.stdout, errors


def score_words(model=TINY):
    return ("score", "--model", model, "--input", "-")


def as_input(lines):
    return "\n".join(json.dumps(line) for line in lines).encode()


class Ranks(unittest.TestCase):
    def assert_scores(self, output, expected):
        for ours, theirs in zip(rows(output), rows(expected), strict=True):
            self.assertEqual(ours["tokens"], theirs["tokens"])
            for a, b in zip(ours["logprobs"][1:], theirs["logprobs"][1:], strict=True):
                self.assertLessEqual(abs(a - b), 1e-5 * max(1, abs(b)))

    def untied(self, directory):
        """The tiny model with a head of its own, and a vocabulary that nothing divides."""
        tensors = read_safetensors(TINY / "model.safetensors")
        prefix = "transformer." if "transformer.wte.weight" in tensors else ""
        kind, (vocab, width), data = tensors[prefix + "wte.weight"]
        short = vocab - 7
        tensors[prefix + "wte.weight"] = (kind, [short, width], data[:short * width * 4])
        tensors["lm_head.weight"] = (kind, [short, width], data[7 * width * 4:])
        write_safetensors(pathlib.Path(directory, "model.safetensors"), tensors)
        config = json.loads((TINY / "config.json").read_text()) | {"vocab_size": short, "tie_word_embeddings": False}
        pathlib.Path(directory, "config.json").write_text(json.dumps(config))

    def test_scores_are_those_of_one_rank(self):
        with tempfile.TemporaryDirectory() as temporary:
            self.untied(temporary)
            ids = as_input([{"tokens": list(range(i, 293, 7))} for i in range(5)])
            for model, text in ((TINY, as_input(LINES)), (temporary, ids)):
                expected, _ = run(*score_words(model), input=text)
                for cut in ((2, 2), (4, 4), (2, 1), (4, 2), (3, 1), (2, 1, 2), (4, 2, 2), (4, 1, 2), (8, 2, 2)):
                    self.assert_scores(run(*score_words(model), *layout(*cut), input=text)[0], expected)
                if HAS_MPIRUN:
                    for ranks, tensor, pipeline in ((2, 2, 1), (3, 1, 1), (2, 1, 2)) if model is TINY else ((4, 2, 2),):
                        output, _ = launched(ranks, *score_words(model), TENSOR, tensor, PIPELINE, pipeline, input=text)
                        self.assert_scores(output, expected)

    def test_texts_are_those_of_one_rank(self):
        words = ("generate", "--model", TINY, "--prompt", "-", "--max-new-tokens", 24)
        kinds = (("--temperature", 0), ("--num-samples", 3, "--seed", 4, "--top-p", 0.9), ("--seed", 5, "--top-k", 7, "--json"),
                 ("--temperature", 0, "--repetition-penalty", 1.4, "--stream", "--echo"))
        for more in kinds:
            expected, _ = run(*words, *more, input=b"It was the\n")
            for cut in ((2, 2), (4, 4), (2, 1, 2), (4, 2, 2)):
                self.assertEqual(run(*words, *more, *layout(*cut), input=b"It was the\n")[0], expected)
            for size in (TENSOR, PIPELINE) if HAS_MPIRUN and more in kinds[:2] else ():
                self.assertEqual(launched(2, *words, *more, size, 2, input=b"It was the\n")[0], expected)

    def test_ids_and_the_newest_checkpoint(self):
        ids = ("generate", "--model", TINY, "--prompt-tokens", 5, 6, 7, "--temperature", 0, "--max-new-tokens", 8)
        self.assertEqual(run(*ids, *layout(2, 2))[0], run(*ids)[0])
        with tempfile.TemporaryDirectory() as temporary:
            for number, text in ((9, b"nine"), (100, b"a hundred"), (20, b"twenty")):
                write_reciting_model(pathlib.Path(temporary, f"iter_{number:07d}"), text)
                pathlib.Path(temporary, f"iter_{number:07d}", "trainer_state.json").write_text(json.dumps({"iteration": number}))
            words = ("generate", "--prompt", "x", "--temperature", 0, "--model", temporary)
            self.assertEqual(run(*words, *layout(1, 1))[0], b"a hundred\n")

    def assert_fails(self, function, status, *parts):
        output, errors = function(status)
        told = [line for line in errors.splitlines() if line.startswith("cambium: error: ")]
        self.assertEqual(len(told), 1, errors)
        for part in parts:
            self.assertIn(part, told[0])
        return output

    def test_what_is_wrong_is_said_once(self):
        bad = as_input(LINES[:3]) + b'\n\n{"text": 1}\n{"text": "more"}\n'
        long = as_input(LINES[:1]) + b'\n' + as_input([{"tokens": [1] * 1000}])
        cases = (
            (1, score_words(), bad, "standard input:5: an object"),
            (1, score_words(), long, "standard input:2: 1000 tokens, more than"),
            (1, ("score", "--model", "/nowhere", "--input", "-"), b"", "/nowhere"),
            (1, ("score", "--model", TINY, "--input", "/nowhere"), b"", "cannot open /nowhere"),
            (1, ("generate", "--model", TINY, "--prompt", "a" * 200), b"", "the prompt has "),
            (1, ("generate", "--model", TINY, "--prompt-tokens", 5, 300), b"", "token 300 is not in the vocabulary of 300"),
            (1, ("generate", "--model", TINY, "--tokenizer", "/nowhere", "--prompt", "x"), b"", "/nowhere"),
            (2, ("generate", "--model", TINY), b"", "generate needs --prompt TEXT"),
        )
        for number, (status, words, text, part) in enumerate(cases):
            # An error that all ranks find before they start has its own status; a later one ends a launch with 1.
            self.assert_fails(lambda expect: run(*words, *layout(2, 2), input=text, expect=expect), status, part)
            if HAS_MPIRUN and number % 2 == 0:
                self.assert_fails(lambda expect: launched(2, *words, TENSOR, 2, input=text, expect=expect), status, part)

    def test_lines_before_a_bad_one_are_scored(self):
        text = as_input(LINES[:5]) + b"\nx\n"
        expected, _ = run(*score_words(), input=as_input(LINES[:5]))
        for cut in ((1, 1), (2, 2), (2, 1), (3, 1), (2, 1, 2)):
            output, errors = run(*score_words(), *layout(*cut), input=text, expect=1)
            self.assert_scores(output, expected)
            self.assertIn("standard input:6: ", errors)

    def test_impossible_layouts_are_refused_with_the_numbers(self):
        generate = ("generate", "--model", TINY, "--prompt", "x")
        cases = (
            (generate, 2, 1, ("2 ranks", "tensor_model_parallel_size 1", "nearest that work", "tensor 2")),
            (generate, 4, 2, ("would be data parallel", "tensor 4")),
            (generate, 3, 3, ("model.num_attention_heads 4 is not divisible", "tensor_model_parallel_size 3")),
            (generate, 1, 2, ("tensor_model_parallel_size 2", "needs 2 ranks")),
            (score_words(), 3, 2, ("does not divide the 3 ranks",)),
            (score_words(), 3, (1, 3), ("model.num_layers 2", "pipeline_model_parallel_size 3")),
            (generate, 4, (1, 2), ("would be data parallel", "tensor 2 pipeline 2")),
            (score_words(), 8, 8, ("model.num_attention_heads 4 is not divisible",)),
        )
        for words, ranks, cut, parts in cases:
            cut = cut if isinstance(cut, tuple) else (cut,)
            output = self.assert_fails(lambda expect: run(*words, *layout(ranks, *cut), expect=expect), 2, *parts)
            self.assertEqual(output, b"")
        if HAS_MPIRUN:
            self.assert_fails(lambda expect: launched(2, *generate, expect=expect), 2, "would be data parallel")
            self.assert_fails(lambda expect: launched(2, *generate, "--ranks", 3, expect=expect), 2, "--ranks 3 in a launch of 2")

    def test_a_full_output_ends_all_ranks(self):
        words = (("generate", "--model", TINY, "--prompt", "The cat", "--stream"), (*score_words(),))
        for command in words:
            for launcher in ([], [*MPIRUN, "-n", "2"] if HAS_MPIRUN else []):
                ranks = [TENSOR, "2"] if launcher else ["--ranks", "2", TENSOR, "2"]
                with open("/dev/full", "wb") as full:
                    redirect = ["bash", "-c", 'exec "$@" >/dev/full', "-"] if launcher else []
                    done = subprocess.run([*launcher, *redirect, CAMBIUM, *map(str, command), *ranks], stdout=full, stderr=subprocess.PIPE,
                                          input=as_input(LINES), timeout=120)
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual(done.stderr.decode().count("cannot write to standard output: No space left on device"), 1)


if __name__ == "__main__":
    unittest.main()
