"""Adapters in use: generate and score with them, merged models, what one is; and what is no adapter."""
import array
import json
import math
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import model_support as support
from finetune_support import hash_tree
from model_support import run

GOLDEN = support.SOURCE / "tests/peft/golden"
P = "--parallel."
MERGED = ("lora", "lora_all_linear", "lora_patterns", "rslora", "dora", "ia3")


def logprobs(output):
    """All tokens but the first of each line."""
    return [x for line in support.rows(output) for x in line["logprobs"][1:]]


def first_logprobs(output):
    return [line["logprobs"][0] for line in support.rows(output)]


class Adapter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.root = pathlib.Path(cls.temporary.name)
        cls.texts = cls.root / "texts.jsonl"
        cls.texts.write_text('{"tokens":[1,2,3,4,5,6,7]}\n{"tokens":[9,8,7,3,0]}\n')

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def score(self, *words, model=GOLDEN / "base"):
        return logprobs(run("score", "--model", model, "--input", self.texts, *words)[0])

    def assert_near(self, a, b, bound=1e-5):
        for x, y in zip(a, b, strict=True):
            self.assertLess(abs(x - y), bound * max(1, abs(x)))

    def test_a_norm_that_adapterhub_named_twice_counts_once(self):
        directory = self.root / "twice"
        shutil.copytree(GOLDEN / "adapter_pre_norm", directory)
        path = directory / "adapter.safetensors"
        tensors = support.read_safetensors(path)
        twice = {name.replace("adapter_down.0", "adapter_norm_before"): t for name, t in tensors.items() if "adapter_down.0" in name}
        self.assertTrue(twice)
        support.write_safetensors(path, tensors | twice)
        self.assertEqual(self.score("--adapter", directory), self.score("--adapter", GOLDEN / "adapter_pre_norm"))
        name, (kind, shape, content) = next(iter(twice.items()))
        support.write_safetensors(path, tensors | twice | {name: (kind, shape, support.floats([9.0]) + content[4:])})
        self.refuse("score", "--model", GOLDEN / "base", "--input", self.texts, "--adapter", directory, parts=("unknown tensor", name))

    def test_other_names_of_the_same_tensors_load_alike(self):
        """Those of older versions, and of adapters for a bare GPT2Model; also of one adapter of a stack."""
        bare = ("base_model.model.transformer.", "base_model.model.")
        cases = (("lora_all_linear", [bare]),
                 ("lora", [("lora_A.weight", "lora_A.default.weight"), ("lora_B.weight", "lora_B.default.weight")]),
                 ("dora", [("lora_magnitude_vector", "lora_magnitude_vector.weight")]),
                 ("dora", [("lora_magnitude_vector", "lora_magnitude_vector.default.weight")]),
                 ("ia3", [("ia3_l", "ia3_l.default")]), ("ia3", [bare]),
                 ("adapter_seq_bn", [("transformer.h.", "h.")]))
        for i, (name, others) in enumerate(cases):
            with self.subTest(name=name, others=others):
                directory = self.root / f"renamed-{i}"
                shutil.copytree(GOLDEN / name, directory)
                path, = (path for path in directory.glob("adapter*.safetensors"))
                renamed = {}
                for tensor, content in support.read_safetensors(path).items():
                    for ours, theirs in others:
                        tensor = tensor.replace(ours, theirs)
                    renamed[tensor] = content
                self.assertNotEqual(renamed.keys(), support.read_safetensors(path).keys())
                support.write_safetensors(path, renamed)
                self.assertEqual(self.score("--adapter", directory), self.score("--adapter", GOLDEN / name))
                self.assertEqual(self.score("--adapter", GOLDEN / "prompt", directory),
                                 self.score("--adapter", GOLDEN / "prompt", GOLDEN / name))

    def test_layouts_score_alike_with_adapters(self):
        base = self.score()
        for names in (["lora_all_linear"], ["dora_all_linear"], ["ia3"], ["adapter_double_seq_bn"], ["lora", "ia3"], ["prompt"],
                      ["prefix"], ["ptuning_lstm", "lora"], ["prefix", "ia3", "prompt"]):
            words = ["--adapter", *(GOLDEN / name for name in names)]
            alone = self.score(*words)
            self.assertGreater(max(abs(x - y) for x, y in zip(base, alone)), 1e-2)
            for layout in (["--ranks", "2", P + "tensor_model_parallel_size=2"],
                           ["--ranks", "3", P + "pipeline_model_parallel_size=3"]):
                with self.subTest(names=names, layout=layout):
                    self.assert_near(alone, self.score(*words, *layout))

    def test_scores_are_those_of_peft(self):
        """Every case's logits, in fp64: the last virtual token predicts the first, and without one nothing does."""
        texts = [row["tokens"] for row in json.loads((GOLDEN / "batch.json").read_text())["rows"]]
        (self.root / "golden.jsonl").write_text("".join(json.dumps({"tokens": t}) + "\n" for t in texts))
        for directory in sorted(path.parent for path in GOLDEN.glob("*/adapter_config.json")):
            logits = array.array("f", support.read_safetensors(directory / "expected.safetensors")["logits"][2])
            ahead = 5 if directory.name.startswith("p") and "prefix" not in directory.name else 0
            out, _ = run("score", "--model", GOLDEN / "base", "--input", self.root / "golden.jsonl", "--adapter", directory)
            row = 0
            for tokens, line in zip(texts, support.rows(out), strict=True):
                self.assertEqual(line["logprobs"][0] is None, not ahead, directory.name)
                for i in range(0 if ahead else 1, len(tokens)):
                    at = (row + ahead + i - 1) * 61
                    total = math.log(math.fsum(math.exp(x) for x in logits[at:at + 61]))
                    self.assert_near([logits[at + tokens[i]] - total], [line["logprobs"][i]])
                row += ahead + len(tokens)
            self.assertEqual(row * 61, len(logits))

    def test_adapters_of_several_flags_and_of_a_stack_all_apply(self):
        stack = self.root / "stack"
        for name in ("lora", "ia3"):
            shutil.copytree(GOLDEN / name, stack / f"{'12'[name == 'ia3']}-{name}")
        expected = self.score("--adapter", GOLDEN / "lora", GOLDEN / "ia3")
        self.assertEqual(expected, self.score("--adapter", GOLDEN / "lora", "--adapter", GOLDEN / "ia3"))
        self.assertEqual(expected, self.score("--adapter", stack))
        self.assertNotEqual(expected, self.score("--adapter", GOLDEN / "lora"))
        shutil.copytree(GOLDEN / "prompt", stack / "3-prompt")
        expected = self.score("--adapter", GOLDEN / "lora", GOLDEN / "ia3", GOLDEN / "prompt")
        self.assertEqual(expected, self.score("--adapter", stack))
        self.assertNotEqual(expected, self.score("--adapter", GOLDEN / "lora", GOLDEN / "ia3"))

    def test_a_merged_model_scores_as_base_and_adapter(self):
        before = hash_tree(GOLDEN / "base")
        for name in MERGED:
            with self.subTest(name=name):
                run("merge", "--model", GOLDEN / "base", "--adapter", GOLDEN / name, "--output", self.root / f"merged-{name}")
                self.assert_near(self.score("--adapter", GOLDEN / name), self.score(model=self.root / f"merged-{name}"))
        run("merge", "--model", GOLDEN / "base", "--adapter", GOLDEN / "ia3", GOLDEN / "rslora", "--output", self.root / "both")
        self.assert_near(self.score("--adapter", GOLDEN / "ia3", GOLDEN / "rslora"), self.score(model=self.root / "both"))
        self.assertEqual(before, hash_tree(GOLDEN / "base"))

    def test_a_merged_model_has_the_type_of_the_base(self):
        base = self.root / "bf16"
        shutil.copytree(GOLDEN / "base", base)
        tensors = support.read_safetensors(base / "model.safetensors")
        narrow = {name: ("BF16", shape, b"".join(content[i + 2:i + 4] for i in range(0, len(content), 4)))
                  for name, (_, shape, content) in tensors.items()}
        support.write_safetensors(base / "model.safetensors", narrow)
        config = json.loads((base / "config.json").read_text())
        config.pop("torch_dtype", None)
        (base / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
        run("merge", "--model", base, "--adapter", GOLDEN / "lora", "--output", self.root / "merged-bf16")
        merged = support.read_safetensors(self.root / "merged-bf16/model.safetensors")
        self.assertEqual({kind for kind, _, _ in merged.values()}, {"BF16"})
        untouched = [name for name in merged if "c_attn.weight" not in name]
        short = {name.removeprefix("transformer."): content for name, content in narrow.items()}
        for name in untouched:
            self.assertEqual(merged[name][2], short[name.removeprefix("transformer.")][2], name)

    def tune(self, words, name, *more):
        metrics = self.root / f"{name}.metrics"
        run(*words, "--output", self.root / name, f"--log.metrics_file={metrics}", *more)
        return [json.loads(line)["lm_loss"] for line in metrics.read_text().splitlines()]

    def test_what_finetune_writes_is_generated_with_and_started_from(self):
        base, data = self.root / "own", self.root / "rows.jsonl"
        support.write_byte_model(base, n_layer=2, n_head=4, n_embd=32, n_positions=48)
        data.write_text("".join(json.dumps({"prompt": "to:", "completion": " abc"}) + "\n" for _ in range(20)))
        before = hash_tree(base)
        for method in ("lora", "ia3", "adapter", "prompt", "prefix"):
            with self.subTest(method=method):
                tune = ["finetune", "--model", base, "--data", data, "--optim.lr=2e-2", "--train.train_iters=30",
                        "--train.global_batch_size=4"]
                first = self.tune(tune, method, "--peft", method)
                prompt = ["--model", base, "--prompt", "to:", "--max-new-tokens", "4", "--temperature", "0"]
                bare, _ = run("generate", *prompt)
                tuned, _ = run("generate", *prompt, "--adapter", self.root / method)
                self.assertNotEqual(bare, tuned)
                if method in ("lora", "ia3"):
                    run("merge", "--model", base, "--adapter", self.root / method, "--output", self.root / f"m-{method}")
                    merged, _ = run("generate", "--model", self.root / f"m-{method}", *prompt[2:])
                    self.assertEqual(tuned, merged)
                second = self.tune(tune, f"more-{method}", "--init-adapter", self.root / method)
                self.assertLess(first[-1], 0.9 * first[0])
                self.assertLess(second[0], 1.02 * first[-1])  # all rows are the same text
        self.assertEqual(before, hash_tree(base))

    def test_texts_with_virtual_tokens_do_not_depend_on_layout_or_company(self):
        def tokens(*words):
            out, _ = run("generate", "--model", GOLDEN / "base", "--prompt-tokens", "1 2 3", "--max-new-tokens", "12",
                         "--repetition-penalty", "1.3", "--json", *words)
            return [line["tokens"] for line in support.rows(out)]
        bare = tokens("--seed", "7")
        for names in (["prompt"], ["prefix"], ["ptuning_mlp", "lora"]):
            words = ["--adapter", *(GOLDEN / name for name in names), "--seed", "7"]
            alone = tokens(*words)
            self.assertNotEqual(bare, alone)
            self.assertEqual(alone[0], tokens(*words, "--num-samples", "5")[0])
            self.assertEqual(alone, tokens(*words, "--ranks", "2", P + "tensor_model_parallel_size=2"))
            self.assertEqual(alone, tokens(*words, "--ranks", "3", P + "pipeline_model_parallel_size=3"))

    def test_scores_make_the_validation_loss_of_the_training(self):
        """For rows of which every token trains; an adapter trained whole, with its encoder, is served folded."""
        base, data, texts = self.root / "valid-base", self.root / "valid.jsonl", ["abc abd", "b", "ab ab ab ab"]
        support.write_byte_model(base, n_layer=2, n_head=4, n_embd=32, n_positions=48)
        data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        lines = "".join(json.dumps({"tokens": [*text.encode(), support.EOS]}) + "\n" for text in texts).encode()
        for name, words in {"prompt": ["prompt"], "mlp": ["ptuning"], "lora": ["lora"],
                            "lstm": ["ptuning", "--peft.encoder_reparameterization_type=LSTM"], "prefix": ["prefix"],
                            "projected": ["prefix", "--peft.prefix_projection=true"]}.items():
            with self.subTest(name=name):
                output, metrics = self.root / f"valid-{name}", self.root / f"valid-{name}.metrics"
                run("finetune", "--model", base, "--data", data, "--valid-data", data, "--output", output, "--optim.lr=1e-2",
                    "--train.train_iters=5", "--train.global_batch_size=3", "--train.eval_interval=5", "--train.eval_iters=1",
                    "--peft.num_virtual_tokens=17" if name != "lora" else "--peft.r=4", f"--log.metrics_file={metrics}",
                    "--checkpoint.save_interval=5", "--peft", *words)
                losses = [row["valid_loss"] for row in map(json.loads, metrics.read_text().splitlines()) if "valid_loss" in row]
                score = ["score", "--model", base, "--input", "-", "--adapter"]
                out, _ = run(*score, output, input=lines)
                scores = [x for x in logprobs(out) + first_logprobs(out) if x is not None]
                self.assertLess(abs(losses[-1] + math.fsum(scores) / len(scores)), 1e-5 * losses[-1])
                for layout in ([], ["--ranks", "2", P + "pipeline_model_parallel_size=2"]):
                    whole, _ = run(*score, output / "iter_0000005", *layout, input=lines)
                    self.assert_near(scores, [x for x in logprobs(whole) + first_logprobs(whole) if x is not None])

    def test_show_says_what_an_adapter_is(self):
        shown = run("adapter", "show", GOLDEN / "lora_patterns", GOLDEN / "adapter_par_bn")[0].decode()
        for line in ("method: LoRA", "target_modules: c_attn, c_fc, mlp.c_proj", "r: 4", "lora_alpha: 8", "parameters: 2752",
                     "base: base", "method: bottleneck adapter", "bottleneck: 12", "parameters: 1836"):
            self.assertIn(line, shown)

    def test_an_adapter_of_another_base_is_warned_of(self):
        """By every command that loads one; the digest is the training's own."""
        base, other, data = self.root / "one", self.root / "other", self.root / "one.jsonl"
        support.write_byte_model(base, n_layer=2, n_head=4, n_embd=32, n_positions=48)
        data.write_text('{"text": "abc"}\n{"text": "abd"}\n')
        shutil.copytree(base, other)
        tensors = support.read_safetensors(base / "model.safetensors")
        kind, shape, content = tensors["transformer.h.1.mlp.c_fc.weight"]
        changed = tensors | {"transformer.h.1.mlp.c_fc.weight": (kind, shape, support.floats([0.5]) + content[4:])}
        support.write_safetensors(other / "model.safetensors", changed)
        tune = ["finetune", "--data", data, "--optim.lr=1e-3", "--train.train_iters=1", "--train.global_batch_size=2"]
        run(*tune, "--model", base, "--peft", "lora", "--output", self.root / "noted")
        for words in (["score", "--input", self.texts, "--adapter"], ["generate", "--prompt", "ab", "--max-new-tokens", "1", "--adapter"],
                      ["merge", "--output", self.root / "none", "--adapter"], [*tune, "--output", self.root / "none", "--init-adapter"]):
            done = subprocess.run([support.CAMBIUM, *map(str, words), self.root / "noted", "--model", other],
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
            self.assertIn("noted: tensor 'transformer.h.1.mlp.c_fc.weight' of the base ", done.stderr)
            self.assertIn("is not the one in its receipt (1 of 28 differ)", done.stderr)
        self.assertIn("receipt: of cambium ", run("adapter", "show", self.root / "noted")[0].decode())
        run("merge", "--output", self.root / "forced", "--model", other, "--adapter", self.root / "noted", "--receipts", "off")
        (self.root / "noted/cambium_receipt.json").unlink()  # without one there is a warning
        warning = "noted was trained on another base than "
        for name, words in {"score": ["score", "--input", self.texts, "--adapter"],
                            "generate": ["generate", "--prompt", "ab", "--max-new-tokens", "1", "--adapter"],
                            "merge": ["merge", "--output", "OUT", "--adapter"],
                            "finetune": [*tune, "--output", "OUT", "--init-adapter"]}.items():
            for model in (base, other):
                with self.subTest(command=name, model=model.name):
                    output = self.root / f"{name}-of-{model.name}"
                    _, said = run(*(output if word == "OUT" else word for word in words), self.root / "noted", "--model", model)
                    self.assertEqual(said.count(warning), int(model is other), said)
        digest = said.split("(digest ")[1].split(",")[0]
        self.assertEqual(len(digest), 16)
        self.assertIn(f"base digest: {digest}", run("adapter", "show", self.root / "noted")[0].decode())

    # ---- what is refused

    def refuse(self, *words, parts):
        done = subprocess.run([support.CAMBIUM, *map(str, words)], capture_output=True, text=True, timeout=120)
        self.assertIn(done.returncode, (1, 2), done.stderr)
        lines = support.without_notices(done.stderr).splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        for part in parts:
            self.assertIn(part, lines[0])
        self.assertEqual(done.stdout, "")

    def changed(self, name, golden="lora", tensors=None, **keys):
        directory = self.root / "bad" / name
        shutil.copytree(GOLDEN / golden, directory)
        config = json.loads((directory / "adapter_config.json").read_text())
        (directory / "adapter_config.json").write_text(json.dumps(config | keys))
        if tensors:
            path = directory / "adapter_model.safetensors"
            found = support.read_safetensors(path)
            tensors(found)
            support.write_safetensors(path, found)
        return directory

    def test_what_is_no_adapter_of_the_base_is_refused_in_one_line(self):
        def score(directory, *parts):
            with self.subTest(directory=str(directory)):
                self.refuse("score", "--model", GOLDEN / "base", "--input", self.texts, "--adapter", directory, parts=parts)
        key = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"
        score(self.root / "nowhere", "nowhere", "not the directory of an adapter")
        (self.root / "empty").mkdir()
        score(self.root / "empty", "holds no adapter")
        score(self.changed("rank", r=5), key, "shape [4, 24]", "[5, 24]")
        score(self.changed("zero", r=0), '"r"', "adapter_config.json")
        score(self.changed("type", peft_type="ADALORA"), "ADALORA")
        score(self.changed("bias", bias="all"), '"bias"')
        score(self.changed("targets", target_modules=["q_proj"]), "q_proj", "no projection")
        score(self.changed("missing", tensors=lambda t: t.pop(key)), "missing tensors", key)
        score(self.changed("extra", tensors=lambda t: t.update(extra=t[key])), "unknown tensor", "extra")
        directory = self.changed("json")
        (directory / "adapter_config.json").write_text('{"peft_type": "LORA", ')
        score(directory, "adapter_config.json:1:")
        directory = self.changed("pickle")
        (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
        score(directory, "adapter_model.bin", "pickle")
        directory = self.changed("cut")
        content = (directory / "adapter_model.safetensors").read_bytes()
        (directory / "adapter_model.safetensors").write_bytes(content[:-10])
        score(directory, "adapter_model.safetensors")

    def test_virtual_tokens_take_positions_of_the_text(self):
        def many(count):
            def grow(tensors):
                tensors["prompt_embeddings"] = ("F32", [count, 24], support.floats([0.1] * 24 * count))
            return self.changed(f"many-{count}", golden="prompt", tensors=grow, num_virtual_tokens=count)
        model, tokens = ["--model", GOLDEN / "base"], " ".join(["1"] * 28)
        (self.root / "long.jsonl").write_text(json.dumps({"tokens": [1] * 27}) + "\n")
        self.assertEqual(len(logprobs(run("score", *model, "--input", self.root / "long.jsonl", "--adapter", GOLDEN / "prompt")[0])), 26)
        (self.root / "long.jsonl").write_text(json.dumps({"tokens": [1] * 28}) + "\n")
        text = "28 tokens, with the adapters' 5 virtual tokens more than the model's 32 positions"
        for name in ("prompt", "prefix"):
            self.refuse("score", *model, "--input", self.root / "long.jsonl", "--adapter", GOLDEN / name, parts=["long.jsonl:1", text])
            self.refuse("generate", *model, "--prompt-tokens", tokens, "--adapter", GOLDEN / name, parts=["the prompt has " + text])
        out, _ = run("score", *model, "--input", "-", "--adapter", many(31), input=b'{"tokens":[3]}\n')
        self.assertLess(first_logprobs(out)[0], 0)
        self.refuse("score", *model, "--input", self.texts, "--adapter", many(32), parts=["num_virtual_tokens 32", "32 positions"])
        self.refuse("score", *model, "--input", self.texts, "--adapter", many(28), GOLDEN / "prefix", parts=["32 positions"])

    def test_a_merge_replaces_a_model_and_nothing_else(self):
        output, words = self.root / "merged-again", ("merge", "--model", GOLDEN / "base", "--adapter", GOLDEN / "lora", "--output")
        backup, gone = self.root / "merged-again.old-20240101", self.root / "gone.old-1"
        for directory in (backup, gone, self.root / "merged-again.tmp-7"):
            directory.mkdir()
            (directory / "mine").write_text("mine")
        run(*words, output)
        (output / "model.safetensors").rename(output / "model-00001-of-00001.safetensors")
        (output / "model.safetensors.index.json").write_text("{}")
        run(*words, output)
        self.assertEqual({p.name for p in output.iterdir()} & {"model.safetensors", "model.safetensors.index.json",
                                                               "model-00001-of-00001.safetensors"}, {"model.safetensors"})
        for name in ("notes.txt", "optimizer.safetensors", "model-1-of-2.safetensors.bak", ".git"):
            (output / name).write_text("mine")
            before = sorted((p.name, p.read_bytes()) for p in output.iterdir())
            self.refuse(*words, output, parts=[f"{output} holds {name}, which is not a file of a model"])
            self.assertEqual(sorted((p.name, p.read_bytes()) for p in output.iterdir()), before)
            (output / name).unlink()
        (output / "merges.txt").unlink(missing_ok=True)
        (output / "merges.txt").mkdir()
        self.refuse(*words, output, parts=["holds merges.txt"])
        run(*words, self.root / "gone")
        for directory in (backup, gone, self.root / "merged-again.tmp-7"):
            self.assertEqual((directory / "mine").read_text(), "mine")
        self.assertFalse([p.name for p in self.root.iterdir() if p.name.startswith(".cambium-")])

    def test_a_merge_that_cannot_be_writes_nothing(self):
        def merge(*parts, adapter=GOLDEN / "lora", output=None, model=GOLDEN / "base"):
            self.refuse("merge", "--model", model, "--adapter", adapter, "--output", output or self.root / "none", parts=parts)
            self.assertFalse((self.root / "none").exists())
        merge("cannot be merged", adapter=GOLDEN / "prompt")
        merge("cannot be merged", adapter=GOLDEN / "adapter_seq_bn")
        base = self.root / "base-itself"
        shutil.copytree(GOLDEN / "base", base)
        merge("the base itself", model=base, output=base)
        merge("shape", model=support.TINY)
        merge("nowhere", adapter=self.root / "nowhere")


if __name__ == "__main__":
    unittest.main()
