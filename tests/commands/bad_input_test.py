"""Bad input, for every command: one clear line on standard error, with the file, the position and the expected content.
The exit status is 1 or 2, standard output is empty, and nothing is half written. The tables list faults of model
directories, options and configurations. preprocess_test, data_test and tokenizer_test have more for corpora, datasets
and tokenizers."""
import itertools
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from model_support import (CAMBIUM, SANITIZED, floats, gpt2_config, read_safetensors, without_notices, write_byte_tokenizer,
                           write_model, write_safetensors)
from pretrain_support import LONG, sign_state, write_dataset

LARGE = 1 << 62
PATIENCE = 300 if SANITIZED else 60  # seconds, for what takes a few at most where nothing is wrong
COMMANDS = {"tokenizer": ["tokenizer", "train"], "tokenize": ["tokenize"], "detokenize": ["detokenize"],
            "preprocess": ["preprocess"], "data": ["data", "show"], "pretrain": ["pretrain"], "generate": ["generate"],
            "score": ["score"], "bench": ["bench", "train"], "finetune": ["finetune"], "merge": ["merge"],
            "adapter": ["adapter", "show"]}


def tree(directory):
    """Everything below a directory: kinds, link targets, contents."""
    found = {}
    for where, subdirectories, names in os.walk(directory):
        for name in subdirectories + names:
            path = os.path.join(where, name)
            is_file = os.path.isfile(path) and not os.path.islink(path)
            content = pathlib.Path(path).read_bytes() if is_file else b""
            found[os.path.relpath(path, directory)] = (os.lstat(path).st_mode, content)
    return found


def write_lora(directory, width=8, layers=1, r=2, **keys):
    """LoRA of c_attn as PEFT writes it; a key of None is left out."""
    directory = pathlib.Path(directory)
    directory.mkdir()
    path = "base_model.model.transformer.h.{}.attn.c_attn.lora_{}.weight"
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": r, "lora_alpha": 4, "target_modules": ["c_attn"]} | keys
    (directory / "adapter_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    write_safetensors(directory / "adapter_model.safetensors", {
        path.format(layer, kind): ("F32", shape, floats([0.25] * (shape[0] * shape[1])))
        for layer in range(layers) for kind, shape in (("A", (r, width)), ("B", (3 * width, r)))})


class Refusal(unittest.TestCase):
    """A directory with good inputs: model, tokenizer, dataset, text, rows, run.yaml. Each test damages copies."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(temporary.cleanup)
        cls.good = pathlib.Path(temporary.name, "good")
        cls.bad = pathlib.Path(temporary.name, "bad")
        cls.good.mkdir()
        write_model(cls.good / "model", gpt2_config(vocab_size=300))
        write_byte_tokenizer(cls.good / "model")
        (cls.good / "tokenizer").mkdir()
        write_byte_tokenizer(cls.good / "tokenizer")
        write_dataset(cls.good / "data", [[i % 16 for i in range(40)]] * 5)
        (cls.good / "text.txt").write_text("some text to learn from and to tokenize\n" * 20)
        (cls.good / "rows.jsonl").write_text('{"tokens": [1, 2, 3]}\n')
        (cls.good / "requests.jsonl").write_text('{"prompt": "a", "adapters": ["a"], "max_tokens": 2}\n')
        (cls.good / "tuning.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 8)
        write_lora(cls.good / "lora")
        (cls.good / "run.yaml").write_text(cls.yaml(cls.good))

    @staticmethod
    def yaml(directory):
        return (f"model:\n  num_layers: 1\n  hidden_size: 8\n  num_attention_heads: 1\n  vocab_size: 300\n"
                f"data:\n  data_path: {directory}/data\n  seq_length: 8\n  split: 100,0,0\n"
                f"  data_cache_path: {directory}-cache\n"
                f"train:\n  train_iters: 2\noptim:\n  lr: 1e-3\ncheckpoint:\n  save: {directory}/save\n")

    def setUp(self):
        shutil.copytree(self.good, self.bad)
        (self.bad / "run.yaml").write_text(self.yaml(self.bad))
        self.addCleanup(shutil.rmtree, self.bad)

    def call(self, words, **more):
        words = [CAMBIUM, *map(str, words)]
        return subprocess.run(words, **({"capture_output": True, "timeout": PATIENCE, "cwd": self.bad, "input": b""} | more))

    def refuse(self, words, *parts, status=1, input=b""):
        before = tree(self.bad)
        done = self.call(words, input=input)
        errors = without_notices(done.stderr.decode())
        told = f"{' '.join(map(str, words))}\n{errors}"
        self.assertEqual(done.returncode, status, told)
        self.assertEqual(done.stdout, b"", told)
        *before_error, error = errors.splitlines()
        self.assertTrue(error.startswith("cambium: error: "), told)
        self.assertTrue(error.isprintable(), told)
        for line in before_error:  # the plan of a run stands before it, and what it takes from a model directory
            self.assertTrue(words[0] in ("pretrain", "finetune") and line.startswith("cambium: ") and "error: " not in line, told)
        for part in parts:
            self.assertIn(str(part), error, told)
        self.assertEqual(tree(self.bad), before, told)
        return error

    def words_of(self, command):
        """A call of the command that works, with its files as relative names."""
        return {"tokenizer": ["tokenizer", "train", "--input", "text.txt", "--vocab-size", "260", "--output", "made"],
                "tokenize": ["tokenize", "--tokenizer", "tokenizer"],
                "detokenize": ["detokenize", "--tokenizer", "tokenizer"],
                "preprocess": ["preprocess", "--input", "text.txt", "--tokenizer", "tokenizer", "--output-prefix=made"],
                "data": ["data", "show", "--data-path", "data", "--seq-length", "8", "--tokenizer", "tokenizer"],
                "pretrain": ["pretrain", "--config", "run.yaml", "--init-from", "model", "--tokenizer", "tokenizer"],
                "generate": ["generate", "--model", "model", "--prompt", "a", "--max-new-tokens", "2"],
                "score": ["score", "--model", "model", "--input", "rows.jsonl", "--adapter", "lora"],
                "requests": ["generate", "--model", "model", "--requests", "requests.jsonl", "--adapter", "a=lora"],
                "finetune": ["finetune", "--model", "model", "--data", "tuning.jsonl", "--output", "made", "--optim.lr=1e-3",
                             "--train.train_iters=1", "--train.global_batch_size=4"],
                "merge": ["merge", "--model", "model", "--adapter", "lora", "--output", "merged"],
                "adapter": ["adapter", "show", "lora"]}[command]

    # Commands that open a model directory and read its weights, and those that read its config.json.
    WEIGHT_READERS = (["generate", "--model", "model", "--prompt-tokens", "1"],
                      ["score", "--model", "model", "--input", "rows.jsonl"],
                      ["pretrain", "--config", "run.yaml", "--init-from", "model"])
    CONFIG_READERS = (*WEIGHT_READERS, ["bench", "train", "--model", "model", "--seq-length", "8", "--steps", "1"])

    turns = itertools.count()

    def share(self, calls, parts):
        """All calls; under a sanitizer, where each starts slowly, every one of `parts` in turn."""
        return calls[next(self.turns) % parts::parts] if SANITIZED else calls

    def readers(self, calls):
        """All of these readers in the long form. Otherwise they take turns, because they read with the same code."""
        return calls if LONG and not SANITIZED else (calls[next(self.turns) % len(calls)],)

    def refuse_model(self, *parts, status=1):
        for words in self.readers(self.WEIGHT_READERS):
            self.refuse(words, *parts, status=status)

    def refuse_config(self, *parts, status=1):
        for words in self.readers(self.CONFIG_READERS):
            self.refuse(words, *parts, status=status)

    def make_unreadable(self, path, how):
        path = pathlib.Path(path)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if how == "directory":
            path.mkdir()
        elif how == "dangling":
            path.symlink_to("nowhere")
        elif how == "loop":
            path.symlink_to(path.name)
        elif how == "fifo":
            os.mkfifo(path)


class GoodInput(Refusal):
    def test_what_is_damaged_below_works_when_whole(self):
        for command in COMMANDS:
            if command == "bench":
                continue
            done = self.call(self.words_of(command))
            self.assertEqual(done.returncode, 0, done.stderr.decode())


class Weights(Refusal):
    """model.safetensors, byte by byte."""

    def tensors_text(self, header, data=b""):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    def entry(self, kind="F32", shape=(8,), offsets=(0, 32), **more):
        return {"dtype": kind, "shape": list(shape), "data_offsets": list(offsets)} | more

    def test_headers(self):
        path = self.bad / "model" / "model.safetensors"
        good = path.read_bytes()
        size = struct.unpack("<Q", good[:8])[0]
        cases = [
            (b"", ""), (good[:7], ""), (good[:8], ""), (good[:100], "header"), (good[:8 + size - 1], "header"),
            (struct.pack("<Q", 0) + good[8:], ""), (struct.pack("<Q", 1) + good[8:], "damaged JSON at byte"),
            (struct.pack("<Q", LARGE * 3) + good[8:], "header"), (struct.pack("<Q", 2**64 - 1) + good[8:], "header"),
            (struct.pack("<Q", len(good) - 7) + good[8:], "header"),
            (struct.pack("<Q", 200_000_000) + good[8:], "header"),
            (good[:-1], "model.safetensors"), (good + b"\0", "model.safetensors"), (good + good, "model.safetensors"),
            (self.tensors_text(b"{"), "damaged JSON at byte"), (self.tensors_text(b"[]"), "byte 8"),
            (self.tensors_text(b"\xff" * 16), "damaged JSON at byte"),
            (self.tensors_text(b'{"a":1}'), "a"), (self.tensors_text(b'{"a":{}}'), "a"),
            (self.tensors_text(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "damaged JSON at byte"),
            (self.tensors_text(b'{"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"a":'
                               b'{"dtype":"F32","shape":[8],"data_offsets":[32,64]}}', bytes(64)), "a"),
        ]
        for content, part in cases:
            path.write_bytes(content)
            self.refuse_model("model/model.safetensors", part)

    def test_entries(self):
        path = self.bad / "model" / "model.safetensors"
        one, two = self.entry(), self.entry(offsets=(32, 64))
        cases = [
            ({"a": one, "b": self.entry(offsets=(31, 63))}, 63, "b"),  # overlapping
            ({"a": one, "b": one}, 32, "b"),
            ({"a": one, "b": self.entry(offsets=(33, 65))}, 65, "b"),  # a hole
            ({"a": two}, 64, "a"),
            ({"a": one, "b": two}, 63, ""),  # cut off
            ({"a": one, "b": two}, 65, ""),  # trailing bytes
            ({"a": self.entry(offsets=(32, 0))}, 32, "a"), ({"a": self.entry(offsets=(-32, 0))}, 32, "a"),
            ({"a": self.entry(offsets=(0, LARGE))}, 32, "a"),
            ({"a": self.entry(offsets=(0, 2**63))}, 32, "damaged JSON at byte"),
            ({"a": self.entry(offsets=(0,))}, 32, "a"), ({"a": self.entry(offsets=(0, 16, 32))}, 32, "a"),
            ({"a": self.entry(offsets=("0", "32"))}, 32, "a"), ({"a": self.entry(offsets=(0.0, 32.0))}, 32, "a"),
            ({"a": self.entry(shape=(9,))}, 32, "a"), ({"a": self.entry(shape=(-8,))}, 32, "a"),
            ({"a": self.entry(shape=(LARGE, LARGE))}, 32, "a"), ({"a": self.entry(shape=(2**32, 2**32))}, 32, "a"),
            ({"a": self.entry(shape=("8",))}, 32, "a"), ({"a": self.entry(shape=[1] * 200)}, 32, "a"),
            ({"a": self.entry(kind="F31")}, 32, "F31"), ({"a": self.entry(kind=32)}, 32, "a"),
            ({"a": {"shape": [8], "data_offsets": [0, 32]}}, 32, "dtype"),
            ({"a": {"dtype": "F32", "data_offsets": [0, 32]}}, 32, "shape"),
            ({"a": {"dtype": "F32", "shape": [8]}}, 32, "data_offsets"),
            ({"new\nline": self.entry(shape=(9,))}, 32, "model.safetensors"),
            ({"a": self.entry(kind="F\x1b[31m")}, 32, "model.safetensors"),
        ]
        for header, size, part in cases:
            path.write_bytes(self.tensors_text(header, bytes(size)))
            self.refuse_model("model/model.safetensors", part)

    def test_tensors_that_are_not_the_models(self):
        path = self.bad / "model" / "model.safetensors"
        tensors = read_safetensors(path)
        for name in ("transformer.wte.weight", "transformer.h.0.attn.c_attn.bias", "transformer.ln_f.weight"):
            kind, shape, data = tensors[name]
            for wrong, parts in ((None, ("missing", name)),
                                 ((kind, [*shape, 1], data), (name, "shape", str(list(shape)))),
                                 ((kind, [n + 1 for n in shape], data + floats([0.0] * 3000)), (name, "shape")),
                                 (("I32", shape, data), (name, "I32")), (("U8", shape, data[::4]), (name, "U8")),
                                 (("F8_E4M3", shape, data[::4]), (name, "F8_E4M3"))):
                changed = {**tensors, name: wrong}
                if wrong:
                    size = {"F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1}[wrong[0]]
                    for extent in wrong[1]:
                        size *= extent
                    changed[name] = (wrong[0], wrong[1], wrong[2][:size])
                write_safetensors(path, {n: t for n, t in changed.items() if t})
                self.refuse_model(*parts)

    def test_files_that_are_none(self):
        model = self.bad / "model"
        for how in ("directory", "dangling", "loop", "fifo"):
            self.make_unreadable(model / "model.safetensors", how)
            self.refuse_model("model.safetensors")
        self.make_unreadable(model / "model.safetensors", "missing")
        self.refuse_model("model", "model.safetensors")
        (model / "pytorch_model.bin").write_bytes(b"\x80\x02}q\0.")
        self.refuse_model("pytorch_model.bin", "safetensors")

    def test_shards(self):
        model = self.bad / "model"
        tensors = read_safetensors(model / "model.safetensors")
        (model / "model.safetensors").unlink()
        names = sorted(tensors)
        first, second = names[:5], names[5:]
        shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        write_safetensors(model / shards[0], {n: tensors[n] for n in first})
        write_safetensors(model / shards[1], {n: tensors[n] for n in second})
        map_of = {n: shards[n in second] for n in names}
        index = model / "model.safetensors.index.json"
        cases = [
            ("", "index.json"), ("{", "index.json: damaged JSON at byte 1 (line 1)"),
            ('{\n"weight_map": {\n"a": }}', "index.json: damaged JSON at byte 24 (line 3)"), ("[]", "index.json"),
            ("{}", "weight_map"), ('{"weight_map": 3}', "weight_map"), ('{"weight_map": {"a": 1}}', "index.json"),
            (json.dumps({"weight_map": {**map_of, "a": "../model/" + shards[0]}}), "index.json"),
            (json.dumps({"weight_map": {**map_of, "a": "/etc/passwd"}}), "index.json"),
            (json.dumps({"weight_map": {**map_of, names[0]: "model-00003-of-00002.safetensors"}}), "model-00003-of"),
            (json.dumps({"weight_map": {**map_of, names[0]: shards[1]}}), names[0]),
            (json.dumps({"weight_map": {**map_of, "transformer.more": shards[0]}}), "transformer.more"),
            (json.dumps({"weight_map": {n: s for n, s in map_of.items() if s == shards[0]}}), "missing"),
            (json.dumps({"weight_map": {**map_of, names[0]: "a\nb"}}), "index.json"),
            (b"\xff\xfe{}", "index.json"),
        ]
        for text, part in cases:
            index.write_bytes(text if isinstance(text, bytes) else text.encode())
            self.refuse_model(part)
        index.write_text(json.dumps({"weight_map": map_of}))
        (model / shards[1]).write_bytes((model / shards[1]).read_bytes()[:-3])
        self.refuse_model(shards[1])
        for how in ("directory", "dangling", "fifo"):
            self.make_unreadable(index, how)
            self.refuse_model("model")


class Config(Refusal):
    """config.json. All commands read it with the same code, so long tables take turns among them."""

    openers = itertools.cycle(Refusal.CONFIG_READERS)

    def write(self, **changed):
        config = {k: v for k, v in (gpt2_config(vocab_size=300) | changed).items() if v is not ...}
        (self.bad / "model" / "config.json").write_text(json.dumps(config))

    def test_damaged_json(self):
        path = self.bad / "model" / "config.json"
        good = path.read_bytes()
        for content, part in ((b"", "config.json:1:"), (b"{", "config.json:1:"), (good[:-1], "config.json:1:"),
                              (b"[]", "config.json"), (b"null", "config.json"), (b"\0" * 64, "config.json"),
                              (b"\xff\xfe{\0}\0", "config.json"), (b'{\n\n "a": tru }', "config.json:3:"),
                              (good[:-1] + b', "n_embd": 8}', "n_embd"), (b"[" * 100_000, "config.json"),
                              (good + b"x", "config.json"), (b"{}", "model_type")):
            path.write_bytes(content)
            self.refuse_config(part)
        for how in ("directory", "dangling", "loop", "fifo"):
            self.make_unreadable(path, how)
            self.refuse_config("config.json")
        self.make_unreadable(path, "missing")
        self.refuse_config("model", "config.json")

    def test_keys_that_change_the_mathematics_are_refused_by_name(self):
        for key, value in (("scale_attn_by_inverse_layer_idx", True), ("reorder_and_upcast_attn", True),
                           ("add_cross_attention", True), ("scale_attn_weights", False),
                           ("activation_function", "relu"), ("activation_function", "silu"),
                           ("activation_function", "quick_gelu"), ("model_type", "mixtral"), ("model_type", "gpt_neo"),
                           ("pruned_heads", {"0": [1]}),
                           ("dtype", "float8_e4m3fn"), ("dtype", "int8")):
            self.write(**{key: value})
            self.refuse_config("config.json", f"'{key}'")
        kin = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 300}
        for key, value in (("hidden_act", "gelu"), ("num_local_experts", 8), ("pretraining_tp", 2),
                           ("rope_scaling", {"type": "dynamic", "factor": 2}), ("rope_parameters", {"rope_type": "longrope"}),
                           ("auto_map", {"AutoModelForCausalLM": "modeling_own.Own"})):
            (self.bad / "model/config.json").write_text(json.dumps(kin | {key: value}))
            self.refuse_config("config.json", f"'{key}'")

    def test_values_that_cannot_be(self):
        for key in ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size", "n_inner"):
            for value in (0, -1, 1.5, "8", [], True, 2**30, 2**62, *((..., None) if key != "n_inner" else ())):
                self.write(**{key: value})
                self.refuse(next(self.openers), "config.json", f"'{key}'")
        for key, values in (("resid_pdrop", (-0.1, 1, 1.5, "0", True)), ("attn_pdrop", (-1, 1)), ("embd_pdrop", (2,)),
                            ("layer_norm_epsilon", (-1e-5, "1e-5", [])), ("initializer_range", (-1, "x")),
                            ("tie_word_embeddings", (1, "yes")), ("activation_function", (1, [])),
                            ("model_type", (..., 3)), ("scale_attn_weights", ("x",)), ("dtype", (32,))):
            for value in values:
                self.write(**{key: value})
                self.refuse(next(self.openers), "config.json", f"'{key}'")
        self.write(n_head=3)
        self.refuse_config("config.json", "3", "8")

    def test_names_with_control_characters_stay_on_one_line(self):
        for key in ("model_type", "activation_function", "dtype"):
            self.write(**{key: "a\nb\x1b[2Jc\r"})
            self.refuse_config("config.json", f"'{key}'")

    def test_impossible_sizes(self):
        """Sizes that each are allowed and whose product is beyond any memory, which is planned first."""
        wide = 1 << 17
        for changed in (dict(n_layer=10_000, n_embd=wide), dict(vocab_size=1 << 24, n_embd=wide),
                        dict(n_layer=10_000, n_embd=wide, n_head=wide, n_inner=1 << 20, n_positions=1 << 20,
                             vocab_size=1 << 24)):
            self.write(**changed)
            for words in self.WEIGHT_READERS:
                self.refuse(words, "not enough memory")

    def test_directories_that_are_no_models(self):
        for path, parts in (("nowhere", ("nowhere",)), ("text.txt", ("text.txt",)),
                            ("tokenizer", ("tokenizer", "config.json")), ("x" * 5000, ()), ("a\nb", ())):
            for words in (["generate", "--prompt-tokens", "1", f"--model={path}"],
                          ["score", "--input", "rows.jsonl", f"--model={path}"],
                          ["pretrain", "--config", "run.yaml", f"--init-from={path}"],
                          ["bench", "train", f"--model={path}"]):
                self.refuse(words, *parts)


class Options(Refusal):
    def help_of(self, words):
        return subprocess.run([CAMBIUM, *words, "--help"], capture_output=True, text=True, check=True).stdout

    def options(self, words):
        """(name, what the help says) of each option."""
        text = re.sub(r"\n {38}", " ", self.help_of(words))
        return re.findall(r"(?m)^  --([a-z][\w.-]*)(.*(?:\n {38}.*)*)", text)

    def test_unknown_commands(self):
        self.refuse(["pretrian"], "unknown command 'pretrian'", "did you mean 'pretrain'", status=2)
        for words in (["xyzzyxyzzy"], ["--verson"], [""], ["-x"], ["Pretrain!\n"]):
            self.refuse(words, "unknown command", status=2)
        for words in (["tokenizer", "trian"], ["data", "shwo"], ["bench", "trian"], ["tokenizer"], ["data"], ["bench"]):
            self.refuse(words, *words[1:], status=2)

    def test_an_unknown_option_names_the_nearest(self):
        for words in COMMANDS.values():
            for name, _ in self.share(self.options(words), 3):
                typo = name[:-1] + ("x" if name[-1] != "x" else "y")
                errors = self.refuse([*words, f"--{typo}"], f"unknown option --{typo}", status=2)
                self.assertRegex(errors, r"did you mean --[\w.-]+\?")
            self.refuse([*words, "--qqqqqqqqqqqqqqqqqqqqqqq=1"], "unknown option", status=2)

    def test_values_outside_the_range_name_the_option(self):
        no_numbers = itertools.cycle(("nan", "inf", "x", "1x", "", "0x", "1e999", "9" * 400, " 1", "1 "))
        no_names, no_truths = itertools.cycle(("none-of-these", "")), itertools.cycle(("maybe", "1.5", ""))
        seen = 0
        for words in COMMANDS.values():
            for name, text in self.share(self.options(words), 3):
                found = re.search(r"\((-?[\d.e+-]+) to (-?[\d.e+-]+)", text)
                if found:
                    low, high = (float(x) for x in found.groups())
                    wrong = [f"{low - max(1, abs(low)):.0f}", f"{high * 2 + 1:.0f}", next(no_numbers)]
                elif "(one of" in text:
                    wrong = [next(no_names)]
                elif re.match(r" *(=false)? {2,}", text) and name != "help":
                    wrong = [next(no_truths)]
                else:
                    continue
                seen += 1
                for value in wrong:
                    self.refuse([*words, f"--{name}={value}"], f"--{name}", status=2)
        self.assertGreater(seen, 25 if SANITIZED else 80)

    def test_missing_values_and_words(self):
        for words in COMMANDS.values():
            for name, text in self.share(self.options(words), 3):
                if re.match(r" [A-Z]", text) and name != "help":
                    self.refuse([*words, f"--{name}"], f"--{name}", status=2)
            if words[0] not in ("bench", "adapter"):
                self.refuse([*words, "an unexpected word"], "an unexpected word", status=2)

    def test_required_options_are_named_and_an_empty_path_is_none(self):
        for command, words in COMMANDS.items():
            required = [name for name, text in self.options(words) if "required)" in text]
            if required:
                self.refuse(words, f"--{required[0]} is required", status=2)
            for name in required:
                if name != "vocab-size" and name != "seq-length":
                    self.refuse([*self.words_of(command), f"--{name}="], f"--{name}", status=2)

    def test_an_empty_path_takes_back_what_the_file_gives(self):
        done = self.call([*self.words_of("pretrain"), "--checkpoint.save="])
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertFalse((self.bad / "save").exists())
        self.refuse([*self.words_of("pretrain"), "--data.data_path="], "data.data_path is not given", status=2)


class Impossible(Refusal):
    """Keys that cannot stand together: both are named, with their values."""

    def test_runs(self):
        for keys, parts in ((["model.hidden_size=9", "model.num_attention_heads=2"], ("hidden_size 9", "heads 2")),
                            (["model.max_position_embeddings=4"], ("seq_length 8", "max_position_embeddings 4")),
                            (["train.micro_batch_size=4", "train.global_batch_size=6"], ("size 6", "size 4")),
                            (["optim.min_lr=1"], ("optim.lr 0.001", "min_lr 1")),
                            (["optim.lr_warmup_iters=2"], ("warmup_iters 2", "decay_iters 2")),
                            (["optim.lr_decay_style=WSD"], ("WSD", "lr_wsd_decay_iters")),
                            (["model.attention_dropout=1"], ("attention_dropout 1", "below 1")),
                            (["optim.adam_beta1=1"], ("adam_beta1 1", "below 1")),
                            (["parallel.tensor_model_parallel_size=2"], ("tensor_model_parallel_size 2", "needs 2 ranks")),
                            (["parallel.pipeline_model_parallel_size=2"], ("pipeline_model_parallel_size 2", "needs 2 ranks")),
                            (["model.num_attention_heads=2", "model.num_query_groups=3"], ("groups 3", "heads 2")),
                            (["model.num_attention_heads=2", "model.num_query_groups=1"],
                             ("gpt2 cannot have this model.num_query_groups", "llama cannot have this model.position_embedding_type")),
                            (["model.rotary_base=500"], ("rotary_base 500", "learned_absolute")),
                            (["model.swiglu=true"], ("ffn_hidden_size", "hidden_size 8")),
                            (["checkpoint.save=", "checkpoint.save_interval=1"], ("save_interval 1",)),
                            (["tokenizer=tokenizer", "model.vocab_size=256"], ("vocab_size 256", "257")),
                            (["data.split=0,0,0"], ("split '0,0,0'",)), (["data.split=1,x"], ("split '1,x'",)),
                            (["data.split=9e2,1"], ("'e2,1'",)),
                            (["data.split=1,2,3,4"], ("split '1,2,3,4'",)), (["data.split=-1,2"], ("split '-1,2'",)),
                            (["data.data_path=1 data 2"], ("data path", "w1 P1")),
                            (["data.data_path=0 data 1 data"], ("weight '0'",))):
            self.refuse(["pretrain", "--config", "run.yaml", *(f"--{key}" for key in keys)], *parts, status=2)
        for name in ("empty", "blank"):
            write_dataset(self.bad / name, [[]] * 3 if name == "blank" else [])
            self.refuse(["pretrain", "--config", "run.yaml", f"--data.data_path={name}"], name, "has no tokens")
        self.refuse(["pretrain", "--config", "run.yaml", "--data.split=0,1"], "the training split '0,1' has no tokens")
        self.refuse(["pretrain", "--config", "run.yaml", "--train.early_stop=3", "--train.eval_interval=1"],
                    "train.early_stop 3: there are no samples for validations", status=2)

    def test_tokens_outside_the_vocabulary(self):
        (self.bad / "save").mkdir()
        for size in (1, 8):
            self.refuse(["pretrain", "--config", "run.yaml", f"--model.vocab_size={size}"], "sample ", "data.bin",
                        "token at byte", f"expected 0 to {size - 1} of the vocabulary")


class Resuming(Refusal):
    """The files of a checkpoint beside its weights."""

    def test_damaged_optimizer_files(self):
        words = ["pretrain", "--config", "run.yaml", "--train.exit_interval=1", "--checkpoint.load=save"]
        done = self.call(words)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        path = self.bad / "save/iter_0000001/optimizer.safetensors"
        sign_state(self.bad / "save/iter_0000001/trainer_state.json", files={})
        good, tensors = path.read_bytes(), read_safetensors(path)
        name = next(n for n in tensors if n.startswith("exp_avg_sq.") and n.endswith("ln_f.weight"))
        for content in (b"", good[:50], good[:-1], good + b"\0", struct.pack("<Q", LARGE) + good[8:]):
            path.write_bytes(content)
            self.refuse(words, "optimizer.safetensors")
        kind, shape, data = tensors[name]
        for changed, parts in ((None, ("missing", name)), (("F32", [*shape, 1], data), (name, "shape")),
                               (("I32", shape, data), (name, "I32"))):
            write_safetensors(path, {n: t for n, t in (tensors | {name: changed}).items() if t})
            self.refuse(words, *parts)
        for how in ("missing", "directory", "dangling", "fifo"):
            self.make_unreadable(path, how)
            self.refuse(words, "optimizer.safetensors")
        path.unlink()
        path.write_bytes(good)
        done = self.call(words)
        self.assertEqual(done.returncode, 0, done.stderr.decode())


    def test_a_state_without_digests(self):
        words = ["pretrain", "--config", "run.yaml", "--train.exit_interval=1", "--checkpoint.load=save"]
        self.assertEqual(self.call(words).returncode, 0)
        state = self.bad / "save/iter_0000001/trainer_state.json"
        whole = json.loads(state.read_text())
        for key in ("digest", "files"):
            state.write_text(json.dumps({k: v for k, v in whole.items() if k != key}))
            self.refuse(words, "save/iter_0000001/trainer_state.json has no digests")

    def test_the_only_checkpoint_is_damaged(self):
        words = ["pretrain", "--config", "run.yaml", "--train.exit_interval=1", "--checkpoint.load=save",
                 "--log.metrics_file=metrics.jsonl"]
        self.assertEqual(self.call(words).returncode, 0)
        records = (self.bad / "metrics.jsonl").read_bytes()
        for name in ("config.json", "model.safetensors", "trainer_state.json"):
            path = self.bad / "save/iter_0000001" / name
            path.rename(self.bad / name)
            self.refuse(words, "save/iter_0000001 is not a whole checkpoint", "start afresh")
            self.assertEqual((self.bad / "metrics.jsonl").read_bytes(), records)
            (self.bad / name).rename(path)
        self.assertEqual(self.call(words).returncode, 0)


class Tokenizers(Refusal):
    """The files of a tokenizer, through each command that opens one."""

    def test_damaged_files(self):
        vocab = self.bad / "tokenizer/vocab.json"
        good = json.loads(vocab.read_text())
        cases = [("", "vocab.json: line 1"), ("{", "vocab.json: line 1"), ("[]", "vocab.json"), ("{}", "vocab.json"),
                 ('{"a": 0,\n "b" 1}', "vocab.json: line 2"), (json.dumps(good | {"a": 300}), "300"),
                 (json.dumps(good | {"a": -1}), "vocab.json"), (json.dumps(good | {"a": "1"}), "vocab.json"),
                 (json.dumps({k: v for k, v in good.items() if v}), "vocab.json"), ("\0" * 9, "vocab.json: line 1")]
        users = itertools.cycle(["tokenize", "detokenize", "preprocess", "data", "pretrain"])
        for text, part in cases:
            vocab.write_text(text)
            self.refuse(self.words_of(next(users)), part)
        vocab.write_text(json.dumps(good))
        merges = self.bad / "tokenizer/merges.txt"
        for content, part in ((b"#version: 0.2\na b\n", "line 2"), (b"a\n", "line 1"), (b"a  b\n", "line 1"),
                              (b"\xff\xc2\x9b2J\n", "line 1: '??2J'")):
            merges.write_bytes(content)
            self.refuse(self.words_of(next(users)), "merges.txt", part)
        for text, part in (("{", "line 1"), ("[]", ""), ("{}", "model"), ('{"model": {"type": "Unigram"}}', "Unigram")):
            (self.bad / "tokenizer/tokenizer.json").write_text(text)
            self.refuse(self.words_of(next(users)), "tokenizer.json", part)


class Yaml(Refusal):
    def test_damaged_files(self):
        good = (self.bad / "run.yaml").read_text()
        def instead(text):
            return good.replace("num_layers: 1", text)

        cases = [
            ("", "model"), ("model", "run.yaml"), ("- a\n- b\n", "run.yaml"), ("model: [", "run.yaml:"),
            ("model:\n\t- x", "run.yaml:2"), ("model:\n  num_layers: 1\n num_heads: 2\n", "run.yaml:3"),
            (good + "train:\n  seed: 1\n", "run.yaml:"), (good + "extra:\n  a: 1\n", "run.yaml:"),
            (instead("num_layer: 1"), "num_layers"), (instead("num_layers: one"), "run.yaml:2"),
            (instead("num_layers: 0"), "run.yaml:2"), (instead("num_layers: 1e3x"), "run.yaml:2"),
            (instead("num_layers:"), "run.yaml:2"), (instead("num_layers: [1]"), "run.yaml:2"),
            (instead("num_layers: {a: 1}"), "run.yaml:2"), (instead("num_layers: &a 1"), "run.yaml:2"),
            (instead("num_layers: !!int 1"), "run.yaml:2"), (instead("num_layers: 1\n  num_layers: 1"), "run.yaml:3"),
            (good + "---\n" + good, "run.yaml:"), (good + "\0", "run.yaml"), (good + "\x07", "run.yaml"),
            ("[" * 50_000, "run.yaml"), (b"\xff\xfe\xfd", "run.yaml"), ("a: &a [*a]", "run.yaml"),
        ]
        for text, part in cases:
            (self.bad / "run.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
            self.refuse(["pretrain", "--config", "run.yaml"], part, status=2)

    def test_files_that_are_none(self):
        for how in ("directory", "dangling", "loop", "fifo", "missing"):
            self.make_unreadable(self.bad / "run.yaml", how)
            self.refuse(["pretrain", "--config", "run.yaml"], "run.yaml")


class Unreadable(Refusal):
    """Each file that a command opens, replaced by what is no file: root reads whatever its permissions say."""

    FILES = {"tokenizer": ["text.txt"], "tokenize": ["tokenizer/vocab.json", "tokenizer/merges.txt"],
             "detokenize": ["tokenizer/vocab.json"], "preprocess": ["text.txt", "tokenizer/vocab.json"],
             "data": ["data.idx", "data.bin", "tokenizer/vocab.json"],
             "pretrain": ["data.idx", "data.bin", "tokenizer/merges.txt", "model/model.safetensors",
                          "model/config.json"],
             "generate": ["model/config.json", "model/vocab.json", "model/merges.txt"], "score": ["rows.jsonl"],
             "requests": ["requests.jsonl", "model/config.json"]}

    def test_every_file_of_every_command(self):
        for command, files in self.FILES.items():
            for name, how in itertools.product(files, ("directory", "dangling", "loop", "missing", "fifo")):
                if how == "fifo" and name in ("text.txt", "rows.jsonl", "requests.jsonl"):
                    continue  # a corpus or rows may come through a pipe
                path = self.bad / name
                kept = path.read_bytes()
                self.make_unreadable(path, how)
                with self.subTest(f"{command} {name} {how}"):
                    self.refuse(self.words_of(command), "" if how in ("missing", "dangling") else path.stem)
                path.rmdir() if how == "directory" else path.unlink(missing_ok=True)
                path.write_bytes(kept)

    def test_outputs_that_cannot_be_written(self):
        for command, option in (("tokenizer", "--output"), ("preprocess", "--output-prefix"),
                                ("pretrain", "--checkpoint.save"), ("pretrain", "--log.metrics_file"),
                                ("pretrain", "--log.tensorboard_dir")):
            words = [*self.words_of(command), *(["--checkpoint.save="] if command == "pretrain" else [])]
            if option in words:
                del words[words.index(option):words.index(option) + 2]
            for place in ("/proc/none/x", "text.txt/x"):
                self.refuse([*words, f"{option}={place}"], "/proc/none" if place[0] == "/" else "text.txt")


class FullDisk(Refusal):
    def test_a_full_standard_output(self):
        text = b"65\n" * 100
        for words in (*(self.words_of(command) for command in ("tokenize", "detokenize", "data", "generate", "score")),
                      [*self.words_of("pretrain"), "--dry-run"], ["bench", "ops", "--help"], ["--help"], ["--version"]):
            with open("/dev/full", "wb") as full:
                done = self.call(words, input=text, stdout=full, stderr=subprocess.PIPE, capture_output=False)
            self.assertEqual(done.returncode, 1, words)
            self.assertRegex(without_notices(done.stderr.decode()), r"\Acambium: error: .*standard output: No space left on device\n\Z")

    def test_a_full_file_system_leaves_nothing(self):
        if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", self.bad / "tokenizer"],
                                          capture_output=True).returncode:
            self.skipTest("a_full_file_system_leaves_nothing: mounting a tmpfs needs root")
        full = self.bad / "tokenizer"
        try:
            (full / "filler").write_bytes(bytes((1 << 20) - (12 << 10)))
            (self.bad / "many.txt").write_text("".join(f"word{i} of many {i * 7919}\n" for i in range(20000)))
            write_dataset(self.bad / "long", [[i % 16 for i in range(100)]] * 2000)
            model = ["--tokenizer", "model"]
            for words in (["tokenizer", "train", "--input", "many.txt", "--vocab-size=2000", "--output=tokenizer/made"],
                          ["preprocess", "--input", "many.txt", *model, "--output-prefix", "tokenizer/made"],
                          ["data", "show", "--data-path", "long", "--seq-length", "4", "--num-samples", "100000",
                           "--data-cache-path", "tokenizer/cache"],
                          ["pretrain", "--config", "run.yaml", "--model.hidden_size=64",
                           "--checkpoint.save=tokenizer/save"]):
                before = tree(full)
                done = subprocess.run([CAMBIUM, *words], capture_output=True, text=True, timeout=PATIENCE, cwd=self.bad)
                after = tree(full)
                errors = [line for line in done.stderr.splitlines() if line.startswith("cambium: error: ")]
                with self.subTest(words[0]):
                    if words[0] == "data":  # a cache is a convenience: the answer comes without it
                        self.assertIn(done.returncode, (0, 1))
                    else:
                        self.assertEqual((done.returncode, len(errors)), (1, 1), done.stderr)
                        self.assertIn("No space left on device", errors[0])
                    left = {name for name in after if name not in before and not os.path.isdir(full / name)}
                    self.assertEqual(left, set(), done.stderr)
        finally:
            subprocess.run(["umount", full])


if __name__ == "__main__":
    unittest.main()
