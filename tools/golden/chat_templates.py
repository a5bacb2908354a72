#!/usr/bin/env python3
"""Conversations rendered by templates of released models, for tests/text/chat_templates_test.c.

    python tools/golden/chat_templates.py tests/text/golden/templates        (transformers 5.23.0, jinja2 3.1.6)

Every NAME.jinja of the directory is a template. apply_chat_template renders each conversation twice, without and with
add_generation_prompt, at a fixed time. Before that the arguments of calls become values, as in vLLM's
_postprocess_messages (entrypoints/chat_utils.py, 0.11). The file renderings.json beside the templates holds the
conversations and the digest of each rendering (64 bits of FNV-1a, as digest.h), or null if the template refuses it."""
import copy
import datetime
import json
import pathlib
import sys

import jinja2
import tokenizers
import transformers
import transformers.utils.chat_template_utils as utils

SYSTEM = {"role": "system", "content": "You are terse."}
USER = {"role": "user", "content": "What is a graft?"}
ANSWER = {"role": "assistant", "content": "A shoot set into another plant."}
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Get the \"weather\" in <city>.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "City, e.g. Zürich"},
            "days": {"type": "integer", "default": 3},
            "unit": {"type": "string", "enum": ["c", "f"]},
            "tags": {"type": "array", "items": {"type": "string"}}}}}},
    {"type": "function", "function": {"name": "now", "description": "Time.",
                                      "parameters": {"type": "object", "properties": {}}}},
]


def call(name, arguments, number="a"):
    return {"id": "bcdefghi" + number, "type": "function", "function": {"name": name, "arguments": arguments}}


def wire(name, arguments):
    """An assistant's message as OpenAI's clients send it back."""
    return {"role": "assistant", "content": None, "tool_calls": [call(name, arguments)]}


CALL = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"city": "Zürich", "days": 2})]}
CALLS = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", '{"city": "Z"}'), call("now", {}, "b")]}
RESULT = {"role": "tool", "tool_call_id": "bcdefghia", "name": "get_weather", "content": '{"t": 3.5}'}
OTHER = {"role": "tool", "tool_call_id": "bcdefghib", "name": "now", "content": "12:00"}


def as_vllm(messages):
    """vLLM's _postprocess_messages."""
    messages = copy.deepcopy(messages)
    for message in messages:
        calls = message.get("tool_calls")
        if message["role"] != "assistant" or not isinstance(calls, list):
            continue
        if not calls:
            del message["tool_calls"]
        for item in calls:
            if content := item["function"].get("arguments"):
                if not isinstance(content, (dict, list)):
                    item["function"]["arguments"] = json.loads(content)
            else:
                item["function"]["arguments"] = {}
    return messages


def of(*messages, **more):
    variables = {key: value for key, value in more.items() if key not in ("tools", "documents")}
    chat = {"messages": list(messages), **{key: more[key] for key in ("tools", "documents") if key in more}}
    return {**chat, "chat_template_kwargs": variables} if variables else chat


CONVERSATIONS = [
    of(USER),
    of(SYSTEM, USER),
    of(USER, ANSWER),
    of(SYSTEM, USER, ANSWER, USER),
    of(SYSTEM, USER, ANSWER, USER, ANSWER),
    of(USER, USER),
    of(SYSTEM),
    of(ANSWER, USER),
    of({"role": "user", "content": ""}),
    of({"role": "system", "content": ""}, USER),
    of(SYSTEM, {"role": "user", "content": "  two\nlines, spaces \n\n"}, {"role": "assistant", "content": " x \n"}, USER),
    of({"role": "user", "content": "不觉 grün 😀 \\n ß İ\u00a0\u2028 e\u0301"}),
    of(USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is."}, USER,
       {"role": "assistant", "content": "<think>x</think>Yes"}),
    of(USER, {"role": "assistant", "content": "It is.", "reasoning_content": "\nhm\n"}, USER,
       {"role": "assistant", "content": "B", "reasoning_content": "more"}),
    of(USER, {"role": "assistant", "content": "It is.", "thinking": "so"}, USER),
    of(USER, enable_thinking=False),
    of(SYSTEM, USER, enable_thinking=True),
    of(USER, thinking=True),
    of({"role": "system", "content": "Be brief. /no_think"}, USER),
    of(USER, tools=TOOLS),
    of(SYSTEM, USER, tools=TOOLS),
    of(SYSTEM, USER, CALL, RESULT, ANSWER, tools=TOOLS),
    of(SYSTEM, USER, CALL, RESULT, tools=TOOLS),
    of(USER, CALLS, RESULT, OTHER, ANSWER, USER, tools=TOOLS),
    of(USER, {**CALL, "content": None}, RESULT, tools=TOOLS),
    of(SYSTEM, USER, CALL, RESULT, ANSWER),
    of({"role": "user", "content": [{"type": "text", "text": "Part one"}, {"type": "text", "text": " two"}]}),
    of({"role": "system", "content": [{"type": "text", "text": "Sys"}]},
       {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "see"}]}),
    of({"role": "user", "content": "<|im_end|>{{ eos_token }}</s>[INST]<|end|>"}),
    of({"role": "developer", "content": "Dev"}, USER),
    of(USER, documents=[{"doc_id": 1, "title": "T", "text": "Body", "source": "s"}]),
    of(SYSTEM, USER, reasoning_effort="low", builtin_tools=["browser", "python"]),
    of(USER, ANSWER, USER, ANSWER, USER, ANSWER, USER),
    of(SYSTEM, USER, wire("get_weather", '{"city": "Z\\u00fcrich", "days": 2.50, "tags": ["a", {"b": null}]}'),
       {"role": "tool", "tool_call_id": "bcdefghia", "content": "12.5 °C"}, ANSWER, USER, tools=TOOLS),
    of(USER, wire("now", ""), {"role": "tool", "tool_call_id": "bcdefghia", "content": "12:00"}, tools=TOOLS),
    of(USER, {key: value for key, value in wire("now", "{}").items() if key != "content"}, RESULT, tools=TOOLS),
    of(USER, {**ANSWER, "tool_calls": []}, USER, tools=TOOLS),
    of(USER, {**ANSWER, "tool_calls": None, "function_call": None, "refusal": None}, USER),
    of(USER, {**wire("now", "{}"), "content": "Let me look."}, OTHER, USER, tools=TOOLS[1:]),
]


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2026, 3, 1, 13, 5, 9)


def digest(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def main():
    directory = pathlib.Path(sys.argv[1])
    names = {"<s>": 0, "</s>": 1}
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel(names))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bare, bos_token="<s>", eos_token="</s>")
    utils.datetime = Clock
    templates = {}
    for path in sorted(directory.glob("*.jinja")):
        with open(path, newline="", encoding="utf-8") as file:
            text = file.read()
        rows = templates[path.stem] = []
        for chat in CONVERSATIONS:
            for asks in (False, True):
                try:
                    rows.append(digest(tokenizer.apply_chat_template(
                        as_vllm(chat["messages"]), chat_template=text, tokenize=False, add_generation_prompt=asks,
                        tools=chat.get("tools"), documents=chat.get("documents"),
                        **chat.get("chat_template_kwargs", {}))))
                except Exception:
                    rows.append(None)
        print(path.stem, sum(row is None for row in rows), "refused of", len(rows))
    head = {"versions": {"transformers": transformers.__version__, "jinja2": jinja2.__version__}}
    chats = ",\n".join("  " + json.dumps(chat, ensure_ascii=False) for chat in CONVERSATIONS)
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in templates.items())
    (directory / "renderings.json").write_text(
        json.dumps(head)[:-1] + ',\n "conversations": [\n' + chats + '\n ],\n "templates": {\n' + rows + "\n }}\n")


if __name__ == "__main__":
    main()
