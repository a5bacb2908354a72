#!/usr/bin/env python3
"""The ids of chats by templates of released models, for tests/text/chat_rows_test.c.

    python tools/golden/chat_rows.py tests/text/golden        (transformers 5.24.0, tokenizers 0.23.3)

Each templates/NAME.jinja renders two turns. `tokenizers` encodes the whole rendering and each turn's prompt. There are tokenizers
of several kinds, to which the names in the template are added. templates/rows.json holds for each pair the ids' digests and
counts. It also has the number of ids that the whole and each prompt have in common."""
import json
import pathlib
import re
import struct
import sys

import transformers.utils.chat_template_utils as utils
from chat_templates import Clock
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

SHAPES = ("qwen2", "llama3", "llama2", "mistral", "metaspace", "gemma")
NAMES = re.compile(r"<\|[^|<>\s']{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Z_]{3,30}\]|</?(?:think|seed:[a-z_]+)>|\[e~\[|\]~b\]|\]~!b\[")
MESSAGES = [{"role": "user", "content": "Name a  fruit."}, {"role": "assistant", "content": "A pear."},
            {"role": "user", "content": "Und grün?\n"}, {"role": "assistant", "content": "Es 觉 2"}]


def digest(ids):
    value = 0xcbf29ce484222325
    for byte in struct.pack(f"<{len(ids)}i", *ids):
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{value:016x}"


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def rows(golden, template, shape, number):
    text = (golden / "templates" / f"{template}.jinja").read_bytes().decode()
    tokenizer = Tokenizer.from_file(str(golden / shape / "tokenizer.json"))
    known = set(tokenizer.get_vocab())
    names = [name for name in dict.fromkeys(["<s>", "</s>"] + NAMES.findall(text)) if name not in known]
    strips = {"lstrip": number % 3 == 2, "rstrip": number % 3 == 1}
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True, **strips) for name in names])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")

    def ids(count, asks):
        rendered = fast.apply_chat_template(MESSAGES[:count], chat_template=text, tokenize=False, add_generation_prompt=asks)
        return tokenizer.encode(rendered, add_special_tokens=False).ids

    whole, prompts = ids(4, False), [ids(count, True) for count in (1, 3)]
    return {"template": template, "shape": shape, "names": names, **strips, "whole": [digest(whole), len(whole)],
            "prompts": [[digest(prompt), len(prompt), common(whole, prompt)] for prompt in prompts]}


if __name__ == "__main__":
    golden = pathlib.Path(sys.argv[1])
    utils.datetime = Clock
    templates = sorted(path.stem for path in (golden / "templates").glob("*.jinja"))
    made = [rows(golden, template, shape, i + k) for i, template in enumerate(templates) for k, shape in enumerate(SHAPES)]
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in made)
    messages = json.dumps(MESSAGES, ensure_ascii=False)
    (golden / "templates" / "rows.json").write_text(f'{{"messages": {messages},\n "rows": [\n  {lines}]}}\n')
