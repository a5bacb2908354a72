"""Golden vectors of small random models: logits, loss and every parameter's gradient.

Made with transformers 5.23 and torch 2.15 in fp64 from weights that fp32 holds exactly. Each case is a model directory as
`save_pretrained` writes it, with `batch.json` (tokens and labels; -100 counts nothing) and `expected.safetensors` (F32:
`logits` [B, T, V], `loss`, `grad.NAME`) beside. The families with a rotation also have `steps.json`: the losses before and
after each of 20 steps of AdamW on that batch, and 64 greedy tokens after a prompt. The angles of the rotation are fp32, as
`transformers` has them. Run: python tools/golden/model_vectors.py tests/model/golden [CASE ...]
"""
import json, pathlib, shutil, sys
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, Qwen3Config

from model_doubles import use_double

GPT2 = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
SMALL = dict(vocab_size=61, hidden_size=36, intermediate_size=46, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             max_position_embeddings=128)
CASES = {  # name: (class, keys, [B, T]); several head sizes, odd lengths, batch > 1, tied and untied
    "d5_tied": (GPT2Config, dict(GPT2, n_layer=2, n_embd=20, n_head=4, vocab_size=33, n_positions=17), (2, 13)),
    "d33_exact": (GPT2Config, dict(GPT2, n_layer=1, n_embd=33, n_head=1, vocab_size=47, n_positions=9, n_inner=50,
                                   activation_function="gelu"), (3, 9)),
    "d64_untied": (GPT2Config, dict(GPT2, n_layer=1, n_embd=64, n_head=1, vocab_size=65, n_positions=40, n_inner=31,
                                    tie_word_embeddings=False), (1, 37)),
    "d8_deep": (GPT2Config, dict(GPT2, n_layer=5, n_embd=16, n_head=2, vocab_size=29, n_positions=24, layer_norm_epsilon=1e-3), (4, 24)),
    "llama_wide_heads": (LlamaConfig, dict(SMALL, head_dim=10), (2, 21)),
    "llama_biases_linear": (LlamaConfig, dict(SMALL, num_attention_heads=4, hidden_size=32, attention_bias=True, mlp_bias=True,
                                              tie_word_embeddings=True,
                                              rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=10000.0)), (3, 13)),
    # of its six wavelengths one is kept, one lies between, and the others are divided
    "llama_3": (LlamaConfig, dict(SMALL, head_dim=12, attention_bias=True, rms_norm_eps=1e-5,
                                  rope_parameters=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                       original_max_position_embeddings=32, rope_theta=500.0)), (2, 29)),
    "mistral_window": (MistralConfig, dict(SMALL, num_hidden_layers=3, head_dim=8, sliding_window=7), (2, 23)),
    "qwen2_tied": (Qwen2Config, dict(SMALL, hidden_size=32, num_attention_heads=4, tie_word_embeddings=True,
                                     rope_parameters=dict(rope_type="default", rope_theta=1e6)), (2, 17)),
    "qwen2_yarn_windows": (Qwen2Config, dict(SMALL, num_hidden_layers=4, hidden_size=32, num_attention_heads=2, use_sliding_window=True,
                                             sliding_window=5, max_window_layers=2,
                                             rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32,
                                                                  rope_theta=1000.0)), (2, 19)),
    "qwen3": (Qwen3Config, dict(SMALL, head_dim=14, num_hidden_layers=3, tie_word_embeddings=True), (2, 19)),
    "phi3_partial": (Phi3Config, dict(SMALL, hidden_size=48, num_attention_heads=4, pad_token_id=None,
                                      rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)), (2, 17)),
}
STEPS, GREEDY, PROMPT = 20, 64, 11
ADAMW = dict(lr=0.01, betas=(0.9, 0.95), eps=1e-8)
DECAY, CLIP = 0.1, 1.0


def loss_of(model, tokens, labels):
    logits = model(input_ids=tokens).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def greedy(model, prompt):
    """With the distance to the second best: a greedy token has to be one for fp32, too."""
    tokens, margin = prompt[None], float("inf")
    with torch.no_grad():
        for _ in range(GREEDY):
            best = model(input_ids=tokens).logits[0, -1].topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            tokens = torch.cat([tokens, best.indices[None, :1]], 1)
    assert margin > 1e-3, f"a margin of {margin}: take another seed"
    return tokens[0, len(prompt):].tolist()


def train(model, tokens, labels):
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer, losses = torch.optim.AdamW(groups, **ADAMW), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, tokens, labels)[1]
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return losses + [loss_of(model, tokens, labels)[1].item()]


def write_case(out, seed, kind, keys, shape):
    torch.manual_seed(seed)
    config = kind(initializer_range=0.2, bos_token_id=0, eos_token_id=0, attn_implementation="eager", **keys)
    model = AutoModelForCausalLM.from_config(config).train()
    with torch.no_grad():  # norms and biases away from their neutral start, so that each of them matters
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    model.double()
    use_double()
    tokens = torch.randint(0, config.vocab_size, shape)
    labels = torch.randint(0, config.vocab_size, shape)
    labels[torch.rand(shape) < 0.2] = -100
    logits, loss = loss_of(model, tokens, labels)
    loss.backward()
    expected = {"logits": logits, "loss": loss.reshape(1)}
    expected |= {"grad." + key.removeprefix(model.base_model_prefix + "."): p.grad for key, p in model.named_parameters()}
    save_file({key: value.detach().float().contiguous() for key, value in expected.items()}, out / "expected.safetensors")
    (out / "batch.json").write_text(json.dumps({"tokens": tokens.tolist(), "labels": labels.tolist()}))
    if kind is not GPT2Config:
        prompt = tokens[0, :PROMPT]
        steps = {"prompt": prompt.tolist(), "greedy": greedy(model, prompt), "adamw": ADAMW, "weight_decay": DECAY, "clip_grad": CLIP,
                 "losses": train(model, tokens, labels)}
        (out / "steps.json").write_text(json.dumps(steps))


out, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
for number, (name, (kind, keys, shape)) in enumerate(CASES.items()):
    if not wanted or name in wanted:
        write_case(out / name, number, kind, keys, shape)
