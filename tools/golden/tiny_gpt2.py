"""A whole tiny model directory, weights and tokenizer, and what transformers makes of it: the tests of `generate` and `score`.

Writes DIR/model, a random GPT-2 of 2 layers with a byte-level BPE of 300 tokens, in fp32, as `save_pretrained` leaves
it. DIR/expected.json is computed in fp64. It has greedy continuations (plain, and under a repetition penalty),
log-probabilities of texts, and the logits after one prompt. Made with transformers 5.23.0, torch 2.15.0, tokenizers
0.23.3.

    python tools/golden/tiny_gpt2.py tests/commands/golden/tiny
"""
import json
import pathlib
import shutil
import sys

import tokenizers
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

CORPUS = ["It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
          "The cat sat on the mat; the dog ate the cat's dinner and didn't say a word about it.",
          "Où est passé le café ? Là-bas, près de la forêt. 春眠不觉晓,处处闻啼鸟。 🌲🌳🌲",
          "for (int i = 0; i < 10; i++) printf(\"%d\\n\", i);"]
PROMPTS = ["It was the", "The cat", "Où est", "", "🌲 et 春", " \n\n x = 1234"]
TEXTS = ["It was the best of times.", "The dog sat.", "le café 🌳 春眠", "a", "\tfor (;;)\r\n  x += 1;",
         "the the the the the the the the the the the the the the the the"]
NEW_TOKENS = 24
PENALTY = 1.3

root = pathlib.Path(sys.argv[1])
shutil.rmtree(root, ignore_errors=True)
model_directory = root / "model"
model_directory.mkdir(parents=True)

bpe = tokenizers.ByteLevelBPETokenizer()
bpe.train_from_iterator(CORPUS, vocab_size=300, min_frequency=1, special_tokens=["<|endoftext|>"], show_progress=False)
PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>",
                        unk_token="<|endoftext|>", model_max_length=64).save_pretrained(model_directory)
tokenizer = AutoTokenizer.from_pretrained(model_directory)
eos = tokenizer.convert_tokens_to_ids("<|endoftext|>")

torch.manual_seed(20)
config = GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=len(tokenizer), n_positions=64, bos_token_id=eos,
                    eos_token_id=eos, initializer_range=0.25)
model = GPT2LMHeadModel(config).eval()
model.save_pretrained(model_directory)
(model_directory / "generation_config.json").unlink(missing_ok=True)
model.double()


def logits_of(ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0]


def encode(text):
    return tokenizer.encode(text, add_special_tokens=False) or [eos]


def greedy(ids, penalty=1.0):
    """Takes the likeliest token; every choice must be clear enough that fp32 makes it as well."""
    ids, new = list(ids), []
    while len(new) < NEW_TOKENS:
        logits = logits_of(ids)[-1]
        for token in set(ids):
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        best = torch.topk(logits, 2)
        assert best.values[0] - best.values[1] > 1e-3, "a tie: take another seed"
        token = int(best.indices[0])
        if token == eos:
            break
        ids.append(token)
        new.append(token)
    return new


def greedy_case(text):
    ids = encode(text)
    new = greedy(ids)
    by_transformers = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), do_sample=False,
                                     max_new_tokens=NEW_TOKENS, pad_token_id=eos)[0, len(ids):].tolist()
    assert [t for t in by_transformers if t != eos] == new
    return {"prompt": text, "prompt_tokens": ids, "tokens": new, "penalised": greedy(ids, PENALTY)}


def score_case(text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    rows = torch.log_softmax(logits_of(ids), -1)
    return {"text": text, "tokens": ids, "logprobs": [None] + [float(rows[i, ids[i + 1]]) for i in range(len(ids) - 1)]}


tokens = [(i * 37 + 11) % config.vocab_size for i in range(config.n_positions)]
rows = torch.log_softmax(logits_of(tokens), -1)
whole = {"tokens": tokens, "logprobs": [None] + [float(rows[i, tokens[i + 1]]) for i in range(len(tokens) - 1)]}
expected = {"eos": eos, "new_tokens": NEW_TOKENS, "penalty": PENALTY, "greedy": [greedy_case(text) for text in PROMPTS],
            "scores": [score_case(text) for text in TEXTS], "whole": whole, "next_prompt": "The cat",
            "next_logits": [float(x) for x in logits_of(encode("The cat"))[-1]]}
(root / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1).replace(",\n   ", ",") + "\n")
for file in model_directory.iterdir():
    file.chmod(0o644)
