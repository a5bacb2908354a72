"""cambium serve, asked by Debian's grpcio: every method, what it answers beside generate --requests and score, and what is
refused with which status."""
import gzip
import json
import pathlib
import random
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from model_support import TINY, rows, run, write_reciting_model
from requests_support import ADAPTERS, BASE, as_lines, ask_one
from serve_grpc_support import PATIENCE, Client, details_of, fails, field, fields, grpc, needs_grpcio
from serve_support import Server

# The interface to the letter: s string, u/U uint32/64, f float, d double, b bool, i int32, * repeated, ? alone in a oneof.
INTERFACE = """
GenerateRequest{s model=1;*s adapters=2;oneof input{s text=3;Tokens tokens=4}Sampling sampling=5;?u max_tokens=6;u min_tokens=7;
  *s stop=8;*u stop_token_ids=9;b ignore_eos=10;u n=11;?u logprobs=12;?u prompt_logprobs=13;i priority=14;s cache_salt=15;
  ?b parse_special=16;Constraint constraint=17;s tools=18;s tool_choice=19}
Constraint{oneof kind{s json_schema=1;s regex=2;Choice choice=3;s grammar=4;s structural_tag=5;b json_object=6}b compact=7}
Choice{*s texts=1}
Tokens{*u ids=1} LogitBias{u id=1;f bias=2}
Sampling{?f temperature=1;u top_k=2;?f top_p=3;f min_p=4;?f repetition_penalty=5;f presence_penalty=6;f frequency_penalty=7;
  ?U seed=8;*LogitBias logit_bias=9}
GenerateResponse{oneof event{Started started=1;Output output=2;Finished finished=3}}
Started{s request_id=1;u prompt_tokens=2;u cached_tokens=3;*AdapterVersion adapters=4;U seed=5;*TokenLogprob prompt_logprobs=6;
  *s ignored=7}
AdapterVersion{s name=1;U generation=2} Output{u index=1;s text=2;*u token_ids=3;*TokenLogprob logprobs=4;
  s reasoning=5;*ToolCall tool_calls=6} ToolCall{u index=1;s id=2;s name=3;s arguments=4}
Finished{u index=1;Reason reason=2;u completion_tokens=3}
TokenLogprob{u id=1;?d logprob=2;*TopLogprob top=3} TopLogprob{u id=1;d logprob=2}
GenerateOnceResponse{Started started=1;*Output outputs=2;*Finished finished=3}
ScoreRequest{s model=1;*s adapters=2;oneof input{s text=3;Tokens tokens=4}u top=5;?b parse_special=6} ScoreResponse{*TokenLogprob tokens=1}
TokenizeRequest{s text=1;?b parse_special=2} TokenizeResponse{*u ids=1} DetokenizeRequest{*u ids=1} DetokenizeResponse{s text=1}
ServerInfoRequest{} ServerInfoResponse{s version=1;*s models=2;u max_model_len=3;u vocab_size=4;?u eos_token_id=5;s precision=6;
  u tensor_parallel=7;u pipeline_parallel=8}
LoadAdapterRequest{s name=1;s path=2;b pinned=3} ReplaceAdapterRequest{s name=1;s path=2;U if_generation=3}
UnloadAdapterRequest{s name=1} UnloadAdapterResponse{} ListAdaptersRequest{} DrainResponse{}
Adapter{s name=1;*s methods=2;U generation=3;s digest=4;U parameters=5;U bytes=6;u virtual_tokens=7;s state=8;b pinned=9;
  u running=10;u waiting=11;s receipt=12;d receipt_gap=13}
ListAdaptersResponse{*Adapter adapters=1} DrainRequest{?u timeout_s=1;?u delay_s=2}
"""
TYPES = {1: "d", 2: "f", 4: "U", 5: "i", 8: "b", 9: "s", 13: "u"}


def describe(message):
    """A message of a descriptor in the notation above, as a set of fields."""
    found = set()
    for entry in message.field:
        kind = TYPES.get(entry.type) or entry.type_name.rsplit(".", 1)[1]
        oneof = message.oneof_decl[entry.oneof_index].name if entry.HasField("oneof_index") else ""
        alone = oneof == f"_{entry.name}"
        found.add(f"{'*' * (entry.label == 3)}{'?' * alone}{kind} {entry.name}={entry.number}"
                  + (f" of {oneof}" if oneof and not alone else ""))
    return found


def read_interface():
    found = {}
    for name, body in re.findall(r"(\w+)\{((?:[^{}]|\{[^{}]*\})*)\}", INTERFACE):
        parts = set()
        for oneof, inner, plain in re.findall(r"oneof (\w+)\{([^}]*)\}|([^;{}]+)", body):
            parts |= {f"{part} of {oneof}" for part in inner.split(";")} if oneof else {plain.strip()} - {""}
        found[name] = parts
    return found


def single(number):
    """A double that stands for a number of single precision, as JSON has it with nine digits."""
    return None if number is None else struct.unpack("<f", struct.pack("<f", number))[0]


def pairs(tokens):
    """For either form: (id, its log-probability, the likeliest with theirs)."""
    if tokens and isinstance(tokens[0], dict):
        return [(t["id"], single(t["logprob"]), [(top["id"], single(top["logprob"])) for top in t["top"]]) for t in tokens]
    return [(t.id, t.logprob if t.WhichOneof("_logprob") else None, [(top.id, top.logprob) for top in t.top]) for t in tokens]


def joined(events, count):
    """The events of Generate as GenerateOnce would have them: texts, ids, log-probabilities, ends."""
    started, *rest = events
    assert started.WhichOneof("event") == "started"
    texts = [["", [], [], None] for _ in range(count)]
    for event in rest:
        if event.WhichOneof("event") == "output":
            text = texts[event.output.index]
            assert text[3] is None, "an output after the end"
            text[0] += event.output.text
            text[1] += event.output.token_ids
            text[2] += pairs(event.output.logprobs)
        else:
            texts[event.finished.index][3] = (event.finished.reason, event.finished.completion_tokens)
    return started.started, texts


@needs_grpcio
class Answers(unittest.TestCase):
    """The tiny model, and all that is asked of it."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--model-name", "tiny", "other"))
        cls.client = cls.enterClassContext(Client(cls.server.addresses["data"]))
        cls.control = cls.enterClassContext(Client(cls.server.addresses["control"]))

    def test_the_interface_is_the_one_that_was_promised(self):
        file = self.client.file_with("cambium.v1.Cambium")
        self.assertEqual({message.name: describe(message) for message in file.message_type}, read_interface())
        reason = next(m for m in file.message_type if m.name == "Finished").enum_type[0]
        self.assertEqual([(value.name, value.number) for value in reason.value][1:], [("STOP", 1), ("LENGTH", 2), ("TOOL_CALLS", 3)])
        methods = {service.name: [method.name for method in service.method] for service in file.service}
        self.assertEqual(methods, {
            "Cambium": ["Generate", "GenerateOnce", "Score", "Tokenize", "Detokenize", "ServerInfo"],
            "Control": ["LoadAdapter", "ReplaceAdapter", "UnloadAdapter", "ListAdapters", "Drain"]})

    def test_reflection(self):
        names = ["cambium.v1.Cambium", "cambium.v1.Control", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                 "grpc.reflection.v1alpha.ServerReflection"]
        for version in ("v1", "v1alpha"):
            for client, listed in ((self.client, [n for n in names if "Control" not in n]), (self.control, names)):
                (number, content), = client.reflect(field(7, b"*"), version=version)
                self.assertEqual((number, [dict(fields(entry))[1].decode() for _, entry in fields(content)]), (6, listed))
            for symbol in (*names, "cambium.v1.Cambium.Generate", "cambium.v1.Finished", "cambium.v1.Finished.Reason",
                           "google.protobuf.Any", "google.rpc.BadRequest.FieldViolation", "google.rpc.Status", "grpc.health.v1.HealthListResponse.StatusesEntry"):
                file = self.client.file_with(symbol, version)
                self.assertTrue(symbol.startswith(file.package + "."), symbol)
                (_, content), = self.client.reflect(field(3, file.name.encode()), version=version)
                self.assertEqual(fields(content)[0][1], file.SerializeToString())
        unknown = [field(4, b"cambium.v1.None"), field(4, b"cambium.v"), field(4, b""), field(3, b"none.proto"),
                   field(5, field(1, b"cambium.v1.Tokens") + b"\x10\x01"), field(1, b"host")]
        answers = self.client.reflect(*unknown, field(7, b""))
        self.assertEqual([number for number, _ in answers], [7] * 6 + [6])  # the stream continues after a symbol that is not found
        self.assertEqual([dict(fields(content))[1] for _, content in answers[:-1]], [5] * 5 + [3])

    def test_generate_equals_the_command(self):
        asked = {"max_tokens": 9, "logprobs": 3, "prompt_logprobs": 2, "n": 3, "min_tokens": 2, "stop_token_ids": [44]}
        sampling = {"temperature": 0.7, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1,
                    "presence_penalty": 0.3, "frequency_penalty": 0.2, "seed": 2**53 - 1}
        expected = ask_one({"prompt": "hello world", "logit_bias": {"5": 1.5, "7": -2}} | asked | sampling)
        bias = [{"id": 5, "bias": 1.5}, {"id": 7, "bias": -2}]
        request = {"text": "hello world", "sampling": sampling | {"logit_bias": bias}} | asked
        started, texts = joined(list(self.client.call("Generate", **request)), 3)
        once = self.client.call("GenerateOnce", **request)
        ends = [(finished.reason, finished.completion_tokens) for finished in once.finished]
        self.assertEqual([output.index for output in once.outputs], [0, 1, 2])
        self.assertEqual([[output.text, list(output.token_ids), pairs(output.logprobs), end]
                          for output, end in zip(once.outputs, ends)], texts)
        self.assertEqual([text[:3] for text in texts],
                         [[c["text"], c["tokens"], pairs(c["logprobs"])] for c in expected["choices"]])
        self.assertEqual([{1: "stop", 2: "length"}[text[3][0]] for text in texts],
                         [choice["finish_reason"] for choice in expected["choices"]])
        for tell in (started, once.started):
            self.assertEqual((tell.prompt_tokens, tell.seed, list(tell.adapters)), (7, 2**53 - 1, []))
            self.assertEqual(pairs(tell.prompt_logprobs), pairs(expected["prompt_logprobs"]))
            self.assertTrue(tell.request_id)

    def test_what_is_not_asked_has_its_default(self):
        once = self.client.call("GenerateOnce", tokens={"ids": [3, 4]}, model="other", metadata=[("x-request-id", "mine")])
        self.assertEqual((once.started.request_id, once.started.prompt_tokens), ("mine", 2))
        self.assertEqual((len(once.outputs), list(once.outputs[0].logprobs)), (1, []))
        again = self.client.call("GenerateOnce", tokens={"ids": [3, 4]}, sampling={"seed": once.started.seed})
        self.assertEqual(again.outputs, once.outputs)
        self.assertEqual(again.started.cached_tokens, 0)  # less than a page
        count = once.finished[0].completion_tokens
        self.assertTrue(count == 62 or once.finished[0].reason == 1)  # to the end of the context
        greedy = self.client.call("GenerateOnce", text="a", sampling={"temperature": 0}, max_tokens=4)
        self.assertEqual(list(greedy.outputs[0].token_ids),
                         ask_one({"prompt": "a", "temperature": 0, "max_tokens": 4})["choices"][0]["tokens"])
        empty = self.client.call("GenerateOnce", text="", max_tokens=0)  # a document begins
        self.assertEqual((empty.started.prompt_tokens, empty.finished[0].completion_tokens), (1, 0))

    def test_score_equals_the_command(self):
        output, _ = run("score", "--model", TINY, "--input", "-", input=b'{"text":"hello world"}\n')
        (expected,) = rows(output)
        answer = self.client.call("Score", text="hello world")
        self.assertEqual([(t[0], t[1]) for t in pairs(answer.tokens)],
                         [(i, single(p)) for i, p in zip(expected["tokens"], expected["logprobs"])])
        tops = self.client.call("Score", tokens={"ids": expected["tokens"]}, top=2)
        self.assertEqual([len(token.top) for token in tops.tokens], [0] + [2] * 6)
        self.assertEqual([(t[0], t[1]) for t in pairs(tops.tokens)], [(t[0], t[1]) for t in pairs(answer.tokens)])

    def test_texts_and_tokens(self):
        for text in ("hello world", "<|endoftext|>", "naïve ☺ \U0001f608 " * 1000):  # the last is a worker's
            output, _ = run("tokenize", "--tokenizer", TINY, input=text.encode() + b"\n")
            ids = self.client.call("Tokenize", text=text).ids
            self.assertEqual(list(ids), [int(word) for word in re.findall(r"\d+", output.decode())])
            self.assertEqual(self.client.call("Detokenize", ids=ids).text, text)
        self.assertEqual(list(self.client.call("Tokenize", text="").ids), [0])  # a document begins
        # Names of special tokens are tokens, unless a request says no.
        for special, count in (({}, 1), ({"parse_special": True}, 1), ({"parse_special": False}, 13)):
            asked = {"text": "<|endoftext|>"} | special
            self.assertEqual(len(self.client.call("Tokenize", **asked).ids), count)
            self.assertEqual(len(self.client.call("Score", **asked).tokens), count)
            self.assertEqual(self.client.call("GenerateOnce", max_tokens=1, **asked).started.prompt_tokens, count)
        every = self.client.call("Detokenize", ids=range(300)).text
        self.assertIn("\0", every)  # a token of the byte 0 does not cut the text
        self.assertIn("�", every)  # halves of characters are none
        with fails(self, "INVALID_ARGUMENT", "ids: token 1 is not an id from 0 to 299"):
            self.client.call("Detokenize", ids=[1, 300])

    def test_server_info(self):
        info = self.client.call("ServerInfo")
        self.assertEqual((list(info.models), info.max_model_len, info.vocab_size, info.eos_token_id, info.precision),
                         (["tiny", "other"], 64, 300, 0, "fp32"))
        self.assertEqual((info.tensor_parallel, info.pipeline_parallel), (1, 1))
        self.assertIn(info.version, run("--version")[0].decode())

    def test_what_is_refused_names_the_field(self):
        many = {"id": 1, "bias": 1}
        for status, part, values in (
                ("INVALID_ARGUMENT", "input: expected text or tokens", {}),
                ("INVALID_ARGUMENT", "tokens.ids: expected at least one", {"tokens": {}}),
                ("INVALID_ARGUMENT", "tokens.ids: token 1 is not", {"tokens": {"ids": [1, 300]}}),
                ("INVALID_ARGUMENT", "tokens.ids: token 0 is not", {"tokens": {"ids": [2**32 - 1]}}),
                ("NOT_FOUND", "model: there is no model 'none'", {"text": "a", "model": "none"}),
                ("NOT_FOUND", "adapters: ", {"text": "a", "adapters": ["none"]}),
                ("INVALID_ARGUMENT", "adapters: ", {"text": "a", "adapters": ["none"] * 5}),
                ("INVALID_ARGUMENT", "temperature: ", {"text": "a", "sampling": {"temperature": -1}}),
                ("INVALID_ARGUMENT", "temperature: ", {"text": "a", "sampling": {"temperature": float("nan")}}),
                ("INVALID_ARGUMENT", "top_p: ", {"text": "a", "sampling": {"top_p": -0.5}}),
                ("INVALID_ARGUMENT", "min_p: ", {"text": "a", "sampling": {"min_p": 2}}),
                ("INVALID_ARGUMENT", "repetition_penalty: ", {"text": "a", "sampling": {"repetition_penalty": 0}}),
                ("INVALID_ARGUMENT", "frequency_penalty: ", {"text": "a", "sampling": {"frequency_penalty": float("inf")}}),
                ("INVALID_ARGUMENT", "top_k: ", {"text": "a", "sampling": {"top_k": 2**31}}),
                ("INVALID_ARGUMENT", "logit_bias: ", {"text": "a", "sampling": {"logit_bias": [{"id": 300}]}}),
                ("INVALID_ARGUMENT", "logit_bias: ", {"text": "a", "sampling": {"logit_bias": [many] * 2}}),
                ("INVALID_ARGUMENT", "logit_bias: ", {"text": "a", "sampling": {"logit_bias": [many] * 1025}}),
                ("INVALID_ARGUMENT", "stop: ", {"text": "a", "stop": ["x"] * 65}),
                ("INVALID_ARGUMENT", "stop: ", {"text": "a", "stop": [""]}),
                ("INVALID_ARGUMENT", "stop: ", {"text": "a", "stop": ["x" * 1025]}),
                ("INVALID_ARGUMENT", "stop_token_ids: ", {"text": "a", "stop_token_ids": [2**31]}),
                ("INVALID_ARGUMENT", "n: ", {"text": "a", "n": 129}),
                ("INVALID_ARGUMENT", "logprobs: ", {"text": "a", "logprobs": 21}),
                ("INVALID_ARGUMENT", "prompt_logprobs: ", {"text": "a", "prompt_logprobs": 21}),
                ("INVALID_ARGUMENT", "min_tokens: ", {"text": "a", "min_tokens": 3, "max_tokens": 2}),
                ("OUT_OF_RANGE", "64", {"text": "a", "max_tokens": 1000}),
                ("OUT_OF_RANGE", "64", {"tokens": {"ids": [1] * 65}})):
            for method in ("GenerateOnce", "Generate"):
                with self.subTest(part, method=method), fails(self, status, part):
                    list(self.client.call(method, **values)) if method == "Generate" else self.client.call(method, **values)
        with fails(self, "INVALID_ARGUMENT", "top: "):
            self.client.call("Score", text="a", top=21)

    def test_programs_read_what_went_wrong(self):
        for status, reason, violation, ask in (
                ("INVALID_ARGUMENT", None, ("n", "expected"), lambda: self.client.call("GenerateOnce", text="a", n=129)),
                ("INVALID_ARGUMENT", None, ("text", "the text has a NUL"),
                 lambda: self.client.raw("/cambium.v1.Cambium/Tokenize", b"\x0a\x03a\0b")),
                ("OUT_OF_RANGE", "CONTEXT_LENGTH_EXCEEDED", None,
                 lambda: list(self.client.call("Generate", text="a", max_tokens=1000))),
                ("NOT_FOUND", "MODEL_NOT_FOUND", ("model", "none"), lambda: self.client.call("Score", text="a", model="none")),
                ("UNIMPLEMENTED", "ROUTE_NOT_FOUND", None, lambda: self.client.raw("/none/None", b"")),
                ("RESOURCE_EXHAUSTED", "BODY_TOO_LARGE", None, lambda: self.client.call("Detokenize", ids=[258] * (3 << 20)))):
            with self.subTest(status, reason=reason):
                with fails(self, status) as caught:
                    ask()
                found = details_of(caught.exception)
                self.assertNotIn("RetryInfo", found)
                info = found.get("ErrorInfo")
                self.assertEqual((info and info.reason, info and info.domain), (reason, reason and "cambium"))
                violations = [(entry.field, entry.description) for entry in found["BadRequest"].field_violations] \
                    if "BadRequest" in found else []
                self.assertEqual([field for field, _ in violations if violation], [violation[0]] if violation else [])
                self.assertTrue(not violation or violation[1] in violations[0][1], violations)

    def test_bytes_that_are_no_request(self):
        path = "/cambium.v1.Cambium/Tokenize"
        for body, status, part in ((b"\x0a\x01\xff", "INVALID_ARGUMENT", "text: the text is not UTF-8"),
                                   (b"\x0a\x03a\0b", "INVALID_ARGUMENT", "text: the text has a NUL"),
                                   (b"\x08\x01", "INTERNAL", "text: of another type"), (b"\x0a\x05a", "INTERNAL", ""),
                                   (b"\xfa\x07\x00" * 20000, "RESOURCE_EXHAUSTED", "too many parts"),
                                   (field(1, b"a" * (8 << 20)), "RESOURCE_EXHAUSTED", "8388608 bytes")):
            with self.subTest(status + part), fails(self, status, part):
                self.client.raw(path, body)
        with fails(self, "UNIMPLEMENTED", "/cambium.v1.Cambium/None"):
            self.client.raw("/cambium.v1.Cambium/None", b"")
        with fails(self, "UNIMPLEMENTED"):
            self.client.raw("/cambium.v1.Control/ListAdapters", b"")
        self.assertEqual(self.control.raw("/cambium.v1.Control/ListAdapters", b""), b"")
        self.assertEqual(len(self.client.call("Tokenize", text="a").ids), 1)  # and others are served

    def test_gzip(self):
        text = "hello world " * 5000
        plain = self.client.call("Tokenize", text=text)
        self.assertEqual(self.client.call("Tokenize", text=text, compression=grpc.Compression.Gzip), plain)
        self.assertLess(len(gzip.compress(bytes(9 << 20))), 20000)
        with fails(self, "RESOURCE_EXHAUSTED"):  # what comes out counts
            self.client.raw("/cambium.v1.Cambium/Tokenize", field(1, b"a" * (9 << 20)), compression=grpc.Compression.Gzip)
        with fails(self, "UNIMPLEMENTED", "grpc-encoding"):
            self.client.raw("/cambium.v1.Cambium/Tokenize", b"", compression=grpc.Compression.Deflate)

    def test_a_large_answer_is_none(self):
        with fails(self, "RESOURCE_EXHAUSTED", "4194304"):
            self.client.call("Detokenize", ids=[258] * (3 << 20))

    def test_health(self):
        for service in ("", "cambium.v1.Cambium", "grpc.health.v1.Health"):
            self.assertEqual(self.client.call("Check", service=service).status, 1)
        for client, service in ((self.client, "none"), (self.client, "cambium.v1.Control")):
            with fails(self, "NOT_FOUND"):
                client.call("Check", service=service)
        self.assertEqual(self.control.call("Check", service="cambium.v1.Control").status, 1)
        listed = {name: entry.status for name, entry in self.client.call("List").statuses.items()}
        self.assertEqual((listed[""], listed["cambium.v1.Cambium"], len(listed)), (1, 1, 5))
        watch = self.client.call("Watch", service="none")
        self.assertEqual(next(watch).status, 3)  # and the call stays open
        watch.cancel()


@needs_grpcio
class Lives(unittest.TestCase):
    """Calls that end before their time, keys, and the end of the server."""

    def long_model(self):
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "model"
        write_reciting_model(directory, b"ab" * 2000, positions=4000)
        return directory

    def test_calls_and_reasoning_are_read_where_tools_are_given(self):
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        calls = [("f", '{"a": "ä"}'), ("f", "{}")]
        text = "<think>Hm.</think>\nSo: " + "\n".join(f'<tool_call>\n{{"name": "{name}", "arguments": {value}}}\n</tool_call>' for name, value in calls)
        write_reciting_model(root / "model", text.encode(), positions=300)
        (root / "template").write_text("{# tools <tool_call> <think> #}")
        tools = json.dumps([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}])
        asked = {"text": "a", "tools": tools, "sampling": {"temperature": 0, "seed": 3}}
        with Server("--chat-template", root / "template", model=root / "model") as server, Client(server.addresses["data"]) as client:
            whole = client.call("GenerateOnce", **asked)
            (output,), (finished,) = whole.outputs, whole.finished
            self.assertEqual((output.text, output.reasoning, finished.reason), ("So: ", "Hm.", 3))
            self.assertEqual([(call.name, call.arguments) for call in output.tool_calls], calls)
            self.assertEqual(bytes(output.token_ids).decode(), text)
            streamed, ids, parts = ["", ""], [], []
            for event in client.call("Generate", **asked):
                if event.WhichOneof("event") == "output":
                    streamed[0] += event.output.text
                    streamed[1] += event.output.reasoning
                    ids += event.output.token_ids
                    for call in event.output.tool_calls:
                        if call.id:
                            parts.append([call.id, call.name, ""])
                        self.assertEqual(call.index, len(parts) - 1)
                        parts[-1][2] += call.arguments
            self.assertEqual((streamed, bytes(ids).decode()), (["So: ", "Hm."], text))
            self.assertEqual(parts, [[call.id, call.name, call.arguments] for call in output.tool_calls])
            for more in ({"tools": ""}, {"tool_choice": "none"}):
                self.assertEqual(client.call("GenerateOnce", **asked | more).outputs[0].text, text)
            for more, part in (({"tools": "{"}, "tools"), ({"tools": "[1]"}, "tools"), ({"tool_choice": "any"}, "tool_choice"),
                               ({"tools": "", "tool_choice": "required"}, "no tools")):
                with fails(self, "INVALID_ARGUMENT", part):
                    client.call("GenerateOnce", **asked | more)

    def test_who_leaves_or_is_late_is_not_worked_for(self):
        running, waiting = "vllm:num_requests_running", "vllm:num_requests_waiting"
        long = {"text": "a", "n": 128, "ignore_eos": True}
        with Server(model=self.long_model()) as server, Client(server.addresses["data"]) as client:
            stream = client.call("Generate", **long)
            self.assertEqual(next(stream).WhichOneof("event"), "started")
            stream.cancel()
            server.await_metric(running, 0)
            server.await_metric(waiting, 0)
            with fails(self, "DEADLINE_EXCEEDED"):
                client.call("GenerateOnce", timeout=0.3, **long)
            server.await_metric(running, 0)
            server.await_metric(waiting, 0)
            with Client(server.addresses["data"]) as leaving:
                stream = leaving.call("Generate", **long)
                next(stream)
            server.await_metric(running, 0)
            server.await_metric("vllm:kv_cache_usage_perc", 0)
            self.assertEqual(client.call("GenerateOnce", text="a", max_tokens=3).outputs[0].text, "aba")

    def test_who_does_not_read_waits_for_himself_alone(self):
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        asked = {"text": "a", "n": 16, "ignore_eos": True, "logprobs": 5, "sampling": {"temperature": 0}}
        with Server(model=self.long_model()) as server, Client(server.addresses["data"], options=options) as slow, \
                Client(server.addresses["data"]) as other:
            stream = slow.call("Generate", **asked)
            events = [next(stream)]
            self.assertEqual(other.call("GenerateOnce", text="a", max_tokens=3).outputs[0].text, "aba")
            events += stream  # now it reads, and nothing is lost
            _, texts = joined(events, 16)
            self.assertEqual([len(text[1]) for text in texts], [3999] * 16)

    def test_cancels_deadlines_and_ends_cross(self):
        """Whenever a client leaves, whoever stays has the right text, and nothing is left over."""
        chance, expected = random.Random(11), ("ab" * 20)[:37]
        asked = {"text": "a", "max_tokens": 37, "sampling": {"temperature": 0}}
        # Calls that end before their head is sent, too: grpcio resets a stream then that was never there.
        with Server(model=self.long_model()) as server, Client(server.addresses["data"]) as client:
            whole, ends = 0, set()
            client.call("GenerateOnce", **asked)
            for _ in range(15):
                calls = [client.call("Generate", n=chance.choice((1, 1, 3)), timeout=chance.choice((PATIENCE, PATIENCE, 0.002, 0.02)), **asked)
                         for _ in range(20)]
                for call in chance.sample(calls, 5):
                    call.cancel()
                for call in calls:
                    events, left = [], chance.randrange(80)
                    try:
                        for event in call:
                            events.append(event)
                            if len(events) > left:
                                call.cancel()
                        ends.add("OK")
                    except grpc.RpcError as error:
                        ends.add(error.code().name)
                        continue
                    count = sum(event.WhichOneof("event") == "finished" for event in events)
                    self.assertEqual([text[0] for text in joined(events, count)[1]], [expected] * count)
                    whole += 1
            self.assertEqual(ends, {"OK", "CANCELLED", "DEADLINE_EXCEEDED"})
            self.assertGreater(whole, 15)
            for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
                server.await_metric(name, 0)
            self.assertEqual(client.call("GenerateOnce", **asked).outputs[0].text, expected)

    def test_who_does_not_read_for_long_loses_the_call(self):
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        with Server("--limits.write_timeout=1", model=self.long_model()) as server, \
                Client(server.addresses["data"], options=options) as client:
            stream = client.call("Generate", text="a", n=16, ignore_eos=True, logprobs=5)
            self.assertEqual(next(stream).WhichOneof("event"), "started")
            server.await_metric("vllm:num_requests_running", 0)
            with self.assertRaises(grpc.RpcError):
                list(stream)
            server.await_metric('cambium:requests_cancelled_total{reason="slow_reader"}', 1)
            self.assertEqual(len(client.call("GenerateOnce", text="a", max_tokens=1).outputs), 1)

    def test_keys(self):
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (directory / "keys").write_text("someone secret\n")
        with Server("--api-key-file", directory / "keys") as server:
            address = server.addresses["data"]
            with Client(address) as nobody, Client(address, "wrong") as wrong, Client(address, "secret") as someone:
                for client in (nobody, wrong):
                    for path in ("/cambium.v1.Cambium/ServerInfo", "/cambium.v1.Cambium/None", "/none/None",
                                 "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"):
                        with fails(self, "UNAUTHENTICATED"):
                            client.raw(path, b"")
                    self.assertEqual(client.raw("/grpc.health.v1.Health/Check", b""), b"\x08\x01")
                self.assertEqual(someone.call("ServerInfo").vocab_size, 300)

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl to make a certificate")
    def test_tls(self):
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        cert, key = directory / "cert.pem", directory / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
        with Server("--tls-cert", cert, "--tls-key", key) as server, \
                Client(server.addresses["data"], root=cert.read_bytes()) as client, \
                Client(server.addresses["control"], root=cert.read_bytes()) as control:
            asked = {"text": "hello world", "sampling": {"seed": 1}, "max_tokens": 4}
            _, texts = joined(list(client.call("Generate", **asked)), 1)
            self.assertEqual(texts[0][0], client.call("GenerateOnce", **asked).outputs[0].text)
            ids = client.call("Tokenize", text="hello world").ids
            self.assertEqual(client.call("Detokenize", ids=ids).text, "hello world")
            self.assertEqual([token.id for token in client.call("Score", text="hello world").tokens], list(ids))
            self.assertEqual(client.call("ServerInfo").vocab_size, 300)
            self.assertEqual(client.call("Check").status, 1)
            self.assertEqual(len(control.call("ListAdapters").adapters), 0)
            large = {"ids": [76] * (1 << 20)}
            self.assertEqual(len(client.call("Detokenize", **large).text),
                             len(client.call("Detokenize", ids=[76]).text) << 20)

    def test_who_finds_no_room_is_told_when_to_come_back(self):
        with Server("--max-queued-requests", "2", model=self.long_model()) as server, \
                Client(server.addresses["data"]) as client:
            long = client.call("Generate", text="a", n=2, ignore_eos=True)
            self.assertEqual(next(long).WhichOneof("event"), "started")
            with fails(self, "RESOURCE_EXHAUSTED", "at most 2") as caught:
                client.call("GenerateOnce", text="a", max_tokens=1)
            self.assertEqual(dict(caught.exception.trailing_metadata())["grpc-retry-pushback-ms"], "1000")
            found = details_of(caught.exception)
            self.assertEqual((found["ErrorInfo"].reason, found["RetryInfo"].retry_delay.ToMilliseconds()), ("OVERLOADED", 1000))
            long.cancel()
            server.await_metric("vllm:num_requests_running", 0)
            self.assertEqual(len(client.call("GenerateOnce", text="a", max_tokens=1).outputs), 1)

    def test_drain(self):
        with Server() as server, Client(server.addresses["data"]) as client, Client(server.addresses["control"]) as control:
            watch = client.call("Watch", service="")
            self.assertEqual(next(watch).status, 1)
            control.call("Drain", timeout_s=20)
            self.assertEqual(next(watch).status, 2)
            self.assertEqual(server.wait(), 0)


@needs_grpcio
class Adapters(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "root"
        self.root.mkdir()
        for name in ("lora", "ia3", "prefix", "prompt", "dora"):
            shutil.copytree(ADAPTERS / name, self.root / name)
        self.server = self.enterContext(Server("--adapter-root", self.root, model=BASE))
        self.client = self.enterContext(Client(self.server.addresses["data"]))
        self.control = self.enterContext(Client(self.server.addresses["control"]))

    def listed(self):
        return {adapter.name: adapter for adapter in self.control.call("ListAdapters").adapters}

    def test_texts_with_adapters_equal_the_command(self):
        for names in (["lora"], ["ia3", "lora"], ["prefix"], ["prompt"]):
            request = {"prompt": [3, 7], "adapters": names, "seed": 5, "max_tokens": 5, "logprobs": 1, "ignore_eos": True}
            expected = ask_one(request, "--adapter-root", ADAPTERS, model=BASE)["choices"][0]
            asked = {"tokens": {"ids": [3, 7]}, "sampling": {"seed": 5}, "max_tokens": 5, "logprobs": 1, "ignore_eos": True}
            once = self.client.call("GenerateOnce", adapters=names, **asked)
            self.assertEqual((list(once.outputs[0].token_ids), pairs(once.outputs[0].logprobs)),
                             (expected["tokens"], pairs(expected["logprobs"])))
            self.assertEqual([adapter.name for adapter in once.started.adapters], names)
            self.assertTrue(all(adapter.generation for adapter in once.started.adapters))
            by_model = self.client.call("GenerateOnce", model=names[0], adapters=names[1:], **asked)
            self.assertEqual((by_model.outputs, by_model.started.adapters), (once.outputs, once.started.adapters))
            line = as_lines([{"tokens": [3, 7, 9], "adapters": names}])
            output, _ = run("score", "--model", BASE, "--adapter-root", ADAPTERS, "--input", "-", input=line)
            score = self.client.call("Score", tokens={"ids": [3, 7, 9]}, adapters=names)
            self.assertEqual([t[1] for t in pairs(score.tokens)], [single(p) for p in rows(output)[0]["logprobs"]])

    def test_load_replace_unload_list(self):
        self.assertEqual({name: adapter.state for name, adapter in self.listed().items()},
                         dict.fromkeys(("dora", "ia3", "lora", "prefix", "prompt"), "evicted"))
        loaded = self.control.call("LoadAdapter", name="new", path="lora", pinned=True)
        self.assertEqual((loaded.name, list(loaded.methods), loaded.state, loaded.pinned, len(loaded.digest)),
                         ("new", ["lora"], "resident", True, 64))
        self.assertTrue(loaded.generation and loaded.parameters and loaded.bytes)
        self.assertEqual(self.listed()["new"], loaded)
        with fails(self, "ALREADY_EXISTS"):
            self.control.call("LoadAdapter", name="new", path="ia3")
        with fails(self, "ABORTED"):
            self.control.call("ReplaceAdapter", name="new", path="ia3", if_generation=loaded.generation + 1)
        replaced = self.control.call("ReplaceAdapter", name="new", path="ia3", if_generation=loaded.generation)
        self.assertEqual(list(replaced.methods), ["ia3"])
        self.assertGreater(replaced.generation, loaded.generation)
        once = self.client.call("GenerateOnce", tokens={"ids": [3]}, adapters=["new"], max_tokens=1)
        self.assertEqual(once.started.adapters[0].generation, replaced.generation)
        self.control.call("UnloadAdapter", name="new")
        self.assertNotIn("new", self.listed())
        with fails(self, "NOT_FOUND"):
            self.client.call("GenerateOnce", tokens={"ids": [3]}, adapters=["new"], max_tokens=1)
        self.assertEqual(self.control.call("LoadAdapter", name="prompt").virtual_tokens > 0, True)

    def test_what_cannot_be_loaded_changes_nothing(self):
        before = self.listed()
        (self.root / "lora" / "adapter_model.safetensors").write_bytes(b"no")
        for status, name, path in (("INVALID_ARGUMENT", "", ""), ("INVALID_ARGUMENT", "../x", ""),
                                   ("INVALID_ARGUMENT", ".x", ""), ("NOT_FOUND", "none", ""),
                                   ("INVALID_ARGUMENT", "x", "../lora"), ("FAILED_PRECONDITION", "x", "lora")):
            with self.subTest(name, path=path), fails(self, status):
                self.control.call("LoadAdapter", name=name, path=path)
        for method in ("ReplaceAdapter", "UnloadAdapter"):
            with fails(self, "NOT_FOUND"):
                self.control.call(method, name="none")
        after = self.listed()
        self.assertEqual(set(after), set(before))
        for listing in (before, after):
            del listing["lora"]  # it may be read at any time, and is refused then
        self.assertEqual(after, before)


if __name__ == "__main__":
    unittest.main()
