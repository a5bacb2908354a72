"""Ranks that do not mean the same run: one line says which rank and what, and no rank starts."""
import json, pathlib, shutil, tempfile, unittest

from model_support import gpt2_config, write_byte_tokenizer, write_model
from mpi_support import needs_mpirun, run_each
from pretrain_support import CAMBIUM, Run, timeless, walk_documents, write_dataset

AT_ONCE = 2


@needs_mpirun
class Agreement(unittest.TestCase):
    def assert_refused(self, done, *parts, status=1):
        self.assertEqual(done.returncode, status, done.stderr)
        told = [line for line in done.stderr.splitlines() if line.startswith("cambium: error: ")]
        self.assertEqual(len(told), 1, done.stderr)
        for part in parts:
            self.assertIn(part, told[0])
        return told[0]


class Pretrain(Agreement):
    def setUp(self):
        self.run_directory = Run()
        self.addCleanup(self.run_directory.temporary.cleanup)
        self.directory = self.run_directory.directory

    def both(self, other, *, names=("run", "run"), use=((), ()), **keys):
        """Two ranks whose command lines differ in the keys `other`."""
        first = self.run_directory.command(names[0], use[0], **keys)
        return run_each(first, self.run_directory.command(names[1], use[1], **dict(keys, **other)))

    def test_a_key_that_differs_is_named_with_both_values(self):
        before = self.run_directory.tree()
        cases = (
            (dict(train__train_iters=19), "train.train_iters is 19, rank 0 has 20"),
            (dict(model__vocab_size=62, train__seed=7, optim__lr=1), "model.vocab_size is 62, rank 0 has 61"),
            (dict(checkpoint__save=None), "checkpoint.save is not given, rank 0 has "),
        )
        for other, text in cases:
            with self.subTest(**other):
                line = self.assert_refused(self.both(other), f"rank 1: {text}")
                self.assertTrue(line.endswith(": all ranks need the same configuration"), line)
        self.assert_refused(self.both({}, use=((), ("--help",))), "rank 1: --help or --version is given, rank 0 has not given")
        self.assertEqual(self.run_directory.tree(), before)

    def test_a_stale_configuration_file_is_found(self):
        text = (self.directory / "text").as_posix()
        keys = "model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, vocab_size: 61}\n" \
               f"data: {{data_path: {text}, seq_length: 16, split: '90,10,0'}}\ntrain: {{train_iters: 2, global_batch_size: 3}}\n"
        for name, lr in (("new", 0.001), ("stale", 0.002)):
            (self.directory / f"{name}.yaml").write_text(keys + f"optim: {{lr: {lr}}}\n")
        done = run_each(*([CAMBIUM, "pretrain", "--config", self.directory / f"{name}.yaml"] for name in ("new", "new", "stale")))
        self.assert_refused(done, "rank 2: optim.lr is 0.002, rank 0 has 0.001: all ranks need the same configuration")

    def test_a_hosts_own_keys_and_places_may_differ(self):
        """The same bytes elsewhere are the same data; what is shown and how many threads compute are each rank's own."""
        elsewhere = self.directory / "elsewhere"
        elsewhere.mkdir()
        for ending in (".bin", ".idx"):
            shutil.copy(f"{self.directory}/text{ending}", f"{elsewhere}/moved{ending}")
        one = dict(train__train_iters=4, checkpoint__save=None, checkpoint__load=None)
        other = dict(data__data_path=elsewhere / "moved", data__data_cache_path=elsewhere / "cache", log__log_interval=7,
                     log__metrics_file=None, parallel__threads_per_rank=1)
        done = self.both(other, names=("same", "other"), **one)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.run_directory.run("threads", ["--ranks", "2"], **one)
        self.assertEqual(timeless(self.run_directory.records("same")), timeless(self.run_directory.records("threads")))

    def test_another_program_is_named(self):
        other = self.directory / "cambium"
        shutil.copy2(CAMBIUM, other)
        with open(other, "ab") as file:  # what no loader looks at
            file.write(b"x")
        first = self.run_directory.command()
        bytes_of = [path.stat().st_size for path in (other, pathlib.Path(CAMBIUM))]
        line = self.assert_refused(run_each(first, [other, *first[1:]]), "rank 1: the program is ",
                                   *(f" of {count} bytes (digest " for count in bytes_of))
        self.assertTrue(line.endswith(": all ranks need the same build of cambium"), line)

    def test_other_data_is_named(self):
        write_dataset(self.directory / "other", walk_documents(seed=6))
        self.assert_refused(self.both(dict(data__data_path=self.directory / "other")), "rank 1: data.data_path, path 1, .idx is ",
                            "other.idx of ", "text.idx of ", ": all ranks need the same files")
        for ending in (".bin", ".idx"):
            shutil.copy(f"{self.directory}/text{ending}", f"{self.directory}/other{ending}")
        with open(self.directory / "other.bin", "r+b") as file:  # the same lengths
            file.write(b"\x09\x00")
        self.assert_refused(self.both(dict(data__data_path=self.directory / "other")), "rank 1: data.data_path, path 1, .bin is ")
        blend = [f"--data.data_path={w} {self.directory}/text {v} {self.directory}/text" for w, v in ((1, 2), (2, 1))]
        done = self.both({}, use=((blend[0],), (blend[1],)), data__data_path=None)
        self.assert_refused(done, "rank 1: data.data_path, weight 1 is 2, rank 0 has 1")

    def test_another_tokenizer_is_named(self):
        for name in ("a", "b"):
            (self.directory / name).mkdir()
            write_byte_tokenizer(self.directory / name)
        (self.directory / "b/merges.txt").write_text("#version: 0.3\n")
        done = self.both(dict(tokenizer=self.directory / "b"), tokenizer=self.directory / "a", model__vocab_size=None)
        self.assert_refused(done, "rank 1: the tokenizer's merges.txt is ", "b/merges.txt (digest ", "all ranks need the same files")

    def test_another_model_and_another_checkpoint_are_named(self):
        run = self.run_directory
        for name, seed in (("first", 1), ("second", 2)):
            run.run(name, train__seed=seed, train__train_iters=4, checkpoint__load=None)
        models = [self.directory / name / "iter_0000004" for name in ("first", "second")]
        use = [("--init-from", str(model)) for model in models]
        done = self.both({}, use=use, checkpoint__save=None, checkpoint__load=None)
        self.assert_refused(done, "rank 1: the model's weights is ", "second/iter_0000004 (digest ")
        loads = [dict(checkpoint__load=self.directory / name, checkpoint__save=None) for name in ("first", "none", "second")]
        done = self.both(loads[1], **loads[0])
        self.assert_refused(done, "rank 1: the iteration to resume from is 0, rank 0 has 4: checkpoint.load must be one directory")
        self.assert_refused(self.both(loads[2], **loads[0]), "rank 1: the checkpoint's ")
        for file, what in (("optimizer", "optimizer"), ("model", "weights")):  # on one host alone
            mixed = self.directory / f"mixed-{file}"
            shutil.copytree(self.directory / "first", mixed)
            shutil.copy(self.directory / f"second/iter_0000004/{file}.safetensors", mixed / "iter_0000004")
            self.assert_refused(self.both(dict(checkpoint__load=mixed), **loads[0]), f"rank 1: the checkpoint's {what} is ")


class Models(Agreement):
    """finetune, generate, score and preprocess."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
        self.config = gpt2_config(vocab_size=257)
        for name, seed in (("one", 1), ("two", 2)):
            write_model(self.directory / name, self.config, seed=seed)
            write_byte_tokenizer(self.directory / name)
            (self.directory / f"{name}.jsonl").write_text(json.dumps({"prompt": "a", "completion": name}) + "\n")

    def at(self, *words):
        return [CAMBIUM, *(self.directory / word[1:] if word.startswith("@") else word for word in map(str, words))]

    def refuse(self, words, *cases):
        for other, part in cases:
            with self.subTest(other=other):
                changed = [other.get(word, word) for word in words]
                self.assert_refused(run_each(self.at(*words), self.at(*changed)), f"rank 1: {part}")

    def test_finetune(self):
        words = ["finetune", "--model", "@one", "--peft", "lora", "--data", "@one.jsonl", "--output", "@out",
                 "--train.train_iters=2", "--optim.lr=1e-3", "--peft.r=2", "--train.global_batch_size=2"]
        self.refuse(words, ({"@one": "@two"}, "the model's weights is "), ({"@one.jsonl": "@two.jsonl"}, "--data, path 1 is "),
                    ({"--peft.r=2": "--peft.r=3"}, "peft.r is 3, rank 0 has 2"))
        self.assertFalse((self.directory / "out").exists())

    def test_generate_and_score(self):
        words = ["generate", "--model", "@one", "--prompt", "ab", "--max-new-tokens", "4", "--seed", "5",
                 "--parallel.pipeline_model_parallel_size=1", "--parallel.tensor_model_parallel_size=2"]
        write_model(self.directory / "one", self.config | {"n_head": 2}, seed=1)
        write_model(self.directory / "two", self.config | {"n_head": 2}, seed=2)
        self.refuse(words, ({"@one": "@two"}, "the model's weights is "), ({"5": "6"}, "--seed is 6, rank 0 has 5"))
        words = ["score", "--model", "@one", "--input", "@one.jsonl", "--precision", "fp32"]
        self.refuse(words, ({"fp32": "bf16"}, "--precision is bf16, rank 0 has fp32"))

    def test_one_process_of_a_launch_merges(self):
        tune = self.at("finetune", "--model", "@one", "--peft", "lora", "--data", "@one.jsonl", "--output", "@adapter",
                       "--train.train_iters=1", "--optim.lr=1e-3")
        self.assertEqual(run_each(tune).returncode, 0)
        words = self.at("merge", "--model", "@one", "--adapter", "@adapter", "--output", "@merged")
        done = run_each(words, words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("merged is written"), 1, done.stderr)
        self.assert_refused(run_each(*[self.at("merge", "--model", "@one", "--adapter", "@none", "--output", "@more")] * 2), "none")

    def test_preprocess(self):
        (self.directory / "a.txt").write_text("some text\n" * 3)
        (self.directory / "b.txt").write_text("more text\n" * 3)
        words = ["preprocess", "--input", "@a.txt", "--tokenizer", "@one", "--output-prefix", "@out", "--json-keys=text"]
        write_byte_tokenizer(self.directory / "two")
        (self.directory / "two/merges.txt").write_text("#version: 0.3\n")
        self.refuse(words, ({"@a.txt": "@b.txt"}, "--input is "), ({"@one": "@two"}, "the tokenizer's merges.txt is "),
                    ({"--json-keys=text": "--append-eod"}, "--append-eod is true, rank 0 has false"))
        self.assertEqual(list(self.directory.glob("out*")), [])


if __name__ == "__main__":
    unittest.main()
