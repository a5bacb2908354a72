"""Adapters by name: generate --requests with each method, stacks of them, little memory, and roots of adapters."""
import hashlib
import json
import os
import pathlib
import shutil
import struct
import tempfile
import unittest

from model_support import rows, run, write_reciting_model
from requests_support import ADAPTERS, BASE, as_lines, ask, ask_one, tokens

NAMES = sorted(p.name for p in ADAPTERS.iterdir() if (p / "adapter_config.json").exists())
STACKS = (["lora", "ia3"], ["ia3", "lora"], ["prefix", "adapter_par_bn"], ["prompt", "lora", "adapter_seq_bn"],
          ["prefix", "prompt", "rslora", "adapter_par_bn"], ["lora_head", "lora", "ia3"])
ROOT = ("--adapter-root", ADAPTERS)


def digest_of(directory):
    """SHA-256 of an adapter's files, each after its name and its length (peft/bytes.c)."""
    names = ("adapter_config.json", "adapter_model.safetensors", "cambium_adapter.json", "chat_template.jinja")
    files = [(name, (directory / name).read_bytes()) for name in names if (directory / name).exists()]
    return hashlib.sha256(b"".join(name.encode().ljust(56, b"\0") + struct.pack("<Q", len(data)) + data for name, data in files)).hexdigest()


def request(names, number, **more):
    return {"id": number, "prompt": [3 + number % 40, 7], "adapters": names, "seed": number, "max_tokens": 5, "logprobs": 1,
            "ignore_eos": True} | more


class Names(unittest.TestCase):
    def test_mixed_requests_are_answered_as_one_by_one(self):
        kinds = [[name] for name in NAMES] + [[]] + list(STACKS)
        requests = [request(names, i) for i, names in enumerate(kinds + kinds[::-1])]
        self.assertGreater(len(NAMES), 20)
        together = ask(requests, *ROOT, model=BASE)
        self.assertEqual([[a["name"] for a in answer["adapters"]] for answer in together], [r["adapters"] for r in requests])
        alone = [ask_one(r, *ROOT, model=BASE) for r in requests[:len(kinds)]]
        self.assertEqual(alone, together[:len(kinds)])
        # And each is what the one-prompt form writes with that adapter.
        for r, answer in list(zip(requests, together))[:len(kinds)]:
            output, _ = run("generate", "--model", BASE, *(["--adapter", *(ADAPTERS / name for name in r["adapters"])] if r["adapters"] else []),
                            "--prompt-tokens", *r["prompt"], "--seed", r["seed"], "--temperature", 1, "--max-new-tokens", 5, "--ignore-eos", "--json")
            self.assertEqual(tokens(answer), [rows(output)[0]["tokens"]], r["adapters"])

    def test_many_logits_of_prompts_are_those_of_each(self):
        """A step that takes more rows through the head than fit there at once."""
        kinds = ([], ["lora_head"], ["lora", "lora_head"], [], ["lora_head"], ["ia3"])
        requests = [request(names, i, prompt=[(7 * k + i) % 60 for k in range(28)], max_tokens=1, prompt_logprobs=2)
                    for i, names in enumerate(kinds)]
        self.assertEqual(ask(requests, *ROOT, model=BASE), [ask_one(r, *ROOT, model=BASE) for r in requests])

    def test_an_answer_has_a_digest_of_each_adapters_files(self):
        kinds = [["lora"], ["ia3"], ["prefix"], ["ia3", "lora"], ["prefix", "ia3"], ["lora"]]
        answers = ask([request(names, i) for i, names in enumerate(kinds)], *ROOT, model=BASE)
        told = {(a["name"], a["digest"]) for answer in answers for a in answer["adapters"]}
        self.assertEqual((len(told), len({name for name, _ in told}), len({digest for _, digest in told})), (3, 3, 3))
        self.assertEqual(dict(told)["lora"], digest_of(ADAPTERS / "lora"))

    def test_a_model_is_the_base_or_an_adapter(self):
        plain = {"prompt": [3, 7], "seed": 1, "max_tokens": 5}
        models = ({}, {"model": None}, {"model": ""}, {"model": "base"}, {"model": "lora"}, {"adapters": ["lora"]},
                  {"model": "base", "adapters": ["lora"]})
        answers = ask([plain | more for more in models], *ROOT, model=BASE)
        self.assertEqual([a["adapters"] != [] for a in answers], [False] * 4 + [True] * 3)
        self.assertEqual((answers[:4], answers[4:]), ([answers[0]] * 4, [answers[4]] * 3))
        answers = ask([plain | {"model": name} for name in ("gpt", "verse", "base")], *ROOT, "--model-name", "gpt", "verse", model=BASE, expect=1)
        self.assertEqual([a.get("field") for a in answers], [None, None, "model"])
        answers = ask([plain | more for more in ({"model": "loar"}, {"model": "bse"}, {"model": "nothing like it"}, {"model": 1}, {"model": "a\0b"},
                                                 {"model": "lora", "adapters": ["ia3"]})], *ROOT, model=BASE, expect=1)
        self.assertEqual([(a["field"], a["error"]) for a in answers], [
            ("model", 'there is no model "loar" (did you mean lora?)'), ("model", 'there is no model "bse" (did you mean base?)'),
            ("model", 'there is no model "nothing like it"'), *[("model", "expected the name of the model or of an adapter")] * 2,
            ("adapters", 'the model "lora" is an adapter already')])
        run("generate", "--model", BASE, "--prompt-tokens", 1, "--model-name", "x", expect=2)

    def test_adapters_go_and_come_back_where_memory_is_short(self):
        kinds = [[name] for name in NAMES] + list(STACKS)
        requests = [request(names, i) for i, names in enumerate(kinds * 2)]
        expected = ask(requests, *ROOT, model=BASE)
        for memory in ("128K", "64K"):
            self.assertEqual(ask(requests, *ROOT, "--adapter-memory", memory, model=BASE), expected, memory)
        answers = ask(requests[:2], *ROOT, "--adapter-memory", "1K", model=BASE, expect=1)
        self.assertEqual([a["field"] for a in answers], ["adapters"] * 2)

    def test_names_on_the_command_line(self):
        requests = [request(["one"], 1), request(["two", "one"], 2), request(["lora"], 3)]
        words = ("--adapter", f"one={ADAPTERS / 'lora'}", f"two={ADAPTERS / 'ia3'}")
        answers = ask(requests, *words, model=BASE, expect=1)
        self.assertEqual((answers[2]["field"], answers[2]["error"]), ("adapters", "there is no adapter lora"))
        same = ask([request(["lora"], 1), request(["ia3", "lora"], 2), request(["lora"], 3)], *ROOT, model=BASE)
        self.assertEqual([a["choices"] for a in answers[:2]], [a["choices"] for a in same[:2]])
        self.assertEqual(ask(requests, *words, *ROOT, model=BASE)[2]["choices"], same[2]["choices"])
        for more, part in ((("--adapter", f"lora={ADAPTERS / 'ia3'}", *ROOT), "there is an adapter lora already"),
                           (("--adapter", "a=/nowhere"), "--adapter a: /nowhere is not the directory of an adapter"),
                           (("--adapter", f"a={ADAPTERS}"), "adapters: each of them needs its own name"),
                           (("--adapter-root", "/nowhere"), "--adapter-root: cannot open /nowhere")):
            _, errors = run("generate", "--model", BASE, "--requests", "-", *more, input=as_lines(requests), expect=1)
            self.assertEqual(errors.count("error: "), 1, errors)
            self.assertIn(part, errors)

    def test_stacks_that_cannot_be_are_refused_line_by_line(self):
        answers = ask([request(["dora", "lora"], 2), request(["lora", "ia3", "dora"], 3), request(["lora"], 4)], *ROOT, model=BASE, expect=1)
        self.assertEqual([a.get("field") for a in answers], ["adapters"] * 2 + [None])

    def test_virtual_tokens_take_positions(self):
        long = {"prompt": [1] * 27, "max_tokens": 1, "seed": 1}  # of 32
        answers = ask([long, long | {"adapters": ["prompt"]}, long | {"adapters": ["prompt"], "prompt": [1] * 28},
                       long | {"adapters": ["prompt"], "max_tokens": 2}, long | {"adapters": ["prefix"], "max_tokens": 2}],
                      *ROOT, model=BASE, expect=1)
        self.assertEqual([a.get("field") for a in answers], [None, None, "prompt", "max_tokens", "max_tokens"])
        # A virtual token predicts the first of the prompt, a prefix does not.
        first = [ask_one({"prompt": [1, 2], "max_tokens": 0, "prompt_logprobs": 2, "adapters": [name]}, *ROOT, model=BASE)
                 ["prompt_logprobs"][0] for name in ("prompt", "prefix")]
        self.assertEqual([entry["logprob"] is None for entry in first], [False, True])
        self.assertEqual([len(entry["top"]) for entry in first], [2, 0])


class Root(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.top = pathlib.Path(temporary.name)
        self.root = self.top / "root"
        self.root.mkdir()

    def copy(self, name, to):
        shutil.copytree(ADAPTERS / name, to)

    def answers(self, *names, expect=0):
        """(answers, what was warned of)"""
        output, errors = run("generate", "--model", BASE, "--adapter-root", self.root, "--requests", "-", expect=expect,
                             input=as_lines([request([name], 1) for name in names]))
        return rows(output), [line for line in errors.splitlines() if "warning" in line]

    def test_what_is_in_a_root(self):
        self.copy("lora", self.root / "a")
        self.copy("ia3", self.root / "of a run/iter_0000005")
        (self.root / "of a run/iter_0000005/trainer_state.json").write_text("{}")
        self.copy("lora", self.root / ".hidden")
        self.copy("lora", self.root / "stack/lora")
        self.copy("ia3", self.root / "stack/ia3")
        (self.root / "empty").mkdir()
        (self.root / "file").write_text("a")
        (self.root / "b").symlink_to("a")
        answers, warnings = self.answers("a", "b", "of a run", ".hidden", "empty", "file", "stack", "..", "", "a/../a", expect=1)
        self.assertEqual([a.get("field") for a in answers], [None] * 3 + ["adapters"] * 7)
        self.assertEqual(answers[0]["choices"], answers[1]["choices"])
        self.assertEqual(len(warnings), 1, warnings)
        self.assertIn("stack holds 2 adapters", warnings[0])

    def test_links_are_not_followed_out(self):
        self.copy("lora", self.top / "outside")
        self.copy("lora", self.root / "good")
        (self.root / "linked").symlink_to(self.top / "outside")
        self.copy("lora", self.root / "file")
        (self.root / "file/adapter_model.safetensors").unlink()
        (self.root / "file/adapter_model.safetensors").symlink_to(self.top / "outside/adapter_model.safetensors")
        answers, warnings = self.answers("good", "linked", "file", expect=1)
        self.assertEqual([a.get("field") for a in answers], [None, "adapters", "adapters"])
        self.assertEqual(len(warnings), 2, warnings)
        for line in warnings:
            self.assertIn("leads out of", line)

    def test_files_that_are_damaged_refuse_those_who_name_them(self):
        self.copy("lora", self.root / "good")
        self.copy("lora", self.root / "cut")
        content = (self.root / "cut/adapter_model.safetensors").read_bytes()
        (self.root / "cut/adapter_model.safetensors").write_bytes(content[:-5])
        self.copy("lora", self.root / "words")
        (self.root / "words/adapter_config.json").write_text("nonsense")
        answers, _ = self.answers("cut", "good", "words", "cut", "good", expect=1)
        self.assertEqual([a.get("field") for a in answers], ["adapters", None, "adapters", "adapters", None])
        self.assertIn("adapter_model.safetensors", answers[0]["error"])
        self.assertIn("adapter_config.json", answers[2]["error"])


class Messages(unittest.TestCase):
    TALK = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.model, self.adapter = self.root / "model", self.root / "adapters/chats"
        write_reciting_model(self.model, [*b"~" * 200, *b"ok"], positions=300, specials=("<|im_start|>", "<|im_end|>"))
        run("finetune", "--model", self.model, "--peft", "lora", "--data", self.rows(), "--output", self.adapter, "--train.train_iters=1",
            "--optim.lr=1e-3", "--tuning.template=chatml")

    def rows(self):
        path = self.root / "rows.jsonl"
        path.write_text(json.dumps({"messages": [*self.TALK, {"role": "assistant", "content": "Hi"}]}) + "\n")
        return path

    def test_messages_are_answered_as_by_generate_messages(self):
        talk = self.root / "talk.json"
        talk.write_text(json.dumps(self.TALK))
        talking = {"messages": self.TALK, "temperature": 0, "max_tokens": 12}
        for template in ("chatml", "alpaca", "plain"):
            words = ("--chat-template", template)
            output, _ = run("generate", "--model", self.model, "--messages", talk, "--temperature", 0, "--max-new-tokens", 12, "--json", *words)
            answer = ask_one(talking, *words, model=self.model)
            self.assertEqual(tokens(answer), [rows(output)[0]["tokens"]])
        # The first adapter that has a template says it, where no option does.
        words = ("--adapter-root", self.root / "adapters")
        chatml, by_adapter, none = ask([talking, talking | {"adapters": ["chats"]}, talking], "--chat-template", "chatml", *words, model=self.model)
        self.assertEqual(chatml["prompt_tokens"], by_adapter["prompt_tokens"])
        none, with_adapter = ask([talking, talking | {"adapters": ["chats"]}], *words, model=self.model, expect=1)
        self.assertEqual((none["field"], with_adapter["prompt_tokens"]), ("messages", chatml["prompt_tokens"]))
        (self.model / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] + x }}{% endfor %}")
        told = talking | {"chat_template_kwargs": {"x": "!"}}
        answers = ask([talking, told, talking | {"adapters": ["chats"]}], *words, model=self.model, expect=1)
        self.assertIn("the chat template: line 1: 'x' is undefined", answers[0]["error"])
        self.assertEqual(answers[1]["prompt_tokens"], sum(len(m["content"]) + 1 for m in self.TALK))

    def test_a_turns_end_ends_an_answer(self):
        prompt = ask_one({"messages": self.TALK, "max_tokens": 0}, "--chat-template", "chatml", model=self.model)["prompt_tokens"]
        im_end = 258
        write_reciting_model(self.model, [*b"~" * (prompt - 1), *b"ok", im_end, *b"more"], positions=300,
                             specials=("<|im_start|>", "<|im_end|>"))
        talking = {"messages": self.TALK, "temperature": 0, "max_tokens": 7}
        plain, on, later = ask([talking, talking | {"ignore_eos": True}, talking | {"min_tokens": 4}], "--chat-template", "chatml", model=self.model)
        self.assertEqual((plain["choices"][0]["text"], plain["choices"][0]["finish_reason"], plain["completion_tokens"]), ("ok", "stop", 3))
        self.assertEqual(on["choices"][0]["tokens"], [*b"ok", im_end, *b"more"])
        self.assertNotIn(im_end, later["choices"][0]["tokens"])
        self.assertEqual(later["choices"][0]["text"][-4:], "more")


if __name__ == "__main__":
    unittest.main()
