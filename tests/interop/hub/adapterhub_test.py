"""Bottleneck adapters, both ways, against a live `adapters` of AdapterHub, which needs an older transformers than peft."""
import json
import unittest

import adapters
import torch
from interop_support import SEED, Case, logprobs, random_gpt2, random_model, score
from model_support import write_byte_tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

POSITIONS, VOCABULARY = 40, 257
CONFIGS = {
    "double_seq_bn": adapters.DoubleSeqBnConfig(),
    "seq_bn": adapters.SeqBnConfig(),
    "par_bn": adapters.ParBnConfig(),
    "gelu": adapters.DoubleSeqBnConfig(non_linearity="gelu", reduction_factor=5, scaling=0.5),
    "norm": adapters.DoubleSeqBnConfig(ln_before=True, reduction_factor=3),
    "norm-mlp": adapters.SeqBnConfig(ln_before=True, non_linearity="swish", reduction_factor=2.5),
    "one": adapters.SeqBnConfig(reduction_factor=1000),
}
TUNED = {
    "houlsby": ["--peft.adapter_style=houlsby"],
    "pfeiffer": ["--peft.adapter_style=pfeiffer", "--peft.adapter_activation=relu"],
    "parallel": ["--peft.adapter_style=parallel", "--peft.adapter_activation=relu", "--peft.adapter_scaling=4"],
    "norm": ["--peft.adapter_pre_norm=true", "--peft.adapter_activation=gelu", "--peft.bottleneck=7"],
}


class AdapterHub(Case):
    def random_base(self):
        return random_gpt2(1, n_layer=3, n_positions=POSITIONS, vocab_size=VOCABULARY)

    def setUp(self):
        super().setUp()
        self.base = self.directory / "base"
        self.random_base().save_pretrained(self.base)
        (self.base / "generation_config.json").unlink(missing_ok=True)
        write_byte_tokenizer(self.base)
        self.data = self.directory / "rows.jsonl"
        self.data.write_text("".join(json.dumps({"prompt": f"{i}+1=", "completion": f"{i + 1}"}) + "\n" for i in range(40)))
        generator = torch.Generator().manual_seed(SEED)
        self.rows = [torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in (2, 17, POSITIONS)]

    def open_base(self):
        model = AutoModelForCausalLM.from_pretrained(self.base)
        adapters.init(model)
        return model

    def write(self, name, config):
        model = self.open_base()
        model.add_adapter(name, config=config)
        model.set_active_adapters(name)
        torch.manual_seed(SEED * 1000 + len(name))
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if f".adapters.{name}." in key:
                    is_gain = key.endswith("adapter_down.0.weight") and parameter.dim() == 1
                    parameter.copy_(is_gain + 0.2 * torch.randn_like(parameter))
        if getattr(config, "ln_before", False):  # its norm has two names, for which it cannot write safetensors itself
            model.save_adapter(str(self.directory / name), name)
            pickle = self.directory / name / "pytorch_adapter.bin"
            save_file({key: value.clone() for key, value in torch.load(pickle).items()}, pickle.with_name("adapter.safetensors"))
            pickle.unlink()
        else:
            model.save_adapter(str(self.directory / name), name, use_safetensors=True)
        return model.double().eval()

    def tune(self, name, *words):
        self.run_program("finetune", "--model", self.base, "--data", self.data, "--output", self.directory / name,
                         "--train.global_batch_size=4", *words)
        return self.directory / name

    def assert_alike(self, model, path):
        for row, ours in zip(self.rows, score(self, self.base, self.rows, "--precision", "fp32", "--adapter", path),
                             strict=True):
            self.assert_near(ours, logprobs(model, row))

    def once(self, tensors):
        return {key for key in tensors if ".adapter_norm_before." not in key}

    def open(self, path):
        model = self.open_base()
        name = model.load_adapter(str(path), set_active=True, use_safetensors=True)
        return name, model.double().eval()

    def test_score_agrees_and_it_is_saved_as_it_was(self):
        for name, config in CONFIGS.items():
            with self.subTest(name):
                model = self.write(name, config)
                path = self.directory / name
                self.assert_alike(model, path)
                again = self.tune(f"{name}-again", "--init-adapter", path, "--optim.lr=0", "--train.train_iters=1")
                before, after = (load_file(p / "adapter.safetensors") for p in (path, again))
                self.assertEqual(self.once(before), after.keys())
                for tensor in after:
                    self.assertTrue(torch.equal(before[tensor], after[tensor]), tensor)
                a, b = (json.loads((p / "adapter_config.json").read_text()) for p in (path, again))
                self.assertEqual(set(b) - set(a), set())
                self.assertEqual(a["name"], b["name"])
                found, second = self.open(again)
                self.assertEqual(found, name)
                self.assert_alike(second, path)

    def test_it_opens_what_finetune_wrote_and_gives_the_same(self):
        for name, words in TUNED.items():
            with self.subTest(name):
                path = self.tune(name, "--peft", "adapter", "--peft.bottleneck=6", "--optim.lr=2e-2",
                                 "--train.train_iters=4", *words)
                with self.assertLogs("adapters", "INFO") as told:
                    found, model = self.open(path)
                self.assertNotRegex("\n".join(told.output), "(?i)missing|unexpected|not (found|used|initialized)")
                file = load_file(path / "adapter.safetensors")
                held = {key: value for key, value in model.state_dict().items() if f".adapters.{found}." in key}
                self.assertEqual(file.keys(), self.once(held))
                for key, value in file.items():
                    self.assertTrue(torch.equal(value.double(), held[key]), key)
                self.assert_alike(model, path)

    def test_what_would_compute_something_else_is_refused_by_its_key(self):
        for key, config in (("leave_out", adapters.SeqBnConfig(leave_out=[1])),
                            ("use_gating", adapters.SeqBnConfig(use_gating=True)),
                            ("non_linearity", adapters.SeqBnConfig(non_linearity="leakyrelu")),
                            ("phm_layer", adapters.CompacterConfig(reduction_factor=4)),
                            ("inv_adapter", adapters.SeqBnInvConfig())):
            with self.subTest(key):
                self.write("other", config)
                errors = self.fail_program("adapter", "show", self.directory / "other")
                self.assertIn(key, errors.splitlines()[-1])


class AdapterHubOnLlama(AdapterHub):
    kind = LlamaConfig

    def random_base(self):
        return random_model(30, self.kind(
            num_hidden_layers=3, hidden_size=48, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, initializer_range=0.25, bos_token_id=None, eos_token_id=None))


class AdapterHubOnMistral(AdapterHubOnLlama):
    kind = MistralConfig


if __name__ == "__main__":
    unittest.main()
