"""Training against live torch, and its event files against live TensorBoard."""
import json
import math
import unittest

import torch
from interop_support import SEED, Case, random_gpt2
from model_support import needs_bf16
from pretrain_support import VOCAB, Run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ITERATIONS, LENGTH, BATCH = 50, 16, 4
LR, MIN_LR, WARMUP = 2e-3, 2e-4, 5


def rate(style, iteration):
    """The learning rate of an iteration by Megatron-LM's rules."""
    seen = iteration - 1
    if seen <= WARMUP:
        return LR * seen / WARMUP
    way = (seen - WARMUP) / (ITERATIONS - WARMUP)
    if style == "inverse-square-root":
        return max(MIN_LR, LR * math.sqrt(WARMUP * BATCH) / math.sqrt(seen * BATCH))
    if style == "WSD":
        into = (seen - (ITERATIONS - 10)) / 10
        left = 1 if into <= 0 else 1 - math.sqrt(into)
    else:
        left = {"constant": 1, "linear": 1 - way, "cosine": 0.5 * (math.cos(math.pi * way) + 1)}[style]
    return MIN_LR + left * (LR - MIN_LR) if style != "constant" else LR


class Training(Case):
    def batches(self, run):
        """The tokens and labels of each iteration, as `data show` tells them."""
        samples = []
        for k in range(ITERATIONS * BATCH):
            shown = json.loads(self.run_program("data", "show", "--data-path", run.prefix, "--seq-length", LENGTH,
                                                "--num-samples", ITERATIONS * BATCH, "--seed", 77, "--split", "100,0,0",
                                                "--sample", k))
            samples.append((shown["tokens"], shown["labels"]))
        for i in range(ITERATIONS):
            part = samples[i * BATCH:(i + 1) * BATCH]
            yield tuple(torch.tensor([sample[j] for sample in part]) for j in range(2))

    def train(self, model, batches, style, decay, clip):
        """Losses and gradient norms under torch's AdamW."""
        groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
                  {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
        losses, norms = [], []
        for iteration, (tokens, labels) in enumerate(batches, 1):
            logits = model(input_ids=tokens).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf).item())
            for group in optimizer.param_groups:
                group["lr"] = rate(style, iteration)
            optimizer.step()
            losses.append(loss.item())
        return losses, norms

    def compare(self, changed, style, decay, clip, micro, precision="fp32", bound=1e-4):
        run = Run()
        model = random_gpt2(50, vocab_size=VOCAB, n_positions=LENGTH, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                            **{"initializer_range": 0.1} | changed).train()
        model.save_pretrained(run.directory / "start")
        keys = {"optim__lr_wsd_decay_iters": 10, "optim__lr_wsd_decay_style": "minus_sqrt"} if style == "WSD" else {}
        run.run("run", ["--init-from", run.directory / "start"], checkpoint__save=None, checkpoint__load=None,
                data__split="100,0,0", data__seed=77, train__train_iters=ITERATIONS, train__micro_batch_size=micro,
                train__global_batch_size=BATCH, train__precision=precision, optim__lr=LR, optim__min_lr=MIN_LR,
                optim__lr_decay_style=style, optim__lr_warmup_iters=WARMUP, optim__weight_decay=decay,
                optim__clip_grad=clip, optim__adam_beta2=0.95, **keys)
        losses, norms = self.train(model, self.batches(run), style, decay, clip)
        records = run.records()
        self.assertEqual(len(records), ITERATIONS)
        self.assertLess(losses[-1], losses[0] - 0.1)
        for number, (record, loss, norm) in enumerate(zip(records, losses, norms, strict=True), 1):
            told = f"iteration {number}"
            self.assertAlmostEqual(record["lr"], rate(style, number), delta=1e-12, msg=told)
            self.assertLessEqual(abs(record["lm_loss"] - loss), bound * loss, told)
            self.assertLessEqual(abs(record["grad_norm"] - norm), 20 * bound * norm, told)

    def test_fifty_steps_follow_torch(self):
        for changed, style, decay, clip, micro in (
                ({}, "cosine", 0.1, 1.0, 2), ({"tie_word_embeddings": False}, "linear", 0.01, 0.3, 4),
                ({"activation_function": "gelu", "n_inner": 72}, "inverse-square-root", 0, 0, 1),
                ({"n_layer": 3, "n_head": 6}, "WSD", 0.5, 1.0, 2), ({"n_head": 1}, "constant", 0.1, 0.1, 4)):
            with self.subTest(changed=changed, style=style):
                self.compare(changed, style, decay, clip, micro)

    @needs_bf16
    def test_bf16_stays_near(self):
        # Weights and activations of 8 bits: a loss is off by some 2^-8 of the logits' spread.
        self.compare({}, "cosine", 0.1, 1.0, 2, precision="bf16", bound=2e-2)


class Events(Case):
    def test_tensorboard_reads_what_the_metrics_tell(self):
        run = Run()
        board = run.directory / "board"
        for _ in range(2):  # the second resumes the first, in a file of its own
            run.run(log__tensorboard_dir=board, train__exit_interval=10, train__eval_interval=5, train__eval_iters=1,
                    train__seed=SEED)
        read = EventAccumulator(str(board), size_guidance={"scalars": 0})
        read.Reload()
        records = run.records()
        tags = {"lm_loss": "lm loss", "lr": "learning-rate", "grad_norm": "grad-norm", "model_tflops": "model-tflops",
                "tokens_per_s": "tokens-per-second", "valid_loss": "lm loss validation"}
        self.assertEqual(set(read.Tags()["scalars"]), set(tags.values()))
        for key, tag in tags.items():
            expected = [(r["iteration"], r[key]) for r in records if key in r]
            found = [(event.step, event.value) for event in read.Scalars(tag)]
            self.assertEqual([step for step, _ in found], [step for step, _ in expected], tag)
            for (_, a), (_, b) in zip(found, expected):
                self.assertAlmostEqual(a, b, delta=1e-6 * abs(b))
            times = [event.wall_time for event in read.Scalars(tag)]
            self.assertEqual(times, sorted(times))


if __name__ == "__main__":
    unittest.main()
