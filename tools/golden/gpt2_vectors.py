"""Golden vectors of small random GPT-2 models: logits, loss and every parameter's gradient.

Made with transformers 5.23 and torch 2.15 in fp64 from weights that fp32 holds exactly. Each case is a model directory as
`save_pretrained` writes it, with `batch.json` (tokens and labels; -100 counts nothing) and `expected.safetensors` (F32:
`logits` [B, T, V], `loss`, `grad.NAME`) beside. Run: python tools/golden/gpt2_vectors.py tests/model/golden
"""
import json, pathlib, shutil, sys
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

CASES = {  # several head sizes, odd lengths, batch > 1, tied and untied, both GELUs
    "d5_tied": dict(n_layer=2, n_embd=20, n_head=4, vocab_size=33, n_positions=17, shape=(2, 13)),
    "d33_exact": dict(n_layer=1, n_embd=33, n_head=1, vocab_size=47, n_positions=9, n_inner=50, activation_function="gelu", shape=(3, 9)),
    "d64_untied": dict(n_layer=1, n_embd=64, n_head=1, vocab_size=65, n_positions=40, n_inner=31, tie_word_embeddings=False, shape=(1, 37)),
    "d8_deep": dict(n_layer=5, n_embd=16, n_head=2, vocab_size=29, n_positions=24, layer_norm_epsilon=1e-3, shape=(4, 24)),
}

out = pathlib.Path(sys.argv[1])
for number, (name, case) in enumerate(CASES.items()):
    torch.manual_seed(number)
    shape = case.pop("shape")
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.2, bos_token_id=0, eos_token_id=0,
                        attn_implementation="eager", **case)
    model = GPT2LMHeadModel(config).train()
    with torch.no_grad():  # norms and biases away from their neutral start, so that each of them matters
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    shutil.rmtree(out / name, ignore_errors=True)
    model.save_pretrained(out / name)
    (out / name / "generation_config.json").unlink(missing_ok=True)
    model.double()
    tokens = torch.randint(0, config.vocab_size, shape)
    labels = torch.randint(0, config.vocab_size, shape)
    labels[torch.rand(shape) < 0.2] = -100
    logits = model(input_ids=tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    expected = {"logits": logits, "loss": loss.reshape(1)}
    expected |= {"grad." + key.removeprefix("transformer."): p.grad for key, p in model.named_parameters()}
    save_file({key: value.detach().float().contiguous() for key, value in expected.items()}, out / name / "expected.safetensors")
    (out / name / "batch.json").write_text(json.dumps({"tokens": tokens.tolist(), "labels": labels.tolist()}))
