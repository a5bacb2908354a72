"""Tensors that contradict config.json are refused by name, in every family and by every command that opens a model; what
belongs to no family is ignored with one line."""
import json
import pathlib
import shutil
import tempfile
import unittest

from model_support import SOURCE, count, gpt2_config, read_safetensors, run, write_byte_model, write_model, write_safetensors

FAMILIES = {"gpt2": SOURCE / "tests/peft/golden/base",
            **{name: SOURCE / f"tests/peft/families/{name}/base" for name in ("llama", "mistral", "qwen2", "qwen3", "phi3")}}
LORA = SOURCE / "tests/peft/golden/lora"
TRAIN = ("--train.train_iters=2", "--train.micro_batch_size=1", "--train.global_batch_size=1", "--optim.lr=1e-3", "--data.seq_length=8")
WRONG = ": one of the two is wrong\n"


def zeros(*shape):
    return "F32", shape, bytes(4 * count(shape))


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(temporary.cleanup)
        self.top = pathlib.Path(temporary.name)
        self.model = self.top / "model"

    def copy(self, base, keys=None, **tensors):
        """A copy of a model with more keys and tensors; None takes one away."""
        shutil.rmtree(self.model, ignore_errors=True)
        shutil.copytree(base, self.model)
        config = json.loads((base / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps(config | (keys or {})))
        all_tensors = read_safetensors(base / "model.safetensors") | tensors
        write_safetensors(self.model / "model.safetensors", {name: t for name, t in all_tensors.items() if t})

    def generate(self, expect=0):
        return run("generate", "--model", self.model, "--prompt-tokens", 1, 2, "--max-new-tokens", 2, expect=expect)

    def refuse(self, name, reason):
        output, errors = self.generate(expect=1)
        self.assertEqual(output, b"")
        line = errors.splitlines(keepends=True)[-1]
        self.assertIn(f"model.safetensors: tensor '{name}' {reason}", line)
        self.assertTrue(line.endswith(WRONG), line)

    def accept(self, base=None):
        """As many bytes as without what was added; returns what was said."""
        output, errors = self.generate()
        self.copy(base) if base else None
        self.assertEqual(output, self.generate()[0])
        return errors


class Names(Case):
    def test_a_layer_beyond_the_last(self):
        for family, base in FAMILIES.items():
            layer = "transformer.h" if family == "gpt2" else "model.layers"
            tensors = read_safetensors(base / "model.safetensors")
            layers = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith(f"{layer}."))
            for number in (layers, layers + 70, 10 ** 30):
                self.copy(base, **{f"{layer}.{number}.anything.weight": zeros(3)})
                shown = min(number, 2 ** 31 - 1)
                self.refuse(f"{layer}.{number}.anything.weight",
                            f"is of layer {shown}, but the configuration has {layers} layer{'s' if layers > 1 else ''}")
            self.copy(base, {"n_layer" if family == "gpt2" else "num_hidden_layers": layers - 1} | ({"layer_types": None} if family != "gpt2" else {}))
            if layers > 1:
                self.refuse(min(name for name in tensors if name.startswith(f"{layer}.{layers - 1}.")), f"is of layer {layers - 1}")

    def test_a_bias_that_the_configuration_denies(self):
        denied = {"gpt2": "lm_head", "llama": "model.layers.0.self_attn.q_proj", "mistral": "model.layers.0.mlp.up_proj",
                  "qwen2": "model.layers.0.self_attn.o_proj", "qwen3": "model.layers.0.self_attn.k_proj",
                  "phi3": "model.layers.0.self_attn.qkv_proj"}
        for family, base in FAMILIES.items():
            for name in (denied[family], "transformer.ln_f.x" if family == "gpt2" else "model.norm"):
                name = name.removesuffix(".x")
                if f"{name}.bias" in read_safetensors(base / "model.safetensors"):
                    continue
                self.copy(base, **{f"{name}.bias": zeros(4)})
                self.refuse(f"{name}.bias", "is a bias that the configuration denies")
        self.copy(FAMILIES["llama"], {"attention_bias": True})
        self.assertIn("missing tensors", self.generate(expect=1)[1])

    def test_a_bias_of_gpt2_that_is_denied_is_zero(self):
        config = gpt2_config(add_bias_linear=False)
        biases = {f"transformer.h.0.{module}.bias": zeros(size)
                  for module, size in (("attn.c_attn", 24), ("attn.c_proj", 8), ("mlp.c_fc", 32), ("mlp.c_proj", 8))}
        write_model(self.model, config, **biases)
        self.generate()
        for name, (kind, shape, data) in biases.items():
            write_model(self.model, config, **biases | {name: (kind, shape, data[:-4] + b"\0\0\x80\x3f")})
            self.refuse(name, "is not zero, but the configuration denies this bias")

    def test_a_head_that_differs_from_the_tied_one(self):
        for family, base in FAMILIES.items():
            embedding = "transformer.wte.weight" if family == "gpt2" else "model.embed_tokens.weight"
            kind, shape, data = read_safetensors(base / "model.safetensors")[embedding]
            for length in (4, len(data)):
                head = bytes(b ^ 1 for b in data[:length]) + data[length:]
                self.copy(base, {"tie_word_embeddings": True}, **{"lm_head.weight": (kind, shape, head)})
                self.refuse("lm_head.weight", f"differs from '{embedding}', but config.json ties them (\"tie_word_embeddings\")")
            self.copy(base, {"tie_word_embeddings": True}, **{"lm_head.weight": (kind, [shape[0] * shape[1]], data)})
            self.refuse("lm_head.weight", "differs")
            self.copy(base, {"tie_word_embeddings": True}, **{"lm_head.weight": (kind, shape, data)})
            output, errors = self.generate()
            self.assertEqual(errors, "")  # equal, as in many files
            self.copy(base, {"tie_word_embeddings": True}, **{"lm_head.weight": None})
            self.assertEqual(self.generate()[0], output)

    def test_parts_of_other_families_and_names_that_are_there_twice(self):
        self.copy(FAMILIES["llama"], **{"model.layers.0.self_attn.q_norm.weight": zeros(4)})
        self.refuse("model.layers.0.self_attn.q_norm.weight", "is a model's, but the configuration has no place for it")
        self.copy(FAMILIES["llama"], **{"model.layers.0.self_attn.q_proj.lora_A.weight": zeros(4)})
        self.refuse("model.layers.0.self_attn.q_proj.lora_A.weight", "is a model's")
        self.copy(FAMILIES["phi3"], **{"model.layers.0.mlp.up_proj.weight": zeros(4)})
        self.refuse("model.layers.0.mlp.up_proj.weight", "is a model's")
        self.copy(FAMILIES["gpt2"], **{"model.layers.0.mlp.up_proj.weight": zeros(4)})
        self.refuse("model.layers.0.mlp.up_proj.weight", "is a model's")
        tensors = read_safetensors(FAMILIES["gpt2"] / "model.safetensors")
        self.copy(FAMILIES["gpt2"], **{"wpe.weight": tensors["transformer.wpe.weight"]})
        self.refuse("wpe.weight", "is there twice, under two names")

    def test_buffers_are_silent_and_strangers_are_one_line(self):
        for family, base in FAMILIES.items():
            buffers = ("transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias") if family == "gpt2" else \
                ("model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
            self.copy(base, **{name: zeros(1, 2) for name in buffers})
            self.assertEqual(self.accept(base), "")
            self.copy(base, **{"v_head.summary.weight": zeros(3)})
            self.assertEqual(self.accept(base), f"cambium: warning: {self.model}: tensor 'v_head.summary.weight' is not a parameter of a model "
                                                "and is ignored\n")
            self.copy(base, **{name: zeros(3) for name in ("score.weight", "hx.9.weight", "layers", "model.layers.0.other.bias")})
            self.assertEqual(self.accept(base), f"cambium: warning: {self.model}: 4 tensors are not parameters of a model and are ignored, "
                                                "the first is 'hx.9.weight'\n")


class Commands(Case):
    def test_every_command_that_opens_a_model_refuses(self):
        name = "transformer.h.1.ln_1.weight"
        write_byte_model(self.model)
        write_safetensors(self.model / "model.safetensors", read_safetensors(self.model / "model.safetensors") | {name: zeros(8)})
        rows, out = self.top / "rows.jsonl", self.top / "out"
        rows.write_text('{"prompt": "a", "completion": "b"}\n' * 8)
        (self.top / "text.txt").write_text("some words\n" * 200)
        run("preprocess", "--input", self.top / "text.txt", "--tokenizer", self.model, "--output-prefix", self.top / "data")
        data = self.top / "data_text_document"
        for words in (["generate", "--requests", "-"], ["score", "--input", "-"], ["serve", "--listen", "127.0.0.1:0"],
                      ["finetune", "--peft", "lora", "--data", rows, "--output", out, *TRAIN], ["merge", "--adapter", LORA, "--output", out]):
            with self.subTest(words[0]):
                self.check(name, [words[0], "--model", self.model, *words[1:]])
        self.check(name, ["pretrain", "--init-from", self.model, "--data.data_path", data, "--checkpoint.save", out, *TRAIN])
        self.assertFalse(out.exists())

    def check(self, name, words):
        output, errors = run(*words, expect=1)
        self.assertEqual(output, b"")
        lines = [line for line in errors.splitlines() if "error" in line]
        self.assertEqual(len(lines), 1, errors)
        self.assertIn(f"model.safetensors: tensor '{name}' is of layer 1, but the configuration has 1 layer", lines[0])

    def test_an_adapter_for_what_the_model_lacks(self):
        for name, part in (("h.9", "layer beyond"), ("c_proj", "module that is no target")):
            adapter = self.top / part
            shutil.copytree(LORA, adapter)
            tensors = read_safetensors(LORA / "adapter_model.safetensors")
            first = sorted(tensors)[0]
            other = first.replace("h.0", name) if "h." in name else first.replace("c_attn", name)
            write_safetensors(adapter / "adapter_model.safetensors", tensors | {other: tensors[first]})
            for words in (["generate", "--prompt-tokens", 1], ["score", "--input", "-"], ["merge", "--output", self.top / "out"]):
                _, errors = run(words[0], "--model", FAMILIES["gpt2"], "--adapter", adapter, *words[1:], expect=1)
                self.assertIn(f"unknown tensor: {other}", errors)
            self.assertFalse((self.top / "out").exists())


if __name__ == "__main__":
    unittest.main()
