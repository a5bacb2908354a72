#!/usr/bin/env python3
"""Golden losses of preferences: 10 steps of LoRA on a small random GPT-2 for each loss, by their formulas in torch, with peft
and torch's AdamW in fp64.

Writes tests/train/golden/preference_tuning.json: the rows, the keys of the runs and what came of them. The model is the byte
model of tests/commands/model_support.py, and the adapter that training starts from is that of preference_support.py; both are
drawn the same everywhere. Made with the versions in the file.

usage: preference_tuning.py [FILE]
"""
import json
import os
import pathlib
import random
import sys
import tempfile

import peft
import torch
import transformers

source = pathlib.Path(__file__).parents[2]
os.environ |= {"CAMBIUM": "", "CAMBIUM_SOURCE": str(source)}  # model_support asks for them; no program runs
sys.path[:0] = [str(source / "tests/interop"), str(source / "tests/commands")]
from model_support import EOS, write_byte_model
from preference_support import write_lora
from preference_torch import prefer

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else source / "tests/train/golden/preference_tuning.json")
MODEL = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 48}
RUN = {"steps": 10, "lr": 5e-3, "decay": 0.1, "clip": 1.0}
LOSSES = {"dpo": ("dpo", {"beta": 0.3}), "smooth": ("dpo", {"beta": 0.1, "label_smoothing": 0.1, "sft_weight": 0.2}),
          "orpo": ("orpo", {"beta": 0.3}), "kto": ("kto", {"beta": 0.2})}
pairs, r = [], random.Random(5)
for _ in range(6):
    n = r.randrange(1, 9)
    right, wrong = " " + " ".join(map(str, range(n))), " " + " ".join(map(str, range(n, 0, -1)))
    pairs.append({"prompt": f"to {n}:", "chosen": right, "rejected": wrong + "!" * r.randrange(3)})
# of two rows, each has the other's answer in whatever order they come
labelled = [{"prompt": "to 3:", "completion": " 0 1 2", "label": True}, {"prompt": "to 6 please:", "completion": " 6 5 4!", "label": False}]
runs = {}
with tempfile.TemporaryDirectory() as directory:
    base, adapter = pathlib.Path(directory) / "base", pathlib.Path(directory) / "adapter"
    write_byte_model(base, **MODEL)
    write_lora(adapter, MODEL)
    for name, (loss, options) in LOSSES.items():
        records = prefer(base, adapter, labelled if loss == "kto" else pairs, EOS, loss, options, **RUN)
        runs[name] = {"loss": loss, "options": options, "records": records}
        print(f"{name}: {records[0]['loss']:.4f} to {records[-1]['loss']:.4f}")
out.write_text(json.dumps({"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}",
                           "model": MODEL, "pairs": pairs, "labelled": labelled, "run": RUN, "runs": runs}, indent=1) + "\n")
