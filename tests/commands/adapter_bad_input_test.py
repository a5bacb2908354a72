"""Bad input for finetune, merge, adapter show and --adapter: one clear line, exit status 1 or 2, nothing on standard
output, and nothing written. Existing files stay as they were. bad_input_test has the table of options."""
import gzip
import itertools
import json
import shutil
import struct
import unittest

from bad_input_test import LARGE, Refusal, write_lora
from model_support import (floats, gpt2_config, read_safetensors, without_notices, write_byte_llama, write_byte_tokenizer,
                           write_model, write_safetensors)

A = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"
B = A.replace("lora_A", "lora_B")


class Adapters(Refusal):
    """A good LoRA `lora` for the good model; each test damages its copy."""

    READERS = (["score", "--model", "model", "--input", "rows.jsonl", "--adapter", "lora"],
               ["generate", "--model", "model", "--prompt-tokens", "1", "--adapter", "lora"],
               ["merge", "--model", "model", "--adapter", "lora", "--output", "merged"],
               ["finetune", "--model", "model", "--data", "tuning.jsonl", "--output", "made", "--optim.lr=1e-3",
                "--train.train_iters=1", "--init-adapter", "lora"])
    OPENERS = (*READERS, ["adapter", "show", "lora"])
    openers, readers = itertools.cycle(OPENERS), itertools.cycle(READERS)

    def refuse_all(self, *parts, words=OPENERS, status=1):
        for one in words:
            self.refuse(one, *parts, status=status)

    def config(self, text=None, **changed):
        path = self.bad / "lora/adapter_config.json"
        good = json.loads((self.good / "lora/adapter_config.json").read_text())
        path.write_text(text if text is not None else json.dumps({k: v for k, v in (good | changed).items() if v is not ...}))

    def tensors(self, change):
        path = self.bad / "lora/adapter_model.safetensors"
        tensors = read_safetensors(self.good / "lora/adapter_model.safetensors")
        change(tensors)
        write_safetensors(path, tensors)

    def empty_lora(self):
        shutil.rmtree(self.bad / "lora")
        (self.bad / "lora").mkdir()


class Files(Adapters):
    def test_directories_that_hold_no_adapter(self):
        for name, part in (("nowhere", "not the directory of an adapter"), ("text.txt", "not the directory of an adapter"),
                           ("tokenizer", "holds no adapter"), ("model", "holds no adapter"), ("x" * 5000, ""),
                           ("a\nb", "not the directory")):
            for words in self.OPENERS:
                errors = self.refuse([name if word == "lora" else word for word in words], part)
                self.assertLess(len(errors), 6000)

    def test_pickles_are_refused_by_name(self):
        (self.bad / "lora/adapter_model.safetensors").rename(self.bad / "lora/adapter_model.bin")
        self.refuse_all("adapter_model.bin", "pickle")
        (self.bad / "lora/adapter_model.bin").unlink()
        self.refuse_all("adapter_model.safetensors")

    def test_damaged_tensor_files(self):
        path = self.bad / "lora/adapter_model.safetensors"
        good = path.read_bytes()
        size = struct.unpack("<Q", good[:8])[0]

        def whole(header, data=b""):
            text = header if isinstance(header, bytes) else json.dumps(header).encode()
            return struct.pack("<Q", len(text)) + text + data

        def entry(kind="F32", shape=(8,), offsets=(0, 32)):
            return {"dtype": kind, "shape": list(shape), "data_offsets": list(offsets)}

        for content, part in ((b"", ""), (good[:7], ""), (good[:100], "header"), (good[:-1], ""), (good + b"\0", ""),
                              (struct.pack("<Q", 2**64 - 1) + good[8:], "header"), (struct.pack("<Q", LARGE) + good[8:], "header"),
                              (struct.pack("<Q", len(good)) + good[8:], "header"),
                              (struct.pack("<Q", size - 9) + good[8:], ""),
                              (whole(b"[" * 100_000), "damaged JSON"), (whole(b"[]"), "byte 8"), (whole(b"\xff\xfe"), "damaged JSON"),
                              (whole({"a": entry(), "b": entry(offsets=(31, 63))}, bytes(63)), "b"),  # overlapping
                              (whole({"a": entry(), "b": entry()}, bytes(32)), "b"),
                              (whole({"a": entry(shape=(LARGE, 8))}, bytes(32)), "a"),
                              (whole({"a": entry(shape=(2**32, 2**32))}, bytes(32)), "a"),
                              (whole({"a": entry(shape=(-8,))}, bytes(32)), "a"),
                              (whole({"a": entry(offsets=(0, LARGE))}, bytes(32)), "a"),
                              (whole({"a": entry(kind="F31")}, bytes(32)), "F31"),
                              (whole({"a": entry(kind="F\x1b[31m")}, bytes(32)), "")):
            path.write_bytes(content)
            self.refuse_all("lora/adapter_model.safetensors", part)
        for how in ("directory", "dangling", "loop", "fifo"):
            self.make_unreadable(path, how)
            self.refuse(next(self.openers), "adapter_model.safetensors")

    def test_tensors_that_are_not_the_adapters(self):
        kind, shape, data = read_safetensors(self.bad / "lora/adapter_model.safetensors")[A]
        for change, parts in ((lambda t: t.pop(A), ("missing tensors", A)),
                              (lambda t: t.clear(), ("missing tensors", A)),
                              (lambda t: t.update({A: ("F32", [2, 4], data[:32])}), (A, "[2, 4]", "[2, 8]")),
                              (lambda t: t.update({A: ("F32", [8, 2], data)}), (A, "[8, 2]", "[2, 8]")),
                              (lambda t: t.update({A: ("F32", [16], data)}), (A, "[16]")),
                              (lambda t: t.update({A: ("I32", shape, data)}), (A, "I32")),
                              (lambda t: t.update({A: ("U8", shape, data[:16])}), (A, "U8")),
                              (lambda t: t.update(stranger=t[A]), ("unknown tensor", "stranger")),
                              (lambda t: t.update({"a\nb\x1b[2J": t[A]}), ("control character",)),
                              (lambda t: t.update({A.replace("h.0", "h.1"): t[A]}), ("unknown tensor", "h.1")),
                              (lambda t: t.update({A.replace("c_attn", "c_proj"): t[A]}), ("unknown tensor", "c_proj"))):
            self.tensors(change)
            self.refuse_all(*parts, words=self.READERS)

    def test_an_adapter_of_another_shape_of_base(self):
        """Wider, deeper, and one whose layers the base has not."""
        for keys, part in (({"width": 16}, "[2, 16]"), ({"layers": 2}, "unknown tensor")):
            shutil.rmtree(self.bad / "lora")
            write_lora(self.bad / "lora", **keys)
            self.refuse_all(part, words=self.READERS)
        shutil.rmtree(self.bad / "lora")
        write_lora(self.bad / "lora", layers_to_transform=[5])
        self.refuse_all("layers_to_transform 5", "0 to 0", words=self.READERS, status=2)

    def test_an_adapter_that_names_another_base(self):
        """One line with both names and types; the adapter's type where its base is there. Damage stays damage."""
        write_byte_llama(self.bad / "other")
        self.config(base_model_name_or_path="other")
        self.tensors(lambda t: t.clear())
        self.refuse_all("lora is an adapter of another base: of other (model_type llama), not of ", "model (model_type gpt2)",
                        f"missing tensors: {A}, and more", words=self.READERS)
        shutil.rmtree(self.bad / "other")
        self.refuse_all("lora is an adapter of other, which is not here, and does not fit ", "model (model_type gpt2)",
                        words=self.READERS)
        shutil.copytree(self.bad / "model", self.bad / "other")
        self.refuse_all(f"lora: missing tensors: {A}, {B}", words=self.READERS)
        self.config(base_model_name_or_path="other", target_modules=["q_proj"])
        shutil.rmtree(self.bad / "other")
        write_byte_llama(self.bad / "other")
        self.refuse_all("of other (model_type llama), not of ", "q_proj", words=self.READERS, status=2)

    def test_an_adapter_that_is_given_as_a_model(self):
        """The line has the options that work."""
        line = "is an adapter, not a model (no config.json): name its base and it, --model {0} --adapter {1}"
        self.refuse(["generate", "--model", "lora", "--prompt-tokens", "1"], line.format("BASE", "lora"))
        self.config(base_model_name_or_path="model")
        shutil.copytree(self.bad / "lora", self.bad / "stack/lora")
        for name in ("lora", "stack"):
            base = "model" if name == "lora" else "BASE"
            words = self.refuse(["score", "--model", name, "--input", "rows.jsonl"], line.format(base, name)).split()
            for command in (["merge", "--adapter", "lora", "--output", "merged"],
                            ["finetune", "--data", "tuning.jsonl", "--peft", "lora", "--output", "made"]):
                self.refuse([*command, "--model", name], line.format(base, name), "for finetune --init-adapter")
        given = ["model" if word == "BASE" else word for word in words[words.index("--model"):][:4]]
        self.assertEqual(self.call(["score", "--input", "rows.jsonl", *given]).returncode, 0)

    def test_embeddings_beside_the_adapter(self):
        """As PEFT saves them: the base's may be there, under each of their names; others replace the base's."""
        embedding = read_safetensors(self.bad / "model/model.safetensors")["transformer.wte.weight"]
        kind, shape, data = embedding
        alone = self.call(self.READERS[0]).stdout
        names = ("transformer.wte.weight", "wte.weight", "transformer.wte.base_layer.weight", "lm_head.weight",
                 "lm_head.base_layer.weight")
        self.tensors(lambda t: t.update({f"base_model.model.{name}": embedding for name in names}))
        done = self.call(self.READERS[0])
        self.assertEqual((done.returncode, done.stdout), (0, alone), done.stderr)
        changed = data[:4] + bytes([data[4] ^ 1]) + data[5:]
        for name in names:
            for other in ((kind, shape, changed), (kind, [shape[0] - 1, shape[1]], data[:-4 * shape[1]]), ("U8", [8], data[:8])):
                self.tensors(lambda t: t.update({f"base_model.model.{name}": other}))
                self.refuse(next(self.readers), f"'base_model.model.{name}' differs from", "the adapter replaces it")
        for name in ("transformer.wpe.weight", "transformer.wte.other.weight", "lm_head.bias"):
            self.tensors(lambda t: t.update({f"base_model.model.{name}": embedding}))
            self.refuse(next(self.readers), f"unknown tensor: base_model.model.{name}")

    def test_a_stack_is_no_adapter_as_well(self):
        """A directory that is an adapter, and holds another one."""
        write_lora(self.bad / "lora/second")
        done = self.call(self.READERS[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        alone = self.call([*self.READERS[0][:-1], "lora/second"])
        self.assertEqual(done.stdout, alone.stdout)  # of the outer one alone, whose values are the same


class Config(Adapters):
    def test_damaged_json(self):
        good = (self.bad / "lora/adapter_config.json").read_text()
        for text, part in (("", "adapter_config.json:1:"), ("{", "adapter_config.json:1:"), (good[:-1], "adapter_config.json:1:"),
                           ("[]", "JSON object"), ("null", "adapter_config.json"), ('{\n\n "r": tru }', "adapter_config.json:3:"),
                           (good[:-1] + ', "r": 2}', "r"), ("[" * 100_000, "adapter_config.json"),
                           ('{"a":' * 100_000, "adapter_config.json"), (good + "x", "adapter_config.json"),
                           ('{"r": 1e999}', "adapter_config.json"), ('{"r": 99999999999999999999}', "adapter_config.json"),
                           ('{"r": "\\ud800"}', "adapter_config.json"), ("{}", "peft_type")):
            self.config(text)
            self.refuse(next(self.openers), "adapter_config.json", part)
            self.refuse(["adapter", "show", "lora"], part)
        (self.bad / "lora/adapter_config.json").write_bytes(b"{\xff\xfe}")
        self.refuse_all("adapter_config.json:1:")
        for how in ("directory", "dangling", "loop", "fifo"):
            self.make_unreadable(self.bad / "lora/adapter_config.json", how)
            self.refuse(next(self.openers), "lora")

    def test_values_that_cannot_be(self):
        for key, values in (("r", (0, -1, 1.5, "2", [2], True, 2**31, 1e300)), ("lora_alpha", (-1, "4", [], 1e300)),
                            ("lora_dropout", (-0.1, 1, 1.5, "0")), ("target_modules", ("", [], [1], [""], 3, {}, [["c_attn"]])),
                            ("exclude_modules", (3, [1], {})), ("layers_to_transform", (-1, 1.5, "0", [], [-1], ["0"], 2**40)),
                            ("rank_pattern", ([1], {"c_attn": 0}, {"c_attn": "2"}, {"": 2}, {"c_attn": 2**40})),
                            ("alpha_pattern", ("x", {"c_attn": -1}, {"c_attn": 1e300})), ("use_rslora", (1, "true")),
                            ("use_dora", (0, [])), ("task_type", ("SEQ_CLS", 3)), ("peft_type", (3, "lora", "ADALORA", "a\nb")),
                            ("init_lora_weights", ("pissa", 3)), ("layers_pattern", ("blocks", 3)), ("bias", ("all", "lora_only")),
                            ("modules_to_save", (["lm_head"], "ln_f")), ("megatron_config", ({"a": 1},))):
            for value in values:
                self.config(**{key: value})
                self.refuse(next(self.openers), "lora/adapter_config.json", f'"{key}"')

    def test_targets_that_match_nothing(self):
        for value, parts in ((["q_proj"], ("q_proj", "attn.c_attn", "mlp.c_proj")), (["c_attn", "wte"], ("wte",)),
                             (["attn"], ("attn",)), (["_attn"], ("_attn",)), ("c_att.", ("c_att.",)), ("(?i)C_ATTN", ("(?i)",)),
                             ("c_attn)", ("c_attn)",)), ("[", ("[",)), (["h.1.attn.c_attn"], ("h.1.attn.c_attn",))):
            self.config(target_modules=value)
            self.refuse(next(self.readers), "peft.target_modules", *parts, status=2)
        for changed in ({"exclude_modules": ["c_attn"]}, {"exclude_modules": ".*"}):
            self.config(**changed)
            self.refuse(next(self.readers), "leave nothing", status=2)
        self.config(alpha_pattern={"(?R)": 3})
        self.refuse(next(self.readers), "peft.alpha_pattern", status=2)

    def test_expressions_that_would_take_for_ever(self):
        slow = r"(\w|\.|[a-z])*[!?]"
        for key, value, part in (("target_modules", ".*c_attn(x|)++++++++++", "multiple repeat"),
                                 ("target_modules", slow, "too complex"), ("exclude_modules", slow, "too complex"),
                                 ("rank_pattern", {slow: 2}, "too complex"), ("alpha_pattern", {slow: 2}, "too complex"),
                                 ("rank_pattern", {rf"(\w|\.|[a-z]){{0,9}}[!?]{i}": 2 for i in range(256)}, "too complex"),
                                 ("target_modules", "((" * 40 + "a" + ")+)+" * 40 + "[!?]", ""),
                                 ("target_modules", "(((a{999}){999}){999}){999}", "cannot be read")):
            self.config(**{key: value})
            for words in self.READERS:
                self.refuse(words, "lora/adapter_config.json", "peft." + key, part, status=2)

    def test_other_methods_with_what_they_cannot_have(self):
        def put(tensors, **keys):
            self.empty_lora()
            self.config(**({key: ... for key in ("r", "lora_alpha", "target_modules")} | keys))
            write_safetensors(self.bad / "lora/adapter_model.safetensors", tensors)

        table = {"prompt_embeddings": ("F32", (2, 8), floats([0.5] * 16))}
        tune = self.READERS[3]
        put(table, peft_type="PROMPT_TUNING", num_virtual_tokens=3)
        self.refuse(tune, "prompt_embeddings", "[2, 8]", "[3, 8]")
        for count, status in ((16, 2), (17, 2), (65536, 2), (0, 1), (-1, 1), (2**40, 1)):
            put(table, peft_type="PROMPT_TUNING", num_virtual_tokens=count)
            self.refuse(tune, "num_virtual_tokens", status=status)
        put({}, peft_type="PROMPT_TUNING", num_virtual_tokens=2)
        self.refuse(tune, "missing tensors", "prompt_embeddings")
        put(table | {"base_model.transformer.ln_f.weight": ("F32", (8,), floats([1.0] * 8))}, peft_type="PROMPT_TUNING",
            num_virtual_tokens=2)
        self.refuse(tune, "unknown tensor", "ln_f")
        put(table, peft_type="PREFIX_TUNING", num_virtual_tokens=2)
        self.refuse(tune, "prompt_embeddings", "[2, 8]", "[2, 16]")
        put(table, peft_type="PREFIX_TUNING", num_virtual_tokens=16)
        self.refuse(tune, "num_virtual_tokens 16", "length of 16", status=2)
        for kind in ("PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING"):
            put(table, peft_type=kind, num_virtual_tokens=2)
            self.refuse(self.READERS[2], "cannot be merged", status=2)
        scale = {"base_model.model.transformer.h.0.attn.c_attn.ia3_l": ("F32", (24,), floats([1.0] * 24))}
        put(scale, peft_type="IA3", target_modules=["c_attn"], feedforward_modules=[])
        self.refuse_all("ia3_l", "[24]", "[24, 1]", words=self.READERS)
        put(scale, peft_type="IA3", target_modules=["c_attn"], feedforward_modules=["c_proj"])
        self.refuse_all("feedforward_modules c_proj", words=self.READERS, status=2)

    def test_notes_beside_the_adapter(self):
        for text in ("", "[]", "{", '{"base_digest": "' + "a" * 100 + '"}', '{"base_digest": "A\\n"}', '{"chat_template": "a b"}'):
            (self.bad / "lora/cambium_adapter.json").write_text(text)
            self.refuse_all("cambium_adapter.json")
        (self.bad / "lora/cambium_adapter.json").write_text('{"base_digest": "0000000000000000"}')
        done = self.call(self.READERS[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(without_notices(done.stderr.decode()), r"^cambium: warning: lora was trained on another base than \S*model \(digest 0{16}, not \w{16}\)\n")

    def test_merging_does_not_replace_what_is_no_model(self):
        (self.bad / "merged").mkdir()
        (self.bad / "merged/mine").write_text("text")
        self.refuse(self.READERS[2], "merged")
        self.refuse([*self.READERS[2][:-1], "model"], "the base itself", status=2)


class Tuning(Adapters):
    """finetune's own: rows, files and keys that cannot be."""

    def tune(self, *words, method="lora"):
        return ["finetune", "--model", "model", "--peft", method, "--data", "tuning.jsonl", "--output", "made",
                "--optim.lr=1e-3", "--train.train_iters=1", *words]

    def rows(self, content):
        path = self.bad / "tuning.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def test_rows_that_are_none_are_told_with_their_line(self):
        good = '{"prompt": "a", "completion": "b"}\n'
        for row, part in (("{", ""), ("[]", ""), ("null", ""), ("7", ""), ('"text"', ""), ('{"prompt": "a"}', "completion"),
                          ('{"completion": "a"}', "prompt"), ('{"input": "a"}', "output"), ('{"question": "a"}', ""), ("{}", ""),
                          ('{"prompt": 3, "completion": "b"}', "prompt"), ('{"prompt": "a", "completion": null}', "completion"),
                          ('{"text": ["a"]}', "text"), ('{"messages": "a"}', "messages"),
                          ('{"messages": [{"role": "user"}]}', "content"), ('{"messages": [{"role": "judge", "content": "a"}]}', '"role" is none of'),
                          ('{"prompt": "a", "completion": "b", "text": "c"}', ""), ('{"prompt": "a", "prompt": "b"}', "completion"),
                          ('{"prompt": "\\ud8", "completion": "b"}', ""), ("[" * 100_000, ""), (good.strip() + "x", "")):
            self.rows(good * 2 + row + "\n" + good)
            with self.subTest(row=row[:80]):
                self.refuse(self.tune("--tuning.template=plain"), "tuning.jsonl:3:", part)
            self.rows(good)
            (self.bad / "valid.jsonl").write_text(good + "\n" + row)
            with self.subTest(row=row[:80]):
                self.refuse(self.tune("--tuning.template=plain", "--valid-data", "valid.jsonl", "--train.eval_interval=1"),
                            "valid.jsonl:3:", part)
            (self.bad / "valid.jsonl").unlink()

    def test_a_file_that_is_not_utf_8(self):
        self.rows(b'{"prompt": "a", "completion": "b"}\n{"prompt": "\xff", "completion": "b"}\n')
        self.refuse(self.tune(), "tuning.jsonl:2:")
        self.rows('{"prompt": "a", "completion": "b"}\n'.encode("utf-16"))
        self.refuse(self.tune(), "tuning.jsonl is UTF-16 text")
        self.rows(bytes(1000))
        self.refuse(self.tune(), "tuning.jsonl:1:")
        self.rows(gzip.compress(b'{"prompt": "a"}\n'))
        self.refuse(self.tune(), "tuning.jsonl:1:")
        self.rows(gzip.compress(b'{"prompt": "a", "completion": "b"}\n' * 1000)[:-9])
        self.refuse(self.tune(), "tuning.jsonl")

    def test_files_without_a_row_to_train_on(self):
        for content in ("", "\n\n", '{"prompt": "a", "completion": ""}\n' * 3, '{"messages": [{"role": "user", "content": "a"}]}\n'):
            self.rows(content)
            self.refuse(self.tune("--tuning.template=plain"), "tuning.jsonl")
        self.rows(json.dumps({"prompt": "a" * 100, "completion": "b"}) + "\n")  # every answer cut off
        self.refuse(self.tune(), "tuning.jsonl")
        for how in ("missing", "directory", "dangling", "loop"):
            self.make_unreadable(self.bad / "tuning.jsonl", how)
            self.refuse(self.tune(), "tuning.jsonl")

    def test_weights_of_files(self):
        shutil.copy(self.bad / "tuning.jsonl", self.bad / "more.jsonl")
        for words, part in ((["1", "tuning.jsonl", "more.jsonl"], ""), (["1", "tuning.jsonl", "0", "more.jsonl"], "0"),
                            (["1", "tuning.jsonl", "-1", "more.jsonl"], "-1"), (["1", "tuning.jsonl", "nan", "more.jsonl"], "weights"),
                            (["1"], "1"), (["tuning.jsonl", "1"], "1"), (["1", "tuning.jsonl", "1"], "")):
            done = self.call(["finetune", "--model", "model", "--output", "made", "--optim.lr=1e-3", "--train.train_iters=1",
                              "--data", *words])
            self.assertIn(done.returncode, (1, 2), words)
            last = done.stderr.decode().splitlines()[-1]
            self.assertTrue(last.startswith("cambium: error: "), last)
            self.assertIn(part, last)
            self.assertFalse((self.bad / "made").exists())

    def test_keys_that_cannot_be(self):
        for method, words, part in (
                ("lora", ["--peft.r=0"], "peft.r"), ("lora", ["--peft.r=65537"], "peft.r"),
                ("lora", ["--peft.lora_dropout=1"], "peft.lora_dropout"), ("lora", ["--peft.target_modules=q"], "peft.target_modules q"),
                ("lora", ["--peft.rank_pattern=c_attn"], "peft.rank_pattern"),
                ("lora", ["--peft.target_modules="], "peft.target_modules: an empty list"),
                ("ia3", ["--peft.ia3.target_modules="], "peft.target_modules: an empty list"),
                ("lora", ["--peft.layers_to_transform="], "peft.layers_to_transform: an empty list"),
                ("ia3", ["--peft.feedforward_modules="], "peft.feedforward_modules: an empty list"), ("lora", ["--peft.rank_pattern=c_attn=0"], "peft.rank_pattern"),
                ("lora", ["--peft.layers_to_transform=1"], "peft.layers_to_transform 1"),
                ("lora", ["--peft.layers_to_transform=x"], "peft.layers_to_transform x"),
                ("lora", ["--peft.exclude_modules=c_attn"], "leave nothing"), ("ia3", ["--peft.feedforward_modules=wte"], "wte"),
                ("adapter", ["--peft.bottleneck=0"], "peft.bottleneck"), ("prompt", ["--peft.num_virtual_tokens=0"], "num_virtual_tokens"),
                *((method, [f"--peft.num_virtual_tokens={count}"], "num_virtual_tokens")
                  for method in ("prompt", "ptuning", "prefix") for count in (16, 17, 65536)),
                ("prompt", ["--peft.num_virtual_tokens=2", "--peft.prompt_tuning_init=TEXT"], "prompt_tuning_init"),
                ("lora", ["--peft.prompt_tuning_init_text=a"], "prompt_tuning_init_text"),
                ("ptuning", ["--peft.num_virtual_tokens=2", "--peft.encoder_dropout=0.1"], "encoder_dropout"),
                ("lora", ["--data.seq_length=17"], "seq_length 17"), ("lora", ["--init-adapter", "lora", "--peft.r=2"], "peft.r"),
                ("ia3", ["--init-adapter", "lora"], "another method")):
            with self.subTest(method=method, words=words):
                self.refuse(self.tune(*words, method=method), part, status=2)
        self.refuse(self.tune("--peft.num_virtual_tokens=15", method="prompt"), "none with an answer")
        for method, key in (("prompt", "target_modules=c_attn"), ("ia3", "r=8"), ("lora", "bottleneck=48"),
                            ("adapter", "num_virtual_tokens=20"), ("prefix", "encoder_num_layers=2")):
            self.refuse(self.tune(f"--peft.{key}", method=method), f"peft.{key.split('=')[0]} is not a key of --peft {method}",
                        status=2)
        skip = ["finetune", "--model", "model", "--train.skip_train"]
        valid = ["--valid-data", "tuning.jsonl"]
        for words, part in ((skip, "--valid-data is not given"), ([*skip, *valid, "--data", "tuning.jsonl"], "--data is for training"),
                            ([*skip, *valid, "--output", "made"], "--output is for training"),
                            ([*skip, *valid, "--adapter", "lora", "--peft.r=2"], "peft.r cannot be given with --adapter")):
            self.refuse(words, part, status=2)
        self.refuse([*skip, *valid, "--adapter", "nowhere"], "nowhere")
        self.refuse(self.tune("--adapter", "nowhere"), "nowhere")
        self.refuse(self.tune(method="loran"), "loran", "lora, ia3, adapter, prompt, ptuning", status=2)
        for option in ("--model", "--data", "--output"):
            words = self.tune()
            at = words.index(option)
            self.refuse(words[:at] + words[at + 2:], option, status=2)

    def test_bases_that_cannot_be_tuned(self):
        for path, part in (("nowhere", "nowhere"), ("tokenizer", "config.json"), ("lora", "config.json")):
            words = self.tune()
            words[2] = path
            self.refuse(words, "--model: ", part)
        for name in ("vocab.json", "merges.txt"):
            (self.bad / "model" / name).unlink()
        self.refuse(self.tune(), "no tokenizer", status=2)
        write_byte_tokenizer(self.bad / "model")
        shutil.rmtree(self.bad / "model")
        write_model(self.bad / "model", gpt2_config(vocab_size=256))
        write_byte_tokenizer(self.bad / "model")
        self.refuse(self.tune(), "256", "257", status=2)

    def test_an_output_that_is_something_else(self):
        for path in ("text.txt", "text.txt/below", "/dev/null/x"):
            words = self.tune()
            words[words.index("made")] = path
            self.refuse(words, path)
        shutil.copytree(self.bad / "model", self.bad / "other")
        (self.bad / "run").mkdir()
        shutil.copytree(self.bad / "model", self.bad / "run/iter_0000001")
        (self.bad / "run/iter_0000001/trainer_state.json").write_text("{}")
        (self.bad / "link").symlink_to("model")
        for path in ("model", "./model/", "link", "other", "run"):
            words = self.tune()
            words[words.index("made")] = path
            self.refuse(words, path, "holds a model", status=2)
        words = self.tune("--checkpoint.save_interval=1", "--dry-run")
        words[words.index("made")] = "model"
        self.refuse(words, "holds a model", status=2)


if __name__ == "__main__":
    unittest.main()
