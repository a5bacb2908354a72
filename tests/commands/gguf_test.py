"""Every command takes a GGUF file as its model: it answers as the directory of the file's values does, and writes nothing
beside it."""
import json
import math
import random
import shutil
import struct
import subprocess
import unittest

from convert_support import Convert
from gguf_support import TYPES, byte_tokens, keys_of, random_blocks, tensors_of, write_gguf
from model_support import CAMBIUM, PRECISIONS, SOURCE, TINY, floats, read_safetensors, rows, run
from pretrain_support import LONG
from serve_support import Server

MODELS = SOURCE / "tests/model/golden"
FAMILIES = ("llama_biases_linear", "llama_wide_heads", "qwen2_tied", "qwen3", "phi3_partial", "d5_tied", "d64_untied", "d8_deep")
TP2 = ("--ranks", 2, "--parallel.tensor_model_parallel_size=2")
TUNING = ("--peft", "lora", "--peft.target_modules=all-linear", "--optim.lr=1e-2", "--train.train_iters=4", "--train.global_batch_size=4")


class Gguf(Convert):
    def score(self, model, *words, vocabulary=16, expect=0):
        lines = "".join(json.dumps({"tokens": [(7 * i + 3 * j) % vocabulary for i in range(12)]}) + "\n" for j in range(3))
        output, errors = run("score", "--model", model, "--input", "-", *words, input=lines.encode(), expect=expect)
        return output if not expect else errors

    def make(self, source, *words):
        self.file.unlink(missing_ok=True)
        run("convert", "--from", source, "--to", "gguf", "--output", self.file, *words)

    def assert_near(self, ours, theirs, bound):
        """Log-probabilities of two models. The products' sums have other orders where weights stay in their bits."""
        for mine, expected in zip(rows(ours), rows(theirs), strict=True):
            for a, b in zip(mine["logprobs"][1:], expected["logprobs"][1:], strict=True):
                self.assertLessEqual(abs(a - b), bound * max(1, abs(b)))

    def equal(self, model, *words, input=b""):
        """Both models give one command the same answer."""
        mine, theirs = (run(words[0], "--model", m, *words[1:], input=input)[0] for m in (self.file, model))
        self.assertEqual(mine, theirs)


class Scores(Gguf):
    def test_every_family_scores_as_its_directory(self):
        for name in FAMILIES:
            self.make(MODELS / name)
            for precision in PRECISIONS:
                with self.subTest(name, precision=precision):
                    words = ("--precision", precision)
                    self.assertEqual(self.score(self.file, *words), self.score(MODELS / name, *words))

    def test_every_type_scores_as_its_values(self):
        """A llama in which each matrix has the type, and one that mixes all types."""
        r, names = random.Random(5), [*TYPES]
        shapes = {name: [256, 256] for name in ("attn_q", "attn_output")} | {name: [128, 256] for name in ("attn_k", "attn_v")}
        shapes |= {"ffn_gate": [512, 256], "ffn_up": [512, 256], "ffn_down": [256, 512]}
        keys = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 256, "llama.feed_forward_length": 512,
                "llama.context_length": 16, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
                "llama.attention.layer_norm_rms_epsilon": 1e-5}
        for name in (*names, "mixed"):
            tensors = {f"{norm}.weight": (0, [256], floats([1.0] * 256)) for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")}
            matrices = {"token_embd": [16, 256]} | {f"blk.0.{module}": shape for module, shape in shapes.items()}
            for i, (module, shape) in enumerate(matrices.items()):
                kind = names[i % len(names)] if name == "mixed" else name
                tensors[f"{module}.weight"] = (TYPES[kind][0], shape, random_blocks(r, kind, math.prod(shape)))
            with self.subTest(name):
                write_gguf(self.file, keys, tensors)
                shutil.rmtree(self.output, ignore_errors=True)
                run("convert", "--from", self.file, "--to", "model", "--output", self.output, "--dtype", "fp32")
                expected, auto = self.score(self.output, "--precision", "fp32"), "fp32" if name in ("F32", "F16") else "bf16"
                self.assertGreater(len({x for row in rows(expected) for x in row["logprobs"][1:]}), 20)
                for words in ((), TP2):  # which cuts blocks of 256
                    self.assert_near(self.score(self.file, "--precision", "fp32", *words), expected, 2e-5)
                if auto in PRECISIONS:
                    self.assertEqual(self.score(self.file), self.score(self.file, "--precision", auto))
                    self.assert_near(self.score(self.file), expected, 0.2)

    def test_layouts(self):
        for name in ("llama_wide_heads", "d5_tied"):
            self.make(MODELS / name)
            for words in (TP2, ("--ranks", 2, "--parallel.pipeline_model_parallel_size=2")):
                with self.subTest(name, words=words):
                    self.assertEqual(self.score(self.file, *words), self.score(MODELS / name, *words))


class Commands(Gguf):
    def setUp(self):
        super().setUp()
        self.make(TINY)
        self.data = self.root / "rows.jsonl"
        self.data.write_text("".join(json.dumps({"prompt": f"to {n}:", "completion": f" {n}"}) + "\n" for n in range(8)))

    def tearDown(self):
        found = {path.name for path in self.root.iterdir()}
        self.assertLessEqual(found, {"m.gguf", "rows.jsonl", "model", *"abcdefg"})
        super().tearDown()

    def test_text(self):
        words = ("--max-new-tokens", 8, "--temperature", 0)
        self.equal(TINY, "generate", "--prompt", "The quick brown fox", *words)
        self.equal(TINY, "chat", "--chat-template", "chatml", "--seed", 1, "--max-new-tokens", 8, input=b"hello\n")
        requests = json.dumps({"messages": [{"role": "user", "content": "fox"}], "max_tokens": 4}).encode() + b"\n"
        self.equal(TINY, "generate", "--requests", "-", "--chat-template", "chatml", input=requests)
        self.equal(TINY, "score", "--input", "-", input=b'{"text": "The quick brown fox"}\n')
        ids = run("tokenize", "--tokenizer", TINY, input=b"The quick\n")[0]
        self.assertEqual(run("tokenize", "--tokenizer", self.file, input=b"The quick\n")[0], ids)

    def test_serving(self):
        body = {"model": "m", "prompt": "The quick", "max_tokens": 6, "temperature": 0}
        with Server("--model-name", "m", model=TINY) as theirs, Server("--model-name", "m", model=self.file) as mine:
            answers = [server.ask("POST", "/v1/completions", body).json["choices"] for server in (theirs, mine)]
        self.assertEqual(*answers)
        run("verify", "serving", "--model", self.file)

    def test_plans(self):
        plans = [run("plan", "serve", model, "h100", "--devices", 1, "--output-len", 4)[0].replace(str(model).encode(), b"") for model in (TINY, self.file)]
        self.assertEqual(*plans)
        *_, summary = rows(run("bench", "load", "--model", self.file, "--steps", 1)[0])
        self.assertEqual(summary["file_bytes"], self.file.stat().st_size)

    def test_tuning_and_merging(self):
        made = {}
        run("convert", "--from", self.file, "--to", "model", "--output", self.output)  # a GGUF file knows no dropout
        for name, base in (("a", self.output), ("b", self.file)):
            run("finetune", "--model", base, "--data", self.data, "--output", self.root / name, *TUNING)
            run("merge", "--model", base, "--adapter", self.root / name, "--output", self.root / "c")
            made[name] = [read_safetensors(path) for path in (self.root / name / "adapter_model.safetensors", self.root / "c/model.safetensors")]
            self.assertEqual(run("score", "--model", base, "--adapter", self.root / name, "--input", "-", input=b'{"tokens": [1, 2, 3]}\n')[1], "")
            self.assertTrue((self.root / "c/tokenizer.json").exists())
            shutil.rmtree(self.root / "c")
        self.assertTrue(made["a"] == made["b"])
        for name, base in (("c", self.output), ("d", self.file)):
            run("finetune", "--model", base, "--peft", "full", "--data", self.data, "--output", self.root / name, "--train.train_iters=2",
                "--train.global_batch_size=4")
        first, second = (read_safetensors(self.root / name / "model.safetensors") for name in "cd")
        self.assertTrue(first == second)

    def test_conversion(self):
        for to, there in (("tensors", "a/model.safetensors"), ("model", "b/model.safetensors")):
            run("convert", "--from", self.file, "--to", to, "--output", self.root / there[0])
            self.assertTrue(read_safetensors(self.root / there) == read_safetensors(TINY / "model.safetensors"))
        self.assertEqual([path.name for path in (self.root / "a").iterdir()], ["model.safetensors"])
        run("convert", "--from", self.file, "--to", "tensors", "--dtype", "bf16", "--output", self.root / "f")
        self.assertEqual({kind for kind, _, _ in read_safetensors(self.root / "f/model.safetensors").values()}, {"BF16"})
        run("convert", "--from", self.file, "--to", "gguf", "--output", self.root / "c")
        self.assertEqual((self.root / "c").read_bytes(), self.file.read_bytes())
        run("convert", "--from", self.file, "--to", "megatron", "--output", self.root / "d")
        run("convert", "--from", self.file, "--to", "dcp", "--files", 2, "--output", self.root / "e")
        self.assertEqual(len([*(self.root / "e").glob("*.distcp")]), 2)
        run("convert", "--from", self.root / "e", "--to", "model", "--output", self.root / "g")
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            self.assertEqual((self.root / "g" / name).read_bytes(), (self.root / "b" / name).read_bytes(), name)


class Files(Gguf):
    def setUp(self):
        super().setUp()
        self.keys, self.tensors = keys_of(MODELS / "qwen2_tied"), tensors_of(MODELS / "qwen2_tied")
        self.expected = self.score(MODELS / "qwen2_tied", "--precision", "fp32")

    def test_without_a_tokenizer(self):
        for more in ({}, {"tokenizer.ggml.model": "none"}):
            write_gguf(self.file, self.keys | more, self.tensors)
            self.assertEqual(self.score(self.file), self.expected)
            _, errors = run("score", "--model", self.file, "--input", "-", input=b'{"text": "a"}\n', expect=1)
            self.assertIn("m.gguf has no tokenizer", errors)
            answer, _ = run("generate", "--model", self.file, "--requests", "-", input=b'{"prompt": [1, 2], "max_tokens": 2}\n')
            self.assertEqual(len(rows(answer)[0]["choices"][0]["tokens"]), 2)

    def test_parts(self):
        names, count = sorted(self.tensors), 3
        parts = [self.root / f"m-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
        for i, part in enumerate(parts):
            split = {"split.no": i, "split.count": count, "split.tensors.count": len(names)}
            write_gguf(part, split | (self.keys if not i else {}), {name: self.tensors[name] for name in names[i::count]})
        self.assertEqual(self.score(parts[0]), self.expected)
        *_, summary = rows(run("bench", "load", "--model", parts[0], "--steps", 1)[0])
        self.assertEqual(summary["file_bytes"], sum(part.stat().st_size for part in parts))
        self.assertIn("is one of 3 parts of a model: name the first one", self.score(parts[1], expect=1))
        parts[2].unlink()
        self.assertIn(f"part 3 of 3 is missing: there is no {parts[2]}", self.score(parts[0], expect=1))

    def test_other_files(self):
        self.file.write_bytes(b"no model")
        self.assertIn("m.gguf is not a GGUF file", self.score(self.file, expect=1))
        other = self.root / "m.bin"
        other.write_bytes(b"no model")
        self.assertIn("m.bin is not a directory", self.score(other, expect=1))
        self.assertIn("there is no file", self.score(self.root / "n.gguf", expect=1))
        self.assertIn(f"it holds a GGUF file: name {self.file}", self.score(self.root, expect=1))
        (self.root / "config.json").write_text((MODELS / "qwen2_tied/config.json").read_text())
        self.assertIn(f"it holds a GGUF file: name {self.file}", self.score(self.root, expect=1))
        write_gguf(other, self.keys, self.tensors)  # known by its contents
        self.assertEqual(self.score(other), self.expected)

    def test_types_that_are_not_read_are_named(self):
        name = "blk.0.attn_q.weight"
        for number, word in ((16, "IQ2_XXS"), (19, "IQ1_S"), (21, "IQ3_S"), (34, "TQ1_0"), (35, "TQ2_0"), (39, "MXFP4")):
            write_gguf(self.file, self.keys, self.tensors | {name: (number, *self.tensors[name][1:])})
            self.assertRegex(self.score(self.file, expect=1), rf"m\.gguf: tensor '{name}' has the type {word}, which is not read")

    def test_a_scale_that_is_not_finite_is_refused(self):
        r, name = random.Random(1), "token_embd.weight"
        shape = self.tensors[name][1]
        self.assertEqual(shape[1] % 32, 0)
        for kind, places in (("Q8_0", (0,)), ("Q4_1", (0, 2))):
            for place in places:
                block = bytearray(random_blocks(r, kind, math.prod(shape)))
                at = 3 * TYPES[kind][2] + place
                block[at:at + 2] = struct.pack("<e", float("inf"))
                write_gguf(self.file, self.keys, self.tensors | {name: (TYPES[kind][0], shape, bytes(block))})
                self.assertRegex(self.score(self.file, expect=1), rf"m\.gguf: tensor '{name}': element \d+ (is -?(inf|nan)|has a scale that is not finite)")

    def test_damaged_files_end_in_one_line(self):
        r, bad = random.Random(11), self.root / "bad.gguf"
        write_gguf(self.file, self.keys | byte_tokens(16), self.tensors)
        whole = self.file.read_bytes()
        head = len(whole) - sum(len(content) + -len(content) % 32 for _, _, content in self.tensors.values())
        for i in range(300 if LONG else 40):
            damaged = bytearray(whole)
            if i % 4 == 0:
                damaged = damaged[:r.randrange(len(whole))]
            else:
                for _ in range(r.randrange(1, 4)):
                    damaged[r.randrange(head)] = r.choice((0, 1, 0x7f, 0xff, r.randrange(256)))
            bad.write_bytes(damaged)
            done = subprocess.run([CAMBIUM, "score", "--model", bad, "--input", "-"], input=b'{"tokens": [1, 2, 3]}\n', capture_output=True, timeout=300)
            errors = [line for line in done.stderr.decode().splitlines() if "error: " in line]
            self.assertIn(done.returncode, (0, 1), (i, done.stderr))
            if done.returncode:
                self.assertEqual(len(errors), 1, (i, done.stderr))
                self.assertRegex(errors[0], r"bad\.gguf", i)


if __name__ == "__main__":
    unittest.main()
