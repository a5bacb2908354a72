"""The directories that a run may write to: not one that another run has written, nor one that another is writing."""
import array, fcntl, json, os, signal, struct, subprocess, termios, threading, time, unittest

from model_support import run as run_program
from pretrain_support import VOCAB, Run, timeless, wait_for, walk_documents
from finetune_support import Tuning


def errors_of(done):
    return [line for line in done.stderr.splitlines() if "error: " in line]


class Checkpoints(unittest.TestCase):
    FRESH = dict(checkpoint__load=None, log__metrics_file=None)

    def test_a_fresh_run_leaves_older_checkpoints_alone(self):
        run = Run()
        run.run(checkpoint__save_interval=10)
        before = run.files()
        done = run.run(train__train_iters=15, checkpoint__save_interval=4, checkpoint__keep_last=1, **self.FRESH)
        self.assertIn("iter_0000020 is already there and this run does not resume from it", done.stderr)
        self.assertEqual(run.checkpoints(), ["iter_0000010", "iter_0000015", "iter_0000020"])
        self.assertEqual({name: data for name, data in run.files().items() if "0015" not in name}, before)

    def test_what_would_replace_another_is_refused_before_the_first_step(self):
        run = Run()
        run.run(checkpoint__save_interval=10)
        before = run.files()
        for name, keys in (("10", dict(checkpoint__save_interval=5, train__train_iters=30)), ("20", {}),
                           ("10", dict(train__exit_interval=10, train__train_iters=12)), ("20", dict(train__train_iters=20))):
            done = run.run(expect=1, **self.FRESH, **keys)
            line, = errors_of(done)
            self.assertIn(f"iter_00000{name} is already there, and this run would write it", line)
            self.assertIn("checkpoint.load", line)
            self.assertNotIn("iteration  1", done.stderr)
            self.assertEqual(run.files(), before)

    def test_a_run_prunes_what_it_goes_on_from_and_no_later_one(self):
        run = Run()
        run.run(checkpoint__save_interval=4)
        keys = dict(checkpoint__keep_last=2, log__metrics_file=None)
        done = run.run(**keys, checkpoint__load=run.directory / "run/iter_0000012", train__train_iters=18, checkpoint__save_interval=7)
        self.assertIn("iter_0000020 is already there and this run does not resume from it", done.stderr)
        self.assertEqual(run.checkpoints(), ["iter_0000014", "iter_0000016", "iter_0000018", "iter_0000020"])
        done = run.run(expect=1, **keys, checkpoint__load=run.directory / "run/iter_0000014")
        self.assertIn("iter_0000020 is already there", errors_of(done)[0])
        run.run("other", **keys, checkpoint__load=run.directory / "run", train__train_iters=30)
        self.assertEqual(run.checkpoints(), ["iter_0000014", "iter_0000016", "iter_0000018", "iter_0000020"])
        run.run(**keys, train__train_iters=30)
        self.assertEqual(run.checkpoints(), ["iter_0000020", "iter_0000030"])

    def test_what_a_run_goes_on_from_elsewhere_makes_no_checkpoint_here_its_own(self):
        run = Run()
        run.run("there", train__exit_interval=8)
        run.run("here", train__exit_interval=4, train__seed=7)
        before = run.files("here")
        done = run.run("here", checkpoint__load=run.directory / "there", checkpoint__save_interval=5, checkpoint__keep_last=1, log__metrics_file=None)
        self.assertIn("here/iter_0000004 is already there and this run does not resume from it", done.stderr)
        self.assertEqual(run.checkpoints("here"), ["iter_0000004", "iter_0000020"])
        self.assertEqual({name: data for name, data in run.files("here").items() if "0004" in name}, before)

    def test_a_directory_that_cannot_be_written_shows_before_the_first_step(self):
        run = Run()
        for path in ("/proc", "/proc/none", run.prefix.with_suffix(".idx")):
            for ranks in ("1", "2"):
                done = run.run("run", ["--ranks", ranks], expect=1, checkpoint__save=path, checkpoint__load=None)
                line, = errors_of(done)
                self.assertIn(str(path), line)
                self.assertNotIn("iteration  1", done.stderr)


class Metrics(unittest.TestCase):
    def refuse(self, run, part, **keys):
        before = (run.directory / "run.jsonl").read_bytes(), run.files()
        line, = errors_of(run.run(expect=1, **keys))
        self.assertIn("run.jsonl holds the records of another run", line)
        self.assertIn(part, line)
        self.assertEqual(before, ((run.directory / "run.jsonl").read_bytes(), run.files()))
        self.assertFalse((run.directory / "new").exists())

    def test_records_of_another_run_are_not_cut(self):
        run = Run()
        run.run(checkpoint__save_interval=10)
        for fresh in (dict(checkpoint__save=None), dict(checkpoint__save=run.directory / "new")):
            self.refuse(run, "starts afresh", checkpoint__load=None, **fresh)
        # From a checkpoint of another run with as many records.
        run.run("other", train__seed=7, train__exit_interval=10)
        self.refuse(run, "the loss of iteration 10 is ", checkpoint__load=run.directory / "other", checkpoint__save=None)
        run.run("short", train__exit_interval=5)
        (run.directory / "run.jsonl").write_text((run.directory / "short.jsonl").read_text())
        self.refuse(run, "iteration 5 is the last one, but this run resumes after 20", train__train_iters=30)

    def test_a_run_that_is_started_again_goes_on_in_its_file(self):
        run = Run()
        whole = Run()
        whole.run()
        process = run.start(train__train_iters=1000000)  # dies before its first checkpoint
        metrics = run.directory / "run.jsonl"
        self.assertTrue(wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, process))
        process.kill()
        process.communicate()
        run.run(train__exit_interval=8)
        run.run()
        self.assertEqual(timeless(run.records()), timeless(whole.records()))
        # Elsewhere, and back to an earlier one: records begin where the first of these runs did.
        keys = dict(checkpoint__save=run.directory / "on", checkpoint__load=run.directory / "run/iter_0000008", log__metrics_file=run.directory / "on.jsonl")
        run.run(train__exit_interval=3, **keys)
        (run.directory / "on/iter_0000009").rename(run.directory / "on/gone")
        run.run(**keys)
        self.assertEqual(timeless(run.records("on")), timeless(whole.records())[8:])

    def test_a_validation_alone_only_adds(self):
        run = Run()
        run.run(train__eval_interval=20, train__eval_iters=1)
        before = (run.directory / "run.jsonl").read_text()
        run.run(train__skip_train="true", train__eval_iters=1, checkpoint__load=None)
        text = (run.directory / "run.jsonl").read_text()
        self.assertTrue(text.startswith(before))
        self.assertEqual(json.loads(text[len(before):])["iteration"], 0)

    def test_a_pipe_with_a_reader_has_all_records(self):
        run = Run()
        pipe = run.directory / "pipe"
        os.mkfifo(pipe)
        line, = errors_of(run.run(expect=1, log__metrics_file=pipe))
        self.assertIn(f"nobody reads the pipe log.metrics_file {pipe}", line)
        found = []
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reader, True)

        def read():
            while len(found) < 20:
                found.extend(json.loads(line) for line in os.read(reader, 1 << 16).splitlines())

        thread = threading.Thread(target=read, daemon=True)
        process = run.start(log__metrics_file=pipe)
        wait_for(lambda: self.is_open(process.pid, pipe), process)
        thread.start()
        _, errors = process.communicate(timeout=60)
        thread.join(timeout=60)
        os.close(reader)
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual([r["iteration"] for r in found], list(range(1, 21)))

    @staticmethod
    def is_open(process, path):
        try:
            return any(os.readlink(f"/proc/{process}/fd/{fd}") == str(path) for fd in os.listdir(f"/proc/{process}/fd"))
        except OSError:
            return False

    def test_a_pipe_that_is_full_does_not_keep_a_run_from_stopping(self):
        run = Run()
        pipe = run.directory / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

        def waiting():
            room = array.array("i", [0])
            fcntl.ioctl(reader, termios.FIONREAD, room)
            return room[0]

        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ if hasattr(fcntl, "F_SETPIPE_SZ") else 1031, 4096)
        process = run.start(log__metrics_file=pipe, train__train_iters=1000000)
        self.assertTrue(wait_for(lambda: waiting() > 3500, process))
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        os.close(reader)
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("the last records are lost", errors)
        self.assertEqual(len(run.checkpoints()), 1)


class Stopping(unittest.TestCase):
    def test_a_signal_during_the_start_ends_in_order(self):
        run = Run()
        run.run(train__exit_interval=10)
        for use in ([], ["--ranks", "2"]):
            for name, before in (("fresh", []), ("run", ["iter_0000010"])):
                process = run.start(name, use, train__train_iters=1000000)
                process.stderr.readline()  # the first line comes before a rank starts
                process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 0, errors)
                if "before the first iteration" in errors:
                    self.assertEqual(run.checkpoints(name), before)
                else:
                    self.assertIn("stopped by SIGTERM after iteration", errors)
        Tuning.setUpClass()
        try:
            out = Tuning.root / "stopped"
            process = subprocess.Popen([os.environ["CAMBIUM"], "finetune", "--model", Tuning.base, "--peft", "lora", "--data", Tuning.data,
                                        "--output", out, "--optim.lr=1e-3", "--train.train_iters=1000000"], stderr=subprocess.PIPE, text=True)
            process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
            self.assertEqual(out.exists(), "before the first iteration" not in errors, errors)
            # Nothing is left to be opened, and the machine is measured before the first iteration.
            metrics, out = Tuning.root / "measured.jsonl", Tuning.root / "measured"
            process = subprocess.Popen([os.environ["CAMBIUM"], "finetune", "--model", Tuning.base, "--peft", "lora", "--data", Tuning.data,
                                        "--output", out, "--optim.lr=1e-3", "--train.train_iters=1000000", "--log.measure_ceiling=true",
                                        f"--log.metrics_file={metrics}"], stderr=subprocess.PIPE, text=True)
            self.assertTrue(wait_for(metrics.exists, process))
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
            self.assertEqual(out.exists(), "before the first iteration" not in errors, errors)
        finally:
            Tuning.tearDownClass()


class NotFinite(unittest.TestCase):
    """A model whose embedding of one token is so large that its norm is not finite; only the validation's documents have that token."""
    KEYS = dict(train__eval_interval=4, train__eval_iters=2, checkpoint__load=None)
    TOKEN = VOCAB - 1

    def broken(self, **keys):
        documents = [[t % self.TOKEN for t in d] for d in walk_documents()]
        run = Run(documents[:54] + [[self.TOKEN, *d] for d in documents[54:]])
        run.run("start", train__exit_interval=1, model__untie_embeddings_and_output_weights="true", **keys)
        file = run.directory / "start/iter_0000001/model.safetensors"
        data = bytearray(file.read_bytes())
        header, = struct.unpack_from("<Q", data)
        entry = json.loads(data[8:8 + header])["transformer.wte.weight"]
        at, columns = 8 + header + entry["data_offsets"][0], entry["shape"][1]
        data[at + 4 * columns * self.TOKEN:at + 4 * columns * (self.TOKEN + 1)] = struct.pack("<f", 3e38) * columns
        file.write_bytes(data)
        return run, ["--init-from", file.parent]

    def test_a_validation_that_is_not_finite_stops_and_costs_no_good_checkpoint(self):
        run, init = self.broken()
        for name, use in (("one", []), ("two", ["--ranks", "2"])):
            done = run.run(name, [*init, *use], expect=1, checkpoint__save_interval=2, checkpoint__keep_last=1, **self.KEYS)
            line, = errors_of(done)
            self.assertIn("iteration 4: the validation loss is nan; stopped, with nothing saved", line)
            self.assertEqual(run.checkpoints(name), ["iter_0000002"])
            self.assertIsNone(run.records(name)[-1]["valid_loss"])
            run.run(name, [*init, *use], train__train_iters=6)
            self.assertEqual([r["iteration"] for r in run.records(name)], list(range(1, 7)))
        line, = errors_of(run.run("alone", init, expect=1, train__skip_train="true", **self.KEYS))
        self.assertIn("iteration 0: the validation loss is nan", line)
        self.assertIsNone(run.records("alone")[0]["valid_loss"])

    def test_the_save_under_way_is_finished_first(self):
        run, init = self.broken(model__hidden_size=256)
        for name, use in (("one", []), ("two", ["--ranks", "2"])):
            done = run.run(name, [*init, *use], expect=1, checkpoint__save_interval=3, checkpoint__async_save="true", **self.KEYS)
            self.assertIn("iteration 4: the validation loss is nan", done.stderr)
            self.assertIn(f"saved {run.directory}/{name}/iter_0000003 ", done.stderr)
            self.assertEqual([p.name for p in (run.directory / name).iterdir()], ["iter_0000003"])


class Locks(unittest.TestCase):
    KEYS = dict(train__train_iters=1000000)

    def check(self, run, use, second):
        metrics = run.directory / "run.jsonl"
        metrics.unlink(missing_ok=True)
        process = run.start("run", use, **self.KEYS)
        try:
            self.assertTrue(wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, process))
            line, = errors_of(second())
            self.assertIn(f"is in use by another run (process {process.pid})", line)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        return line

    def test_a_second_run_into_the_same_directory_is_refused_and_death_ends_the_lock(self):
        run = Run()
        for use in ([], ["--ranks", "2"]):
            line = self.check(run, use, lambda: run.run(expect=1, log__metrics_file=run.directory / "other.jsonl"))
            self.assertIn(f"{run.directory}/run ", line)
        run.run(train__train_iters=3)

    def test_a_second_run_into_the_same_metrics_file_is_refused(self):
        run = Run()
        line = self.check(run, [], lambda: run.run(expect=1, checkpoint__save=run.directory / "other"))
        self.assertIn(f"{run.directory}/run.jsonl ", line)

    def test_a_second_finetune_into_the_same_output_is_refused(self):
        Tuning.setUpClass()
        try:
            words = ["finetune", "--model", Tuning.base, "--peft", "ia3", "--data", Tuning.data, "--output", Tuning.root / "out",
                     "--optim.lr=1e-3", f"--checkpoint.load={Tuning.root / 'out'}"]
            run_program(*words, "--train.train_iters=2")
            metrics = Tuning.root / "long.jsonl"
            process = subprocess.Popen([os.environ["CAMBIUM"], *map(str, words), "--train.train_iters=1000000",
                                        f"--log.metrics_file={metrics}"], stderr=subprocess.DEVNULL)
            self.assertTrue(wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, process))
            # This one has nothing left to train, and would only write the adapter.
            done = subprocess.run([os.environ["CAMBIUM"], *map(str, words), "--train.train_iters=2"], capture_output=True, text=True)
            process.kill()
            process.wait()
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"{Tuning.root / 'out'} is in use by another run (process {process.pid})", errors_of(done)[0])
            run_program(*words, "--train.train_iters=2")
        finally:
            Tuning.tearDownClass()


if __name__ == "__main__":
    unittest.main()
