"""verify layout: layouts of every kind are proved equal; a corrupted sum is found from outside; what is refused."""
import os, pathlib, shutil, signal, subprocess, tempfile, time, unittest

from model_support import CAMBIUM, SOURCE, rows, run
from mpi_support import HAS_MPIRUN, MPIRUN

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
# A sum that goes wrong: in call number CALL of rank 1 that passes on at least 256 numbers, the middle one is another.
FAULT = """#include <mpi.h>
#include <stdlib.h>
int MPI_Iallgather(const void *own, int count, MPI_Datatype type, void *all, int counts, MPI_Datatype types, MPI_Comm comm,
                   MPI_Request *request) {
    static int calls;
    int world, rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &world);
    PMPI_Comm_rank(comm, &rank);
    if (world == 1 && type == MPI_UINT32_T && count >= 256 && ++calls == atoi(getenv("CALL"))) {
        float *numbers = own == MPI_IN_PLACE ? (float *)all + (long)rank * counts : (float *)own;
        numbers[count / 2] += 1;
    }
    return PMPI_Iallgather(own, count, type, all, counts, types, comm, request);
}
"""


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

    def prove(self, *words, launcher=(), environment=None):
        """Returns the exit status, the lines of the checks by kind, and the summary. Its directory of checkpoints is gone."""
        done = subprocess.run([*launcher, *self.command(*words)], capture_output=True, timeout=300,
                              env=self.environment | (environment or {}))
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
        begun = time.monotonic()
        checks = self.expect_equal("--ranks", 8, f"{TENSOR}2", f"{STAGES}2", f"{CHUNKS}2", "--model.hidden_dropout=0.1")
        self.assertLess(time.monotonic() - begun, 60)
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

    @unittest.skipUnless(HAS_MPIRUN and shutil.which("mpicc"), "there is no mpirun, or no mpicc")
    def test_a_corrupted_sum_is_found(self):
        (self.root / "fault.c").write_text(FAULT)
        library = self.root / "fault.so"
        subprocess.run(["mpicc", "-shared", "-fPIC", "-O1", "-o", library, self.root / "fault.c"], check=True)
        for call in range(1, 31, 3):
            with self.subTest(call=call):
                status, _, summary = self.prove(f"{TENSOR}2", "--steps", 1, "--model.hidden_dropout=0", launcher=[*MPIRUN, "-n", "4"],
                                                environment={"LD_PRELOAD": str(library), "CALL": str(call)})
                self.assertEqual((status, summary["equal"]), (1, False))
                for key in ("check", "tensor", "step", "micro_batch", "rank", "index", "one_rank", "layout"):
                    self.assertIn(key, summary)
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
            begun = time.monotonic()
            errors = program.communicate(timeout=10)[1].decode()
            self.assertLess(time.monotonic() - begun, 1)
            self.assertEqual(program.returncode, 1)
        self.assertIn("stopped by SIGINT", errors)
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_patches_of_planted_faults_apply(self):
        patches = sorted((SOURCE / "tests/mutants").glob("*.patch"))
        self.assertGreaterEqual(len(patches), 15)
        for patch in patches:
            with self.subTest(patch=patch.name):
                subprocess.run(["patch", "-p1", "--dry-run", "--force", "--input", patch], cwd=SOURCE, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    unittest.main()
