"""The common part of the tests of convert: a GGUF file, and the model directory that it becomes."""
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from gguf_support import TENSOR_F32, write_gguf
from model_support import CAMBIUM, floats, read_safetensors, run


class Convert(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.file, self.output = self.root / "m.gguf", self.root / "model"

    def convert(self, keys, tensors, *words, **more):
        write_gguf(self.file, keys, tensors, **more)
        shutil.rmtree(self.output, ignore_errors=True)
        run("convert", "--from", self.file, "--to", "model", "--output", self.output, *words)
        return json.loads((self.output / "config.json").read_text()), read_safetensors(self.output / "model.safetensors")

    def smallest_model(self, count, width=4):
        """Keys and tensors of the smallest model with these many tokens; its feed-forward layer has a width."""
        keys = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 4, "llama.feed_forward_length": width,
                "llama.context_length": 16, "llama.attention.head_count": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5}
        shapes = {name: [4, 4] for name in ("blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v", "blk.0.attn_output")}
        shapes |= {"blk.0.ffn_gate": [width, 4], "blk.0.ffn_up": [width, 4], "blk.0.ffn_down": [4, width], "token_embd": [count, 4]}
        shapes |= {name: [4] for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")}
        return keys, {f"{name}.weight": (TENSOR_F32, shape, floats([0.5] * math.prod(shape))) for name, shape in shapes.items()}

    def measure(self, *words, expect=0):
        """A conversion's standard error and its peak memory in bytes. A small process starts it, since a process that was
        started by a large one counts that one's memory as its own."""
        script = "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; " \
                 "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
        done = subprocess.run([sys.executable, "-c", script, CAMBIUM, "convert", *map(str, words)], capture_output=True, timeout=300)
        self.assertEqual(done.returncode, expect, done.stderr.decode())
        return done.stderr.decode(), int(done.stdout) << 10

    def refuse(self, part, keys, tensors, **more):
        write_gguf(self.file, keys, tensors, **more)
        _, errors = run("convert", "--from", self.file, "--to", "model", "--output", self.output, expect=1)
        self.assertRegex(errors, "cambium: error: [^\n]*" + re.escape(part) + "[^\n]*\n$")
        self.assertFalse(self.output.exists())
