"""Hugging Face's transformers, and PEFT, for `cambium bench train|finetune|prefill|decode --peer`: one argument, a JSON object.

- directory: has the model's config.json (its weights are random), and peer/adapter_config.json of an adapter that trains
- work: train, finetune or infer
- device: of the program, as it was named: a GPU of cuda is meant here, too, and anything else is the CPU
- precision: fp32, bf16 or tf32, which is fp32 on a CPU; with bf16 frozen weights and those of inference are bf16, and what trains is fp32 under autocast
- threads, micro_batch_size, micro_batches, tokens (of a sample or prompt, without virtual ones), has_dropout
- encoder: keys of the adapter that its file does not have

First prints its versions, or why it cannot run. Then it answers each line of its input. Three lines ask for seconds: "step"
(of training; that of a whole model is compiled), "prefill" (of a prompt) and "decode N" (of a token after a prompt of N).
"memory" asks for the most bytes that it took so far, of the host and of a GPU."""
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
    import torch
    import transformers
    if o["work"] == "finetune":
        import peft
except ImportError as error:
    say({"error": f"{error.name or error} is not installed"})
    sys.exit()

if o["precision"] == "fp8":
    say({"error": "it trains in fp32, tf32 and bf16"})
    sys.exit()
on_card = (o["device"] or "").startswith("cuda")
device = o["device"] if on_card else "cpu"
torch.set_num_threads(o["threads"])
torch.set_float32_matmul_precision("high" if o["precision"] == "tf32" else "highest")
torch.manual_seed(0)
transformers.logging.set_verbosity_error()
is_bf16 = o["precision"] == "bf16"
NEW_TOKENS = 32
config = transformers.AutoConfig.from_pretrained(o["directory"], attn_implementation="sdpa")
if not o["has_dropout"]:
    for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "embedding_dropout"):
        if hasattr(config, key):
            setattr(config, key, 0.0)
model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
if is_bf16 and o["work"] != "train":
    model = model.to(torch.bfloat16)
model = model.to(device)
model.train(o["work"] != "infer")
tokens = torch.randint(0, config.vocab_size, (o["micro_batches"], o["micro_batch_size"], o["tokens"])).to(device)
versions = {"torch": torch.__version__, "transformers": transformers.__version__}


def train():
    """The function that takes a step."""
    global model
    if o["work"] == "finetune":
        adapter = peft.PeftConfig.from_pretrained(o["directory"] + "/peer")
        adapter.inference_mode = False
        for key, value in o["encoder"].items():
            setattr(adapter, key, value)
        model = peft.get_peft_model(model, adapter)
        versions["peft"] = peft.__version__
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.data = p.data.float()
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    versions["trainable_parameters"] = sum(p.numel() for p in trained)
    run = torch.compile(model) if o["work"] == "train" else model

    def step():
        for batch in tokens:
            with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=is_bf16):
                loss = run(input_ids=batch, labels=batch).loss / len(tokens)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def wait():
    if on_card:
        torch.cuda.synchronize(device)


def seconds_of(work):
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


@torch.no_grad()
def prefill():
    return seconds_of(lambda: model(tokens[0], logits_to_keep=1))


@torch.no_grad()
def decode(prompt):
    """The seconds of one token: the extra time of more tokens, by `generate` as users call it."""
    def generate(count):
        model.generate(tokens[0, :, :prompt], max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
    few = seconds_of(lambda: generate(1))
    return (seconds_of(lambda: generate(1 + NEW_TOKENS)) - few) / NEW_TOKENS


step = None if o["work"] == "infer" else train()
say(versions)
for line in sys.stdin:
    word, *number = line.split()
    if word == "memory":
        card = {"device_bytes": torch.cuda.max_memory_reserved(device)} if on_card else {}
        say({"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024} | card)
    else:
        say({"seconds": seconds_of(step) if word == "step" else prefill() if word == "prefill" else decode(int(number[0]))})
