"""Published output is on the disk before it has its name. A kill before any call that changes a name leaves the old
output or the new one, whole, and the next run leaves nothing else. This covers tokenizers, models, datasets,
adapters, stacks and checkpoints."""
import json, os, pathlib, re, shutil, subprocess, tempfile, unittest

import model_support as support
from model_support import CAMBIUM, run
from mpi_support import needs_mpirun, run_each
from pretrain_support import LONG

AT_ONCE = 3

CALLS = os.environ.get("CAMBIUM_CALLS")  # a library that is loaded before the program: tests/support/failing/calls.c
WITHIN = ("old", "gone", "done", "link")  # names in a box that are on their way out, or to another


def tree(path):
    """Returns the files, but not the time in a receipt."""
    return {str(p.relative_to(path)): re.sub(rb'"created": "[^"]*"', b"", p.read_bytes()) for p in sorted(path.rglob("*")) if p.is_file()}


@unittest.skipUnless(CALLS, "sanitizers must be the first library that is loaded")
class Publish(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(temporary.cleanup)
        cls.root = pathlib.Path(temporary.name).resolve()
        cls.base, cls.text = cls.root / "base", cls.root / "text.txt"
        support.write_byte_model(cls.base, n_layer=1, n_head=2, n_embd=8, n_positions=32)
        cls.text.write_text("the cat sat on the mat and the dog sat on the cat\n" * 40)
        cls.rows = cls.root / "rows.jsonl"
        cls.rows.write_text("".join(json.dumps({"prompt": f"{i}:", "completion": " yes"}) + "\n" for i in range(16)))
        cls.lora = [cls.root / "lora-0", cls.root / "lora-1"]
        for number, adapter in enumerate(cls.lora):
            run(*cls.finetune(adapter, "lora", number))

    # ---- the commands: a directory that they write to, and one of two outputs

    @classmethod
    def finetune(cls, out, methods, number, *words):
        return ["finetune", "--model", cls.base, "--peft", *methods.split(), "--data", cls.rows, "--output", out,
                f"--train.train_iters={2 + 2 * number}", "--train.global_batch_size=4", "--optim.lr=1e-2",
                *([f"--checkpoint.load={out}"] if number and out.name != "lora-1" else []), *words]

    def tokenizer(self, out, number):
        return ["tokenizer", "train", "--input", self.text, "--vocab-size", 262 + number, "--output", out / "deep/t"]

    def merge(self, out, number):
        return ["merge", "--model", self.base, "--adapter", self.lora[number], "--output", out / "m"]

    def quantize(self, out, number):
        return ["quantize", "--model", self.base, "--format", ("int8", "nf4")[number], "--output", out / "q"]

    def preprocess(self, out, number):
        return ["preprocess", "--input", self.text, "--tokenizer", self.base, "--format", ("line", "file")[number],
                "--output-prefix", out / "p", "--workers", 1]

    def adapter(self, out, number):
        return self.finetune(out / "a", "lora", number, "--valid-data", self.rows, "--train.eval_interval=1")

    def stack(self, out, number):
        return self.finetune(out / "s", "lora ia3", number)

    def pretrain(self, out, number):
        return ["pretrain", "--data.data_path", self.root / "d/p_text_document", "--data.split", "1,0,0", "--data.seq_length=8",
                f"--data.data_cache_path={self.root}/cache", "--tokenizer", self.base, "--model.num_layers=1", "--model.hidden_size=8",
                "--model.num_attention_heads=2", f"--train.train_iters={3 + 3 * number}", "--train.micro_batch_size=1",
                "--train.global_batch_size=1", f"--checkpoint.load={out}/c", "--optim.lr=1e-2", "--checkpoint.save_interval=1", "--checkpoint.keep_last=1",
                f"--checkpoint.save={out}/c", f"--checkpoint.async_save={('false', 'true')[number]}", f"--log.metrics_file={out}/m.jsonl"]

    def cache(self, out, number):
        return ["data", "show", "--data-path", self.root / "d/p_text_document", "--seq-length", 8 + number, "--data-cache-path", out / "c"]

    def calls(self, words, out, expect=0, **more):
        """Runs a command, and returns what it did with names below `out`."""
        log = self.root / "calls.log"
        log.unlink(missing_ok=True)
        more = {f"CAMBIUM_CALLS_{key}": str(value) for key, value in more.items()}
        done = subprocess.run([CAMBIUM, *map(str, words)], capture_output=True, text=True, timeout=300,
                              env=os.environ | more | dict(LD_PRELOAD=CALLS, CAMBIUM_CALLS_ROOT=str(out), CAMBIUM_CALLS_LOG=str(log)))
        self.assertEqual(done.returncode, expect, done.stderr)
        return [line.split("\t") for line in log.read_text().splitlines()] if log.exists() else []

    # ---- on the disk

    def check_synced(self, calls):
        """Returns the names that came to be."""
        published = []
        for i, (what, first, second) in enumerate(calls):
            later = {os.path.normpath(path) for word, path, _ in calls[i:] if word == "sync"}
            name = second if what == "publish" else first
            parent, base = os.path.split(os.path.normpath(name))
            in_box = ".cambium-" in (parent if what == "publish" else name)
            if what == "make" and not in_box:
                self.assertIn(parent, later, f"{name} is made, and the directory that holds it is not synced")
            if what == "publish" and base in ("ready", "old"):  # a resumed run looks for a mark that names the owner
                self.assertIn(f"{parent}/mark", {path for word, path, _ in calls[:i] if word == "sync"}, f"{name} comes into a box without a mark")
            if what == "publish" and base not in WITHIN:
                k = i
                while calls[k - 1][0] == "unsynced":
                    k -= 1
                self.assertEqual([call[1] for call in calls[k:i]], [], f"published as {name}, and not synced before")
                self.assertIn(parent, later, f"{name} is published, and the directory that holds it is not synced")
                published += [] if in_box else [name]
        return published

    def check_checkpoints(self, calls, old):
        """The records of a checkpoint's iterations are on the disk before it is; an older one goes after a newer one came."""
        syncs, saved, removed = 0, [], []
        for what, first, second in calls:
            syncs += what == "sync" and first.endswith("/m.jsonl")
            if what == "publish" and os.path.basename(second).startswith("iter_"):
                saved.append(os.path.basename(second))
                self.assertLessEqual(len(saved), syncs)
            if what == "publish" and os.path.basename(second) == "gone":
                removed.append(os.path.basename(first))
                self.assertGreater(max(saved, default=""), removed[-1])
        self.assertEqual((len(saved), len(removed)), (3, 2 + old))

    def test_everything_is_on_the_disk_before_it_has_its_name(self):
        self.make_dataset()
        for name, least in (("tokenizer", 1), ("merge", 1), ("quantize", 1), ("preprocess", 2), ("adapter", 4), ("stack", 7), ("pretrain", 3), ("cache", 1)):
            for plain in ({}, dict(PLAIN=1)):
                for number in (0, 1):  # to nothing, then in the place of another
                    with self.subTest(name=name, number=number, **plain):
                        out = self.root / f"synced-{name}-{len(plain)}"
                        out.mkdir(exist_ok=True)
                        calls = self.calls(getattr(self, name)(out, number), out, **plain)
                        self.assertGreaterEqual(len(self.check_synced(calls)), least)
                        if name == "pretrain":
                            self.check_checkpoints(calls, number)
                        self.assertEqual([p for p in out.rglob(".cambium-*")], [])

    @needs_mpirun
    def test_what_ranks_write_together_is_on_the_disk_before_it_has_its_name(self):
        self.make_dataset()
        out, log = self.root / "together", self.root / "together.log"
        out.mkdir()
        words = ["env", f"LD_PRELOAD={CALLS}", f"CAMBIUM_CALLS_ROOT={out}", f"CAMBIUM_CALLS_LOG={log}", CAMBIUM, *self.pretrain(out, 0)]
        done = run_each(*[[*words, "--parallel.tensor_model_parallel_size=2"]] * 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        synced, published = set(), []
        for what, first, second in (line.split("\t") for line in log.read_text().splitlines()):
            self.assertNotEqual((what, first[-12:]), ("unsynced", ".safetensors"))
            synced |= {first} if what == "sync" else set()
            if what == "publish" and os.path.basename(second).startswith("iter_"):
                published.append(second)
                self.assertLessEqual({f"{first}/{name}.safetensors" for name in ("model", "optimizer")}, synced)
        self.assertEqual(len(published), 3)

    # ---- killed

    def make_dataset(self):
        if not (self.root / "d").exists():
            (self.root / "d").mkdir()
            run(*self.preprocess(self.root / "d", 0))

    def check_kills(self, name, look, **plain):
        """look(out): what a reader of ours sees there, and what it must not."""
        first, words, seen = self.root / f"{name}-{len(plain)}", getattr(self, name), []
        first.mkdir()
        run(*words(first, 0))
        out = self.root / f"{name}-{len(plain)}-killed"
        shutil.copytree(first, out)
        seen.append((look(out), tree(out)))
        calls = self.calls(words(out, 1), out, **plain)
        seen.append((look(out), tree(out)))
        self.assertNotEqual(*(look for look, _ in seen))
        count = sum(call[0] == "call" for call in calls)
        moments = min(count, 60 if LONG else 6)
        found = set()
        for moment in range(moments):
            shutil.rmtree(out, ignore_errors=True)
            at = count - (count - 1) * moment // moments  # the last calls are those that put things in place
            with self.subTest(name=name, at=at, of=count):
                shutil.copytree(first, out)
                self.calls(words(out, 1), out, expect=-9, KILL=at, **plain)
                now = look(out)
                self.assertIn(now, [look for look, _ in seen])
                found.add(now == seen[1][0])
                run(*words(out, 1))
                self.assertEqual(tree(out), seen[1][1])
                self.assertEqual([p for p in out.rglob(".cambium-*")], [])
        self.assertEqual(found, {False, True})  # moments lie on both sides of the change

    def test_a_tokenizer_is_the_old_or_the_new(self):
        self.check_kills("tokenizer", lambda out: str(tree(out / "deep/t")))

    def test_without_locks_nobody_takes_a_box_for_a_dead_writers(self):
        out = self.root / "unlocked"
        out.mkdir()
        count = sum(call[0] == "call" for call in self.calls(self.merge(out, 0), out))
        self.calls(self.merge(out, 1), out, expect=-9, KILL=count // 2)
        box, = out.glob(".cambium-*")
        before = tree(box)
        self.calls(self.merge(out, 1), out, UNLOCKED=1)
        self.assertEqual(list(out.glob(".cambium-*")), [box])
        self.assertEqual(tree(box), before)
        run(*self.merge(out, 1))
        self.assertEqual(list(out.glob(".cambium-*")), [])

    def test_a_merged_model_is_the_old_or_the_new(self):
        self.check_kills("merge", lambda out: str(tree(out / "m")))

    def test_a_quantised_model_is_the_old_or_the_new(self):
        self.check_kills("quantize", lambda out: str(tree(out / "q")))

    def test_a_dataset_is_the_old_or_the_new(self):
        pairs = []

        def look(out):
            prefix = out / "p_text_document"
            if prefix.with_name(prefix.name + ".idx").exists():  # then other readers take both
                pairs.append(tuple(prefix.with_name(prefix.name + end).read_bytes() for end in (".bin", ".idx")))
                self.assertLessEqual(len(set(pairs)), 2)
            return run("data", "show", "--data-path", prefix, "--seq-length", 8, "--data-cache-path", self.root / "cache")[0]
        self.check_kills("preprocess", look)

    def look_at_adapter(self, methods, out):
        """PEFT reads a directory with an adapter_config.json; ours read what waits in its place, too."""
        places = [out / method for method in methods] if len(methods) > 1 else [out]
        for place in places:
            if (place / "adapter_config.json").exists():
                files = str({p.name: p.read_bytes() for p in sorted(place.iterdir())
                             if p.is_file() and p.name != "cambium_receipt.json"})  # it is written last
                self.plain_reads.setdefault(place, set()).add(files)
                self.assertLessEqual(len(self.plain_reads[place]), 2)
        (self.root / "tokens.jsonl").write_text('{"tokens":[1,2,3,4,5,6,7]}\n')
        return run("score", "--model", self.base, "--input", self.root / "tokens.jsonl", "--adapter", out)[0]

    def test_an_adapter_is_the_old_or_the_new(self):
        self.plain_reads = {}
        self.check_kills("adapter", lambda out: self.look_at_adapter(["lora"], out / "a"))

    def test_a_stack_is_the_old_or_the_new(self):
        self.plain_reads = {}
        self.check_kills("stack", lambda out: self.look_at_adapter(["lora", "ia3"], out / "s"))

    def test_where_names_cannot_be_exchanged_the_old_model_waits_in_the_box(self):
        def look(out):
            if not (out / "m").exists():
                self.waited = True
            return str(tree(out / "m" if (out / "m").exists() else next(out.glob(".cambium-*/old"))))
        self.waited = False
        self.check_kills("merge", look, PLAIN=1)
        self.assertTrue(self.waited or not LONG)


if __name__ == "__main__":
    unittest.main()
