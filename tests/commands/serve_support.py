"""A server that runs, and a client that shows everything: what the tests of serve share."""
import contextlib
import functools
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

from model_support import CAMBIUM, SANITIZED, TINY, floats, write_safetensors
from schema_support import Description

PATIENCE = 300 if SANITIZED else 60  # seconds, for what comes at once where nothing is wrong


@functools.cache
def description():
    """The description of both listeners. A server of its own is asked, so that no other server logs or counts it."""
    with (tempfile.TemporaryDirectory() as root, Server("--tuning-root", root) as server,
          contextlib.closing(server.connect("control")) as connection):
        return Description(Answer(server.send(connection, "GET", "/openapi.json", None, None, None)).json)


class Answer:
    def __init__(self, response):
        self.status, self.headers = response.status, {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    def check(self, method, path):
        """Holds an answer that is JSON against /openapi.json."""
        if self.headers.get("content-type") == "application/json" and method != "HEAD":
            description().check(method, path, self.status, "application/json", self.json)
        return self

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        """Anthropic's errors have a type and no code."""
        return self.json["error"].get("code", self.json["error"]["type"])


class UnixConnection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


class Stream:
    """An answer that is being streamed: its events, parsed, as they come. The server sees it when it is closed."""

    def __init__(self, connection, response, path):
        self.connection, self.response, self.status, self.path = connection, response, response.status, path
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.is_done = False

    def __iter__(self):
        return self

    def __next__(self):
        while line := self.response.readline():
            if line == b"data: [DONE]\n":
                self.is_done = True
            elif line.startswith(b"data: "):
                return self.check(json.loads(line[6:]))
        raise StopIteration

    def check(self, event):
        """Holds an event against /openapi.json. The last one of a stream that fails is an error."""
        is_error, path = "error" in event, self.path
        description().check("POST", path, 500 if is_error else 200, "application/json" if is_error else "text/event-stream", event)
        return event

    def close(self):
        self.response.close()
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Server:
    """`cambium serve` until the block ends. Its standard error is in `lines`, line by line, or goes to the file `errors`.
    One that is not awaited has begun, no more. It stops without a delay, unless one is given."""

    def __init__(self, *words, model=TINY, listen="127.0.0.1:0", control="127.0.0.1:0", launcher=(), env=None, errors=None,
                 is_awaited=True):
        self.lines, self.news, self.expected = [], threading.Condition(), (0, -signal.SIGKILL)
        delay = () if "--drain-delay" in words else ("--drain-delay", "0")
        self.process = subprocess.Popen(
            [*map(str, launcher), CAMBIUM, "serve", "--model", str(model), "--listen", listen, "--control", control,
             "--device", os.environ.get("CAMBIUM_TEST_DEVICE", "cpu"), *delay, *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors or subprocess.PIPE, env=os.environ | (env or {}))
        self.reader = threading.Thread(target=self.read_errors, daemon=True)
        self.reader.start()
        if is_awaited:
            self.await_ready()

    def await_ready(self):
        first = self.process.stdout.readline()
        if not first:
            raise AssertionError(f"the server ended with {self.wait()}:\n" + "\n".join(self.lines))
        self.ready = json.loads(first)
        self.addresses = {"data": self.ready["listen"], "control": self.ready["control"]}

    def read_errors(self):
        for line in self.process.stderr or ():
            with self.news:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self.news.notify_all()

    def wait_line(self, pattern, patience=PATIENCE):
        """The first line of standard error that has the pattern, as soon as it is there."""
        find = lambda: next((line for line in self.lines if re.search(pattern, line)), None)
        with self.news:
            assert self.news.wait_for(find, patience), f"no line has {pattern!r}:\n" + "\n".join(self.lines)
            return find()

    # ---- asking

    def connect(self, listener="data", timeout=PATIENCE):
        address = self.addresses[listener]
        if address.startswith("unix:"):
            return UnixConnection(address[5:], timeout=timeout)
        host, port = address.rsplit(":", 1)
        return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)

    def send(self, connection, method, path, body, key, headers):
        fields = dict(headers or {})
        if key is not None:
            fields["authorization"] = f"Bearer {key}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            fields.setdefault("content-type", "application/json")
        connection.request(method, path, body=body, headers=fields)
        return connection.getresponse()

    def ask(self, method, path, body=None, key=None, listener="data", headers=None, timeout=PATIENCE):
        with contextlib.closing(self.connect(listener, timeout)) as connection:
            return Answer(self.send(connection, method, path, body, key, headers)).check(method, path)

    def complete(self, prompt, **more):
        """A completion that is not streamed, and must succeed."""
        key = more.pop("key", None)
        answer = self.ask("POST", "/v1/completions", {"prompt": prompt} | more, key)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json

    def stream(self, path, body, key=None, listener="data", headers=None, timeout=PATIENCE):
        connection = self.connect(listener, timeout)
        return Stream(connection, self.send(connection, "POST", path, body | {"stream": True}, key, headers), path)

    def metrics(self, key=None):
        """Samples by name and labels, 'vllm:num_requests_running{...}' or without labels where those are all of vLLM's."""
        answer = self.ask("GET", "/metrics", key=key, listener="control")
        assert answer.status == 200, answer.body
        return read_metrics(answer.body.decode())

    def await_metric(self, name, value, key=None):
        """Until a metric has the value, which it takes as soon as the engine has reported it."""
        end = time.monotonic() + PATIENCE
        while (now := self.metrics(key)[name]) != value:
            assert time.monotonic() < end, f"{name} is {now}, not {value}"
            time.sleep(0.01)

    # ---- ending

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, patience=PATIENCE):
        status = self.process.wait(patience)
        self.reader.join(PATIENCE)
        self.process.stdout.close()
        if self.process.stderr:
            self.process.stderr.close()
        return status

    def stop(self):
        self.signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.kill() if kind else self.process.terminate()
        try:
            status = self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        if kind:
            print("\n".join(self.lines[-50:]))
        else:
            assert status in self.expected, f"the server ended with {status}:\n" + "\n".join(self.lines[-50:])


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*",?)*\})? (\S+)')


def read_metrics(text):
    """The values of an exposition in format 0.0.4, of which every line is checked."""
    samples, kinds, own = {}, {}, re.compile(r'\{model_name="(?:[^"\\]|\\.)*",engine="0"\}')
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            name, kind = line.split(" ")[2:]
            assert name not in kinds and kind in ("counter", "gauge", "histogram"), line
            kinds[name] = kind
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        family = name if name in kinds else re.sub(r"_(bucket|sum|count)$", "", name)
        assert family in kinds, f"{line} comes before its type"
        assert kinds[family] != "counter" or name.endswith("_total"), line
        key = name + own.sub("", labels or "")
        assert key not in samples, f"{key} is told twice"
        samples[key] = float(value)
    return samples


# ---- adapters of a reciting model

def write_prompt(directory, tokens, width=64):
    """Virtual tokens before a text: a model that recites, and looks only at positions, begins that many bytes later."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "adapter_model.safetensors",
                      {"prompt_embeddings": ("F32", (tokens, width), floats([0.0] * tokens * width))})
    (directory / "adapter_config.json").write_text(json.dumps({
        "peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base", "inference_mode": True,
        "num_virtual_tokens": tokens, "token_dim": width, "num_attention_heads": 4, "num_layers": 1,
        "num_transformer_submodules": 1, "prompt_tuning_init": "RANDOM"}))
