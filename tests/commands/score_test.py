"""The score command: transformers' log-probabilities, rows of text and of tokens, and how it refuses what it cannot score."""
import gzip
import json
import math
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

from model_support import (CAMBIUM, EXPECTED, TINY, read_safetensors, rows, run, without_notices, write_byte_llama, write_model,
                           write_safetensors)
from requests_support import ADAPTERS, BASE


def score(*lines, model=TINY, words=(), **more):
    """Scores the lines (objects, or bytes as they are) from standard input."""
    text = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    return run("score", "--model", model, "--input", "-", *words, input=text, **more)


class Golden(unittest.TestCase):
    def check(self, row, expected, bound):
        self.assertEqual(list(row), ["tokens", "logprobs"])
        self.assertEqual(row["tokens"], expected["tokens"])
        self.assertEqual(len(row["logprobs"]), len(row["tokens"]))
        self.assertIsNone(row["logprobs"][0])
        for ours, theirs in zip(row["logprobs"][1:], expected["logprobs"][1:]):
            self.assertLessEqual(abs(ours - theirs), bound * max(1, abs(theirs)))

    def test_logprobs_equal_transformers(self):
        cases = [*EXPECTED["scores"], EXPECTED["whole"]]
        for key in ("text", "tokens"):
            asked = [{key: case[key]} for case in cases if key in case]
            output, errors = score(*asked)
            self.assertEqual(errors, "")
            for row, case in zip(rows(output), [case for case in cases if key in case], strict=True):
                self.check(row, case, 1e-5)

    def test_the_precision_asked_for_is_used(self):
        case = EXPECTED["whole"]
        exact, _ = score({"tokens": case["tokens"]}, words=("--precision", "fp32"))
        self.assertEqual(exact, score({"tokens": case["tokens"]})[0])  # the files are fp32
        short, _ = score({"tokens": case["tokens"]}, words=("--precision", "bf16"))
        self.assertNotEqual(exact, short)
        # Weights of 8 bits, rounded once, and sums of 32 of them in two layers: 2^-8 relative, here of logits up to 10.
        errors = [abs(a - b) for a, b in zip(json.loads(short)["logprobs"][1:], case["logprobs"][1:])]
        self.assertLess(sum(errors) / len(errors), 0.2)

    def test_half_precision_files_are_computed_exactly(self):
        """fp16 weights, which fp32 holds exactly, give what the same weights in an fp32 file give."""
        with tempfile.TemporaryDirectory() as temporary:
            long = read_safetensors(TINY / "model.safetensors")
            half = {name: ("F16", shape, b"".join(struct.pack("<e", x) for (x,) in struct.iter_unpack("<f", data)))
                    for name, (_, shape, data) in long.items()}
            back = {name: ("F32", shape, b"".join(struct.pack("<f", x) for (x,) in struct.iter_unpack("<e", data)))
                    for name, (_, shape, data) in half.items()}
            config = json.loads((TINY / "config.json").read_text())
            outputs = []
            for name, made, kind in (("half", half, "float16"), ("back", back, "float32")):
                directory = pathlib.Path(temporary, name)
                directory.mkdir()
                write_safetensors(directory / "model.safetensors", made)
                (directory / "config.json").write_text(json.dumps(config | {"dtype": kind}))
                outputs.append(score({"tokens": EXPECTED["whole"]["tokens"]}, model=directory)[0])
            self.assertEqual(*outputs)


class Rows(unittest.TestCase):
    def test_files_packed_by_gzip_are_scored_like_plain_ones(self):
        lines = [json.dumps({"tokens": case["tokens"]}).encode() + b"\n" for case in EXPECTED["scores"] if "tokens" in case]
        expected, _ = run("score", "--model", TINY, "--input", "-", input=b"".join(lines))
        with tempfile.TemporaryDirectory() as temporary:
            path = pathlib.Path(temporary, "texts")  # known by its contents
            packed = gzip.compress(lines[0]) + gzip.compress(b"".join(lines[1:]))
            for content in (b"".join(lines), packed):
                path.write_bytes(content)
                self.assertEqual(run("score", "--model", TINY, "--input", path), (expected, ""))
            path.write_bytes(packed[:-9])
            output, errors = run("score", "--model", TINY, "--input", path, expect=1)
            self.assertIn(f"{path}: damaged or truncated gzip data after line", errors)

    def test_a_line_of_more_than_64_mib_is_refused_where_it_gets_there(self):
        """A small packed file can hold one of any length."""
        with tempfile.TemporaryDirectory() as temporary:
            path = pathlib.Path(temporary, "texts")
            path.write_bytes(gzip.compress(b'{"tokens": [1]}\n{"tokens": [2]' + b" " * (64 << 20) + b"}\n", 1))
            output, errors = run("score", "--model", TINY, "--input", path, expect=1)
        self.assertEqual(len(rows(output)), 1)
        self.assertEqual(errors, f"cambium: error: {path}:2: longer than the 67108864 bytes that a row may have\n")

    def test_lines_are_read_as_they_come(self):
        """Somebody may write one, and wait for what becomes of it."""
        with subprocess.Popen([CAMBIUM, "score", "--model", TINY, "--input", "-"], stdin=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            process.stdin.write(b"no JSON\n")
            process.stdin.flush()
            self.assertIn(b"loading ", process.stderr.readline())
            self.assertIn(b"standard input:1: ", process.stderr.readline())
            process.stdin.close()

    def test_numbers_are_read_back_exactly(self):
        output, _ = score({"tokens": EXPECTED["whole"]["tokens"]})
        for x in json.loads(output)["logprobs"][1:]:
            (number,) = struct.unpack("<f", struct.pack("<f", x))  # the float that was meant
            self.assertEqual(x, float(f"{number:.9g}"))
            self.assertLessEqual(x, 0)
        self.assertTrue(any(len(str(x)) > 9 for x in json.loads(output)["logprobs"][1:]))

    def test_probabilities_of_all_tokens_sum_to_one(self):
        prefix = EXPECTED["whole"]["tokens"][:5]
        output, _ = score(*({"tokens": [*prefix, token]} for token in range(300)))
        self.assertAlmostEqual(sum(math.exp(row["logprobs"][-1]) for row in rows(output)), 1, delta=1e-5)

    def test_a_row_does_not_depend_on_the_others_or_on_threads(self):
        lines = [{"text": case["text"]} for case in EXPECTED["scores"]]
        together, _ = score(*lines)
        self.assertEqual(together, b"".join(score(line)[0] for line in lines))
        self.assertEqual(together, score(*lines, words=("--threads", 1))[0])
        self.assertEqual(together, score(*lines, words=("--threads", 3))[0])

    def test_short_and_empty_rows(self):
        output, errors = score({"text": ""}, b"", {"tokens": []}, b"  \r", {"text": "a"}, {"tokens": [7], "id": "kept apart"})
        self.assertEqual(rows(output), [{"tokens": [], "logprobs": []}] * 2 +
                         [{"tokens": EXPECTED["scores"][3]["tokens"], "logprobs": [None]}, {"tokens": [7], "logprobs": [None]}])
        self.assertEqual(errors, "")
        self.assertEqual(score()[0], b"")

    def test_a_last_line_without_a_line_feed(self):
        output, _ = run("score", "--model", TINY, "--input", "-", input=b'{"tokens": [1, 2]}')
        self.assertEqual(len(rows(output)), 1)

    def test_special_tokens_in_a_text_are_tokens_or_text(self):
        for words in ((), ("--special-tokens", "parse")):
            self.assertEqual(json.loads(score({"text": "<|endoftext|>"}, words=words)[0])["tokens"], [EXPECTED["eos"]])
        self.assertEqual(len(json.loads(score({"text": "<|endoftext|>"}, words=("--special-tokens", "text"))[0])["tokens"]), 13)

    def test_tokens_need_no_tokenizer(self):
        with tempfile.TemporaryDirectory() as temporary:
            write_model(temporary)
            self.assertEqual(len(rows(score({"tokens": [1, 2, 3]}, {"tokens": [4, 5]}, model=temporary)[0])), 2)
            output, errors = score({"tokens": [1]}, {"text": "a"}, model=temporary, expect=1)
            self.assertTrue(errors.startswith("cambium: error: standard input:2: "), errors)
            self.assertIn("tokenizer", errors)
            same, _ = score({"text": "a b"}, words=("--tokenizer", TINY))
            self.assertEqual(same, score({"text": "a b"})[0])

    def test_a_scaled_rotation_has_more_positions(self):
        """Those of the factor; --max-model-len takes fewer."""
        with tempfile.TemporaryDirectory() as temporary:
            for scaling in ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
                            {"rope_type": "linear", "factor": 4.0}):
                write_byte_llama(temporary, max_position_embeddings=16, rope_scaling=scaling)
                text = {"tokens": [i % 250 for i in range(64)]}
                row, = rows(score(text, model=temporary)[0])
                self.assertTrue(all(math.isfinite(number) for number in row["logprobs"][1:]))
                for words, row, line in (((), {"tokens": [1] * 65}, "65 tokens, more than the model's 64 positions"),
                                         (("--max-model-len", 32), text, "64 tokens, more than the model's 32 positions"),
                                         (("--max-model-len", 65), text, "--max-model-len 65: the model has 64 positions")):
                    self.assertIn(line, score(row, model=temporary, words=words, expect=1 + (65 in words))[1])

    def test_a_directory_of_checkpoints_means_the_newest(self):
        with tempfile.TemporaryDirectory() as temporary:
            for number in (3, 12):
                directory = pathlib.Path(temporary, f"iter_{number:07d}")
                write_model(directory, **({} if number == 3 else {"transformer.wpe.weight": ("F32", (16, 8), bytes(512))}))
                (directory / "trainer_state.json").write_text("{}")
            newest, _ = score({"tokens": [1, 2, 3]}, model=temporary)
            self.assertEqual(newest, score({"tokens": [1, 2, 3]}, model=directory)[0])
            self.assertNotEqual(newest, score({"tokens": [1, 2, 3]}, model=f"{temporary}/iter_0000003")[0])


class Adapters(unittest.TestCase):
    """Rows that name their adapters."""
    ROOT = ("--adapter-root", ADAPTERS)
    IDS = [[3, 9, 27, 20, 60], [5], [], [*range(0, 50, 3)], [1, 2]]

    def alone(self, ids, names):
        """The result with --adapter."""
        words = ("--adapter", *(ADAPTERS / name for name in names)) if names else ()
        return score({"tokens": ids}, words=words, model=BASE)[0]

    def test_rows_have_the_scores_of_their_adapters(self):
        names = sorted(p.name for p in ADAPTERS.iterdir() if (p / "adapter_config.json").exists())
        kinds = [[name] for name in names] + [["prefix", "prompt", "lora", "adapter_par_bn"], ["ia3", "lora"], []]
        self.assertGreater(len(kinds), 20)
        lines = [(self.IDS[i % len(kinds) % 5], kinds[i % len(kinds)]) for i in range(6 * len(kinds))]
        expected = {}
        for ids, kind in lines:
            key = (tuple(ids), tuple(kind))
            expected[key] = expected.get(key) or self.alone(ids, kind)
        given = [{"tokens": ids, "adapters": kind} for ids, kind in lines]
        whole = b"".join(expected[tuple(ids), tuple(kind)] for ids, kind in lines)
        for words in ((), ("--adapter-memory", "64K"), ("--ranks", 2), ("--ranks", 3, "--adapter-memory", "64K")):
            self.assertEqual(score(*given, words=(*self.ROOT, *words), model=BASE)[0], whole, words)

    def test_rows_without_names_have_the_adapters_of_the_run(self):
        ids = self.IDS[0]
        named = (f"one={ADAPTERS / 'ia3'}", f"two={ADAPTERS / 'prompt'}")
        given = [{"tokens": ids}, {"tokens": ids, "adapters": ["one"]}, {"tokens": ids, "adapters": []}, {"tokens": ids, "adapters": ["two", "one"]},
                 {"tokens": ids, "adapters": None}]
        kinds = [["lora"], ["ia3"], [], ["prompt", "ia3"], ["lora"]]
        expected = b"".join(self.alone(ids, kind) for kind in kinds)
        self.assertEqual(score(*given, words=("--adapter", named[0], ADAPTERS / "lora", named[1]), model=BASE)[0], expected)

    def test_rows_that_name_what_cannot_be(self):
        good, long = {"tokens": [1, 2], "adapters": ["lora"]}, {"tokens": [1] * 30, "adapters": ["lora"]}
        for bad, part in (({"tokens": [1], "adapters": ["nobody"]}, "there is no adapter nobody"), ({"tokens": [1], "adapters": "lora"}, "a list of names"),
                          ({"tokens": [1], "adapters": [1]}, "adapter 0 is not a name"), ({"tokens": [1], "adapters": ["lora"] * 5}, "at most 4"),
                          (long | {"adapters": ["prompt"]}, "30 tokens"), ({"tokens": [1], "adapters": ["dora", "lora"]}, "DoRA cannot be stacked")):
            for words in ((), ("--ranks", 2), ("--ranks", 2, "--parallel.tensor_model_parallel_size", 2)):
                output, errors = score(good, long, bad, good, words=(*self.ROOT, *words), model=BASE, expect=1)
                self.assertIn("standard input:3: ", errors)
                self.assertIn(part, errors)
                self.assertEqual(len(rows(output)), 2)
        _, errors = score(good, words=("--adapter-memory", "1G"), model=BASE, expect=2)
        self.assertIn("--adapter-memory is for --adapter NAME=DIR", errors)

    def test_ranks_that_share_a_model_take_adapters_alike(self):
        given = [{"tokens": self.IDS[i % 5], "adapters": names} for i, names in enumerate((["lora"], ["prompt"], [], ["prefix", "ia3"], ["adapter_seq_bn"]) * 3)]
        expected = rows(score(*given, words=self.ROOT, model=BASE)[0])
        for words in (("--ranks", 2, "--parallel.tensor_model_parallel_size", 2), ("--ranks", 4, "--parallel.tensor_model_parallel_size", 2),
                      ("--ranks", 2, "--parallel.pipeline_model_parallel_size", 2, "--parallel.decoder_first_pipeline_num_layers", 1)):
            for ours, theirs in zip(rows(score(*given, words=(*self.ROOT, *words), model=BASE)[0]), expected, strict=True):
                self.assertEqual(ours["tokens"], theirs["tokens"])
                for a, b in zip(ours["logprobs"], theirs["logprobs"], strict=True):
                    self.assertTrue(a == b or abs(a - b) <= 2e-5 * max(1, abs(b)), (a, b))


class Refused(unittest.TestCase):
    def test_rows_that_cannot_be_scored_name_file_and_line(self):
        with tempfile.TemporaryDirectory() as temporary:
            path = pathlib.Path(temporary, "rows.jsonl")
            good = b'{"tokens":[1,2]}\n\n'
            for bad, part in ((b'{"tokens":[1,2', "column 14: "),
                              (b"{'tokens':[1]}", "column "),
                              (b'{"text":"\xff"}', "column "),
                              (b'{"text":"a"} {"text":"b"}', "column "),
                              (b'{"text":"a","text":1}', "either \"text\""),
                              (b'{"tokens":[1,NaN]}', "token 1 is not an id"),
                              (b'["a"]', "either \"text\""), (b'"text"', "either \"text\""), (b"17", "either \"text\""),
                              (b'{"txt":"a"}', "either \"text\""), (b'{"text":1}', "either \"text\""),
                              (b'{"text":null}', "either \"text\""), (b'{"tokens":{}}', "either \"text\""),
                              (b'{"text":"a","tokens":[1]}', "either \"text\""),
                              (b'{"tokens":[1,300]}', "token 1 is not an id from 0 to 299"),
                              (b'{"tokens":[-1]}', "token 0 is not an id from 0 to 299"),
                              (b'{"tokens":[1.0]}', "token 0 is not an id"), (b'{"tokens":["1"]}', "token 0 is not an id"),
                              (b'{"tokens":[99999999999]}', "token 0 is not an id"),
                              (b'{"tokens":[99999999999999999999]}', "token 0 is not an id"),
                              (b'{"tokens":[' + b"1," * 64 + b"1]}", "65 tokens, more than the model's 64 positions"),
                              (json.dumps({"text": "q " * 60}).encode(), "more than the model's 64 positions"),
                              (b'{"tokens":' + b"[" * 3000 + b"]" * 3000 + b"}", "column ")):
                path.write_bytes(good + bad + b"\n" + good)
                output, errors = run("score", "--model", TINY, "--input", path, expect=1)
                self.assertTrue(errors.startswith(f"cambium: error: {path}:3: "), errors)
                self.assertIn(part, errors)
                self.assertEqual(errors.count("\n"), 1)
                self.assertEqual(len(rows(output)), 1)  # the good row before it, and nothing of what follows

    def test_inputs_that_are_no_files(self):
        with tempfile.TemporaryDirectory() as temporary:
            os.symlink("nowhere", f"{temporary}/dangling")
            for path, part in ((f"{temporary}/missing", "No such file"), (f"{temporary}/dangling", "No such file"),
                               (temporary, "Is a directory")):
                output, errors = run("score", "--model", TINY, "--input", path, expect=1)
                self.assertEqual((output, errors.count("\n")), (b"", 1), errors)
                self.assertIn(path, errors)
                self.assertIn(part, errors)

    def test_weights_that_are_not_numbers_are_told(self):
        with tempfile.TemporaryDirectory() as temporary:
            write_model(temporary, **{"transformer.ln_f.weight": ("F32", (8,), struct.pack("<8f", *[math.nan] * 8))})
            output, errors = score({"tokens": [1, 2]}, model=temporary, expect=1)
            self.assertEqual(output, b"")
            self.assertIn("standard input:1: token 1 has the log-probability", errors)

    def test_pipes_that_close_and_disks_that_are_full(self):
        lines = b"".join(json.dumps({"tokens": EXPECTED["whole"]["tokens"]}).encode() + b"\n" for _ in range(300))
        command = [CAMBIUM, "score", "--model", str(TINY), "--input", "-"]
        done = subprocess.run(["bash", "-c", '"$@" | head -n 1', "-", *command], input=lines, capture_output=True, timeout=120)
        self.assertEqual(without_notices(done.stderr.decode()), "")
        self.assertEqual(len(rows(done.stdout)), 1)
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, input=lines, stdout=full, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(without_notices(done.stderr.decode()), "cambium: error: cannot write to standard output: No space left on device\n")


if __name__ == "__main__":
    unittest.main()
