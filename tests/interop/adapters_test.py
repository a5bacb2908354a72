"""Adapters, both ways, against a live peft: what it wrote is used, saved again and merged; it opens what finetune wrote."""
import json
import math
import unittest
import warnings

import torch
from interop_support import SEED, Case, logprobs, random_gpt2, score
from model_support import write_byte_tokenizer
from peft import (IA3Config, LoraConfig, PeftConfig, PeftModel, PrefixTuningConfig, PromptEncoderConfig,
                  PromptTuningConfig, get_peft_model, get_peft_model_state_dict)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

VIRTUAL, LAYERS, POSITIONS, VOCABULARY = 5, 3, 40, 257
# Keys that do not affect the computation, or are spelled differently.
SILENT = {"base_model_name_or_path", "peft_version", "inference_mode", "init_lora_weights", "init_weights", "task_type",
          "lora_dropout", "prompt_tuning_init", "prefix_projection", "encoder_hidden_size", "token_dim", "num_layers",
          "num_attention_heads", "layers_pattern", "target_modules", "exclude_modules", "feedforward_modules"}


def lora(r=4, lora_alpha=8, target_modules=("c_attn",), **more):
    targets = target_modules if isinstance(target_modules, str) else list(target_modules)
    return LoraConfig(**({"task_type": "CAUSAL_LM", "r": r, "lora_alpha": lora_alpha, "fan_in_fan_out": True,
                          "target_modules": targets} | more))


def ia3(**more):
    return IA3Config(**({"task_type": "CAUSAL_LM", "fan_in_fan_out": True} | more))


def virtual(kind, **more):
    return kind(task_type="CAUSAL_LM", num_virtual_tokens=VIRTUAL, **more)


WEIGHTS = {  # methods that can be merged
    "lora": lora,
    "lora-all-linear": lambda: lora(target_modules="all-linear", lora_dropout=0.1),
    "lora-expression": lambda: lora(target_modules=r".*\.h\.[02]\.(?:attn\.c_proj|mlp\.c_fc)"),
    "lora-digits": lambda: lora(target_modules=r"transformer\.h\.[\d]+\.mlp\.c_\w+"),
    "lora-patterns": lambda: lora(target_modules=["c_attn", "c_fc", "mlp.c_proj"],
                                  rank_pattern={"h.1.attn.c_attn": 2, "c_fc": 6, r"h\.[02]\.mlp\.c_proj": 3},
                                  alpha_pattern={"h.0.attn.c_attn": 16, "h.2.mlp.c_fc": 3}),
    "lora-layers": lambda: lora(target_modules=["c_attn", "c_fc"], layers_to_transform=[0, 2], layers_pattern="h"),
    "lora-one-layer": lambda: lora(target_modules=["c_proj"], layers_to_transform=1),
    "lora-exclude": lambda: lora(target_modules=["c_proj", "c_attn"], exclude_modules=["attn.c_proj"]),
    "lora-exclude-expression": lambda: lora(target_modules="all-linear", exclude_modules=r".*\.h\.1\..*|.*c_fc"),
    "lora-whole-paths": lambda: lora(target_modules=["transformer.h.0.attn.c_attn", "h.1.mlp.c_fc", "transformer.h.2.mlp.c_proj"]),
    "lora-one-rank": lambda: lora(r=1, lora_alpha=3),
    "lora-wide": lambda: lora(r=100, lora_alpha=16),
    "lora-gaussian": lambda: lora(init_lora_weights="gaussian"),
    "rslora": lambda: lora(target_modules=["c_proj"], use_rslora=True),
    "rslora-patterns": lambda: lora(use_rslora=True, rank_pattern={"h.1.attn.c_attn": 9}, alpha_pattern={"h.1.attn.c_attn": 5}),
    "dora": lambda: lora(use_dora=True),
    "dora-all-linear": lambda: lora(target_modules="all-linear", use_dora=True, use_rslora=True),
    "ia3": ia3,
    "ia3-attention": lambda: ia3(target_modules=["c_attn"], feedforward_modules=[]),
    "ia3-outputs": lambda: ia3(target_modules=["c_attn", "c_fc", "c_proj"], feedforward_modules=[]),
    "ia3-inputs": lambda: ia3(target_modules=["c_attn", "c_fc", "c_proj"], feedforward_modules=["c_fc", "c_proj"]),
    "ia3-all-inputs": lambda: ia3(target_modules=["c_attn", "c_fc", "c_proj"],
                                  feedforward_modules=["c_attn", "c_fc", "c_proj"]),
    "ia3-expressions": lambda: ia3(target_modules=r".*\.(c_attn|c_proj)", feedforward_modules=r".*\.mlp\.c_proj"),
    "ia3-exclude": lambda: ia3(target_modules=["c_attn", "c_proj"], feedforward_modules=["c_proj"],
                               exclude_modules=["h.1.attn.c_proj"]),
}
VIRTUALS = {
    "prompt": lambda: virtual(PromptTuningConfig),
    "ptuning-mlp": lambda: virtual(PromptEncoderConfig, encoder_hidden_size=20),
    "ptuning-lstm": lambda: virtual(PromptEncoderConfig, encoder_hidden_size=8, encoder_num_layers=2,
                                    encoder_reparameterization_type="LSTM"),
    "prefix": lambda: virtual(PrefixTuningConfig),
    "prefix-projection": lambda: virtual(PrefixTuningConfig, prefix_projection=True, encoder_hidden_size=12),
}
ENCODED = ("ptuning-mlp", "ptuning-lstm", "prefix-projection")  # peft saves what the encoder made, not the encoder
# finetune's words for them.
TUNED = {
    "lora": [], "lora-all-linear": ["--peft.target_modules=all-linear", "--peft.r=3", "--peft.lora_alpha=5.5"],
    "lora-patterns": ["--peft.target_modules", "c_attn", "c_fc", "--peft.rank_pattern", "c_fc=6", "h.1.attn.c_attn=2",
                      "--peft.alpha_pattern", "h.0.attn.c_attn=16"],
    "lora-exclude": ["--peft.target_modules", "c_proj", "c_attn", "--peft.exclude_modules=attn.c_proj",
                     "--peft.layers_to_transform", "0", "2"],
    "lora-expression": [r"--peft.target_modules=.*\.h\.[02]\.(attn\.c_proj|mlp\.c_fc)"],
    "rslora": ["--peft.target_modules=c_proj", "--peft.use_rslora=true", "--peft.lora_dropout=0.1"],
    "dora": ["--peft.target_modules=all-linear", "--peft.use_dora=true"],
    "ia3": [], "ia3-attention": ["--peft.target_modules=c_attn", "--peft.feedforward_modules=none"],
    "ia3-inputs": ["--peft.target_modules", "c_attn", "c_fc", "c_proj", "--peft.feedforward_modules", "c_fc", "c_proj"],
    "prompt": [], "prompt-random": ["--peft.prompt_tuning_init=RANDOM"],
    "prompt-text": ["--peft.prompt_tuning_init=TEXT", "--peft.prompt_tuning_init_text=Say it:"],
    "ptuning-mlp": ["--peft.encoder_hidden_size=20"],
    "ptuning-lstm": ["--peft.encoder_hidden_size=8", "--peft.encoder_reparameterization_type=LSTM"],
    "prefix": [], "prefix-projection": ["--peft.prefix_projection=true", "--peft.encoder_hidden_size=12"],
}


def randomise(model):
    """Values none of which is the neutral start of its method."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "ia3_l" in name:
                parameter.copy_(1 + 0.3 * noise)
            elif "lora_magnitude" in name:  # starts as the norms of the weight's rows
                parameter.mul_(1 + 0.2 * noise)
            elif "lora_" in name:
                parameter.copy_(0.2 * noise)
            elif "prompt_encoder" in name:
                parameter.copy_(0.5 * noise)


class Adapters(Case):
    weights, virtuals, tuned = WEIGHTS, VIRTUALS, TUNED

    def random_base(self):
        return random_gpt2(1, n_layer=LAYERS, n_positions=POSITIONS, vocab_size=VOCABULARY)

    def setUp(self):
        super().setUp()
        self.base = self.directory / "base"
        self.random_base().save_pretrained(self.base)
        (self.base / "generation_config.json").unlink(missing_ok=True)
        write_byte_tokenizer(self.base)
        self.data = self.directory / "rows.jsonl"
        self.data.write_text("".join(json.dumps({"prompt": f"{i}+1=", "completion": f"{i + 1}"}) + "\n" for i in range(40)))
        generator = torch.Generator().manual_seed(SEED)
        self.rows = [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in (2, 17, POSITIONS - VIRTUAL)]

    def open_base(self, directory=None):
        return AutoModelForCausalLM.from_pretrained(directory or self.base)

    def write(self, name, config, adapter="default"):
        """An adapter of peft's, random, in files of its own; the model that has it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = get_peft_model(self.open_base(), config, adapter_name=adapter).eval()
        torch.manual_seed(SEED * 1000 + len(name))
        randomise(model)
        model.save_pretrained(self.directory / name, save_embedding_layers=False)
        # An encoder is not in the files, and what was saved is what counts.
        again = PeftModel.from_pretrained(self.open_base(), self.directory / name / ("" if adapter == "default" else adapter))
        return again.double().eval()

    def expected(self, model):
        """Logarithms of each token's probability; of the first one only after virtual tokens of the embedding."""
        found = []
        for row in self.rows:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([row])).logits[0].log_softmax(-1)
            first = logits.shape[0] - len(row)
            following = [logits[i + first, t].item() for i, t in enumerate(row[1:])]
            found.append([logits[first - 1, row[0]].item() if first else None, *following])
        return found

    def assert_alike(self, model, *words, base=None):
        ours = score(self, base or self.base, self.rows, "--precision", "fp32", *words)
        for mine, theirs in zip(ours, self.expected(model), strict=True):
            if theirs[0] is not None and mine[0] is not None:
                self.assertLess(abs(mine[0] - theirs[0]), 1e-5 * max(1, abs(theirs[0])))
            self.assert_near([None, *mine[1:]], [None, *theirs[1:]])

    def tune(self, name, *words):
        self.run_program("finetune", "--model", self.base, "--data", self.data, "--output", self.directory / name,
                         "--train.global_batch_size=4", "--train.precision=fp32", *words)
        return self.directory / name


class WrittenByPeft(Adapters):
    def assert_same_config(self, one, other):
        """Equal keys that count, as peft reads them."""
        a, b = (PeftConfig.from_pretrained(directory) for directory in (one, other))
        self.assertIs(type(a), type(b))
        for key in set(a.to_dict()) - SILENT:
            x, y = (value if key != "layers_to_transform" or not isinstance(value, int) else [value]
                    for value in (getattr(a, key), getattr(b, key)))
            self.assertEqual(x, y, key)
        for key in ("target_modules", "exclude_modules", "feedforward_modules"):
            x, y = (getattr(config, key, None) for config in (a, b))
            self.assertEqual(x if isinstance(x, str) else set(x or ()), y if isinstance(y, str) else set(y or ()), key)
        written = [json.loads((directory / "adapter_config.json").read_text()) for directory in (one, other)]
        self.assertEqual(set(written[1]) - set(written[0]), set())

    def test_score_agrees(self):
        for name, config in (self.weights | self.virtuals).items():
            with self.subTest(name):
                self.assert_alike(self.write(name, config()), "--adapter", self.directory / name)

    def test_it_is_saved_as_it_was(self):
        for name, config in (self.weights | self.virtuals).items():
            if name in ENCODED:
                continue
            with self.subTest(name):
                self.write(name, config())
                path = self.directory / name
                again = self.tune(f"{name}-again", "--init-adapter", path, "--optim.lr=0", "--train.train_iters=1")
                before, after = (load_file(p / "adapter_model.safetensors") for p in (path, again))
                self.assertEqual(before.keys(), after.keys())
                for tensor in before:
                    self.assertTrue(torch.equal(before[tensor], after[tensor]), tensor)
                self.assert_same_config(path, again)

    def test_virtual_tokens_go_on_without_the_encoder_that_peft_did_not_save(self):
        for name in self.virtuals.keys() & set(ENCODED):
            with self.subTest(name):
                model = self.write(name, self.virtuals[name]())
                again = self.tune(f"{name}-again", "--init-adapter", self.directory / name, "--optim.lr=0", "--train.train_iters=1")
                before, after = (load_file(p / "adapter_model.safetensors") for p in (self.directory / name, again))
                self.assertEqual(before.keys(), after.keys())
                self.assertTrue(torch.equal(before["prompt_embeddings"], after["prompt_embeddings"]))
                second = PeftModel.from_pretrained(self.open_base(), again).double().eval()
                self.assertEqual(self.expected(model), self.expected(second))

    def test_merged_models_agree(self):
        for name, config in self.weights.items():
            with self.subTest(name):
                model = self.write(name, config()).merge_and_unload()
                output = self.directory / f"{name}-merged"
                self.run_program("merge", "--model", self.base, "--adapter", self.directory / name, "--output", output)
                theirs = self.expected(model.double())
                opened, told = AutoModelForCausalLM.from_pretrained(output, output_loading_info=True)
                self.assertEqual((set(told["missing_keys"]), set(told["unexpected_keys"])), (set(), set()))
                opened = opened.double().eval()
                for row, expected in zip(self.rows, theirs, strict=True):
                    self.assert_near(logprobs(opened, row), expected)

    def test_no_key_that_peft_writes_is_unknown(self):
        for name, config in (self.weights | self.virtuals).items():
            with self.subTest(name):
                self.write(name, config())
                self.assertEqual(self.warnings_of(self.directory / name), "")

    def warnings_of(self, path, expect=0):
        return self.fail_program("adapter", "show", path, expect=expect)


class OtherForms(Adapters):
    def test_names_types_and_forms_of_other_versions(self):
        model = self.write("named", lora(target_modules="all-linear"), adapter="polite")
        self.assert_alike(model, "--adapter", self.directory / "named/polite")
        self.assert_alike(model, "--adapter", self.directory / "named")  # a parent with this one adapter
        for name, config in (("lora", lora), ("dora", WEIGHTS["dora"]), ("ia3", ia3), ("prompt", VIRTUALS["prompt"])):
            for form in ("half", "bf16", "double", "bare", "infix", "no-metadata", "false-fan", "oldest", "task-none"):
                if form == "task-none" and name == "prompt":  # which peft itself then passes over
                    continue
                with self.subTest(name=name, form=form):
                    model = self.write(name, config())
                    path = self.directory / name
                    self.change(path, form)
                    if form in ("half", "bf16"):
                        model = PeftModel.from_pretrained(self.open_base(), path).double().eval()
                    self.assert_alike(model, "--adapter", path)

    def change(self, path, form):
        tensors = load_file(path / "adapter_model.safetensors")
        config = json.loads((path / "adapter_config.json").read_text())
        kind = {"half": torch.float16, "bf16": torch.bfloat16, "double": torch.float64}.get(form)
        if kind:
            tensors = {name: tensor.to(kind) for name, tensor in tensors.items()}
        elif form == "bare":  # of an adapter that was trained on a GPT2Model
            tensors = {name.replace("model.transformer.h.", "model.h."): tensor for name, tensor in tensors.items()}
        elif form == "infix":
            tensors = {name.replace(".weight", ".default.weight").replace("_vector", "_vector.default.weight")
                       .replace("ia3_l", "ia3_l.default"): tensor for name, tensor in tensors.items()}
        elif form == "false-fan" and "fan_in_fan_out" in config:
            config["fan_in_fan_out"] = False
        elif form == "oldest":  # peft 0.3: few keys, and two that are gone
            kept = ("base_model_name_or_path", "bias", "fan_in_fan_out", "inference_mode", "lora_alpha", "lora_dropout",
                    "modules_to_save", "peft_type", "r", "target_modules", "feedforward_modules", "task_type",
                    "num_virtual_tokens", "num_transformer_submodules", "token_dim", "num_layers", "use_dora",
                    "num_attention_heads")
            config = {key: config[key] for key in kept if key in config and (key != "use_dora" or config[key])}
            config |= {"enable_lora": None, "merge_weights": False}
        elif form == "task-none":
            config["task_type"] = None
        save_file(tensors, path / "adapter_model.safetensors", metadata=None if form == "no-metadata" else {"format": "pt"})
        (path / "adapter_config.json").write_text(json.dumps(config))

    def test_what_would_compute_something_else_is_refused_by_its_key(self):
        """Each as peft writes it."""
        for key, config in (
                ("modules_to_save", lambda: lora(modules_to_save=["lm_head"])), ("bias", lambda: lora(bias="lora_only")),
                ("bias", lambda: lora(bias="all")), ("lora_bias", lambda: lora(lora_bias=True)),
                ("trainable_token_indices", lambda: lora(trainable_token_indices=[1, 2])),
                ("alora_invocation_tokens", lambda: lora(alora_invocation_tokens=[3])),
                ("layer_replication", lambda: lora(layer_replication=[[0, 2], [1, 3]])),
                ("modules_to_save", lambda: ia3(modules_to_save=["ln_f"])),
                ("target_modules", lambda: lora(target_modules=["wte"]))):
            with self.subTest(key=key):
                try:
                    self.write("other", config())
                except (ValueError, TypeError, AttributeError, NotImplementedError):  # not for GPT-2
                    continue
                errors = self.fail_program("score", "--model", self.base, "--input", "-", "--adapter",
                                           self.directory / "other", expect=(1, 2))
                self.assertIn(key, errors.splitlines()[-1])


class WrittenByFinetune(Adapters):
    def test_peft_opens_it_and_gives_the_same(self):
        for name, words in self.tuned.items():
            with self.subTest(name):
                method = {"rslora": "lora", "dora": "lora"}.get(name, name.split("-")[0])
                more = [f"--peft.num_virtual_tokens={VIRTUAL}"] if method in ("prompt", "ptuning", "prefix") else []
                path = self.tune(name, "--peft", method, "--optim.lr=2e-2", "--train.train_iters=4", *words, *more)
                with warnings.catch_warnings():  # of missing or unexpected keys
                    warnings.simplefilter("error", UserWarning)
                    model = PeftModel.from_pretrained(self.open_base(), path)
                file, read = load_file(path / "adapter_model.safetensors"), get_peft_model_state_dict(
                    model, save_embedding_layers=False)
                self.assertEqual(file.keys(), read.keys())
                for tensor in file:
                    self.assertTrue(torch.equal(file[tensor], read[tensor]), tensor)
                    self.assertTrue(math.isfinite(file[tensor].abs().sum().item()))
                self.assert_alike(model.double().eval(), "--adapter", path)
                if method in ("lora", "ia3"):
                    self.check_merge(model, path)

    def check_merge(self, model, path):
        output = path.with_name(path.name + "-merged")
        self.run_program("merge", "--model", self.base, "--adapter", path, "--output", output)
        opened, merged = self.open_base(output).double().eval(), model.merge_and_unload().double().eval()
        for row in self.rows:
            self.assert_near(logprobs(opened, row), logprobs(merged, row))


if __name__ == "__main__":
    unittest.main()
