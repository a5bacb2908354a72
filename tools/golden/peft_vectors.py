"""Golden vectors of adapters on a small random GPT-2: logits, loss, gradients and 20 steps of AdamW, in fp64.

Made with peft 0.21.2, transformers 5.23.0, torch 2.15.0, safetensors 0.8.0. The bottleneck adapters come from a plain
model of their formulas, which adapters 1.3.0 (with transformers 4.57.6) was found to agree with, names of files and tensors
included. What is written, and how to read it, stands in tests/peft/golden/README.md.

    python tools/golden/peft_vectors.py tests/peft/golden
"""
import copy, json, math, os, pathlib, shutil, sys
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from torch.nn import functional
from peft import (IA3Config, LoraConfig, PeftModel, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig,
                  get_peft_model, get_peft_model_state_dict)
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.activations import get_activation
from transformers.utils.logging import disable_progress_bar

torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
disable_progress_bar()
LAYERS, HIDDEN, HEADS, INNER, VOCABULARY, POSITIONS, VIRTUAL = 3, 24, 4, 40, 61, 32, 5
OPTIMIZER = dict(steps=20, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)


def lora(r=4, lora_alpha=8, **more):
    return LoraConfig(task_type="CAUSAL_LM", r=r, lora_alpha=lora_alpha, fan_in_fan_out=True, **more)


def virtual(kind, **more):
    return kind(task_type="CAUSAL_LM", num_virtual_tokens=VIRTUAL, **more)


def bottleneck(**more):  # AdapterHub's BnConfig, as it is written
    plain = dict(adapter_residual_before_ln=False, cross_adapter=False, dropout=0.0, factorized_phm_W=True,
                 factorized_phm_rule=False, hypercomplex_nonlinearity="glorot-uniform", init_weights="bert",
                 init_weights_seed=None, inv_adapter=None, inv_adapter_reduction_factor=None, is_parallel=False, learn_phm=True,
                 leave_out=[], ln_after=False, ln_before=False, mh_adapter=False, non_linearity="relu", original_ln_after=True,
                 original_ln_before=False, output_adapter=True, phm_bias=True, phm_c_init="normal", phm_dim=4,
                 phm_init_range=0.0001, phm_layer=False, phm_rank=1, reduction_factor=4, residual_before_ln=True, scaling=1.0,
                 shared_W_phm=False, shared_phm_rule=True, stochastic_depth=0.0, use_gating=False)
    return plain | more


CASES = {
    "lora": lambda: lora(target_modules=["c_attn"]),
    "lora_all_linear": lambda: lora(target_modules="all-linear"),
    "lora_patterns": lambda: lora(target_modules=["c_attn", "c_fc", "mlp.c_proj"],
                                  rank_pattern={"h.1.attn.c_attn": 2, "c_fc": 6, r"h\.[02]\.mlp\.c_proj": 3},
                                  alpha_pattern={"h.0.attn.c_attn": 16, "h.2.mlp.c_fc": 3}),
    "lora_one_layer": lambda: lora(target_modules=["c_attn", "c_fc"], layers_to_transform=[1]),
    "lora_regex": lambda: lora(target_modules=r".*\.h\.[02]\.(attn\.c_proj|mlp\.c_fc)"),
    "rslora": lambda: lora(target_modules=["c_proj"], use_rslora=True),  # of the attention and of the MLP
    "dora": lambda: lora(target_modules=["c_attn"], use_dora=True),
    "dora_all_linear": lambda: lora(target_modules="all-linear", use_dora=True),
    "ia3": lambda: IA3Config(task_type="CAUSAL_LM", fan_in_fan_out=True),
    "ia3_attention": lambda: IA3Config(task_type="CAUSAL_LM", fan_in_fan_out=True, target_modules=["c_attn"],
                                       feedforward_modules=[]),
    "prompt": lambda: virtual(PromptTuningConfig),
    "ptuning_mlp": lambda: virtual(PromptEncoderConfig, encoder_hidden_size=20),
    "ptuning_lstm": lambda: virtual(PromptEncoderConfig, encoder_hidden_size=8, encoder_num_layers=2,
                                    encoder_reparameterization_type="LSTM"),
    "prefix": lambda: virtual(PrefixTuningConfig),
    "prefix_projection": lambda: virtual(PrefixTuningConfig, prefix_projection=True, encoder_hidden_size=12),
    "adapter_double_seq_bn": lambda: bottleneck(mh_adapter=True, non_linearity="swish"),
    "adapter_seq_bn": lambda: bottleneck(original_ln_before=True),
    "adapter_par_bn": lambda: bottleneck(is_parallel=True, init_weights="mam_adapter", reduction_factor=2, scaling=4.0),
    "adapter_pre_norm": lambda: bottleneck(mh_adapter=True, ln_before=True, non_linearity="gelu", reduction_factor=5),
    # Seeds go by place: new cases stand at the end.
    "lora_exclude": lambda: lora(target_modules="all-linear", exclude_modules=r".*\.h\.[\d]+\.attn\.\w+|.*\.h\.1\..*"),
    "ia3_inputs": lambda: IA3Config(task_type="CAUSAL_LM", fan_in_fan_out=True, target_modules=["c_attn", "c_fc", "c_proj"],
                                    feedforward_modules=["c_attn", "c_fc", "c_proj"]),
    "lora_head": lambda: lora(target_modules=["lm_head"]),  # tied to the embedding, which stays
}


# ---- the base and its batch ----

def make_base(directory):
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, n_inner=INNER,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():  # norms and biases away from their neutral start, so that each of them matters
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)


def open_base(directory):
    return AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)


def make_batch():
    """Rows of unequal length, -100 where nothing is trained; the middle row trains its first token."""
    generator = torch.Generator().manual_seed(2)
    rows = []
    for length, untrained in ((11, 4), (17, 0), (8, 3)):
        tokens = torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
        labels = [-100] * untrained + tokens[untrained:]
        if length == 17:
            labels[6] = labels[7] = -100
        rows.append({"tokens": tokens, "labels": labels})
    return rows


def run(model, rows, virtual_tokens):
    """Logits [rows of all samples, vocabulary] and the mean loss; padded on the right, which nobody looks at."""
    longest = max(len(row["tokens"]) for row in rows)
    tokens = torch.tensor([row["tokens"] + [0] * (longest - len(row["tokens"])) for row in rows])
    mask = torch.tensor([[1] * len(row["tokens"]) + [0] * (longest - len(row["tokens"])) for row in rows])
    logits = model(input_ids=tokens, attention_mask=mask).logits
    assert logits.shape[1] == virtual_tokens + longest
    logits = torch.cat([logits[i, :virtual_tokens + len(row["tokens"])] for i, row in enumerate(rows)])
    labels = []  # of each logit: the token after it
    for row in rows:
        labels += [-100] * (virtual_tokens - 1) + row["labels"][0 if virtual_tokens else 1:] + [-100]
    return logits, functional.cross_entropy(logits, torch.tensor(labels))


# ---- bottleneck adapters: transformers' GPT-2 written out, with Y = X + S + scaling * U(act(D(norm?(in)))) ----

class Bottleneck(torch.nn.Module):
    def __init__(self, base, config, name):
        super().__init__()
        self.base, self.config, self.name = base, config, name
        self.act = get_activation(config["non_linearity"])
        m = max(1, int(HIDDEN // config["reduction_factor"]))
        places = ["attention"] * config["mh_adapter"] + ["output"] * config["output_adapter"]
        self.values = {}
        for key in [self.key(i, place) for i in range(len(self.layers())) for place in places]:
            first = 0
            if config["ln_before"]:
                self.values |= {key + "adapter_down.0.weight": torch.ones(HIDDEN),
                                key + "adapter_down.0.bias": torch.zeros(HIDDEN)}
                first = 1
            self.values |= {key + f"adapter_down.{first}.weight": torch.zeros(m, HIDDEN),
                            key + f"adapter_down.{first}.bias": torch.zeros(m),
                            key + "adapter_up.weight": torch.zeros(HIDDEN, m), key + "adapter_up.bias": torch.zeros(HIDDEN)}
        self.values = {key: torch.nn.Parameter(value) for key, value in self.values.items()}

    def layers(self):
        return self.base.transformer.h

    def key(self, layer, place):
        return f"transformer.h.{layer}.{place}_adapters.adapters.{self.name}."

    def place(self, layer, place, x, s):  # x the residual stream, s the sublayer's output
        key, config = self.key(layer, place), self.config
        y = x + s
        if key + "adapter_up.weight" not in self.values:
            return y
        value = {name[len(key):]: tensor for name, tensor in self.values.items() if name.startswith(key)}
        z = x if config["is_parallel"] else y if config["original_ln_before"] else s
        first = 0
        if config["ln_before"]:
            z = functional.layer_norm(z, (HIDDEN,), value["adapter_down.0.weight"], value["adapter_down.0.bias"], 1e-5)
            first = 1
        z = self.act(functional.linear(z, value[f"adapter_down.{first}.weight"], value[f"adapter_down.{first}.bias"]))
        return y + config["scaling"] * functional.linear(z, value["adapter_up.weight"], value["adapter_up.bias"])

    def forward(self, input_ids, attention_mask):
        del attention_mask  # causal, and padded on the right
        gpt = self.base.transformer
        B, T = input_ids.shape
        x = gpt.wte(input_ids) + gpt.wpe.weight[:T]
        hidden = torch.ones(T, T).triu(1).bool()
        for i, block in enumerate(gpt.h):
            qkv = block.attn.c_attn(block.ln_1(x)).split(HIDDEN, 2)
            q, k, v = (part.view(B, T, HEADS, -1).transpose(1, 2) for part in qkv)
            p = (q @ k.transpose(2, 3) / math.sqrt(HIDDEN // HEADS)).masked_fill(hidden, -math.inf).softmax(-1)
            x = self.place(i, "attention", x, block.attn.c_proj((p @ v).transpose(1, 2).reshape(B, T, HIDDEN)))
            s = block.mlp.c_proj(block.mlp.act(block.mlp.c_fc(block.ln_2(x))))
            x = self.place(i, "output", x, s)
        return type("Output", (), {"logits": gpt.ln_f(x) @ gpt.wte.weight.T})


# ---- a case ----

def randomise(names):
    """Values that fp32 holds, none of them the neutral start of its method."""
    with torch.no_grad():
        for name, parameter in names.items():
            noise = torch.randn_like(parameter)
            if "ia3_l" in name or "adapter_down.0.weight" in name and parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * noise)
            elif "lora_magnitude" in name:  # starts as the norms of the weight's rows
                parameter.mul_(1 + 0.2 * noise)
            elif "lora_" in name or "adapter_" in name:
                parameter.copy_(0.2 * noise)
            elif "embedding" in name:
                parameter.copy_(0.5 * noise)
            else:  # an encoder's own layers
                parameter.copy_(0.3 * noise)


def trained(model):
    """The parameters that train, by their names in files."""
    if isinstance(model, Bottleneck):
        return model.values
    names = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            name = name.replace(".default", "").removeprefix("prompt_encoder.")
            names[name.replace("lora_magnitude_vector.weight", "lora_magnitude_vector")] = parameter
    if list(names) == ["embedding.weight"]:  # a table without an encoder
        names = {"prompt_embeddings": names["embedding.weight"]}
    return names


def table(model):
    """The saved part of an encoder: its output."""
    with torch.no_grad():
        return get_peft_model_state_dict(model)["prompt_embeddings"].clone()


def train(model, rows, virtual_tokens):
    names = trained(model)
    is_matrix = {name: min(p.shape) > 1 and p.dim() == 2 for name, p in names.items()}
    groups = [{"params": [p for n, p in names.items() if is_matrix[n]], "weight_decay": OPTIMIZER["weight_decay"]},
              {"params": [p for n, p in names.items() if not is_matrix[n]], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=OPTIMIZER["lr"],
                                  betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["eps"])
    losses, expected = [], {}
    for step in range(OPTIMIZER["steps"]):
        logits, loss = run(model, rows, virtual_tokens)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.detach())
        if step == 0:
            expected = {"logits": logits} | {"grad." + name: p.grad.clone() for name, p in names.items()}
        optimizer.step()
    expected |= {"losses": torch.stack(losses)} | {"after." + name: p for name, p in names.items()}
    if not isinstance(model, Bottleneck) and "embedding.weight" in names:
        expected["after.prompt_embeddings"] = table(model)
    return {name: value.detach() for name, value in expected.items()}


def far(a, b):
    """The largest difference of two sets of tensors, each over its tensor's largest entry."""
    return max(float((a[name].double() - b[name]).abs().max() / b[name].abs().max()) for name in b)


def write_config(path, config):
    path.write_text(json.dumps(config, indent=2, sort_keys=True))


def save(directory, model, config):
    """The adapter's files as its library writes them; sets in alphabetical order, and no path of this machine."""
    if isinstance(model, Bottleneck):
        save_file({name: value.detach().clone() for name, value in model.values.items()}, directory / "adapter.safetensors")
        write_config(directory / "adapter_config.json", {"config": config, "hidden_size": HIDDEN, "model_class": type(model.base).__name__,
                     "model_name": "base", "model_type": model.base.config.model_type, "name": model.name, "version": "adapters.1.3.0"})
        return
    model.save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink(missing_ok=True)
    written = json.loads((directory / "adapter_config.json").read_text())
    written["base_model_name_or_path"] = "base"
    written |= {key: sorted(value) for key, value in written.items() if isinstance(value, list)}
    write_config(directory / "adapter_config.json", written)
    names = trained(model)
    if "embedding.weight" not in names:
        assert set(names) == set(get_peft_model_state_dict(model, save_embedding_layers=False)), "names that are not the file's"
    else:
        save_file({name: p.detach().clone() for name, p in names.items()}, directory / "encoder.safetensors")


def make(root, name, seed, config, rows, bottlenecks=Bottleneck):
    """One case; returns how far fp32 in torch is from fp64, which must leave room for the tests' bounds."""
    torch.manual_seed(seed)
    base = open_base(root / "base")
    model = (bottlenecks(base, config, name) if isinstance(config, dict) else get_peft_model(base, config)).eval()
    randomise(trained(model))
    directory = root / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    save(directory, model, config)
    virtual_tokens = VIRTUAL if name.startswith(("prompt", "ptuning")) else 0
    # p-tuning's and prefix tuning's table: of fp64's encoder, not of fp32's
    wide = copy.deepcopy(model).double()
    if isinstance(wide, Bottleneck):
        wide.values = {key: torch.nn.Parameter(value.double()) for key, value in wide.values.items()}
    else:
        before = run(wide, rows, virtual_tokens)[0]
        again = PeftModel.from_pretrained(open_base(root / "base"), directory).eval().double()
        encoded = (directory / "encoder.safetensors").exists()
        difference = (run(again, rows, virtual_tokens)[0] - before).abs().max()
        assert difference < (1e-4 if encoded else 1e-12), "the files are not the model"  # an encoder's output is in fp32
        if encoded:
            table64 = table(wide)
    one_by_one = torch.cat([run(wide, [row], virtual_tokens)[0] for row in rows])
    expected, narrow = train(wide, rows, virtual_tokens), train(model, rows, virtual_tokens)
    assert all(value.dtype == torch.float64 for value in expected.values())
    assert (expected["logits"] - one_by_one).abs().max() < 1e-12, "padding is seen"
    assert all(value.abs().max() > 1e-4 for value in expected.values()), "a tensor that nothing depends on"
    errors = {kind: far(narrow, {key: value for key, value in expected.items() if key.startswith(kind)})
              for kind in ("logits", "losses", "grad.", "after.")}
    if not isinstance(wide, Bottleneck) and encoded:
        expected["prompt_embeddings"] = table64
    save_file({key: value.float().contiguous() for key, value in expected.items()}, directory / "expected.safetensors")
    return errors, [float(expected["losses"][i]) for i in (0, -1)]


def make_with_room(root, name, first_seed, *rest):
    for seed in range(first_seed, first_seed + 50):  # Adam divides a gradient near 0 by itself: take values where rounding does not show
        errors, losses = make(root, name, seed, *rest)
        if errors["after."] < 3e-5 and errors["grad."] < 3e-6:
            break
    else:
        sys.exit(f"{name}: no seed leaves room for fp32")
    print(f"{name}: seed {seed}, loss {losses[0]:.4f} to {losses[1]:.4f}, fp32 in torch off by "
          + ", ".join(f"{kind.strip('.')} {error:.1e}" for kind, error in errors.items()), flush=True)


def allow_reading(root):
    for path in root.glob("**/*"):
        if path.is_file():
            path.chmod(0o644)


def main(root):
    root.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root / "base", ignore_errors=True)
    make_base(root / "base")
    (root / "batch.json").write_text(json.dumps({"optimizer": OPTIMIZER, "virtual_tokens": VIRTUAL, "rows": make_batch()}) + "\n")
    plain = open_base(root / "base").double()
    rows = make_batch()
    logits = run(plain, rows, 0)[0]
    written_out = Bottleneck(plain, bottleneck(output_adapter=False), "none")
    assert (run(written_out, rows, 0)[0] - logits).abs().max() < 1e-12, "the plain model is not transformers' GPT-2"
    for number, name in enumerate(CASES):
        make_with_room(root, name, 100 * number, CASES[name](), rows)
    allow_reading(root)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
