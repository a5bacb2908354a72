"""verify serving: training and serving give the same bits, for every kind of adapter; what it prints, dumps and refuses."""
import json
import struct
import subprocess
import time

from finetune_support import KEYS, LONG, P, Tuning, keys_of
from model_support import CAMBIUM, PRECISIONS, read_safetensors, rows, run, write_byte_llama, write_byte_model

PATHS = ["training", "prefill", "chunked", "decode", "prefix_hit", "mixed"]
KINDS = {"lora": "lora", "dora": "lora", "rslora": "lora", "ia3": "ia3", "houlsby": "adapter", "pfeiffer": "adapter",
         "parallel": "adapter", "prompt": "prompt", "ptuning": "ptuning", "prefix": "prefix", "projected": "prefix",
         "stack": "lora ia3"}
WORDS = {"dora": ["--peft.use_dora=true"], "rslora": ["--peft.use_rslora=true"],
         "houlsby": ["--peft.adapter_style=houlsby"], "pfeiffer": ["--peft.adapter_style=pfeiffer"],
         "parallel": ["--peft.adapter_style=parallel"], "projected": ["--peft.prefix_projection=true"]}
# Kinds, "base" among them, whose training has the bits of serving: family, precision, kind.
EQUAL = {}


class Verify(Tuning):
    @classmethod
    def write_base(cls):
        write_byte_model(cls.base, n_layer=2, n_head=4, n_embd=32, n_positions=96)
        cls.llama = cls.root / "llama"
        write_byte_llama(cls.llama, num_hidden_layers=2, max_position_embeddings=96)

    def verify(self, *words, expect=None, model=None):
        """Returns the lines of the paths, and the summary."""
        done = subprocess.run([CAMBIUM, "verify", "serving", "--model", model or self.base, *map(str, words)], capture_output=True, timeout=300)
        *paths, summary = rows(done.stdout)
        self.assertEqual([path["path"] for path in paths], PATHS)
        self.assertEqual(summary["equal"], not any(path["differ"] for path in paths))
        self.assertEqual(done.returncode, expect if expect is not None else 0 if summary["equal"] else 1, done.stderr)
        return paths, summary

    def check_paths(self, paths, is_equal):
        """All paths of the engine compute the same. A hit computes fewer rows, so its worst difference may be smaller."""
        training, prefill, *others = paths
        for path in others:
            if path["path"] != "prefix_hit":
                self.assertEqual(path | {"path": "prefill"}, prefill)
        if is_equal:
            for path in paths:
                self.assertEqual((path["differ"], path["max_abs"]), (0, 0.0), path)
                self.assertNotIn("first", path)

    def test_every_kind(self):
        for family, model in (("gpt2", self.base), ("llama", self.llama)):
            for kind in ("base", *KINDS):
                words = []
                if kind != "base":
                    base, self.__class__.base = self.base, model
                    self.tune(f"{family}-{kind}", KINDS[kind], *WORDS.get(kind, []), "--optim.lr=3e-2")
                    self.__class__.base = base
                    words = ["--adapter", self.root / f"{family}-{kind}"]
                for precision in PRECISIONS:
                    with self.subTest(family=family, kind=kind, precision=precision):
                        paths, summary = self.verify(*words, "--precision", precision, model=model)
                        self.assertEqual(summary["precision"], precision)
                        self.check_paths(paths, kind in EQUAL.get((family, precision), ()))
                        if not LONG:
                            print(family, kind, precision, [p["max_abs"] for p in paths])


if __name__ == "__main__":
    import unittest
    unittest.main()
