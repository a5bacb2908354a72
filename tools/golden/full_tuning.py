#!/usr/bin/env python3
"""Golden losses: 20 steps of full fine-tuning of a small random GPT-2, by transformers and torch's AdamW in fp64.

Writes tests/train/golden/full_tuning.json: the rows, the keys of the run and what came of it. The model is the byte model of
tests/commands/model_support.py, which draws the same weights everywhere. Made with torch and transformers of the versions in
the file.

usage: full_tuning.py [FILE]
"""
import json
import os
import pathlib
import random
import sys
import tempfile

import torch
import transformers

source = pathlib.Path(__file__).parents[2]
os.environ |= {"CAMBIUM": "", "CAMBIUM_SOURCE": str(source)}  # model_support asks for them; no program runs
sys.path[:0] = [str(source / "tests/interop"), str(source / "tests/commands")]
from model_support import EOS, write_byte_model
from tuning_support import tune

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else source / "tests/train/golden/full_tuning.json")
MODEL = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 48}
RUN = {"steps": 20, "lr": 1e-3, "decay": 0.1, "clip": 1.0}
rows, r = [], random.Random(5)
for _ in range(8):
    n = r.randrange(1, 9)
    rows.append({"prompt": f"to {n}:", "completion": " " + " ".join(map(str, range(n)))})
with tempfile.TemporaryDirectory() as directory:
    write_byte_model(directory, **MODEL)
    losses, norms, last = tune(directory, rows, EOS, **RUN)
out.write_text(json.dumps({"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}", "model": MODEL,
                           "rows": rows, "run": RUN, "lm_loss": losses, "grad_norm": norms, "last_loss": last}, indent=1) + "\n")
print(f"losses {losses[0]:.4f} to {last:.4f}, norms {min(norms):.3f} to {max(norms):.3f}")
