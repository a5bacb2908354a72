#!/usr/bin/env python3
"""Golden losses: 50 steps of a small random GPT-2 under PyTorch's AdamW.

Writes tests/train/golden/torch: model/ (a Hugging Face directory), text.bin and text.idx (a Megatron dataset of random
tokens with structure), run.yaml (the run that pretrain is to repeat) and losses.json. Made with torch 2.15.0 and
transformers 5.23.0; needs numpy as well. Samples and learning rates are computed here on their own, by Megatron-LM's rules
(gpt_dataset.py, helpers.cpp, optimizer_param_scheduler.py).

usage: torch_train.py [DIRECTORY]
"""
import json, math, pathlib, struct, sys
import numpy, torch, transformers
from transformers import GPT2Config, GPT2LMHeadModel

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2] / "tests/train/golden/torch")
out.mkdir(parents=True, exist_ok=True)
S, GBS, MBS, ITERS, SEED, VOCAB = 32, 4, 2, 50, 1234, 97
LR, MIN_LR, WARMUP, DECAY, CLIP = 2e-3, 2e-4, 5, 0.1, 1.0
torch.manual_seed(1)
torch.use_deterministic_algorithms(True)
numpy_state = numpy.random.RandomState(7)

# a dataset: documents of random length, each a random walk over the vocabulary
documents = []
for _ in range(40):
    steps = numpy_state.randint(1, 5, size=numpy_state.randint(20, 120))
    documents.append(((numpy.cumsum(steps) + numpy_state.randint(VOCAB)) % VOCAB).astype("<u2"))
lengths = numpy.array([len(d) for d in documents], dtype="<i4")
offsets = numpy.concatenate([[0], numpy.cumsum(lengths[:-1].astype("<i8") * 2)]).astype("<i8")
(out / "text.bin").write_bytes(b"".join(d.tobytes() for d in documents))
(out / "text.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1) +
                               lengths.tobytes() + offsets.tobytes() + numpy.arange(len(documents) + 1, dtype="<i8").tobytes())

# the samples: end to end over shuffled documents, then shuffled
tokens_per_epoch, wanted = int(lengths.sum()), ITERS * GBS
epochs = 1
while epochs * tokens_per_epoch < wanted * S + 1:
    epochs += 1
before_last = ((epochs - 1) * tokens_per_epoch - 1) // S
separate = epochs > 1 and wanted - before_last < int(0.80 * ((tokens_per_epoch - 1) // S))
random = numpy.random.RandomState(SEED)
def shuffled(values):
    values = numpy.array(values)
    random.shuffle(values)
    return list(values)
ids = list(range(len(documents)))
order = shuffled(ids * (epochs - 1)) + shuffled(ids) if separate else shuffled(ids * epochs)
stream = numpy.concatenate([documents[d] for d in order]).astype(numpy.int64)
count = (epochs * tokens_per_epoch - 1) // S
pieces = shuffled(range(before_last)) + shuffled(range(before_last, count)) if separate else shuffled(range(count))
def sample(k):
    start = pieces[k] * S
    return stream[start:start + S + 1]

config = GPT2Config(vocab_size=VOCAB, n_positions=S, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                    attn_pdrop=0.0, initializer_range=0.1, bos_token_id=None, eos_token_id=None)
model = GPT2LMHeadModel(config).train()
with torch.no_grad():  # no bias and no gain at its usual start, so that each of them matters from the first step
    for p in model.parameters():
        if p.dim() == 1:
            p.add_(0.1 * torch.randn_like(p))
model.save_pretrained(out / "model")
groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
          {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)

def rate(iteration):
    seen = iteration - 1
    if seen <= WARMUP:
        return LR * seen / WARMUP
    return MIN_LR + (LR - MIN_LR) * 0.5 * (math.cos(math.pi * (seen - WARMUP) / (ITERS - WARMUP)) + 1)

losses, norms = [], []
for iteration in range(1, ITERS + 1):
    text = torch.tensor(numpy.stack([sample((iteration - 1) * GBS + i) for i in range(GBS)]))
    logits = model(input_ids=text[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), text[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    for group in optimizer.param_groups:
        group["lr"] = rate(iteration)
    optimizer.step()
    losses.append(loss.item())
    norms.append(norm.item())

(out / "run.yaml").write_text(f"""data:
  seq_length: {S}
  seed: {SEED}
  split: "100,0,0"
train:
  train_iters: {ITERS}
  micro_batch_size: {MBS}
  global_batch_size: {GBS}
optim:
  lr: {LR}
  min_lr: {MIN_LR}
  lr_decay_style: cosine
  lr_warmup_iters: {WARMUP}
  weight_decay: {DECAY}
  clip_grad: {CLIP}
  adam_beta1: 0.9
  adam_beta2: 0.95
  adam_eps: 1.0e-8
""")
(out / "losses.json").write_text(json.dumps({"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}",
                                             "lr": [rate(i) for i in range(1, ITERS + 1)], "lm_loss": losses,
                                             "grad_norm": norms}, indent=1) + "\n")
print(f"losses {losses[0]:.4f} to {losses[-1]:.4f}, norms {min(norms):.3f} to {max(norms):.3f}, {epochs} epochs, separate {separate}")
