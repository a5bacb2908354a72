"""cambium convert: a model of any family, written as GGUF, becomes the model directory that it was.
A hostile file is refused in one line, and nothing is written."""
import argparse
import json
import math
import os
import pickle
import re
import shutil
import struct
import sys
import types
import unittest
import unittest.mock
import zipfile
import zlib

from gguf_support import (CONTROL, NORMAL, TENSOR_BF16, TENSOR_F16, TENSOR_F32, TENSOR_Q8_0, byte_tokens, keys_of,
                          tensors_of, tokenizer_keys, transposed, read_gguf, write_gguf)
from convert_support import Convert
from pretrain_support import Run
from model_support import PRECISIONS, SOURCE, TINY, counts_memory, floats, read_safetensors, run, write_safetensors

MODELS = SOURCE / "tests/model/golden"
VOCABULARY = 61  # of the models


class Models(Convert):
    def check(self, name, **more):
        """The tensors come back to the bit, and config.json says the same."""
        source = MODELS / name
        original = json.loads((source / "config.json").read_text())
        config, tensors = self.convert(keys_of(source) | byte_tokens(original["vocab_size"]), tensors_of(source), **more)
        self.assertEqual(tensors, read_safetensors(source / "model.safetensors"), name)
        for key, value in config.items():  # GGUF knows nothing of the others
            if original.get(key) is not None and not key.endswith(("pdrop", "token_id", "_dropout", "_range", "max_window_layers")):
                if isinstance(value, dict):
                    value, original[key] = ({k: v for k, v in d.items() if k in value and k in original[key]} for d in (value, original[key]))
                self.assertEqual(value, original[key], (name, key))

    def test_each_family_comes_back_to_the_bit(self):
        for name in ("llama_biases_linear", "llama_wide_heads", "qwen2_tied", "qwen3", "phi3_partial", "d64_untied", "d8_deep"):
            with self.subTest(name):
                self.check(name)
        self.check("qwen2_tied", version=2)

    def test_a_head_that_repeats_the_embedding_is_tied(self):
        source = MODELS / "qwen2_tied"
        tensors = tensors_of(source)
        config, written = self.convert(keys_of(source) | byte_tokens(VOCABULARY),
                                       tensors | {"output.weight": tensors["token_embd.weight"]})
        self.assertTrue(config["tie_word_embeddings"])
        self.assertEqual(written, read_safetensors(source / "model.safetensors"))

    def test_llama_3s_scaling_is_found_in_its_tensor(self):
        source = MODELS / "llama_wide_heads"
        keys, tensors = keys_of(source) | byte_tokens(VOCABULARY) | {"llama.rope.freq_base": 500000.0}, tensors_of(source)
        size, divisors = keys["llama.rope.dimension_count"], []
        for i in range(size // 2):
            turns = 8192 * 500000 ** (-2 * i / size) / (2 * math.pi)
            smooth = min(1, max(0, (turns - 1) / (4 - 1)))
            divisors.append(1 / ((1 - smooth) / 32 + smooth))
        config, _ = self.convert(keys, tensors | {"rope_freqs.weight": (TENSOR_F32, [size // 2], floats(divisors))})
        self.assertEqual({key: config["rope_scaling"][key] for key in ("rope_type", "factor", "original_max_position_embeddings")},
                         {"rope_type": "llama3", "factor": 32, "original_max_position_embeddings": 8192})
        other = tensors | {"rope_freqs.weight": (TENSOR_F32, [size // 2], floats([32.0] + divisors[1:]))}
        shutil.rmtree(self.output)
        self.refuse("rope_freqs.weight is not supported: number 0 is 32", keys, other)

    def test_types(self):
        """BF16 stays, F16 becomes fp32, and Q8_0 is multiplied out; --dtype rounds."""
        source = MODELS / "qwen2_tied"
        keys, tensors = keys_of(source) | byte_tokens(VOCABULARY), tensors_of(source)
        name, ours = "blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"
        _, shape, content = tensors[name]
        values = struct.unpack(f"<{len(content) // 4}f", content)
        halves = struct.pack(f"<{len(values)}e", *values)
        _, written = self.convert(keys, tensors | {name: (TENSOR_F16, shape, halves)})
        self.assertEqual(written[ours], ("F32", shape, floats(struct.unpack(f"<{len(values)}e", halves))))
        upper = lambda content: b"".join(content[i + 2:i + 4] for i in range(0, len(content), 4))
        config, written = self.convert(keys, {n: (TENSOR_BF16, s, upper(c)) for n, (_, s, c) in tensors.items()})
        self.assertEqual((written[ours], config["dtype"]), (("BF16", shape, upper(content)), "bfloat16"))
        rounded = self.convert(keys, tensors, "--dtype", "bf16")[1]
        self.assertEqual({kind for kind, _, _ in rounded.values()}, {"BF16"})
        config, rounded = self.convert(keys, tensors, "--dtype", "fp16")
        self.assertEqual((rounded[ours], config["dtype"]), (("F16", shape, halves), "float16"))
        large = tensors | {name: (TENSOR_F32, shape, floats([70000.0, *values[1:]]))}
        write_gguf(self.file, keys, large)
        _, errors = run("convert", "--from", self.file, "--to", "model", "--dtype", "fp16", "--output", self.root / "large", expect=1)
        self.assertIn("layers.0.mlp.fc2.weight has numbers that are not finite in fp16", errors)
        name, ours = "blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"
        blocks = b"".join(struct.pack("<e32b", 0.125 * (i + 1), *range(-16 - i % 3, 16 - i % 3)) for i in range(32))
        expected = [0.125 * (i + 1) * q for i in range(32) for q in range(-16 - i % 3, 16 - i % 3)]
        _, written = self.convert(keys, tensors | {name: (TENSOR_Q8_0, [32, 32], blocks)})
        self.assertEqual(written[ours], ("F32", [32, 32], floats(expected)))

    def test_files_have_the_size_that_is_asked_for(self):
        keys, tensors = self.smallest_model(20, width=70000)
        write_gguf(self.file, keys | byte_tokens(20), tensors)
        run("convert", "--from", self.file, "--to", "model", "--max-shard-size", 1, "--output", self.output)
        self.assertEqual(len(list(self.output.glob("model-*-of-00004.safetensors"))), 4)

    def test_the_directory_is_used_like_any_other(self):
        """The tiny model scores to the same digits after it was a GGUF file."""
        source = TINY
        names = json.loads((source / "tokenizer.json").read_text())
        self.convert(keys_of(source) | tokenizer_keys(names, "gpt-2"), tensors_of(source))
        (self.root / "texts").write_text('{"text": "The tree grows in spring."}\n')
        first, second = (run("score", "--model", model, "--input", self.root / "texts", "--precision", "fp32")[0]
                         for model in (source, self.output))
        self.assertEqual(first, second)


def torch_list(count, columns):
    """The `.metadata` that PyTorch writes for one fp32 tensor [count, columns] with a part for each row, all in one file; and
    the length of a part. Its classes are stood in for, since pickles have only their names."""
    names = {"torch": ["Size"], "torch.distributed.checkpoint.filesystem": ["_StorageInfo"], "torch.distributed.checkpoint.metadata": [
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex"]}
    modules = {module: types.ModuleType(module) for module in names}
    for module, classes in names.items():
        for name in classes:
            setattr(modules[module], name, type(name, (tuple,) if name == "Size" else (), {"__module__": module}))
    modules["torch"].Size.__reduce__ = lambda self: (type(self), (tuple(self),))
    modules["torch"].float32 = type("dtype", (), {"__module__": "torch", "__reduce__": lambda self: "float32"})()
    size, length = modules["torch"].Size, 1400

    def make(name, module="torch.distributed.checkpoint.metadata", **members):
        made = getattr(modules[module], name)()
        made.__dict__.update(members)
        return made

    parts = [make("ChunkStorageMetadata", offsets=size((row, 0)), sizes=size((1, columns))) for row in range(count)]
    tensor = make("TensorStorageMetadata", properties=make("TensorProperties", dtype=modules["torch"].float32), size=size((count, columns)),
                  chunks=parts)
    stored = {make("MetadataIndex", fqn="w", offset=size((row, 0)), index=row):
              make("_StorageInfo", "torch.distributed.checkpoint.filesystem", relative_path="__0_0.distcp", offset=row * length, length=length)
              for row in range(count)}
    with unittest.mock.patch.dict(sys.modules, modules):
        return pickle.dumps(make("Metadata", state_dict_metadata={"w": tensor}, planner_data={"w": ("w",)}, storage_data=stored), protocol=4), length


class Torch(Convert):
    """A distributed checkpoint of PyTorch that has a model as `module`, and an optimizer's state."""
    source = SOURCE / "tests/ckpt/golden/dcp/model"
    model = MODELS / "llama_biases_linear"

    def test_a_model_is_found_by_the_prefix_of_its_names(self):
        _, messages = run("convert", "--from", self.source, "--to", "model", "--config", self.model / "config.json", "--output", self.output)
        self.assertEqual(read_safetensors(self.output / "model.safetensors"), read_safetensors(self.model / "model.safetensors"))
        self.assertEqual(json.loads((self.output / "config.json").read_text()), json.loads((self.model / "config.json").read_text()))
        self.assertRegex(messages, "1 values are no tensors and are skipped")
        self.assertRegex(messages, "names begin with 'module.'; 34 tensors have other names and are skipped")
        again = self.root / "again"
        run("convert", "--from", self.output, "--to", "model", "--output", again)
        self.assertEqual((again / "model.safetensors").read_bytes(), (self.output / "model.safetensors").read_bytes())
        run("convert", "--from", self.source, "--to", "model", "--config", self.model / "config.json", "--prefix", "module.", "--dtype", "bf16",
            "--output", again)
        self.assertEqual({kind for kind, _, _ in read_safetensors(again / "model.safetensors").values()}, {"BF16"})
        shutil.rmtree(again)
        run("convert", "--from", self.output, "--to", "model", "--dtype", "fp16", "--output", again)
        exact = read_safetensors(self.output / "model.safetensors")
        halves = {name: ("F16", shape, struct.pack(f"<{len(c) // 4}e", *struct.unpack(f"<{len(c) // 4}f", c))) for name, (_, shape, c) in exact.items()}
        self.assertEqual(read_safetensors(again / "model.safetensors"), halves)
        self.assertEqual(json.loads((again / "config.json").read_text())["dtype"], "float16")

    def test_a_checkpoint_comes_back_to_the_byte_and_training_resumes(self):
        """Also with master weights; the distributed checkpoint is divided into files."""
        run_ = Run()
        for name, precision in zip("ab", PRECISIONS):
            run_.run(name, train__train_iters=3, train__precision=precision, model__num_layers=1, checkpoint__load=None)
            first = {file: zlib.crc32(content) for file, content in run_.files(name).items()}
            run("convert", "--from", run_.directory / name, "--to", "dcp", "--files", 3, "--output", run_.directory / f"{name}.dcp")
            self.assertEqual(len(list((run_.directory / f"{name}.dcp").glob("*.distcp"))), 3)
            again = f"{name}2"
            run("convert", "--from", run_.directory / f"{name}.dcp", "--to", "model", "--output", run_.directory / again)
            self.assertEqual({file: zlib.crc32(content) for file, content in run_.files(again).items()}, first)
            for source in (run_.directory / name, run_.directory / f"{name}.dcp"):  # these have no place for an optimizer
                for to in ("megatron", "gguf"):
                    _, messages = run("convert", "--from", source, "--to", to, "--output", run_.directory / f"{source.name}.{to}")
                    self.assertNotIn("warning", messages)
            run_.run(again, train__train_iters=4, train__precision=precision, model__num_layers=1)
            self.assertEqual([r["iteration"] for r in run_.records(again)], [4])

    def refuse_in_one_line(self, part, *words, source=None, status=1):
        _, errors = run("convert", "--from", source or self.source, "--output", self.output, *words, expect=status)
        self.assertRegex(errors, "cambium: error: [^\n]*" + re.escape(part) + "[^\n]*\n$")
        self.assertFalse((self.output / "model.safetensors").exists())

    def test_what_does_not_fit_is_refused(self):
        config = ("--config", self.model / "config.json")
        self.refuse_in_one_line("has no config.json: name one with --config", "--to", "model")
        self.refuse_in_one_line("missing tensors", "--to", "model", "--config", MODELS / "qwen3/config.json")
        self.refuse_in_one_line("missing tensors", "--to", "model", "--prefix", "modul", *config)
        self.refuse_in_one_line("does not take --config", "--to", "tensors", *config, status=2)
        self.refuse_in_one_line("does not take --dtype", "--to", "tensors", "--dtype", "bf16", status=2)
        self.refuse_in_one_line("does not take --files", "--to", "model", "--files", 2, *config, status=2)
        self.refuse_in_one_line("does not take --max-shard-size", "--to", "dcp", "--max-shard-size", 50000, status=2)
        self.output.mkdir()
        (self.output / "other").write_text("")
        self.refuse_in_one_line("is not empty and no model directory", "--to", "tensors")

    @counts_memory
    def test_a_list_of_100000_parts_takes_little_memory(self):
        """The list is read, and then the first part, which is missing, is refused."""
        source, count = self.root / "many", 100000
        source.mkdir()
        content, length = torch_list(count, 300)
        (source / ".metadata").write_bytes(content)
        with open(source / "__0_0.distcp", "wb") as file:
            file.truncate(count * length)
        errors, peak = self.measure("--from", source, "--to", "tensors", "--output", self.output, expect=1)
        self.assertIn("__0_0.distcp: byte 1378: expected the end record of a zip", errors)
        self.assertLess(peak, 64 << 20)

    @counts_memory
    def test_tensors_are_in_memory_one_at_a_time(self):
        """Both ways, at most the largest tensor and 32 MB; all five would take more."""
        source, each = self.root / "tensors", 24 << 20
        source.mkdir()
        header = json.dumps({name: {"dtype": "F32", "shape": [each // 4096, 1024], "data_offsets": [i * each, (i + 1) * each]}
                             for i, name in enumerate("abcde")}).encode()
        with open(source / "a.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + 5 * each)
        for kind in ("dcp", "tensors"):
            _, peak = self.measure("--from", source, "--to", kind, "--output", self.root / kind / "out")
            self.assertLess(peak, each + (32 << 20))
            source = self.root / kind / "out"

    def test_two_models_of_one_shape_need_a_prefix(self):
        names = read_safetensors(self.model / "model.safetensors")
        both = self.root / "both"
        both.mkdir()
        write_safetensors(both / "a.safetensors", {f"{prefix}.{name}": t for prefix in ("ema", "module") for name, t in names.items()})
        config = ("--config", self.model / "config.json")
        self.refuse_in_one_line("all parameters are there after 'ema.' and after 'module.': choose with --prefix", "--to", "model", *config,
                                source=both)
        run("convert", "--from", both, "--to", "model", "--prefix", "ema.", *config, "--output", self.output)
        self.assertEqual(read_safetensors(self.output / "model.safetensors"), names)

    def test_parts_that_ranks_wrote_are_joined(self):
        """As HuggingFaceStorageWriter writes them: a part says where it lies."""
        shards, offsets = self.root / "shards", {"w": [[0, 0], [2, 0], [0, 3]], "b": [None, [0], None]}
        parts = {"w": [("F32", [2, 3], floats(range(6))), ("F32", [1, 3], floats(range(6, 9))), ("F32", [3, 1], floats([20, 21, 22]))],
                 "b": [None, ("BOOL", [2], b"\1\0"), None]}
        shards.mkdir()
        for rank in range(3):
            mine = {name: (parts[name][rank], offsets[name][rank]) for name in parts if parts[name][rank]}
            info = json.dumps({name: {"saved_offsets": place} for name, (_, place) in mine.items()})
            write_safetensors(shards / f"shard-{rank + 1:05}-model-00001-of-00001.safetensors", {name: part for name, (part, _) in mine.items()},
                              {"DCP_SHARDING_INFO": info, "DCP_VERSION": "1.0"})
        run("convert", "--from", shards, "--to", "tensors", "--output", self.output)
        self.assertEqual(read_safetensors(self.output / "model.safetensors"),
                         {"w": ("F32", [3, 4], floats([0, 1, 2, 20, 3, 4, 5, 21, 6, 7, 8, 22])), "b": ("BOOL", [2], b"\1\0")})
        _, errors = run("score", "--model", shards, "--input", "/dev/null", expect=1)
        self.assertIn(f"cambium convert --from {shards} --to model --output DIR", errors)
        self.output = self.root / "other"
        write_safetensors(shards / "shard-00001-model-00001-of-00001.safetensors", {}, {})
        self.refuse_in_one_line("the parts of tensor 'w' do not cover it", "--to", "tensors", source=shards)


def single(value):
    """A number in 32 bits."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def q8_0(content):
    """Numbers rounded as the gguf package rounds them."""
    values, out = struct.unpack(f"<{len(content) // 4}f", content), b""
    for group in (values[i:i + 32] for i in range(0, len(values), 32)):
        scale = single(max(map(abs, group)) / 127)
        inverse = single(1 / scale) if scale else 0
        scaled = [single(value * inverse) for value in group]
        out += struct.pack("<e32b", scale, *(int(math.copysign(math.floor(abs(v) + 0.5), v)) for v in scaled))
    return out


class Written(Convert):
    """A model as GGUF has the tensors that llama.cpp's converter makes, and comes back."""

    def to_gguf(self, source, *words):
        self.file.unlink(missing_ok=True)
        run("convert", "--from", source, "--to", "gguf", "--output", self.file, *words)
        return read_gguf(self.file)

    def test_tensors_and_keys_are_those_of_the_converter(self):
        for name in ("llama_biases_linear", "llama_wide_heads", "qwen2_tied", "qwen3", "phi3_partial", "d64_untied", "d8_deep"):
            with self.subTest(name):
                keys, tensors = self.to_gguf(MODELS / name)
                self.assertEqual(tensors, tensors_of(MODELS / name))
                expected = {key: single(value) if isinstance(value, float) else value for key, value in keys_of(MODELS / name).items()}
                self.assertEqual({key: keys[key] for key in expected}, expected)
                run("convert", "--from", self.file, "--to", "model", "--output", self.output)
                self.assertEqual(read_safetensors(self.output / "model.safetensors"), read_safetensors(MODELS / name / "model.safetensors"))

    def test_types(self):
        exact = tensors_of(MODELS / "qwen2_tied")
        for word, kind, change in (("fp16", TENSOR_F16, lambda c: struct.pack(f"<{len(c) // 4}e", *struct.unpack(f"<{len(c) // 4}f", c))),
                                   ("q8_0", TENSOR_Q8_0, q8_0)):
            keys, tensors = self.to_gguf(MODELS / "qwen2_tied", "--dtype", word)
            self.assertEqual(keys["general.file_type"], {"fp16": 1, "q8_0": 7}[word])
            for name, (found, shape, content) in tensors.items():
                as_it_is, fits = len(shape) == 1, word == "fp16" or shape[-1] % 32 == 0
                self.assertEqual(found, TENSOR_F32 if as_it_is else kind if fits else TENSOR_F16, name)
                if not as_it_is and fits:
                    self.assertEqual(content, change(exact[name][2]), name)

    def test_numbers_that_a_group_has_no_scale_for_are_refused(self):
        copy = self.root / "copy"
        shutil.copytree(MODELS / "qwen2_tied", copy)
        tensors = read_safetensors(copy / "model.safetensors")
        name = "model.layers.0.self_attn.o_proj.weight"
        kind, shape, content = tensors[name]
        for value, is_too_large in ((65504.0 * 127, False), (65520.0 * 127, True)):
            write_safetensors(copy / "model.safetensors", tensors | {name: (kind, shape, content[:128] + floats([value]) + content[132:])})
            _, errors = run("convert", "--from", copy, "--to", "gguf", "--dtype", "q8_0", "--output", self.file, expect=int(is_too_large))
            self.assertEqual("a number of 'blk.0.attn_output.weight' in row 1 is too large for its type" in errors, is_too_large)
            self.assertEqual(self.file.exists(), not is_too_large)
            self.file.unlink(missing_ok=True)

    def test_a_mistral_without_windows_is_a_llama(self):
        """llama.cpp knows no other name for it; rows of queries and keys are in its order."""
        mistral, llama = self.root / "mistral", self.root / "llama"
        config = json.loads((MODELS / "mistral_window/config.json").read_text()) | {"sliding_window": None}
        for directory, more in ((mistral, {}), (llama, {"model_type": "llama"})):
            shutil.copytree(MODELS / "mistral_window", directory)
            (directory / "config.json").write_text(json.dumps(config | more))
        keys, tensors = self.to_gguf(mistral)
        self.assertEqual((keys["general.architecture"], keys["llama.context_length"]), ("llama", config["max_position_embeddings"]))
        self.assertNotIn("llama.attention.sliding_window", keys)
        self.assertEqual(tensors, tensors_of(llama))

    def test_llama_3s_scaling_is_a_tensor(self):
        _, tensors = self.to_gguf(MODELS / "llama_3")
        rope = json.loads((MODELS / "llama_3/config.json").read_text())["rope_parameters"]
        kind, (count,), content = tensors["rope_freqs.weight"]
        for i, divisor in enumerate(struct.unpack(f"<{count}f", content)):
            turns = rope["original_max_position_embeddings"] * rope["rope_theta"] ** (-i / count) / (2 * math.pi)
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            smooth = min(1, max(0, (turns - low) / (high - low)))
            self.assertAlmostEqual(divisor, 1 / ((1 - smooth) / rope["factor"] + smooth), delta=1e-5 * divisor)

    def test_a_tokenizer_of_bytes_comes_back(self):
        keys, _ = self.to_gguf(TINY)
        original = json.loads((TINY / "tokenizer.json").read_text())
        for key, value in tokenizer_keys(original, "gpt-2").items():
            self.assertEqual(keys[key][:len(value)] if isinstance(value, list) else keys[key], value, key)
        run("convert", "--from", self.file, "--to", "model", "--output", self.output)
        (self.root / "texts").write_text('{"text": "The tree grows in spring."}\n')
        first, second = (run("score", "--model", model, "--input", self.root / "texts", "--precision", "fp32")[0]
                         for model in (TINY, self.output))
        self.assertEqual(first, second)

    def test_what_the_format_cannot_say_is_refused(self):
        for name, part in (("mistral_window", "a GGUF file of a mistral cannot have windows shorter than its positions"),
                           ("qwen2_yarn_windows", "a GGUF file of a qwen2 cannot have windows"),
                           ("d33_exact", "cannot have this activation")):
            _, errors = run("convert", "--from", MODELS / name, "--to", "gguf", "--output", self.file, expect=1)
            self.assertRegex(errors, "cambium: error: [^\n]*" + re.escape(part) + "[^\n]*\n$")
            self.assertFalse(self.file.exists())
        self.to_gguf(MODELS / "qwen3")
        _, errors = run("convert", "--from", MODELS / "qwen3", "--to", "gguf", "--output", self.file, expect=1)
        self.assertIn("is already there: name another file, or remove it", errors)


class Call:
    """A pickle that would call a function."""
    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


class Megatron(Convert):
    """Checkpoints of Megatron core: layers are stacked, queries, keys and values fused by group, the vocabulary padded."""
    golden = SOURCE / "tests/ckpt/golden/megatron"

    def split(self, tensors, arguments):
        """The tensors under Hugging Face's names."""
        heads, hidden, count = arguments["num_attention_heads"], arguments["hidden_size"], arguments["num_layers"]
        groups = arguments["num_query_groups"] if arguments["group_query_attention"] else heads
        head, is_gpt2, out = arguments["kv_channels"], not arguments["swiglu"], {}

        def part(name, layer=None, rows=None):
            """Rows of a tensor, or of a layer of it."""
            _, shape, content = tensors[name]
            if layer is not None:
                size = len(content) // shape[0]
                shape, content = shape[1:], content[layer * size:(layer + 1) * size]
            size = len(content) // shape[0]
            rows = range(shape[0]) if rows is None else rows
            return "F32", [len(rows), *shape[1:]], b"".join(content[row * size:(row + 1) * size] for row in rows)

        def put(name, value, is_linear=False):
            kind, shape, content = value
            out[name] = (kind, shape[::-1], transposed(*shape, content)) if is_linear and is_gpt2 and len(shape) == 2 else value

        def rows_of(first, heads_of_part):
            return [(group * (heads // groups + 2) + first + i) * head + j for group in range(groups)
                    for i in range(heads_of_part) for j in range(head)]

        queries, keys, values = rows_of(0, heads // groups), rows_of(heads // groups, 1), rows_of(heads // groups + 1, 1)
        vocabulary = range(arguments["vocab_size"])
        top, layers, names = ("transformer.", "h", GPT2) if is_gpt2 else ("model.", "layers", LLAMA)
        put(top + ("wte" if is_gpt2 else "embed_tokens") + ".weight", part("embedding.word_embeddings.weight", rows=vocabulary))
        if is_gpt2:
            put("transformer.wpe.weight", part("embedding.position_embeddings.weight"))
        if arguments["untie_embeddings_and_output_weights"]:
            put("lm_head.weight", part("output_layer.weight", rows=vocabulary))
        for name in tensors:
            module, kind = re.match(r"(.*?)_?(weight|bias)$", name).groups()
            module = module.rstrip(".")
            if name.startswith("decoder.final"):
                put(f"{top}{'ln_f' if is_gpt2 else 'norm'}.{kind}", part(name))
            for layer in range(count if name.startswith("decoder.layers.") else 0):
                inner, prefix = module.removeprefix("decoder.layers."), f"{top}{layers}.{layer}."
                if inner == "self_attention.linear_qkv" and not is_gpt2:
                    for word, rows in (("q", queries), ("k", keys), ("v", values)):
                        put(f"{prefix}self_attn.{word}_proj.{kind}", part(name, layer, rows))
                elif inner == "self_attention.linear_qkv":
                    put(f"{prefix}attn.c_attn.{kind}", part(name, layer, queries + keys + values), True)
                elif inner == "mlp.linear_fc1" and not is_gpt2:
                    for word, first in (("gate", 0), ("up", arguments["ffn_hidden_size"])):
                        put(f"{prefix}mlp.{word}_proj.{kind}", part(name, layer, range(first, first + arguments["ffn_hidden_size"])))
                else:
                    put(f"{prefix}{names[inner]}.{kind}", part(name, layer), "norm" not in inner)
        return out

    def arguments(self, directory):
        """The arguments of a run, in a pickle that this test trusts."""
        with zipfile.ZipFile(self.golden / directory / "common.pt") as archive:
            return vars(pickle.loads(next(archive.read(n) for n in archive.namelist() if n.endswith("/data.pkl")))["args"])

    def test_models_of_core_become_those_of_transformers(self):
        for name, family in (("gpt", "gpt2"), ("gpt_4", "gpt2"), ("llama_4", "llama"), ("qwen2", "qwen2"), ("qwen3_4", "qwen3")):
            with self.subTest(name):
                shutil.rmtree(self.output, ignore_errors=True)
                run("convert", "--from", self.golden / name, "--to", "tensors", "--output", self.output)
                arguments, tensors = self.arguments(name), read_safetensors(self.output / "model.safetensors")
                _, messages = run("convert", "--from", self.golden / name, "--to", "model", "--output", self.root / name)
                config = json.loads((self.root / name / "config.json").read_text())
                self.assertEqual((config["model_type"], config["vocab_size"]), (family, 61))
                self.assertEqual(read_safetensors(self.root / name / "model.safetensors"), self.split(tensors, arguments))
                self.assertIn(f"{4 * arguments['num_layers']} values are no tensors and are skipped", messages)

    def fused(self, tensors):
        """Tensors of a Llama under the names that a Phi-3 has."""
        out, parts = {}, {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
        order = list(parts)
        for name in sorted(tensors, key=lambda n: order.index(n.split(".")[-2]) if n.split(".")[-2] in parts else 0):
            words = name.split(".")
            words[-2] = parts.get(words[-2], words[-2])
            kind, shape, content = tensors[name]
            _, before, head = out.get(".".join(words), (kind, [0], b""))
            out[".".join(words)] = kind, [before[0] + shape[0], *shape[1:]], head + content
        return out

    def test_models_of_every_family_become_those_of_core_and_come_back(self):
        """Layers are stacked, and zero rows pad the vocabulary. The directory has the model's own texts too; without them
        the arguments alone give the same weights."""
        windows = self.root / "qwen2_windows"
        shutil.copytree(MODELS / "qwen2_yarn_windows", windows)
        config = json.loads((windows / "config.json").read_text())
        for key in ("rope_scaling", "rope_parameters"):
            config.pop(key, None)
        (windows / "config.json").write_text(json.dumps(config))
        sources = [MODELS / name for name in ("d64_untied", "d5_tied", "d33_exact", "llama_wide_heads", "qwen2_tied", "qwen3", "phi3_partial", "mistral_window")]
        for source in (*sources, windows):
            with self.subTest(source.name):
                core, whole, back = (self.root / f"{source.name}.{kind}" for kind in ("core", "tensors", "back"))
                run("convert", "--from", source, "--to", "megatron", "--tensor", 2, "--files", 2, "--output", core)
                self.assertEqual(json.loads((core / "metadata.json").read_text()),
                                 json.loads((self.golden / "gpt/metadata.json").read_text()))
                run("convert", "--from", core, "--to", "tensors", "--output", whole)
                tensors, expected = read_safetensors(whole / "model.safetensors"), read_safetensors(source / "model.safetensors")
                arguments = self.arguments(core)
                split = self.split(tensors, arguments)
                self.assertEqual(self.fused(split) if source.name == "phi3_partial" else split, expected)
                _, (rows, columns), content = tensors["embedding.word_embeddings.weight"]
                vocabulary = json.loads((source / "config.json").read_text())["vocab_size"]
                self.assertEqual((rows, arguments["padded_vocab_size"], arguments["vocab_size"]), (256, 256, vocabulary))
                self.assertFalse(any(content[4 * vocabulary * columns:]))
                _, messages = run("convert", "--from", core, "--to", "model", "--output", back)
                self.assertIn(f"{4 * arguments['num_layers']} values are no tensors and are skipped", messages)
                self.assertEqual((back / "model.safetensors").read_bytes(), (source / "model.safetensors").read_bytes())
                self.assertEqual((back / "config.json").read_bytes(), (source / "config.json").read_bytes())
                (core / "config.json").unlink()
                shutil.rmtree(back)
                run("convert", "--from", core, "--to", "model", "--output", back)
                found = read_safetensors(back / "model.safetensors")
                self.assertEqual(self.fused(found) if source.name == "phi3_partial" else found, expected)
                original = json.loads((source / "config.json").read_text())
                for key, value in json.loads((back / "config.json").read_text()).items():
                    if key in original and original[key] is not None and value is not None and not key.endswith(
                            ("model_type", "architectures", "token_id", "_range", "max_window_layers")):
                        self.assertEqual(value, original[key], key)
        shutil.rmtree(back)
        given = self.root / "given.json"
        given.write_text(json.dumps(config | {"sliding_window": 6}))
        run("convert", "--from", core, "--to", "model", "--config", given, "--output", back)
        self.assertEqual((back / "config.json").read_text(), given.read_text())

    def test_what_the_arguments_cannot_say_is_refused(self):
        for name, part in (("llama_3", "cannot have other frequencies and positions in Llama 3's scaling"),
                           ("llama_biases_linear", "cannot have a scaling of positions that is no integer"),
                           ("qwen2_yarn_windows", "cannot have YaRN's scaling of positions")):
            _, errors = run("convert", "--from", MODELS / name, "--to", "megatron", "--output", self.output, expect=1)
            self.assertRegex(errors, "cambium: error: [^\n]*" + re.escape(part) + "[^\n]*\n$")
            self.assertFalse(self.output.exists())
        _, errors = run("convert", "--from", MODELS / "qwen3", "--to", "dcp", "--tensor", 2, "--output", self.output, expect=2)
        self.assertIn("this conversion does not take --tensor", errors)

    def rewrite(self, model="gpt", **changes):
        """A recorded model, a GPT if none is named, with other arguments."""
        copy = self.root / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.golden / model, copy)
        values = self.arguments(model) | changes
        state = {"args": argparse.Namespace(**{key: value for key, value in values.items() if value is not None})}
        with zipfile.ZipFile(copy / "common.pt", "w") as archive:
            archive.writestr("common/data.pkl", pickle.dumps(state, protocol=2))
        return copy

    def test_what_is_not_built_is_refused_by_name(self):
        marker = self.root / "ran"
        for part, changes in {
            "'squared_relu' must be false: this is not built": {"squared_relu": True},
            "'num_experts' must be absent: experts are not built": {"num_experts": 8},
            "'window_size' must be (W, 0), where": {"window_size": (8, 1)},
            "'window_size' must be (W, 0)": {"window_size": 8},
            "'window_attn_skip_freq' must be a number of at least 1": {"window_size": (8, 0), "window_attn_skip_freq": 0},
            "or a list of 1, one for each layer": {"window_size": (8, 0), "window_attn_skip_freq": [1, 1]},
            "model.window_size": {"window_size": (8, 0)},
            "'no_rope_freq' must be absent: this is not built": {"no_rope_freq": [1]},
            "'softmax_type' must be 'vanilla'": {"softmax_type": "learnable"},
            "'glu_linear_offset' must be 0": {"glu_linear_offset": 1.0},
            "'normalization' must be 'LayerNorm' or 'RMSNorm'": {"normalization": "L2Norm"},
            "'position_embedding_type' must be": {"position_embedding_type": "mrope"},
            "num_layers": {"num_layers": None},
            "has the shape [1, 32, 16], but its arguments make it [1, 36, 16]": {"ffn_hidden_size": 36},
            "missing tensor output_layer.weight": {"untie_embeddings_and_output_weights": True},
            "common.pt: 'hidden_size' must be an integer": {"hidden_size": "16"},
        }.items():
            with self.subTest(part):
                source = self.rewrite(**changes)
                _, errors = run("convert", "--from", source, "--to", "model", "--output", self.output, expect=1)
                self.assertRegex(errors, "cambium: error: [^\n]*" + re.escape(part) + "[^\n]*\n$")
                self.assertFalse(self.output.exists())
        source = self.rewrite(attention_backend=argparse.Namespace(), recompute_modules=["mlp"], use_mup=False, softmax_type="vanilla")
        run("convert", "--from", source, "--to", "model", "--output", self.root / "built")
        _, errors = run("convert", "--from", source, "--to", "model", "--config", "missing.json", "--output", self.output, expect=1)
        self.assertIn("missing.json", errors)
        for value in (Call(os.system, f"touch {marker}"), Call(eval, f"open({str(marker)!r}, 'w')")):
            with zipfile.ZipFile(source / "common.pt", "w") as archive:
                archive.writestr("common/data.pkl", pickle.dumps({"args": value}, protocol=2))
            _, errors = run("convert", "--from", source, "--to", "model", "--output", self.output, expect=1)
            self.assertRegex(errors, r"common.pt: byte \d+: expected an argparse.Namespace as args\n$")
            self.assertFalse(marker.exists())

    def test_windows_of_some_or_all_layers(self):
        """Megatron's (W, 0) is a window of W + 1; every Nth layer, or those with 0 in a list, have none."""
        for model, skip, family, full in (("llama_4", None, "mistral", []), ("qwen3_4", 2, "qwen3", [1, 3]),
                                          ("qwen3_4", [0, True, 1, 1], "qwen3", [0]), ("llama_4", 1, "llama", None)):
            shutil.rmtree(self.output, ignore_errors=True)
            source = self.rewrite(model, window_size=(8, 0), window_attn_skip_freq=skip)
            run("convert", "--from", source, "--to", "model", "--output", self.output)
            config = json.loads((self.output / "config.json").read_text())
            self.assertEqual((config["model_type"], config.get("sliding_window")), (family, None if full is None else 9))
            if family == "qwen3":
                self.assertEqual([i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"], full)
        shutil.rmtree(self.output)
        run("convert", "--from", self.rewrite("llama_4", window_size=(-1, -1)), "--to", "model", "--output", self.output)
        self.assertEqual(json.loads((self.output / "config.json").read_text())["model_type"], "llama")

    def test_a_run_names_its_newest_checkpoint(self):
        parent = self.root / "run"
        shutil.copytree(self.golden / "gpt", parent / "iter_0000007")
        (parent / "latest_checkpointed_iteration.txt").write_text("7")
        _, messages = run("convert", "--from", parent, "--to", "model", "--output", self.output)
        self.assertIn("run/iter_0000007: a distributed checkpoint", messages)
        (parent / "latest_checkpointed_iteration.txt").write_text("seven")
        _, errors = run("convert", "--from", parent, "--to", "model", "--output", self.output, expect=1)
        self.assertIn("expected a number or 'release'", errors)


# Modules within a layer, in Megatron core's names and in those of transformers.
GPT2 = {"self_attention.linear_qkv.layer_norm": "ln_1", "mlp.linear_fc1.layer_norm": "ln_2", "self_attention.linear_proj": "attn.c_proj",
        "mlp.linear_fc1": "mlp.c_fc", "mlp.linear_fc2": "mlp.c_proj"}
LLAMA = {"self_attention.linear_qkv.layer_norm": "input_layernorm", "mlp.linear_fc1.layer_norm": "post_attention_layernorm",
         "self_attention.linear_proj": "self_attn.o_proj", "mlp.linear_fc2": "mlp.down_proj", "self_attention.q_layernorm": "self_attn.q_norm",
         "self_attention.k_layernorm": "self_attn.k_norm"}


class Refusals(Convert):
    def test_numbers_that_are_not_finite_and_damaged_tokenizers_become_nothing(self):
        source = self.root / "source"
        shutil.copytree(TINY, source)
        good = {name: (source / name).read_bytes() for name in ("model.safetensors", "tokenizer.json")}
        tensors = read_safetensors(source / "model.safetensors")
        name = next(iter(tensors))
        kind, shape, content = tensors[name]
        write_safetensors(source / "model.safetensors", tensors | {name: (kind, shape, struct.pack("<f", math.nan) + content[4:])})
        for is_damaged in (False, True):
            for to in ("model", "dcp", "megatron", "gguf", *(() if is_damaged else ("tensors",))):  # which has no tokenizer
                target = self.root / ("out.gguf" if to == "gguf" else "out")
                _, errors = run("convert", "--from", source, "--to", to, "--output", target, expect=1)
                self.assertRegex(errors, "\ncambium: error: [^\n]*" + ("tokenizer.json" if is_damaged else re.escape(name) + "[^\n]*nan") + "[^\n]*\n$", to)
                self.assertFalse(target.exists())
            (source / "model.safetensors").write_bytes(good["model.safetensors"])
            (source / "tokenizer.json").write_bytes(good["tokenizer.json"][:-20])

    def test_hostile_models(self):
        source = MODELS / "llama_wide_heads"
        keys, tensors = keys_of(source) | byte_tokens(VOCABULARY), tensors_of(source)
        short = tensors["blk.0.attn_q.weight"]
        for part, more in {
            "the architecture 'mamba' is not supported (supported: gpt2, llama": {"general.architecture": "mamba"},
            "a model of experts is not supported": {"llama.expert_count": 8},
            "'llama.block_count' must be an integer from 1 to 10000": {"llama.block_count": 1 << 30},
            "there is no tensor 'blk.2.attn_norm.weight'": {"llama.block_count": 3},
            "'llama.attention.head_count' must be an integer": {"llama.attention.head_count": [4, 4]},
            "'llama.logit_scale' is not supported": {"llama.logit_scale": 2.0},
            "'llama.rope.scaling.type' is longrope, which is not supported": {"llama.rope.scaling.type": "longrope",
                                                                              "llama.rope.scaling.factor": 2.0},
            "is not divisible by": {"llama.attention.head_count": 7, "llama.attention.head_count_kv": 2},
            "has the shape [": {"llama.feed_forward_length": 8},
        }.items():
            with self.subTest(part):
                self.refuse(part, keys | more, tensors)
        self.refuse("tensor 'blk.0.more.weight' belongs to no parameter", keys, tensors | {"blk.0.more.weight": short})
        self.refuse("the key 'llama.block_count' is missing", {k: v for k, v in keys.items() if k != "llama.block_count"}, tensors)
        values = floats([float("nan")] * (len(short[2]) // 4))
        self.refuse("tensor 'blk.0.attn_q.weight': element 0 is nan", keys, tensors | {"blk.0.attn_q.weight": (*short[:2], values)})

    def test_a_file_that_is_cut_writes_nothing(self):
        source = MODELS / "qwen2_tied"
        write_gguf(self.file, keys_of(source) | byte_tokens(VOCABULARY), tensors_of(source))
        whole = self.file.read_bytes()
        for share in (0.01, 0.3, 0.99):
            self.file.write_bytes(whole[:int(len(whole) * share)])
            _, errors = run("convert", "--from", self.file, "--to", "model", "--output", self.output, expect=1)
            self.assertRegex(errors, r"the file ends after|exceeds the file")
            self.assertFalse(self.output.exists())

    def test_a_model_that_is_no_directory_says_what_to_do(self):
        for command in (("generate", "--prompt", "a"), ("score", "--input", "/dev/null")):
            _, errors = run(command[0], "--model", "owner/name-1B", *command[1:], expect=1, cwd=self.root)
            self.assertIn("there is no directory owner/name-1B, and nothing is fetched from a hub: download the model first "
                          "(hf download owner/name-1B --local-dir DIR)", errors)
            _, errors = run(command[0], "--model", "./name", *command[1:], expect=1, cwd=self.root)
            self.assertNotIn("hub", errors)
            for name in ("missing.gguf", "owner/Missing.GGUF"):
                _, errors = run(command[0], "--model", name, *command[1:], expect=1, cwd=self.root)
                self.assertIn(f"there is no file {name}, and nothing is fetched from a hub: download it first", errors)


if __name__ == "__main__":
    unittest.main()
