"""`cambium serve` with programs that speak OpenAI's API through libraries of their own: LangChain, litellm and guidellm."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from model_support import run, write_byte_model
from serve_support import Server

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a list of prices
WORDS = [{"role": "user", "content": "It was"}]
TOKENS, REQUESTS = 6, 5


def needs(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"{package} is not installed: PyPI did not give it")


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="cambium-interop-")))
        cls.model = cls.directory / "model"
        write_byte_model(cls.model, n_layer=2, n_head=2, n_embd=32, n_positions=128)
        cls.server = cls.enterClassContext(Server("--model-name", "org/tiny", "--chat-template", "plain", model=cls.model))
        cls.url = f"http://{cls.server.addresses['data']}"

    def expected(self, path="/v1/chat/completions", **asked):
        """The answer without the library."""
        return self.server.ask("POST", path, {"model": "org/tiny", "temperature": 0, "max_tokens": TOKENS} | asked).json["choices"][0]


@needs("langchain_openai")
class LangChain(Served):
    def test_chats_are_answered_whole_and_in_pieces(self):
        from langchain_openai import ChatOpenAI
        chat = ChatOpenAI(base_url=f"{self.url}/v1", api_key="none", model="org/tiny", temperature=0, max_tokens=TOKENS, max_retries=0)
        answer, expected = chat.invoke("It was"), self.expected(messages=WORDS)
        self.assertEqual(answer.content, expected["message"]["content"])
        self.assertEqual((answer.response_metadata["finish_reason"], answer.usage_metadata["output_tokens"]), ("length", TOKENS))
        self.assertEqual("".join(piece.content for piece in chat.stream("It was")), answer.content)
        self.assertEqual([one.content for one in chat.batch(["It was", "It was"])], [answer.content] * 2)

    def test_completions(self):
        from langchain_openai import OpenAI
        model = OpenAI(base_url=f"{self.url}/v1", api_key="none", model="org/tiny", temperature=0, max_tokens=TOKENS, max_retries=0)
        self.assertEqual(model.invoke("It was"), self.expected("/v1/completions", prompt="It was")["text"])


@needs("litellm")
class LiteLLM(Served):
    def asked(self, model):
        return {"model": model, "api_base": f"{self.url}/v1", "api_key": "none", "temperature": 0, "max_tokens": TOKENS, "num_retries": 0}

    def test_chats_are_answered_whole_and_in_pieces(self):
        import litellm
        expected = self.expected(messages=WORDS)
        for provider in "openai", "hosted_vllm":
            with self.subTest(provider):
                asked = self.asked(f"{provider}/org/tiny") | {"messages": WORDS}
                answer = litellm.completion(**asked)
                self.assertEqual((answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage.completion_tokens),
                                 (expected["message"]["content"], "length", TOKENS))
                pieces = litellm.completion(**asked, stream=True)
                self.assertEqual("".join(piece.choices[0].delta.content or "" for piece in pieces), expected["message"]["content"])

    def test_completions(self):
        import litellm
        answer = litellm.text_completion(**self.asked("text-completion-openai/org/tiny"), prompt="It was")
        self.assertEqual(answer.choices[0].text, self.expected("/v1/completions", prompt="It was")["text"])

    def test_errors_are_its_exceptions(self):
        import litellm
        with self.assertRaises(litellm.NotFoundError):
            litellm.completion(**self.asked("openai/none"), messages=WORDS)
        with self.assertRaises(litellm.BadRequestError):
            litellm.completion(**self.asked("openai/org/tiny") | {"temperature": -1}, messages=WORDS)


@needs("guidellm")
class GuideLLM(Served):
    def test_it_counts_what_the_server_counts(self):
        file, before = self.directory / "result.json", self.server.metrics()
        done = subprocess.run(
            [sys.executable, "-m", "guidellm", "run", "--backend", f"kind=openai_http,target={self.url},model=org/tiny",
             "--profile", "kind=synchronous", "--constraint", f"kind=max_requests,count={REQUESTS}",
             "--tokenizer", f"kind=huggingface_auto,model={self.model}",
             "--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={TOKENS}", "--output", f"kind=json,path={file}"],
            capture_output=True, text=True, timeout=300, env=os.environ | {"NO_COLOR": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        after = self.server.metrics()
        grown = lambda name: sum(value - before.get(key, 0) for key, value in after.items() if key.startswith(name))
        (result,) = json.loads(file.read_text())["benchmarks"]
        requests = result["requests"]["successful"]
        self.assertEqual((len(requests), result["requests"]["errored"]), (REQUESTS, []))
        self.assertEqual(grown("vllm:request_success_total"), REQUESTS)
        self.assertEqual(grown("vllm:generation_tokens_total"), sum(request["output_metrics"]["text_tokens"] for request in requests))


if __name__ == "__main__":
    unittest.main()
