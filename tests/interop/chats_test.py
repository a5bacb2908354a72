"""The ids of chats against transformers: templates of released models, with tokenizers of every shape."""
import json
import shutil
import sys
import unittest

from interop_support import SOURCE, Case
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(SOURCE / "tools" / "golden"))
from chat_templates import as_vllm

GOLDEN = SOURCE / "tests" / "text" / "golden"
CHATS = json.loads((GOLDEN / "templates" / "renderings.json").read_text())["conversations"]
SHAPES = ("qwen2", "llama3", "llama3_framed", "qwen2_nfc", "smollm", "o200k", "mistral", "llama2", "metaspace", "gemma", "added")
TEMPLATES = ("Qwen-Qwen3-0.6B", "mistralai-Mistral-Nemo-Instruct-2407", "GLM-4.6")
SPECIAL = {"<|im_start|>": True, "<|im_end|>": True, "<bos>": True, "<end>": True, "<think>": False, "<tool_call>": False}


def add_tokens(path):
    """The names in templates, as special tokens and as other added ones."""
    root = json.loads(path.read_text())
    known = {token["content"] for token in root["added_tokens"]} | set(root["model"]["vocab"])
    size = max([token["id"] for token in root["added_tokens"]] + list(root["model"]["vocab"].values())) + 1
    for i, name in enumerate(name for name in SPECIAL if name not in known):
        root["added_tokens"].append({"id": size + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                                     "normalized": False, "special": SPECIAL[name]})
    path.write_text(json.dumps(root))


class Ids(Case):
    def test_chats_without_names_of_special_tokens(self):
        compared = 0
        for shape in SHAPES:
            model = self.directory / shape
            shutil.copytree(GOLDEN / shape, model)
            add_tokens(model / "tokenizer.json")
            names = {"bos_token": "<bos>", "eos_token": "<end>"}
            (model / "tokenizer_config.json").write_text(json.dumps(names))
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"), **names)
            for template in TEMPLATES:
                shutil.copy(GOLDEN / "templates" / f"{template}.jinja", model / "chat_template.jinja")
                compared += sum(self.compare(model, tokenizer, chat) for chat in CHATS if "<|im_end|>" not in json.dumps(chat))
        self.assertGreater(compared, 800)

    def compare(self, model, tokenizer, chat):
        """False where the template refuses the chat."""
        with open(model / "chat_template.jinja", newline="", encoding="utf-8") as file:
            template = file.read()
        try:
            expected = tokenizer.apply_chat_template(
                as_vllm(chat["messages"]), chat_template=template, tools=chat.get("tools"), documents=chat.get("documents"),
                add_generation_prompt=chat["messages"][-1]["role"] != "assistant", return_dict=False,
                **chat.get("chat_template_kwargs", {}))
        except Exception:
            return False
        file = self.directory / "chat.json"
        file.write_text(json.dumps(chat))
        ours = self.run_program("tokenize", "--tokenizer", model, "--messages", file)
        self.assertEqual([int(word) for word in ours.split()], expected, (model.name, chat))
        return True


if __name__ == "__main__":
    unittest.main()
