"""verify layout: layouts of every kind are proved equal; a corrupted sum is found from outside; what is refused."""
import os, pathlib, signal, subprocess, tempfile, time, unittest

from model_support import CAMBIUM, SOURCE, rows, run
from mpi_support import HAS_MPIRUN, MPIRUN
from pretrain_support import LONG

TENSOR, STAGES, CHUNKS = (f"--parallel.{key}=" for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size",
                                                           "virtual_pipeline_model_parallel_size"))
RUN = """model: {num_layers: 12, hidden_size: 768, num_attention_heads: 12, max_position_embeddings: 1024, vocab_size: 50257}
data: {data_path: [nowhere/text], seq_length: 1024}
train: {train_iters: 1000, micro_batch_size: 4, global_batch_size: 32}
optim: {lr: 3e-4, lr_warmup_iters: 100, clip_grad: 1.0}
"""
LLAMA = ["--model.swiglu=true", "--model.normalization=RMSNorm", "--model.position_embedding_type=rope", "--model.add_bias_linear=false",
         "--model.untie_embeddings_and_output_weights=true", "--model.num_query_groups=2"]
KINDS = ["output", "loss", "gradient", "gradient_sum", "grad_norm", "clip", "weight", "exp_avg", "exp_avg_sq", "replica", "resumed"]
# A number that goes wrong on its way: words of tests/support/failing/message.c, the layout, and the checks that may find it first.
CORRUPTED = [
    ("1 send 4 4096 1", [], ["gradient_sum"]),  # of a data rank to a sum
    ("1 gather 8 1 1", [f"{STAGES}2"], ["grad_norm"]),  # of a stage
    ("1 send 4 4096 3", [], ["gradient_sum"]),  # a sum itself
    ("1 gather 4 256 1", [], ["gradient_sum"]),  # a short sum
    ("0 send 4 256 2", [f"{STAGES}2"], ["output"]),  # of the second micro batch to the next stage
    ("1 send 4 256 2", [f"{STAGES}2"], ["gradient"]),  # and back
    ("1 gather 4 256 1", [f"{STAGES}2"], ["gradient_sum"]),  # of a tied table
    ("1 gather 8 1 2", [f"{STAGES}2"], ["loss"]),
    ("1 gather 4 256 2", [f"{TENSOR}2"], ["output"]),  # a sum of a layer
    ("1 send 4 4096 5", ["--parallel.use_distributed_optimizer=true"], ["weight", "replica"]),  # after the update
]
MESSAGES = os.environ.get("CAMBIUM_MESSAGES")  # a library that is loaded before the program: tests/support/failing/message.c


class VerifyLayout(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.config = self.root / "run.yaml"
        self.config.write_text(RUN)
        self.temporary = self.root / "temporary"
        self.temporary.mkdir()
        self.environment = os.environ | {"TMPDIR": str(self.temporary)}

    def command(self, *words):
        return [CAMBIUM, "verify", "layout", "--config", str(self.config), *map(str, words)]

    def prove(self, *words, launcher=()):
        """Returns the exit status, the lines of the checks by kind, and the summary. Its directory of checkpoints is gone."""
        done = subprocess.run([*launcher, *self.command(*words)], capture_output=True, timeout=300, env=self.environment)
        self.assertTrue(done.stdout, done.stderr)
        *checks, summary = rows(done.stdout)
        self.assertEqual(list(self.temporary.iterdir()), [])
        self.assertEqual(summary["verify"], "layout")
        return done.returncode, {check["check"]: check for check in checks}, summary

    def expect_equal(self, *words, **keys):
        status, checks, summary = self.prove(*words, **keys)
        self.assertEqual((status, summary["equal"], list(summary)), (0, True, ["verify", "equal", "seconds"]), summary)
        for check in checks.values():
            self.assertEqual(list(check), ["check", "tensors", "worst", "bound"])
        return checks

    def test_all_axes_with_every_check(self):
        checks = self.expect_equal("--ranks", 8, f"{TENSOR}2", f"{STAGES}2", f"{CHUNKS}2", "--model.hidden_dropout=0.1")
        self.assertEqual(list(checks), KINDS)
        self.assertTrue(all(check["tensors"] > 0 for check in checks.values()))

    def test_pipeline_and_data_layouts_have_equal_bits(self):
        for words in (["--ranks", 4], ["--ranks", 4, f"{STAGES}2"], ["--ranks", 2, f"{STAGES}2", f"{CHUNKS}3"]):
            checks = self.expect_equal(*words)
            for kind in ("output", "loss"):
                self.assertEqual((checks[kind]["worst"], checks[kind]["bound"]), (0, 0))

    def test_settings_of_a_layout(self):
        for words in ([f"{TENSOR}4", "--parallel.sequence_parallel=true", "--model.vocab_size=50259"], LLAMA + [f"{TENSOR}4"],
                      ["--parallel.use_distributed_optimizer=true"], ["--parallel.data_parallel_sharding_strategy=optim_grads"],
                      ["--parallel.data_parallel_sharding_strategy=optim_grads_params", f"{TENSOR}2"], ["--train.precision=bf16"],
                      [f"{STAGES}2", "--parallel.decoder_first_pipeline_num_layers=8", "--train.global_batch_size=144"],
                      [f"{STAGES}4", "--parallel.account_for_loss_in_pipeline_split=true", "--model.num_layers=15"],
                      [f"{TENSOR}2", "--parallel.recompute_granularity=full", "--model.attention_dropout=0.1"]):
            with self.subTest(words=words):
                self.expect_equal("--ranks", 4, *words)

    def test_every_method(self):
        for methods in (["lora"], ["ia3"], ["adapter"], ["prompt"], ["ptuning"], ["prefix"], ["full"], ["lora", "ia3"],
                        ["lora", "--peft.use_dora=true"], ["prefix", "--peft.prefix_projection=true"]):
            with self.subTest(methods=methods):
                self.expect_equal("--peft", *methods, "--ranks", 8, f"{TENSOR}2", f"{STAGES}2", f"{CHUNKS}2")

    def test_full_size_and_one_step(self):
        self.config.write_text(RUN.replace("768", "96").replace("1024", "32").replace("50257", "400"))
        self.expect_equal("--full-size", "--steps", 1, "--ranks", 2, f"{TENSOR}2")

    @unittest.skipUnless(HAS_MPIRUN, "there is no mpirun")
    def test_ranks_are_processes(self):
        self.expect_equal(f"{TENSOR}2", launcher=[*MPIRUN, "-n", "4"])

    @unittest.skipUnless(HAS_MPIRUN and MESSAGES, "there is no mpirun, or a build without MPI")
    def test_a_corrupted_sum_is_found(self):
        for message, words, checks in CORRUPTED if LONG else CORRUPTED[:2]:
            with self.subTest(message=message, words=words):
                launcher = [*MPIRUN, "-n", "2", "env", f"LD_PRELOAD={MESSAGES}", f"CAMBIUM_MESSAGE={message}"]
                status, _, summary = self.prove(*words, "--steps", 1, "--model.hidden_dropout=0", launcher=launcher)
                self.assertEqual((status, summary["equal"]), (1, False))
                self.assertIn(summary["check"], checks, summary)
                self.assertLess({"tensor", "step", "micro_batch", "rank", "index", "one_rank", "layout"}, set(summary))
                self.assertTrue(summary["tensor"])

    def refuse(self, *words, expect, says):
        output, errors = run(*self.command(*words)[1:], expect=expect)
        self.assertEqual(output, b"")
        self.assertIn(says, errors)
        self.assertEqual(errors.count("\n"), 1, errors)

    def test_what_cannot_be_is_refused(self):
        self.refuse("--ranks", 65, expect=2, says="65 ranks, expected at most 64")
        self.refuse("--ranks", 5, f"{TENSOR}5", expect=2, says="model.num_attention_heads 12 is not divisible by")
        self.refuse("--model.hidden_size=767", expect=2, says="model.hidden_size 767 is not divisible by")
        self.refuse("--peft", "lorra", expect=2, says="lorra")
        self.refuse("--config", self.root / "none.yaml", expect=1, says="none.yaml")

    def test_a_layout_is_refused_with_the_line_of_the_real_run(self):
        words = ["--ranks", "6", f"{TENSOR}2", f"{STAGES}3", "--model.num_layers=4"]
        expected = subprocess.run([CAMBIUM, "pretrain", "--config", self.config, *words, "--model.vocab_size=400", "--dry-run"],
                                  capture_output=True, text=True).stderr.splitlines()[-1]
        self.refuse(*words, expect=2, says=expected)

    def test_control_c_ends_it(self):
        with subprocess.Popen(self.command("--ranks", 8, f"{TENSOR}2", f"{STAGES}2", "--steps", 1000), env=self.environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as program:
            time.sleep(1)
            program.send_signal(signal.SIGINT)
            errors = program.communicate(timeout=30)[1].decode()  # the whole proof takes minutes
            self.assertEqual(program.returncode, 1)
        self.assertIn("stopped by SIGINT", errors)
        self.assertEqual(list(self.temporary.iterdir()), [])

    @unittest.skipUnless(HAS_MPIRUN, "there is no mpirun")
    def test_control_c_of_mpirun_ends_its_ranks_once(self):
        """mpirun gives ranks a second to end, and a second one if a rank aborts meanwhile."""
        command = [*MPIRUN, "-n", "4", *self.command(f"{TENSOR}2", "--steps", 1000)]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True) as program:
            while not list(self.temporary.glob("cambium-verify-*")):  # all watch for signals by then
                self.assertIsNone(program.poll())
                time.sleep(0.01)
            time.sleep(1)
            program.send_signal(signal.SIGINT)
            errors = program.communicate(timeout=60)[1].decode()
            self.assertNotEqual(program.returncode, 0)
        self.assertIn("failed: stopped by SIGTERM", errors)
        self.assertNotIn("MPI_ABORT", errors)
        self.assertEqual(list(self.temporary.glob("cambium-verify-*")), [])

    def test_patches_of_planted_faults_apply(self):
        patches = sorted((SOURCE / "tests/mutants").glob("*.patch"))
        self.assertGreaterEqual(len(patches), 15)
        for patch in patches:
            with self.subTest(patch=patch.name):
                subprocess.run(["git", "apply", "--check", patch], cwd=SOURCE, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    unittest.main()
