"""A file that cannot be opened at one rank alone, at any place of a run: all ranks end, soon, with one line."""
import json, os, pathlib, shutil, subprocess, unittest

from model_support import gpt2_config, write_byte_tokenizer, write_model
from mpi_support import needs_mpirun, run_each
from pretrain_support import CAMBIUM, Run

AT_ONCE = 2

FAIL_OPEN = os.environ.get("CAMBIUM_FAIL_OPEN", "")  # a library that is loaded before the program
TP2 = "--parallel.tensor_model_parallel_size=2"
# Files that a run cannot do without, and files that need not be there. Of the others some are opened twice, or are a cache.
NEEDED = {"config.json", "vocab.json", "merges.txt", "rows.jsonl", "lines.jsonl", "a.txt", "trainer_state.json", "adapter_config.json"}
OPTIONAL = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
            "generation_config.json"}


@unittest.skipUnless(FAIL_OPEN, "sanitizers must be the first library that is loaded")
class FailOpen(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run = cls.run_directory = Run()
        at = run.directory
        cls.addClassCleanup(run.temporary.cleanup)
        model, rows, lines, text = at / "model", at / "rows.jsonl", at / "lines.jsonl", at / "a.txt"
        write_model(model, gpt2_config(vocab_size=257, n_head=2, n_layer=2))
        write_byte_tokenizer(model)
        rows.write_text((json.dumps({"prompt": "a", "completion": "bc"}) + "\n") * 8)
        lines.write_text((json.dumps({"text": "abc"}) + "\n") * 8)
        text.write_text("some text\n" * 30)
        (at / "requests").write_text(json.dumps({"prompt": "ab", "max_tokens": 2, "adapters": ["a"]}) + "\n")
        tune = ("finetune", "--model", model, "--peft", "lora", "--data", rows, "--train.train_iters=2",
                "--train.global_batch_size=2", "--optim.lr=1e-3", "--output")
        subprocess.run([CAMBIUM, *map(str, tune), at / "adapter"], check=True, capture_output=True)
        run.run("base", train__train_iters=4)
        keys = dict(train__train_iters=5, checkpoint__load=at / "base", checkpoint__save=at / "out", log__metrics_file=None)
        cls.commands = {
            "pretrain": run.command("out", **keys)[1:],
            "finetune": [*tune, at / "out"],
            "generate": ["generate", "--model", model, "--adapter", at / "adapter", "--prompt", "ab", "--max-new-tokens", 2, TP2],
            "requests": ["generate", "--model", model, "--adapter", f"a={at / 'adapter'}", "--requests", at / "requests", "--output", at / "out", TP2],
            "score": ["score", "--model", model, "--input", lines, TP2],
            "preprocess": ["preprocess", "--input", text, "--format", "line", "--tokenizer", model, "--output-prefix", at / "out"],
        }

    def clean(self):
        for path in self.run_directory.directory.glob("out*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.run_directory.directory / "cache", ignore_errors=True)
        told = self.run_directory.directory / "told"
        told.unlink(missing_ok=True)
        return told

    def environment(self, number, told, below="", end=""):
        return dict(LD_PRELOAD=FAIL_OPEN, FAIL_OPEN_AT=str(number), FAIL_OPEN_BELOW=f"{self.run_directory.directory}/{below}",
                    FAIL_OPEN_END=end, FAIL_OPEN_TOLD=str(told))

    def check(self, status, errors, told):
        """Whether the run failed."""
        lines = [line for line in errors.splitlines() if line.startswith("cambium: error: ")]
        self.assertEqual(len(lines), status != 0, f"{told.read_text()}: {status}: {errors}")
        return status != 0

    def check_threads(self, name, least, least_failed):
        """Every opening of the process, one a run. Which rank's is the n-th differs from run to run."""
        count, number = 0, 0
        while True:
            number, told = number + 1, self.clean()
            words = [CAMBIUM, *map(str, self.commands[name]), "--ranks", "2"]
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=60,
                                  env=os.environ | self.environment(number, told))
            if not told.exists():
                break
            file = pathlib.Path(told.read_text()).name
            with self.subTest(name, number=number, file=file):
                failed = self.check(done.returncode, done.stderr, told)
                count += failed
                self.assertFalse(failed if file in OPTIONAL else not failed and file in NEEDED, done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(number, least, name)
        self.assertGreaterEqual(count, least_failed, name)

    def test_threads_of_pretrain(self):
        self.check_threads("pretrain", 25, 14)

    def test_threads_of_finetune(self):
        self.check_threads("finetune", 45, 20)

    def test_threads_of_generate(self):
        self.check_threads("generate", 20, 8)

    def test_threads_of_requests(self):
        self.check_threads("requests", 20, 10)

    def test_threads_of_score(self):
        self.check_threads("score", 15, 6)

    def test_threads_of_preprocess(self):
        self.check_threads("preprocess", 20, 8)

    @needs_mpirun
    def test_one_process(self):
        """Its files, before the agreement on the run and where the ranks have already met."""
        cases = ((1, "pretrain", "base/iter_0000004/trainer_state", "", 1), (1, "pretrain", "text.idx", "", 1),
                 (1, "pretrain", "base/iter_0000004/optimizer", "", 2), (1, "finetune", "model/model.safetensors", "", 4),
                 (1, "generate", "model/model.safetensors", "", 2), (0, "pretrain", "text.idx", "", 1), (0, "generate", "model/config.json", "", 1),
                 # The mark of a box may be gone: it is another process's to remove where nothing is in it yet.
                 (1, "preprocess", ".cambium-", ".bin", 1), (0, "preprocess", "a.txt", "", 1))
        for rank, name, file, end, number in cases:
            told = self.clean()
            words = [CAMBIUM, *map(str, self.commands[name])]
            commands = [words, words]
            commands[rank] = ["env", *(f"{key}={value}" for key, value in self.environment(number, told, file, end).items()), *words]
            with self.subTest(name, rank=rank, file=file):
                done = run_each(*commands)
                self.assertTrue(told.exists(), "the file was not opened as often")
                self.assertTrue(self.check(done.returncode, done.stderr, told), f"{told.read_text()} is not needed")
                self.assertIn(f"cambium: error: rank {rank}", done.stderr)


if __name__ == "__main__":
    unittest.main()
