"""Losses of preferences on peft's adapters, by their formulas in torch: what finetune --loss is compared with."""
import math

import torch
from peft import PeftModel
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, GPT2Tokenizer


def answer(model, prompt, tokens):
    """The sum of the log-probabilities of an answer's tokens."""
    ids = torch.tensor([prompt + tokens])
    logprobs = torch.log_softmax(model(ids).logits[0, :-1], dim=-1)
    return logprobs[range(len(prompt) - 1, len(prompt) + len(tokens) - 1), tokens].sum()


def dpo(chosen, rejected, options):
    (pc, rc, nc), (pr, rr, _) = chosen, rejected
    beta, e = options["beta"], options.get("label_smoothing", 0)
    x = beta * ((pc - rc) - (pr - rr))
    loss = -(1 - e) * logsigmoid(x) - e * logsigmoid(-x) - options.get("sft_weight", 0) * pc / nc
    return loss, beta * (pc - rc), beta * (pr - rr)


def orpo(chosen, rejected, options):
    c, r = chosen[0] / chosen[2], rejected[0] / rejected[2]
    odds = (c - r) - (torch.log1p(-c.exp()) - torch.log1p(-r.exp()))
    return -c - options["beta"] * logsigmoid(odds), options["beta"] * c, options["beta"] * r


def prefer(base, adapter, rows, eos, loss, options, steps, lr, decay, clip, betas=(0.9, 0.95), dtype=torch.float64):
    """Trains on all rows at once. Returns the loss, the means of the rewards and the gradient's norm of each step."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), adapter, is_trainable=True)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    tokenizer = GPT2Tokenizer.from_pretrained(base)
    fields = ("completion",) if loss == "kto" else ("chosen", "rejected")
    texts = [(tokenizer.encode(row["prompt"]), [tokenizer.encode(row[field]) + [eos] for field in fields]) for row in rows]
    others = [(prompt, texts[(i + 1) % len(texts)][1][0]) for i, (prompt, _) in enumerate(texts)]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, betas=betas, eps=1e-8, weight_decay=decay)
    records = []

    def ratios(prompt, answers):
        """(by the model, by the reference, tokens) of each answer."""
        with torch.no_grad(), model.disable_adapter():
            references = [answer(model, prompt, tokens) for tokens in answers]
        return [(answer(model, prompt, tokens), reference, len(tokens)) for tokens, reference in zip(answers, references)]

    for _ in range(steps):
        found = [ratios(prompt, answers) for prompt, answers in texts]
        if loss == "kto":
            with torch.no_grad():
                mean = sum(p - r for prompt, tokens in others for p, r, _ in ratios(prompt, [tokens])) / len(rows)
            shift, beta = torch.clamp(mean, min=0), options["beta"]
            signs = [1 if row["label"] else -1 for row in rows]
            values = [1 - torch.sigmoid(sign * beta * (p - r - shift)) for sign, [(p, r, _)] in zip(signs, found)]
            rewards = [[(beta * (p - r)).item() for sign, [(p, r, _)] in zip(signs, found) if sign == side] for side in (1, -1)]
            accurate = [value.item() < 0.5 for value in values]
        else:
            figures = [(dpo if loss == "dpo" else orpo)(*pair, options) for pair in found]
            values = [value for value, _, _ in figures]
            rewards = [[figure[1 + side].item() for figure in figures] for side in (0, 1)]
            accurate = [chosen > rejected for chosen, rejected in zip(*rewards)]
        mean = sum(values) / len(values)
        optimizer.zero_grad()
        mean.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, clip or math.inf).item()
        optimizer.step()
        chosen, rejected = (sum(side) / len(side) for side in rewards)
        records.append({"loss": mean.item(), "rewards_chosen": chosen, "rewards_rejected": rejected,
                        "rewards_margin": chosen - rejected, "rewards_accuracy": sum(accurate) / len(accurate), "grad_norm": norm}
                       | ({"shift": shift.item()} if loss == "kto" else {}))
    return records
