"""Full fine-tuning by transformers and torch's AdamW: what finetune --peft full is compared with."""
import math

import torch
from transformers import AutoModelForCausalLM, GPT2Tokenizer

IGNORED = -100  # the label of a token without a loss


def encode(tokenizer, rows, eos):
    """Rows of prompts and completions as one padded batch. The answer and its end-of-text have labels."""
    texts = [(tokenizer.encode(row["prompt"]), tokenizer.encode(row["completion"]) + [eos]) for row in rows]
    longest = max(len(prompt) + len(answer) for prompt, answer in texts)
    batch = {"input_ids": [], "attention_mask": [], "labels": []}
    for prompt, answer in texts:
        length = len(prompt) + len(answer)
        padding = longest - length
        batch["input_ids"].append(prompt + answer + [eos] * padding)
        batch["attention_mask"].append([1] * length + [0] * padding)
        batch["labels"].append([IGNORED] * len(prompt) + answer + [IGNORED] * padding)
    return {key: torch.tensor(value) for key, value in batch.items()}


def tune(directory, rows, eos, steps, lr, decay, clip, betas=(0.9, 0.95), dtype=torch.float64):
    """Trains on all rows at once. Returns the loss and the gradient's norm of each step, and the last weights' loss."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).train()
    batch = encode(GPT2Tokenizer.from_pretrained(directory), rows, eos)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": decay},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, eps=1e-8)
    losses, norms = [], []
    for _ in range(steps):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf).item())
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, norms, model(**batch).loss.item()
