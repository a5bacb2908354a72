"""pretrain with the parts of Llama and its variants: a run's family, its dump, and its resumption."""
import json, shutil, unittest

from pretrain_support import SOURCE, Run

PARTS = {"model__normalization": "RMSNorm", "model__position_embedding_type": "rope", "model__swiglu": "true",
       "model__hidden_dropout": 0, "model__attention_dropout": 0.1, "model__add_bias_linear": "false",
       "model__num_query_groups": 2, "model__ffn_hidden_size": 44}
FAMILIES = {  # keys of the run in addition to PARTS
    "llama": {"model__use_rope_scaling": "true", "model__rope_original_max_position_embeddings": 8, "model__kv_channels": 10},
    "mistral": {"model__window_size": "4,0"},
    "qwen2": {"model__add_qkv_bias": "true", "model__window_size": "4,0", "model__window_attn_skip_freq": "1,0"},
    "qwen3": {"model__qk_layernorm": "true", "model__position_embedding_type": "yarn", "model__yarn_rotary_scaling_factor": 2,
              "model__yarn_original_max_position_embeddings": 8},
    "phi3": {"model__rotary_percent": 0.5, "model__hidden_dropout": 0.1},
}


class Families(unittest.TestCase):
    def dump(self, run, *words, **keys):
        done = run.run("run", [*words, "--dry-run"], checkpoint__load=None, **keys)
        return "".join(line + "\n" for line in done.stdout.splitlines() if not line.startswith("#"))

    def config(self, run, name="run"):
        return json.loads((run.directory / name / run.checkpoints(name)[-1] / "config.json").read_text())

    def test_a_run_is_of_the_family_that_its_keys_fit_and_resumes_to_the_same_bits(self):
        for family, keys in FAMILIES.items():
            with self.subTest(family):
                run, keys = Run(), PARTS | keys | {"train__train_iters": 8}
                run.run("whole", **keys)
                done = run.run("halves", train__exit_interval=4, **keys)
                self.assertIn(f"the model is a {family}: its keys fit", done.stderr)
                run.run("halves", **keys)
                self.assertEqual([r["lm_loss"] for r in run.records("whole")], [r["lm_loss"] for r in run.records("halves")])
                self.assertEqual(self.config(run, "whole")["model_type"], family)
                self.assertEqual(self.config(run, "whole"), self.config(run, "halves"))

    def test_a_dump_is_the_same_run(self):
        for family, keys in FAMILIES.items():
            with self.subTest(family):
                run = Run()
                dump = self.dump(run, **(PARTS | keys))
                (run.directory / "run.yaml").write_text(dump)
                self.assertEqual(self.dump(run, "--config", run.directory / "run.yaml"), dump)

    def test_another_model_does_not_resume(self):
        for family, key, here, there in (("llama", "model__rope_original_max_position_embeddings", "9", "8"),
                                         ("mistral", "model__window_size", "5,0", "4 0"),
                                         ("qwen2", "model__window_attn_skip_freq", "0,1", "2"),
                                         ("qwen3", "model__yarn_original_max_position_embeddings", "9", "8"),
                                         ("phi3", "model__rotary_percent", "1", "0.5")):
            with self.subTest(key):
                run, keys = Run(), PARTS | FAMILIES[family] | {"train__train_iters": 3}
                run.run(**keys)
                done = run.run(expect=2, **(keys | {key: here}))
                self.assertIn(f"{key.replace('__', '.')} is {there} in the checkpoint", done.stderr)
                self.assertIn(f"but {here.replace(',', ' ')} in this run", done.stderr)

    def test_a_model_directory_gives_its_family_and_its_words(self):
        golden = SOURCE / "tests/model/golden"
        run = Run()
        words = "--init-from", golden / "mistral_window"
        dump = self.dump(run, *words, model__num_layers=None, model__window_size="3,0", train__train_iters=3)
        self.assertIn("    window_size: [6, 0]\n", dump)
        done = run.run("run", words, checkpoint__load=None, model__window_size="3,0", train__train_iters=3)
        self.assertIn("model.window_size 3 0 gives way to 6 0 of", done.stderr)
        self.assertEqual((self.config(run)["model_type"], self.config(run)["sliding_window"]), ("mistral", 7))
        for name, line in (("qwen2_yarn_windows", "    window_attn_skip_freq: [0, 0, 1, 1]\n"),
                           ("llama_3", "    rope_original_max_position_embeddings: 32\n"), ("llama_3", "    use_rope_scaling: true\n"),
                           ("qwen2_yarn_windows", "    yarn_original_max_position_embeddings: 32\n")):
            self.assertIn(line, self.dump(run, "--init-from", golden / name))

    def test_a_family_stays_where_another_would_do(self):
        """A Mistral without a window has the keys of a Llama."""
        run, keys = Run(), PARTS | {"train__train_iters": 4}
        run.run("llama", train__exit_interval=2, **keys)
        self.assertEqual(self.config(run, "llama")["model_type"], "llama")
        mistral = shutil.copytree(run.directory / "llama" / run.checkpoints("llama")[-1], run.directory / "model")
        for name in ("trainer_state.json", "optimizer.safetensors"):
            (mistral / name).unlink()
        config = self.config(run, "llama") | {"model_type": "mistral", "sliding_window": None}
        (mistral / "config.json").write_text(json.dumps(config))
        run.run("mistral", ["--init-from", mistral], train__exit_interval=2, **keys)
        run.run("mistral", **keys)
        self.assertEqual(run.checkpoints("mistral")[-1], "iter_0000004")
        self.assertEqual(self.config(run, "mistral")["model_type"], "mistral")

    def test_keys_that_no_family_has_are_refused(self):
        run = Run()
        done = run.run(expect=2, **(PARTS | FAMILIES["llama"] | {"model__hidden_dropout": 0.1}))
        for part in ("gpt2 cannot have this model.position_embedding_type", "llama cannot have this model.hidden_dropout",
                     "phi3 cannot have this model.use_rope_scaling"):
            self.assertIn(part, done.stderr)


if __name__ == "__main__":
    unittest.main()
