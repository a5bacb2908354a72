"""verify serving: training and serving give the same bits, for every kind of adapter; what it prints, dumps and refuses."""
import json
import signal
import struct
import subprocess
import time
import unittest

from finetune_support import LONG, P, Tuning
from model_support import CAMBIUM, PRECISIONS, read_safetensors, rows, run, write_byte_llama, write_byte_model

PATHS = ["training", "prefill", "chunked", "decode", "prefix_hit", "mixed"]
KINDS = {"lora": "lora", "head": "lora", "dora": "lora", "rslora": "lora", "ia3": "ia3", "houlsby": "adapter", "pfeiffer": "adapter",
         "parallel": "adapter", "prompt": "prompt", "ptuning": "ptuning", "prefix": "prefix", "projected": "prefix",
         "stack": "lora ia3", "full": "full"}
WORDS = {"head": ["--peft.target_modules", "c_attn", "lm_head"], "dora": ["--peft.use_dora=true"], "rslora": ["--peft.use_rslora=true"],
         "houlsby": ["--peft.adapter_style=houlsby"], "pfeiffer": ["--peft.adapter_style=pfeiffer"],
         "parallel": ["--peft.adapter_style=parallel"], "projected": ["--peft.prefix_projection=true"]}
FAMILIES = {"llama": {}, "mistral": {"sliding_window": 9}, "qwen2": {}, "qwen3": {}, "phi3": {"num_attention_heads": 4, "head_dim": 8}}
WITHOUT = {"mistral": {"prefix", "projected"}, "phi3": {"ia3", "stack"}}  # no prefix before a window; no targets of its own
TENSOR = lambda ranks: ["--ranks", ranks, f"{P}tensor_model_parallel_size={ranks}"]


class Verify(Tuning):
    @classmethod
    def write_base(cls):
        write_byte_model(cls.base, n_layer=2, n_head=4, n_embd=32, n_positions=96)
        cls.models = {"gpt2": cls.base} | {family: cls.root / family for family in FAMILIES}
        for family, more in FAMILIES.items():
            write_byte_llama(cls.models[family], model_type=family, num_hidden_layers=2, max_position_embeddings=96, **more)

    def verify(self, *words, expect=None):
        """Returns the lines of the paths, and the summary."""
        done = subprocess.run([CAMBIUM, "verify", "serving", *map(str, words)], capture_output=True, timeout=300)
        *paths, summary = rows(done.stdout)
        self.assertEqual([path["path"] for path in paths], PATHS)
        self.assertEqual(summary["equal"], not any(path["differ"] for path in paths))
        self.assertEqual(done.returncode, expect if expect is not None else 0 if summary["equal"] else 1, done.stderr)
        return paths, summary

    def check_paths(self, paths):
        """All paths have the bits of the forward that trains. A hit computes fewer rows."""
        training, prefill, *others = paths
        for path in others:
            if path["path"] != "prefix_hit":
                self.assertEqual(path | {"path": "prefill"}, prefill)
        for path in paths:
            self.assertEqual((path["differ"], path["max_abs"]), (0, 0.0), path)
            self.assertNotIn("first", path)

    def tuned(self, kind, family="gpt2"):
        """Returns the words for a kind of tuning of the family's model."""
        name, targets = f"{family}-{kind}", ["--peft.target_modules=all-linear"] if family == "phi3" and KINDS.get(kind) == "lora" else []
        if kind == "base":
            return ["--model", self.models[family]]
        self.base = self.models[family]
        if not (self.root / name).exists():
            self.tune(name, KINDS[kind], *WORDS.get(kind, []), *targets, "--optim.lr=3e-2")
        del self.base  # the class's again
        return ["--model", self.root / name] if kind == "full" else ["--model", self.models[family], "--adapter", self.root / name]

    def test_every_kind(self):
        for family in self.models if LONG else ("gpt2", "llama"):
            for kind in ("base", *KINDS) if LONG or family == "gpt2" else ("base", "stack"):
                words = self.tuned(kind, family) if kind not in WITHOUT.get(family, ()) else None
                for precision in PRECISIONS if words else ():
                    for ranks in (1, 2) if LONG else (1,):
                        with self.subTest(family=family, kind=kind, precision=precision, ranks=ranks):
                            paths, summary = self.verify(*words, "--precision", precision, *TENSOR(ranks))
                            print(family, kind, json.dumps(summary), flush=True)
                            self.assertEqual((summary["precision"], summary["tensor"]), (precision, ranks))
                            self.check_paths(paths)

    def test_tensor_ranks(self):
        paths, summary = self.verify(*self.tuned("base"), *TENSOR(2), "--precision", "fp32")
        self.assertEqual(summary["tensor"], 2)
        self.check_paths(paths)
        paths, summary = self.verify(*self.tuned("stack"), *TENSOR(4))
        self.assertEqual(summary["tensor"], 4)
        self.check_paths(paths)

    def test_the_dump_has_the_numbers_of_score(self):
        texts, words = self.root / "texts.jsonl", self.tuned("prompt")
        lines = [{"text": "to 4: 0 1 2"}, {"tokens": [1, 2, 3, 4, 5] * 8}]
        texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for number, ranks in enumerate((1, 2)):
            dump = self.root / f"dump{number}"
            paths, summary = self.verify(*words, "--input", texts, "--dump", dump, *TENSOR(ranks))
            self.assertEqual([path["texts"] for path in paths], [2] * len(PATHS))
            self.assertEqual(sorted(file.name for file in dump.iterdir()), ["serving.safetensors", "training.safetensors"])
            scored = rows(run("score", *words, "--input", texts, *TENSOR(ranks))[0])
            dumps = {name: read_safetensors(dump / f"{name}.safetensors") for name in ("training", "serving")}
            self.assertEqual(dumps["training"] == dumps["serving"], summary["equal"])
            for i, line in enumerate(scored):
                kind, shape, data = dumps["serving"][f"text.{i}"]
                self.assertEqual((kind, list(shape)), ("F32", [len(line["tokens"]), 257]))
                values = struct.unpack(f"<{len(data) // 4}f", data)
                for at in range(1, len(line["tokens"])):
                    ours = values[(at - 1) * 257 + line["tokens"][at]]
                    self.assertEqual(struct.pack("<f", ours), struct.pack("<f", line["logprobs"][at]))

    def test_finetune_ends_with_the_gap(self):
        """The last record of the metrics, in layouts too; a run that has nothing left to do adds none."""
        words = ["--valid-data", self.data, "--train.eval_interval=4", "--checkpoint.save_interval=8"]
        for name, method, layout in (("gap", "ia3", []), ("gap-ranks", "lora", ["--ranks", "4", *TENSOR(2)[2:]]),
                                     ("gap-full", "full", [])):
            self.tune(name, method, *words, *layout)
            *others, last = self.lines(name)
            self.assertEqual((last["iteration"], list(last)), (8, ["iteration", "serving_gap"]))
            self.assertFalse(any("serving_gap" in line for line in others))
            self.assertEqual(last["serving_gap"], 0)
        before = self.lines("gap")
        self.tune("gap", "ia3", *words, f"--checkpoint.load={self.root / 'gap'}")
        self.assertEqual(self.lines("gap"), before)
        self.tune("gap", "ia3", *words, f"--checkpoint.load={self.root / 'gap'}", "--train.train_iters=12")
        self.assertEqual([line["iteration"] for line in self.lines("gap") if "serving_gap" in line], [12])

    def refuse(self, *words, expect, says):
        output, errors = run("verify", "serving", "--model", self.base, *words, expect=expect)
        self.assertEqual(output, b"")
        self.assertIn(says, errors)
        self.assertEqual(errors.count("\n"), 1, errors)

    def test_what_cannot_be_is_refused(self):
        full, texts = self.root / "full", self.root / "long.jsonl"
        full.mkdir()
        (full / "file").write_text("")
        self.refuse("--dump", full, expect=1, says="is not empty")
        self.assertEqual([file.name for file in full.iterdir()], ["file"])
        texts.write_text(json.dumps({"tokens": [1] * 97}))
        self.refuse("--input", texts, "--dump", self.root / "none", expect=1, says="97 tokens: the model has 96 positions")
        self.assertFalse((self.root / "none" / "serving.safetensors").exists())
        texts.write_text(json.dumps({"tokens": []}))
        self.refuse("--input", texts, expect=1, says="long.jsonl:1")
        self.refuse("--precision", "fp8", expect=2, says="fp8 has no zero gap: its scales follow the batch")
        self.refuse("--ranks", "2", expect=2, says="ranks")
        self.refuse("--adapter", self.root / "nowhere", expect=1, says="nowhere")

    def test_control_c_ends_it(self):
        texts = self.root / "many.jsonl"
        texts.write_text((json.dumps({"tokens": [7] * 96}) + "\n") * 400)
        with subprocess.Popen([CAMBIUM, "verify", "serving", "--model", self.base, "--input", texts, "--dump", self.root / "cut"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
            time.sleep(0.5)
            program.send_signal(signal.SIGINT)
            begun = time.monotonic()
            program.wait(10)
            self.assertLess(time.monotonic() - begun, 1)
            self.assertNotEqual(program.returncode, 0)
        self.assertFalse((self.root / "cut" / "serving.safetensors").exists())


if __name__ == "__main__":
    unittest.main()
