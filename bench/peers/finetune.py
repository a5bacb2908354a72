"""Training steps of Hugging Face's PEFT for `cambium bench finetune --peer`: one argument, a JSON object.

    directory   has the base's config.json (its weights are random), and peer/adapter_config.json
    precision   fp32 or bf16; with bf16 the frozen weights are bf16, and what trains is fp32 under autocast
    threads, micro_batch_size, micro_batches, tokens (of a sample, without virtual ones), has_dropout

First prints its versions, or why it cannot run; then answers each line of its input with the seconds of one step."""
import json
import os
import resource
import sys
import time

o = json.loads(sys.argv[1])
os.environ["OMP_NUM_THREADS"] = str(o["threads"])


def say(answer):
    print(json.dumps(answer), flush=True)


try:
    import peft
    import torch
    import transformers
except ImportError as error:
    say({"error": f"{error.name or error} is not installed"})
    sys.exit()

torch.set_num_threads(o["threads"])
torch.manual_seed(0)
transformers.logging.set_verbosity_error()
is_bf16 = o["precision"] == "bf16"
config = transformers.GPT2Config.from_pretrained(o["directory"], attn_implementation="sdpa")
if not o["has_dropout"]:
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
model = transformers.GPT2LMHeadModel(config).train()
adapter = peft.PeftConfig.from_pretrained(o["directory"] + "/peer")
adapter.inference_mode = False
for key, value in o["encoder"].items():
    setattr(adapter, key, value)
model = peft.get_peft_model(model.to(torch.bfloat16) if is_bf16 else model, adapter)
trained = [p for p in model.parameters() if p.requires_grad]
for p in trained:
    p.data = p.data.float()
optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
tokens = torch.randint(0, config.vocab_size, (o["micro_batches"], o["micro_batch_size"], o["tokens"]))


def step():
    for batch in tokens:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
            loss = model(input_ids=batch, labels=batch).loss / len(tokens)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


say({"peft": peft.__version__, "torch": torch.__version__, "trainable_parameters": sum(p.numel() for p in trained)})
for _ in sys.stdin:
    start = time.perf_counter()
    step()
    say({"seconds": time.perf_counter() - start, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
