"""Distributed checkpoints, both ways, against a live torch, and against Megatron core where that is installed."""
import importlib.util
import shutil
import subprocess
import sys
import unittest
import warnings

import torch
import torch.distributed.checkpoint as dcp
from interop_support import SOURCE, Case
from pretrain_support import Run
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

GOLDEN = SOURCE / "tests/ckpt/golden/dcp"
warnings.filterwarnings("ignore", module="torch.distributed")


def bits(tensor):
    return tensor.dtype, tensor.shape, bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


class Exchange(Case):
    def assert_equal(self, found, expected, what):
        self.assertEqual(found.keys(), expected.keys(), what)
        for name in expected:
            self.assertTrue(bits(found[name]) == bits(expected[name]), (what, name))

    def assert_torch_reads(self, directory, expected):
        state = {name: torch.zeros_like(value) for name, value in expected.items()}
        dcp.load(state, checkpoint_id=directory)
        self.assert_equal(state, expected, directory)
        dcp_to_torch_save(directory, self.directory / "whole.pt")
        self.assert_equal(torch.load(self.directory / "whole.pt"), expected, directory)

    def test_torch_reads_what_is_written_for_it(self):
        for name in ("floats", "integers", "unsigned", "bytes", "scalars", "empty", "dimensions", "names", "fsdp2_optimizer", "model"):
            output = self.directory / name
            self.run_program("convert", "--from", GOLDEN / name, "--to", "dcp", "--files", 3, "--output", output)
            self.assert_torch_reads(output, load_file(GOLDEN / name / "expected.safetensors"))

    def test_torch_reads_a_checkpoint_with_moments_as_it_is_and_converted(self):
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        run = Run()
        run.run(train__train_iters=3, checkpoint__load=None)
        checkpoint = run.directory / "run/iter_0000003"
        expected = load_file(checkpoint / "model.safetensors") | load_file(checkpoint / "optimizer.safetensors")
        self.run_program("convert", "--from", run.directory / "run", "--to", "dcp", "--output", self.directory / "dcp")
        self.assert_torch_reads(self.directory / "dcp", expected)
        state = {name: torch.zeros_like(value) for name, value in expected.items()}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(str(checkpoint)))
        self.assert_equal(state, expected, checkpoint)

    def test_files_of_torchs_safetensors_writer_come_and_go(self):
        """HuggingFaceStorageWriter's parts become tensors, whole ones a model's; HuggingFaceStorageReader opens the result."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
        tensors = {"a.weight": torch.randn(7, 5), "b": torch.arange(6), "c": torch.randn(3, 4).bfloat16(), "d": torch.rand(2) < 0.5}
        for is_sharded in (False, True):
            source, output = self.directory / f"source{is_sharded}", self.directory / f"tensors{is_sharded}"
            dcp.save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(source), save_distributed=is_sharded), no_dist=True)
            self.assertEqual(bool(list(source.glob("shard-*.safetensors"))), is_sharded)
            self.run_program("convert", "--from", source, "--to", "tensors", "--output", output)
            self.assert_equal(load_file(output / "model.safetensors"), tensors, source)
            state = {name: torch.zeros_like(value) for name, value in tensors.items()}
            dcp.load(state, storage_reader=HuggingFaceStorageReader(str(output)), no_dist=True)
            self.assert_equal(state, tensors, output)

    def test_what_this_torch_writes_is_read(self):
        """The recorded directories, made anew by the torch that is installed."""
        made = self.directory / "made"
        subprocess.run([sys.executable, SOURCE / "tools/golden/torch_checkpoints.py", made], cwd=SOURCE, check=True, capture_output=True)
        directories = sorted(made.iterdir())
        self.assertGreaterEqual(len(directories), 40)
        for directory in directories:
            output = self.directory / "tensors"
            shutil.rmtree(output, ignore_errors=True)
            self.run_program("convert", "--from", directory, "--to", "tensors", "--output", output)
            self.assert_equal(load_file(output / "model.safetensors"), load_file(directory / "expected.safetensors"), directory)

    @unittest.skipUnless(importlib.util.find_spec("megatron"), "megatron-core is not installed (pip install --no-deps megatron-core)")
    def test_core_reads_what_is_written_for_it(self):
        """All families, with the states that core asks for, and for two tensor ranks."""
        directories = []
        for name in ("d64_untied", "d5_tied", "llama_wide_heads", "qwen2_tied", "qwen3", "phi3_partial"):
            core, whole = self.directory / f"{name}.core", self.directory / f"{name}.tensors"
            self.run_program("convert", "--from", SOURCE / "tests/model/golden" / name, "--to", "megatron", "--tensor", 2, "--files", 2, "--output", core)
            self.run_program("convert", "--from", core, "--to", "tensors", "--output", whole)
            directories += [core, whole / "model.safetensors"]
        subprocess.run([sys.executable, SOURCE / "tools/golden/megatron_checkpoints.py", "--read", *directories], cwd=SOURCE, check=True,
                       capture_output=True)


if __name__ == "__main__":
    unittest.main()
