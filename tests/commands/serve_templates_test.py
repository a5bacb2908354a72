"""A chat is written in the template of the generation that answers it, whatever was replaced since it was sent."""
import json
import pathlib
import tempfile
import threading
import time
import unittest

from model_support import EOS, run, write_byte_model, write_reciting_model
from serve_support import PATIENCE, Server, write_prompt

WIDTH = 64
PROMPTS = {"chatml": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
           "alpaca": "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
                     "### Instruction:\nHi\n\n### Response:\n"}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "ignore_eos": True, "return_token_ids": True}
# Nobody reads it: its texts stay.
HELD = {"prompt": "a", "n": 128, "max_tokens": 100, "logprobs": 20, "ignore_eos": True}


class Templates(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.model, self.root = (pathlib.Path(temporary.name) / name for name in ("model", "root"))
        write_byte_model(self.model, n_positions=400, n_embd=WIDTH, n_head=4)

    def adapter(self, name, template=None, tokens=1):
        write_prompt(self.root / name, tokens, width=WIDTH)
        self.mark(name, template)

    def mark(self, name, template):
        if template:
            (self.root / name / "cambium_adapter.json").write_text(json.dumps({"chat_template": template}))

    def serve(self, *words):
        return Server("--adapter-root", self.root, *words, model=self.model)

    def change(self, server, method, path, body):
        answer = server.ask(method, path, body, listener="control")
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def chat(self, server, *adapters, **more):
        """The template that the prompt was written in, and the generations."""
        answer = server.ask("POST", "/v1/chat/completions", CHAT | {"adapters": adapters} | more)
        self.assertEqual(answer.status, 200, answer.body)
        prompt = bytes(answer.json["prompt_token_ids"]).decode()
        return next(name for name, text in PROMPTS.items() if text == prompt), [a["generation"] for a in answer.json["adapters"]]

    def bytes_of(self, name):
        with self.serve() as server:
            return self.change(server, "POST", "/v1/adapters", {"name": "x", "path": name})["bytes"]

    def test_files_that_were_changed_before_their_first_use(self):
        self.adapter("a", "chatml")
        with self.serve() as server:
            self.mark("a", "alpaca")
            self.assertEqual(self.chat(server, "a")[0], "alpaca")
            self.mark("a", "chatml")
            self.assertEqual(self.chat(server, "a")[0], "alpaca")
            self.change(server, "PUT", "/v1/adapters/a", {})
            self.assertEqual(self.chat(server, "a")[0], "chatml")

    def test_an_adapter_that_is_replaced_while_its_chat_waits_for_another(self):
        for name, template in (("a", "chatml"), ("a2", "alpaca"), ("a3", None), ("busy", None)):
            self.adapter(name, template)
        small = self.bytes_of("a")
        self.adapter("large", tokens=1 + small // (8 * WIDTH))  # as large as one and a half
        large = self.bytes_of("large")
        memory = 3 * small + small // 4
        self.assertTrue(memory - 2 * small < large < memory - small)
        for path in ("a2", "a3"):
            told = []
            with self.serve("--adapter-memory", memory, "--chat-template", "alpaca") as server:
                self.assertEqual(self.chat(server, "a")[0], "chatml")
                with server.stream("/v1/completions", HELD | {"adapters": ["busy"]}) as stream:
                    next(stream)
                    thread = threading.Thread(target=lambda: told.append(self.chat(server, "a", "large")))
                    thread.start()
                    self.await_waiting(server, "a")
                    generation = self.change(server, "PUT", "/v1/adapters/a", {"path": path})["generation"]
                    self.assertEqual(self.waiting(server, "a"), 1)
                thread.join()
                self.assertEqual((told[0][0], told[0][1][0]), ("alpaca", generation))
                self.assertEqual(self.chat(server, "a"), ("alpaca", [generation]))

    def await_waiting(self, server, name):
        end = time.monotonic() + PATIENCE
        while not self.waiting(server, name):
            self.assertLess(time.monotonic(), end)

    def waiting(self, server, name):
        return next(a["waiting"] for a in server.ask("GET", "/v1/adapters", listener="control").json["adapters"] if a["name"] == name)

    def test_a_rendering_that_no_context_holds(self):
        """As bytes: a template makes much of little, and nobody tokenizes it."""
        self.root.mkdir()
        (self.root.parent / "much.jinja").write_text("{{ messages[0].content * 10000 }}")
        with self.serve("--chat-template", self.root.parent / "much.jinja") as server:
            for text in ("abc", "abc" * 30):  # less and more than a text may have at all
                for more in ({}, {"stream": True}):
                    answer = server.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]} | more)
                    self.assertEqual(answer.status, 400, answer.body)
                    error = answer.json["error"]
                    self.assertEqual((error["param"], error["code"]), ("messages", "context_length_exceeded"))
                    self.assertIn("maximum context length is 400 tokens", error["message"])
                    self.assertIn(f"its text has {len(text) * 10000} bytes", error["message"])
            self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}).status, 200)

    def test_many_chats_while_templates_are_swapped(self):
        for name in PROMPTS:
            self.adapter(name, name)
        with self.serve() as server:
            is_over, told = threading.Event(), []

            def ask(number):
                while not is_over.is_set():
                    if number == 0:  # one that leaves
                        with server.stream("/v1/chat/completions", CHAT | {"adapters": ["a"], "max_tokens": 50}) as stream:
                            next(stream)
                    else:
                        told.append(self.chat(server, "a", n=number))

            generations = {self.change(server, "POST", "/v1/adapters", {"name": "a", "path": "chatml"})["generation"]: "chatml"}
            threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
            for thread in threads:
                thread.start()
            for number in range(60):
                path = ("alpaca", "chatml")[number % 2]
                generations[self.change(server, "PUT", "/v1/adapters/a", {"path": path})["generation"]] = path
            is_over.set()
            for thread in threads:
                thread.join(PATIENCE)
            self.assertTrue(told)
            for template, (generation,) in told:
                self.assertEqual(template, generations[generation])
            for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
                server.await_metric(name, 0)



class FirstSpaces(unittest.TestCase):
    """A SentencePiece model that writes "\u2581the" everywhere. Its chats begin without the space, as transformers decodes them."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.model = pathlib.Path(temporary.name, "model")
        tokenizer = (pathlib.Path(__file__).parent.parent / "text/golden/llama2/tokenizer.json").read_text()
        vocab = json.loads(tokenizer)["model"]["vocab"]
        write_reciting_model(cls.model, [vocab["\u2581the"]] * 100, positions=101, specials=[f"<{i}>" for i in range(404 - EOS - 1)])
        for name in ("vocab.json", "merges.txt", "added_tokens.json"):
            (cls.model / name).unlink()
        (cls.model / "tokenizer.json").write_text(tokenizer)
        (cls.model / "tokenizer_config.json").write_text(json.dumps({
            "eos_token": "</s>", "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}))

    def test_chats_over_http(self):
        chat = {"messages": [{"role": "user", "content": "of"}], "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
        with Server(model=self.model) as server:
            ask = lambda path, body: server.ask("POST", path, body).json["choices"][0]
            choice = ask("/v1/chat/completions", chat)
            self.assertEqual(choice["message"]["content"], "the the the")
            entries = choice["logprobs"]["content"]
            self.assertEqual([entry["token"] for entry in entries], ["the", " the", " the"])
            self.assertEqual([bytes(entry["bytes"]) for entry in entries], [b"the", b" the", b" the"])
            self.assertEqual(entries[0]["top_logprobs"][0]["token"], "the")
            with server.stream("/v1/chat/completions", chat) as events:
                deltas = [event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]
            self.assertEqual("".join(deltas), "the the the")
            self.assertEqual(ask("/v1/chat/completions", chat | {"stop": " the"})["message"]["content"], "the")
            self.assertEqual(ask("/v1/chat/completions", chat | {"stop": "the"})["message"]["content"], "")
            going_on = chat | {"messages": [*chat["messages"], {"role": "assistant", "content": "in"}],
                               "continue_final_message": True, "add_generation_prompt": False}
            self.assertEqual(ask("/v1/chat/completions", going_on)["message"]["content"], " the the the")
            self.assertEqual(ask("/v1/completions", {"prompt": "of", "max_tokens": 3})["text"], " the the the")

    def test_chats_of_commands(self):
        messages = {"messages": [{"role": "user", "content": "of"}]}
        file = self.model / "messages.json"
        file.write_text(json.dumps(messages))
        words = ("--model", self.model, "--max-new-tokens", 2, "--temperature", 0)
        self.assertEqual(run("generate", *words, "--messages", file)[0], b"the the\n")
        self.assertEqual(run("generate", *words, "--prompt", "of")[0], b" the the\n")
        self.assertEqual(run("chat", *words, input=b"of\n")[0].strip(b"\n"), b"the the")
        lines = "".join(json.dumps(line | {"max_tokens": 2}) + "\n" for line in (messages, {"prompt": "of"})).encode()
        output, _ = run("generate", "--model", self.model, "--requests", "-", input=lines)
        self.assertEqual([json.loads(line)["choices"][0]["text"] for line in output.splitlines()], ["the the", " the the"])


if __name__ == "__main__":
    unittest.main()
