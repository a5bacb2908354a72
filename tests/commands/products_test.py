"""oneDNN's products run in its fast implementations: it falls back to a reference one, tens of times slower, without a
word. With ONEDNN_VERBOSE it names on standard output what it executes."""
import os, re, unittest

import model_support
from finetune_support import METHODS, Tuning


class Products(Tuning):
    def check(self, *words):
        output, _ = model_support.run(*words, env={**os.environ, "ONEDNN_VERBOSE": "1"})
        ran = re.findall(r"exec,cpu,(\w+),([^,]*)", output.decode())
        self.assertGreater(len(ran), 10)
        self.assertEqual([name for name in ran if name[0] == "matmul" and name[1].startswith("ref")], [])

    def test_training_and_tuning(self):
        keys = {"adapter": ["--peft.bottleneck=8"]} | {m: ["--peft.num_virtual_tokens=4"] for m in ("prompt", "ptuning", "prefix")}
        for precision in model_support.PRECISIONS:
            tune = ["finetune", "--model", self.base, "--data", self.data, "--optim.lr=1e-3", "--train.train_iters=1",
                    "--train.global_batch_size=2", f"--train.precision={precision}"]
            for method in METHODS:
                with self.subTest(method=method, precision=precision):
                    self.check(*tune, "--peft", method, *keys.get(method, []), "--output", self.root / f"{method}-{precision}")
            with self.subTest(stack="lora ia3", precision=precision):
                self.check(*tune, "--peft", "lora", "ia3", "--output", self.root / f"stack-{precision}")


if __name__ == "__main__":
    unittest.main()
