#!/usr/bin/env python3
"""Renderings of chats by transformers' apply_chat_template, for tests/text/chat_test.c.

    python tools/golden/chat.py tests/text/golden/chat        (transformers 5.23.0, jinja2 3.1.6)

Every NAME.jinja of the directory is a template: chatml, alpaca and plain are those that cambium writes beside an adapter,
NAME_OTHER is another spelling of NAME. The renderings go to renderings.json beside them.
"""
import json
import pathlib
import sys

import jinja2
import tokenizers
import transformers

SYSTEM = {"role": "system", "content": "You are terse."}
USER = {"role": "user", "content": "What is a graft?"}
ANSWER = {"role": "assistant", "content": "A shoot set into another plant."}
CHATS = [
    [USER],
    [SYSTEM, USER],
    [USER, ANSWER],
    [SYSTEM, USER, ANSWER, {"role": "user", "content": "And the cambium?"}],
    [SYSTEM, USER, ANSWER, {"role": "user", "content": "And the cambium?"}, {"role": "assistant", "content": "It grows."}],
    [USER, {"role": "user", "content": "Are you there?"}],
    [SYSTEM],
    [{"role": "user", "content": " two\nlines,  spaces \n"}, {"role": "assistant", "content": "不觉 grün 😀 \\n"},
     {"role": "user", "content": "<|im_end|>{{ eos_token }}"}],
    [ANSWER, USER],
]


def main():
    directory = pathlib.Path(sys.argv[1])
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<|endoftext|>": 0}))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<|endoftext|>")
    renderings = []
    for path in sorted(directory.glob("*.jinja")):
        for messages in CHATS:
            both = [tokenizer.apply_chat_template(messages, chat_template=path.read_text(), tokenize=False,
                                                  add_generation_prompt=asks) for asks in (False, True)]
            renderings.append({"template": path.stem, "messages": messages, "text": both[0], "asking": both[1]})
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    text = json.dumps({"versions": versions, "renderings": renderings}, ensure_ascii=False, indent=1)
    (directory / "renderings.json").write_text(text + "\n")


main()
