"""Commands that run a model plan its memory, refuse a plan that does not fit, and log the peak. An early SIGTERM ends them."""
import json, os, pathlib, re, signal, subprocess, tempfile, time, unittest

from model_support import CAMBIUM, TINY, counts_memory, write_byte_model
from opening_test import write_zeros
from pretrain_support import Run
from requests_support import ADAPTERS, BASE
from serve_support import Server

HUGE = ("--adapter-memory", "900T")  # more than any host has
ROOT = ("--adapter-root", ADAPTERS)
GROUPS = pathlib.Path("/sys/fs/cgroup")
ENDING = r"cambium: peak memory ([0-9.]+) MiB, planned ([0-9.]+) MiB"


def start(*words, **more):
    return subprocess.run([CAMBIUM, *map(str, words)], capture_output=True, text=True, timeout=300, **more)


class Plans(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(cls.directory.cleanup)
        cls.model = pathlib.Path(cls.directory.name, "model")
        write_byte_model(cls.model, n_layer=2, n_head=4, n_embd=256, n_positions=256)

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(self.temporary.cleanup)
        self.root = pathlib.Path(self.temporary.name)

    def requests(self, count=20):
        path = self.root / "requests.jsonl"
        path.write_text("".join(json.dumps({"prompt": [1 + i] * 40, "max_tokens": 30, "seed": 1}) + "\n" for i in range(count)))
        return path

    def refused(self, *words):
        done = start(*words)
        self.assertEqual(done.returncode, 1, done.stderr)
        lines = [line for line in done.stderr.splitlines() if "error: " in line]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertRegex(lines[0], r"^cambium: error: not enough memory: [0-9.]+ GiB are planned on this host, which ")
        return lines[0].split("what would help: ")[1], done.stdout

    def test_more_than_the_host_has_is_refused_by_every_command(self):
        texts = self.root / "texts.jsonl"
        texts.write_text('{"tokens": [1, 2]}\n')
        for words in (("serve", "--listen", "127.0.0.1:0", "--control", "none"), ("generate", "--requests", self.requests(), *ROOT)):
            help, _ = self.refused(*words, "--model", BASE, *HUGE)
            for option in ("--kv-cache-memory", "--max-model-len", "--precision", "--adapter-memory"):
                self.assertIn(option, help)
        for words in (("score", "--input", texts, *ROOT), ("chat",)):
            help, _ = self.refused(*words, "--model", BASE, *HUGE)
            self.assertIn("--adapter-memory", help)
            self.assertNotIn("--kv-cache-memory", help)
        write_zeros(self.root / "vast", n_embd=1 << 17, n_head=1 << 10, n_layer=2)
        help, printed = self.refused("verify", "serving", "--model", self.root / "vast")
        self.assertEqual(printed, "")
        self.assertIn("--precision", help)

    def test_a_dry_run_prints_the_plan_and_ends(self):
        words = ("serve", "--model", self.model, "--dry-run", "--control", "none", "--kv-cache-memory", "4M")
        done = start(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        parts = {name: float(value) for name, value in re.findall(r"(?m)^  ([a-z ]+?) +([0-9.]+) MiB$", done.stdout)}
        self.assertEqual(list(parts), ["weights", "keys and values", "adapters", "workspace", "server", "program", "tuning"])
        planned = float(re.search(r"(?m)^planned ([0-9.]+) MiB on this host", done.stdout)[1])
        self.assertAlmostEqual(planned, sum(parts.values()), delta=0.5)
        self.assertEqual((parts["keys and values"], parts["adapters"], parts["tuning"]), (4, 0, 0))  # no adapter can come
        _, shown = self.refused(*words, *HUGE)
        self.assertIn("adapters", shown)
        more = start(*words, "--adapter-memory", "64M").stdout
        self.assertAlmostEqual(float(re.search(r"adapters +([0-9.]+)", more)[1]), 64, delta=5)  # counts whole

    def check(self, errors, least=0.4):
        peak, planned = map(float, re.fullmatch(ENDING, errors.splitlines()[-1]).groups())
        self.assertLessEqual(peak, planned * 1.05, errors)
        self.assertGreaterEqual(peak, planned * least, errors)

    @counts_memory
    def test_every_command_ends_with_its_peak_below_the_plan(self):
        texts = self.root / "texts.jsonl"
        texts.write_text("".join(json.dumps({"tokens": [1 + i] * 200}) + "\n" for i in range(20)))
        task = self.root / "task.jsonl"
        task.write_text('{"context": "a", "choices": ["b", "c"], "gold": 0}\n')
        for words in (("generate", "--prompt-tokens", 1, 2, "--num-samples", 16), ("generate", "--requests", self.requests(), "--grammar-memory", "1M", "--kv-cache-memory", "8M"),
                      ("generate", "--requests", self.requests(), "--grammar-memory", "1M", "--kv-cache-memory", "8M", "--precision", "bf16"),
                      ("generate", "--prompt-tokens", 1, "--ranks", 2, "--parallel.tensor_model_parallel_size", 2),
                      ("score", "--input", texts)):
            done = start(*words, "--model", self.model)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.check(done.stderr)
        done = start("eval", "--model", TINY, "--task", f"choice={task}")
        self.check(done.stderr, least=0)
        done = start("verify", "serving", "--model", self.model, "--ranks", 2, "--parallel.tensor_model_parallel_size", 2)
        self.check(done.stderr, least=0)
        done = start("chat", "--model", TINY, "--chat-template", "chatml", "--max-new-tokens", 2, input="hello")
        self.check(done.stderr, least=0)

    @counts_memory
    def test_a_server_ends_with_it_too(self):
        with open(self.root / "errors", "w+b") as errors:
            with Server("--kv-cache-memory", "16M", "--grammar-memory", "1M", "--limits.gathered_bytes", "1M", "--limits.body_bytes", "64K", model=self.model,
                        control="none", errors=errors) as server:
                for _ in range(4):
                    server.complete([5] * 200, n=16, max_tokens=20, ignore_eos=True)
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(), 0)
            errors.seek(0)
            self.check(errors.read().decode())

    @unittest.skipUnless(os.geteuid() == 0 and os.access(GROUPS / "memory", os.W_OK), "wants control groups (version 1)")
    @counts_memory
    def test_a_control_group_is_obeyed(self):
        group = GROUPS / "memory" / f"cambium-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(250 << 20))
        except OSError as error:
            self.skipTest(f"no control groups: {error}")
        self.addCleanup(group.rmdir)
        enter = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        words = ("serve", "--model", self.model, "--dry-run")
        done = start(*words, preexec_fn=enter)  # what nobody asked for shrinks
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(float(re.search(r"(?m)^planned ([0-9.]+)", done.stdout)[1]), 250)
        done = start(*words, "--adapter-memory", "240M", preexec_fn=enter)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("which allows its control group 0.2 GiB", done.stderr)


    @unittest.skipUnless(os.geteuid() == 0 and os.access(GROUPS / "memory", os.W_OK), "wants control groups (version 1)")
    @counts_memory
    def test_references_are_kept_where_they_have_memory(self):
        rows = self.root / "rows.jsonl"
        rows.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 200000)
        group = GROUPS / "memory" / f"cambium-references-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            self.skipTest(f"no control groups: {error}")
        self.addCleanup(group.rmdir)
        enter = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        words = ("finetune", "--model", self.model, "--peft", "lora", "--loss", "dpo", "--data", rows, "--output", self.root / "tuned",
                 "--tuning.epochs=2", "--dry-run")
        def planned():
            done = start(*map(str, words), preexec_fn=enter)
            self.assertEqual(done.returncode, 0, done.stderr)
            data, total = (float(re.search(rf"(?m)^# +{name} +([0-9.]+) MiB", done.stdout)[1]) for name in ("data", "total"))
            return data, total, "there is no memory to keep" in done.stderr
        data, total, is_lean = planned()
        self.assertFalse(is_lean)
        (group / "memory.limit_in_bytes").write_text(str(int((total - 1.5) * (1 << 20))))  # they take 3 MiB
        lean_data, lean_total, is_lean = planned()
        self.assertTrue(is_lean)
        self.assertAlmostEqual(data - lean_data, 200000 * 16 / (1 << 20), delta=0.11)
        self.assertLess(lean_total, total - 1.5)


def await_handler(process):
    """Until the process handles SIGTERM: its own code runs."""
    while True:
        caught = re.search(r"SigCgt:\s+([0-9a-f]+)", pathlib.Path(f"/proc/{process.pid}/status").read_text())
        if not caught or int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.0005)


class EarlyEnd(unittest.TestCase):
    def stop(self, words, delay):
        with subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
            await_handler(process)
            time.sleep(delay)
            process.send_signal(signal.SIGTERM)
            status, errors = process.wait(60), process.stderr.read()
        self.assertIn(status, (0, 1), errors)
        self.assertRegex(errors, "(stopped|interrupted) by SIGTERM|drain", words)

    def test_sigterm_ends_a_start_and_a_load_without_a_kill(self):
        """Each command waits for its standard input, or trains for long."""
        run = Run()
        self.addCleanup(run.temporary.cleanup)
        for delay in (0, 0.004, 0.03):
            for words in (("generate", "--prompt", "-"), ("generate", "--requests", "-"), ("score", "--input", "-"),
                          ("chat", "--chat-template", "chatml"), ("serve", "--listen", "127.0.0.1:0", "--control", "none", "--drain-delay", 0)):
                self.stop([CAMBIUM, *words, "--model", TINY], delay)
            self.stop(run.command(f"run-{delay}", train__train_iters=100_000), delay)


if __name__ == "__main__":
    unittest.main()
