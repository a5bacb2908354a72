#!/usr/bin/env python3
"""Writes tests/text/golden/named.jsonl: the ids that AutoTokenizer gives where tokens stand outside tokenizer.json.

    tools/golden/named_tokens.py tests/text/golden

Each line is {"base": a folder there, "files": the small files beside its tokenizer.json, "size": tokens, "text", "ids"
with special tokens allowed}. Made with transformers 5.24.0 and tokenizers 0.23.3."""
import json
import os
import random
import shutil
import sys
import tempfile

from transformers import AutoTokenizer

CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
NAMES = ["<x>", "<y> ", "[PAD]", "<|z|>", "the", "<0>", "ab c", "<x>y", "</s>", "<s>"]
BASES = ["small", "llama2", "metaspace", "added", "qwen2_nfc"]
TEXTS = ["a <x> b<y>  c", "<|endoftext|>  <x>y[PAD] the <|z|>", "</s> <0>ab c <s> the  <x>"]


def token(content, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False,
            "special": True, **flags}


def chosen():
    """The files of each way in which a token is named, beside the small tokenizer of 900 tokens."""
    typed = {**token("<x>", rstrip=True), "__type": "AddedToken"}
    yield {CONFIG: {"added_tokens_decoder": {"901": token("<x>"), "900": token("<|z|>")}}}
    yield {CONFIG: {"added_tokens_decoder": {"950": token("<x>"), "3": token("<|z|>")}}}
    yield {CONFIG: {"added_tokens_decoder": {"0": token("<|endoftext|>", rstrip=True)}}}
    yield {CONFIG: {"added_tokens_decoder": {"900": {"content": "<x>"}, "901": {"content": "[PAD]", "special": True}}}}
    yield {CONFIG: {"pad_token": "<x>", "added_tokens_decoder": {"900": token("<x>", special=False, lstrip=True)}}}
    yield {CONFIG: {"added_tokens_decoder": {"900": token("<x>")}}, ADDED: {"<|z|>": 900},
           MAP: {"additional_special_tokens": ["[PAD]"]}}
    yield {CONFIG: {}, ADDED: {"<x>": 901, "<|z|>": 900}}
    yield {CONFIG: {"eos_token": "<x>"}, ADDED: {"<x>": 900}}
    yield {CONFIG: {}, ADDED: {"<x>": 0, "<|z|>": 5}}
    yield {CONFIG: {"additional_special_tokens": ["<x>", "<|z|>", "the"]}}
    yield {CONFIG: {"additional_special_tokens": ["<x>"], "extra_special_tokens": ["<|z|>"]}}
    yield {CONFIG: {"additional_special_tokens": [typed]}}
    yield {CONFIG: {"additional_special_tokens": ["<x>"], "extra_special_tokens": []}}
    yield {CONFIG: {"extra_special_tokens": {"image_token": "<x>", "other": "<|z|>"}, "audio_token": "[PAD]"}}
    yield {CONFIG: {"mask_token": "<x>", "pad_token": "[PAD]", "bos_token": "<s>", "unk_token": "<|z|>",
                    "sep_token": "<0>", "cls_token": "the", "extra_special_tokens": ["</s>", "<0>"]}}
    yield {CONFIG: {"eos_token": "<x>", "additional_special_tokens": ["<|z|>", "<x>"]}}
    yield {CONFIG: {"pad_token": typed}}
    yield {CONFIG: {"pad_token": "<x>"}, MAP: {"pad_token": "[PAD]", "additional_special_tokens": ["<x>", "<|z|>"]}}
    yield {CONFIG: {"additional_special_tokens": ["<0>"]}, MAP: {"additional_special_tokens": ["<x>"]}}
    yield {CONFIG: {"extra_special_tokens": ["<0>"]}, MAP: {"extra_special_tokens": ["<x>", {"content": "[PAD]", "rstrip": True}]}}


def drawn(random_source, entries, next_id):
    """Files with several of these ways at once."""
    draw, config = random_source.random, {}
    pick = lambda: random_source.choice(NAMES)
    flags = lambda: {key: draw() < 0.4 for key in ("lstrip", "rstrip", "normalized", "single_word") if draw() < 0.6}
    if draw() < 0.6:
        config["added_tokens_decoder"] = {str(entry.pop("id")): {**entry, "rstrip": draw() < 0.3} for entry in entries
                                          if draw() < 0.8}
        for i, content in enumerate(random_source.sample(NAMES, random_source.randint(0, 4))):
            config["added_tokens_decoder"][str(next_id + i)] = {"content": content, "special": draw() < 0.6, **flags()}
    for role in ("bos_token", "pad_token", "sep_token", "mask_token"):
        if draw() < 0.25:
            config[role] = pick()
    if draw() < 0.4:
        config["additional_special_tokens"] = [pick(), pick(), pick()]
    files = {CONFIG: config}
    if draw() < 0.3:
        files[ADDED] = {name: next_id + i for i, name in enumerate(random_source.sample(NAMES, 3))}
    if draw() < 0.3:
        files[MAP] = {"pad_token": pick(), "additional_special_tokens": [pick(), pick()]}
    return files


def write(folder, base, files, out):
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(os.path.join(folder, base, "tokenizer.json"), directory)
        files = {**files, CONFIG: {**CLASS, **files[CONFIG]}}
        for name, content in files.items():
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                json.dump(content, file)
        tokenizer = AutoTokenizer.from_pretrained(directory)
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False)
            json.dump({"base": base, "files": files, "size": len(tokenizer), "text": text, "ids": ids}, out)
            out.write("\n")


def main():
    folder, source = sys.argv[1], random.Random(7)
    with open(os.path.join(folder, "named.jsonl"), "w", encoding="utf-8") as out:
        for files in chosen():
            write(folder, "small", files, out)
        for _ in range(60):
            base = source.choice(BASES)
            with open(os.path.join(folder, base, "tokenizer.json"), encoding="utf-8") as file:
                root = json.load(file)
            added = root["added_tokens"]
            ids = [entry["id"] for entry in added] + list(root["model"]["vocab"].values())
            write(folder, base, drawn(source, added, max(ids) + 1), out)


if __name__ == "__main__":
    main()
