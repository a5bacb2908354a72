"""Receipts: finetune writes one into each directory, each load replays it, and a planted fault is refused by its name."""
import json
import os
import shutil
import signal
import subprocess
import time
import unittest

import finetune_support as tuning
import model_support as support
import mpi_support as mpi
from serve_support import Server

STREAMS = 24


class Receipts(tuning.Tuning):
    def load(self, adapter, *words):
        done = subprocess.run([support.CAMBIUM, "score", "--model", self.base, "--input", "-", "--adapter", adapter, *words],
                              input='{"tokens":[3,4,5]}\n', capture_output=True, text=True, timeout=120)
        return done.returncode, done.stderr

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.made = cls.root / "made"
        support.run("finetune", "--model", cls.base, "--data", cls.data, "--peft", "lora", "--output", cls.made, "--optim.lr=1e-2",
                    "--train.train_iters=4", "--train.global_batch_size=2", "--checkpoint.save_interval=2")

    def test_each_directory_has_one_that_loads(self):
        for part in (".", "iter_0000002", "iter_0000004"):
            self.assertTrue((self.made / part / "cambium_receipt.json").exists(), part)
            for words in ([], ["--precision", "bf16"], ["--device", "cpu:v3"], ["--receipts", "require"]):
                status, said = self.load(self.made / part, *words)
                self.assertEqual(status, 0, (part, words, said))

    def test_a_save_that_appears_has_them(self):
        """A killed run's, too. They are what `adapter receipt` writes: the trainer's forward is the engine's, in any layout."""
        layout = ["--ranks", "4", f"{tuning.P}tensor_model_parallel_size=2", f"{tuning.P}pipeline_model_parallel_size=2"]
        for name, methods, words in (("lora", ["lora"], ["--checkpoint.async_save=true", "--train.precision=bf16"]), ("stack", ["prompt", "ia3", "prefix"], layout),
                                     ("cut", ["prompt"], ["--ranks", "2", layout[2], f"{tuning.P}sequence_parallel=true", "--peft.num_virtual_tokens=3"])):
            output = self.root / f"killed-{name}"
            keys = [word for method in methods for word in tuning.KEYS.get(method, [])]
            with self.subTest(methods=methods), subprocess.Popen(
                    [support.CAMBIUM, "finetune", "--model", self.base, "--peft", *methods, "--data", self.data, "--output", output, "--optim.lr=1e-2",
                     "--train.train_iters=1000000", "--train.global_batch_size=2", "--checkpoint.save_interval=2", "--data.seq_length=30", *keys, *words],
                    stderr=subprocess.PIPE, text=True) as running:
                while running.poll() is None and not list(output.glob("iter_*")):
                    time.sleep(0.002)
                running.kill()
                errors = running.communicate(timeout=120)[1]
                found = sorted(path.parent for path in output.rglob("adapter_config.json") if ".cambium-" not in str(path))
                self.assertGreaterEqual(len(found), len(methods), errors)
                for number, directory in enumerate(found):
                    again = self.root / f"again-{name}-{number}"
                    shutil.copytree(directory, again, ignore=shutil.ignore_patterns("cambium_receipt.json"))
                    support.run("adapter", "receipt", again, "--model", self.base, *(["--precision", "bf16"] if name == "lora" else ["--ranks", 2, layout[2]]))
                    ours, expected = (json.loads((path / "cambium_receipt.json").read_text()) | {"created": ""} for path in (directory, again))
                    self.assertEqual(ours, expected)

    def test_a_stopped_run_has_them(self):
        output, metrics = self.root / "stopped", self.root / "stopped.jsonl"
        with subprocess.Popen([support.CAMBIUM, "finetune", "--model", self.base, "--peft", "lora", "ia3", "--data", self.data, "--output", output,
                               f"--log.metrics_file={metrics}", "--optim.lr=1e-3", "--train.train_iters=1000000", "--checkpoint.save_interval=2",
                               "--checkpoint.keep_last=2", "--train.global_batch_size=2", "--ranks", "2"], stderr=subprocess.PIPE, text=True) as running:
            while running.poll() is None and not list(output.glob("iter_*")):
                time.sleep(0.002)
            running.send_signal(signal.SIGTERM)
            errors = running.communicate(timeout=120)[1]
        self.assertEqual(running.returncode, 0, errors)
        self.assertIn("stopped by SIGTERM", errors)
        for directory in (output, *output.glob("iter_*")):
            for method in ("lora", "ia3"):
                self.assertTrue((directory / method / "cambium_receipt.json").exists(), directory)
            status, said = self.load(directory, "--receipts", "require")
            self.assertEqual(status, 0, said)

    @mpi.needs_mpirun
    def test_a_signal_to_one_process_ends_all(self):
        """After the training, ranks ask what they agreed on, so one without the signal does not wait for one that has it."""
        output = self.root / "one-signal"
        command = [support.CAMBIUM, "finetune", "--model", self.base, "--peft", "prompt", "--peft.num_virtual_tokens=3", "--data", self.data, "--output", output,
                   "--valid-data", self.data, "--train.eval_interval=2", f"--log.metrics_file={self.root / 'one-signal.jsonl'}", "--optim.lr=1e-2", "--train.train_iters=1000000",
                   "--train.global_batch_size=2", "--checkpoint.save_interval=2", "--checkpoint.keep_last=1"]
        with subprocess.Popen([*mpi.MPIRUN, "-n", "2", *map(str, command)], stderr=subprocess.PIPE, text=True) as running:
            while running.poll() is None and not list(output.glob("iter_*")):
                time.sleep(0.002)
            for rank, process in mpi.rank_processes(str(output)).items():
                if rank == 1:
                    os.kill(process, signal.SIGTERM)
            try:
                errors = running.communicate(timeout=60)[1]
            except subprocess.TimeoutExpired:
                running.terminate()
                self.fail(f"ranks wait for each other:\n{running.communicate()[1]}")
        self.assertEqual(running.returncode, 0, errors)
        self.assertIn("stopped by SIGTERM", errors)
        self.assertTrue((output / "cambium_receipt.json").exists())

    def test_none_is_refused_only_where_one_is_required(self):
        shutil.copytree(self.made, self.root / "none", ignore=shutil.ignore_patterns("iter_*", "cambium_receipt.json"))
        self.assertEqual(self.load(self.root / "none")[0], 0)
        self.assertIn("has no receipt", self.load(self.root / "none", "--receipts", "require")[1])
        for words in (["chat", "--chat-template", "plain"], ["verify", "serving"]):
            errors = support.run(*words, "--model", self.base, "--adapter", self.root / "none", "--receipts", "require", expect=1)[1]
            self.assertIn("has no receipt", errors)
        support.run("adapter", "receipt", self.root / "none", "--model", self.base)
        self.assertEqual(self.load(self.root / "none", "--receipts", "require")[0], 0)

    def test_faults_are_refused_by_name(self):
        good = json.loads((self.made / "cambium_receipt.json").read_text())
        config = json.loads((self.made / "adapter_config.json").read_text())
        text, weights = json.dumps(good), (self.made / "adapter_model.safetensors").read_bytes()
        first = good["golden"][2]["logprobs"][5]
        faults = {f"cut {i}": ("cambium_receipt.json", text[:len(text) * i // 12], "damaged") for i in range(12)}
        for key in ("version", "program", "run", "adapter", "golden"):
            faults[f"without {key}"] = ("cambium_receipt.json", json.dumps({k: v for k, v in good.items() if k != key}), "damaged")
        for key, value, part in (("version", 2, "version 2"), ("version", "1", "damaged"), ("golden", [], "4 texts"), ("run", {}, "damaged")):
            faults[f"{key} {value}"] = ("cambium_receipt.json", json.dumps(good | {key: value}), part)
        for value in ("0x1.8p+1", "nan", "inf", "-3.5", "", "0x1p+999"):
            faults[f"number {value}"] = ("cambium_receipt.json", text.replace(f'"{first}"', f'"{value}"', 1), "")
        faults["number of text 2"] = ("cambium_receipt.json", text.replace(f'"{first}"', '"-0x1.8p+1"', 1), "golden text 2, token 5")
        for key, value in (("lora_alpha", 3), ("use_rslora", True), ("lora_dropout", 0.5), ("base_model_name_or_path", "x")):
            faults[key] = ("adapter_config.json", json.dumps(config | {key: value}), f'"{key}"')
        for at in range(8):
            place = len(weights) - 1 - at * 150
            changed = weights[:place - 3] + bytes([weights[place - 3] ^ 1]) + weights[place - 2:]
            faults[f"byte {place}"] = ("adapter_model.safetensors", changed, "of the adapter is not the one in its receipt")
        self.assertGreaterEqual(len(faults), 40)
        for number, (name, (file, content, part)) in enumerate(faults.items()):
            with self.subTest(fault=name):
                bad = self.root / f"bad-{number}"
                shutil.copytree(self.made, bad, ignore=shutil.ignore_patterns("iter_*"))
                (bad / file).write_bytes(content.encode() if isinstance(content, str) else content)
                status, said = self.load(bad)
                self.assertEqual(status, 1, said)
                self.assertIn(part, said)

    def test_merge_and_init_adapter_replay(self):
        """By the forward, not by digests: a number that the adapter does not give is refused, and a base of another type is not."""
        lying, half, whole = self.root / "lying", self.root / "half", self.root / "whole"
        shutil.copytree(self.made, lying, ignore=shutil.ignore_patterns("iter_*"))
        receipt = json.loads((lying / "cambium_receipt.json").read_text())
        receipt["golden"][2]["logprobs"][5] = "-0x1.8p+1"
        (lying / "cambium_receipt.json").write_text(json.dumps(receipt))
        tensors = support.read_safetensors(self.base / "model.safetensors")
        halves = {name: [content[i + 2:i + 4] for i in range(0, len(content), 4)] for name, (_, _, content) in tensors.items()}
        for base, kind, before in ((half, "BF16", b""), (whole, "F32", b"\0\0")):
            shutil.copytree(self.base, base)
            support.write_safetensors(base / "model.safetensors", {name: (kind, shape, b"".join(before + value for value in halves[name]))
                                                                   for name, (_, shape, _) in tensors.items()})
        tune = ["finetune", "--data", self.data, "--optim.lr=1e-2", "--train.train_iters=1", "--train.global_batch_size=2"]
        support.run(*tune, "--peft", "lora", "--model", half, "--output", self.root / "of-half", "--train.precision=fp32")
        four = ["--ranks", 4, "--parallel.tensor_model_parallel_size=2"]
        for name, words in {"merge": ["merge", "--adapter"], "tune": [*tune, "--init-adapter"], "ranks": [*tune, *four, "--init-adapter"],
                            "evaluate": ["finetune", "--train.skip_train=true", "--valid-data", self.data, "--adapter"]}.items():
            output = self.root / f"{name}-output"
            more = [] if name == "evaluate" else ["--output", output]
            with self.subTest(way=name):
                said = support.run(*words, lying, "--model", self.base, *more, expect=1)[1]
                self.assertIn("golden text 2, token 5", said)
                self.assertEqual(said.count("error: "), 1, said)
                self.assertFalse(output.exists())
                for adapter, base, keys in ((lying, self.base, ["--receipts", "off"]), (self.root / "of-half", whole, []),
                                            (self.made, half, [] if name == "merge" else ["--train.precision=bf16"])):
                    support.run(*words, adapter, "--model", base, *more, *keys)
                    shutil.rmtree(output, ignore_errors=True)

    def test_a_replay_under_streams_changes_none(self):
        """All sequences are in use: golden texts have their own."""
        shutil.copytree(self.made, self.root / "again", ignore=shutil.ignore_patterns("iter_*"))
        bad = self.root / "changed"
        shutil.copytree(self.root / "again", bad)
        weights = bytearray((bad / "adapter_model.safetensors").read_bytes())
        weights[-2] ^= 1
        (bad / "adapter_model.safetensors").write_bytes(weights)
        bodies = [{"prompt": [3 + n, 4, 5], "max_tokens": 40, "ignore_eos": True, "temperature": 0} for n in range(STREAMS)]
        with Server("--adapter-root", self.root, "--max-batch-size", STREAMS, model=self.base) as server:
            expected = [server.complete(**body)["choices"][0]["text"] for body in bodies]
            streams = [server.stream("/v1/completions", body) for body in bodies]
            first = [next(stream) for stream in streams]
            loaded = server.ask("POST", "/v1/adapters", {"name": "proved", "path": "again"}, listener="control")
            refused = server.ask("POST", "/v1/adapters", {"name": "liar", "path": "changed"}, listener="control")
            texts = ["".join(event["choices"][0]["text"] for event in [begun, *stream]) for begun, stream in zip(first, streams)]
            self.assertEqual(texts, expected)
            self.assertEqual((loaded.status, loaded.json["receipt"], loaded.json["receipt_gap"]), (200, "exact", 0))
            self.assertEqual((refused.status, refused.code), (422, "adapter_invalid"))
            self.assertIn("of the adapter is not the one in its receipt", refused.json["error"]["message"])
            counts = server.metrics()
            self.assertEqual([counts[f'cambium:adapter_receipts_total{{result="{word}"}}'] for word in ("exact", "refused")], [1, 1])


if __name__ == "__main__":
    unittest.main()
