"""Model directories, both ways, against a live transformers."""
import json
import unittest

import safetensors.torch
import torch
from interop_support import NEW_TOKENS, SOURCE, Case, logprobs, random_gpt2, random_rows, score
from model_support import NO_BF16, PRECISIONS
from pretrain_support import VOCAB, Run
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

TEXTS = ["It was the best of times.", " it's 1234 o'clock\n\n\tcafé 🌲 春眠不觉晓", "a", "<|endoftext|>x"]


class WrittenByPretrain(Case):
    """transformers opens what pretrain wrote and computes the probabilities that score computes."""

    def test_every_kind_of_model(self):
        for name, keys in (("fp32", {}), ("bf16", {"train__precision": "bf16"}),
                           ("untied", {"model__untie_embeddings_and_output_weights": "true"}),
                           ("exact", {"model__activation": "gelu", "model__ffn_hidden_size": 56}),
                           ("no-bias", {"model__add_bias_linear": "false"}),
                           ("one-head", {"model__num_attention_heads": 1, "model__layernorm_epsilon": 1e-3,
                                         "model__max_position_embeddings": 33})):
            with self.subTest(name):
                if keys.get("train__precision", "fp32") not in PRECISIONS:
                    self.skipTest(NO_BF16)
                run = Run()
                run.run(model__init_method_std=0.2, train__train_iters=4, checkpoint__load=None, **keys)
                directory = run.directory / "run/iter_0000004"
                model, told = AutoModelForCausalLM.from_pretrained(directory, dtype="auto", output_loading_info=True)
                self.assertEqual(model.dtype, torch.bfloat16 if name == "bf16" else torch.float32)
                missing = {key for key in told["missing_keys"] if not (name == "no-bias" and key.endswith("bias"))}
                self.assertEqual((missing, set(told["unexpected_keys"]), set(told["mismatched_keys"])),
                                 (set(), set(), set()))
                self.assertEqual(model.config.resid_pdrop, 0.1)
                positions = keys.get("model__max_position_embeddings", 16)
                self.assert_scores_agree(model, directory, random_rows(VOCAB, positions, 1))

    def test_the_tokenizer_travels_with_the_model(self):
        corpus = self.directory / "corpus.txt"
        corpus.write_text("\n".join(TEXTS * 20))
        self.run_program("tokenizer", "train", "--input", corpus, "--vocab-size", 300, "--output",
                         self.directory / "tokenizer")
        self.run_program("preprocess", "--input", corpus, "--format", "line", "--append-eod", "--tokenizer",
                         self.directory / "tokenizer", "--output-prefix", self.directory / "corpus")
        run = Run()
        run.run(data__data_path=self.directory / "corpus_text_document", tokenizer=self.directory / "tokenizer",
                model__vocab_size=None, model__max_position_embeddings=64, train__train_iters=3)
        directory = run.directory / "run/iter_0000003"
        tokenizer = AutoTokenizer.from_pretrained(directory)
        for text in TEXTS:
            line = json.dumps({"text": text}).encode()
            ours = json.loads(self.run_program("score", "--model", directory, "--input", "-", "--special-tokens", "text", data=line))["tokens"]
            self.assertEqual(ours, tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
            self.assertEqual(tokenizer.decode(ours), text)
        model = AutoModelForCausalLM.from_pretrained(directory)
        self.assertEqual(tokenizer.eos_token, "<|endoftext|>")
        self.assertEqual(model.config.eos_token_id, tokenizer.eos_token_id)

    def test_tokenizers_of_characters_travel_with_the_model(self):
        """The file that pretrain saves is no copy of the original. Each is opened by the generic class, which reads it
        unchanged."""
        texts = [*TEXTS, "the words of a caf\u00e9", "  two  spaces", "\U0001f600 \u4e2d\u6587 \u0436\u0438\u0437\u043d\u044c", "x\ty", "</s>", "\u2581"]
        corpus = self.directory / "corpus.txt"
        corpus.write_text("\n".join(texts * 20))
        for shape in ("llama2", "mistral", "metaspace", "gemma", "whole"):
            with self.subTest(shape):
                prefix = self.directory / shape
                golden = SOURCE / "tests/text/golden" / shape
                self.run_program("preprocess", "--input", corpus, "--format", "line", "--tokenizer", golden, "--output-prefix", prefix)
                run = Run()
                run.run(data__data_path=f"{prefix}_text_document", tokenizer=golden, model__vocab_size=None,
                        model__max_position_embeddings=64, train__train_iters=3)
                directory = run.directory / "run/iter_0000003"
                before, after = (PreTrainedTokenizerFast.from_pretrained(path) for path in (golden, directory))
                for text in texts:
                    line = json.dumps({"text": text}).encode()
                    ours = json.loads(self.run_program("score", "--model", directory, "--input", "-", "--special-tokens", "text", data=line))["tokens"]
                    expected = before.encode(text, split_special_tokens=True)
                    self.assertEqual(after.encode(text, split_special_tokens=True), expected, text)
                    self.assertEqual(ours, expected, text)
                    self.assertEqual(after.decode(expected), before.decode(expected))

    def test_what_transformers_saved_again_is_trained_on(self):
        run = Run()
        run.run(train__train_iters=3, checkpoint__load=None)
        model = AutoModelForCausalLM.from_pretrained(run.directory / "run/iter_0000003")
        again = self.directory / "again"
        model.save_pretrained(again)
        run.run("more", ["--init-from", again], optim__lr=0, optim__lr_warmup_iters=0, checkpoint__load=None)
        rows = random_rows(VOCAB, 16, 2)
        self.assertEqual(score(self, run.directory / "run/iter_0000003", rows),
                         score(self, run.directory / "more/iter_0000020", rows))


class SavedByTransformers(Case):
    """generate and score open what transformers wrote, in each of its forms."""

    def write(self, model, form):
        directory = self.directory / form
        if form == "plain":
            model.save_pretrained(directory)
        elif form == "sharded":
            model.save_pretrained(directory, max_shard_size="60KB")
            self.assertGreater(len(list(directory.glob("*.safetensors"))), 2)
        elif form == "no-prefix":  # as the oldest files of the hub; the tied head is not in them
            model.transformer.save_pretrained(directory)
        elif form == "old":  # with the buffers that old versions stored
            model.save_pretrained(directory)
            path = directory / "model.safetensors"
            tensors = safetensors.torch.load_file(path)
            n = model.config.n_positions
            for layer in range(model.config.n_layer):
                tensors[f"transformer.h.{layer}.attn.bias"] = torch.tril(torch.ones(1, 1, n, n)).to(torch.uint8)
                tensors[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
            safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
        (directory / "generation_config.json").unlink(missing_ok=True)
        return directory

    def check(self, model, directory, kind=torch.float32):
        model = model.to(kind).double()  # the numbers in the files, computed exactly
        rows, compared = random_rows(model.config.vocab_size, model.config.n_positions, 3), 0
        for row, ours in zip(rows, score(self, directory, rows, "--precision", "fp32"), strict=True):
            self.assert_near(ours, logprobs(model, row))
        for length in (1, 2, 7, model.config.n_positions - NEW_TOKENS):
            compared += self.assert_greedy_agrees(model, directory, rows[2][:length])
        self.assertGreater(compared, 0)

    def test_every_form_of_the_files(self):
        for form in ("plain", "sharded", "no-prefix", "old"):
            with self.subTest(form):
                model = random_gpt2(1)
                self.check(model, self.write(model, form))

    def test_every_type_of_the_weights(self):
        for kind in (torch.float16, torch.bfloat16):
            with self.subTest(kind):
                model = random_gpt2(2).to(kind)
                directory = self.directory / str(kind)
                model.save_pretrained(directory)
                self.check(model, directory, kind)

    def test_every_shape(self):
        for number, changed in enumerate(({"n_head": 1}, {"n_embd": 40, "n_head": 8}, {"n_inner": 77}, {"n_layer": 5},
                                          {"activation_function": "gelu"}, {"tie_word_embeddings": False},
                                          {"layer_norm_epsilon": 1e-3, "vocab_size": 1000},
                                          {"n_embd": 192, "n_head": 1, "n_positions": 130})):
            with self.subTest(changed):
                model = random_gpt2(10 + number, **changed)
                directory = self.directory / str(number)
                model.save_pretrained(directory)
                self.check(model, directory)


if __name__ == "__main__":
    unittest.main()
