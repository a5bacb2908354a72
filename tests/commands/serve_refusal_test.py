"""A refusal reaches its client whole, whatever the client still sends. This holds over HTTP/1.1 and HTTP/2, for curl,
for nghttp, and for a client that reads nothing before it has sent everything."""
import contextlib
import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

from model_support import SANITIZED, write_byte_model
from serve_support import PATIENCE, Server

AT_ONCE = 3
MANY = 32  # completions of one request, which take minutes on a busy machine

OVER, WITHIN = 18 << 20, 1 << 20  # bytes: over the limit of a body, and more than a window of HTTP/2 but within it
TURNS = 5 if SANITIZED else 20  # of a refusal that could come too late for its client
PROTOCOLS = ("--http1.1", "--http2-prior-knowledge")


def complete(fields):
    """With a content type, unless there is one."""
    return fields if any(field.startswith("content-type") for field in fields) else ("content-type: application/json", *fields)


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="cambium-test-")))
        cls.long = root / "long"
        write_byte_model(cls.long, n_layer=2, n_head=2, n_embd=32, n_positions=16000)
        (root / "keys").write_text("ann sk-ann\n")
        cls.keys = root / "keys"
        cls.bodies = {size: root / str(size) for size in (OVER, WITHIN)}
        for size, path in cls.bodies.items():
            path.write_bytes(b'{"prompt":"' + b"a" * (size - 30) + b'","max_tokens":1}')
        cls.few = root / "few"
        cls.few.write_text(json.dumps({"prompt": "a", "max_tokens": 15000, "ignore_eos": True}) + " " * WITHIN)

    def curl(self, address, path, body, *fields, protocol, method="POST"):
        words = [word for field in complete(fields) for word in ("-H", field)]
        done = subprocess.run(["curl", "-sS", protocol, "-X", method, *words, "--data-binary", f"@{body}", "-w", "|%{http_code}",
                               f"http://{address}{path}"], capture_output=True, timeout=2 * PATIENCE)
        self.assertEqual(done.returncode, 0, (path, fields, protocol, done.stderr, done.stdout[-100:]))
        body, _, status = done.stdout.rpartition(b"|")
        return int(status), json.loads(body)["error"]["code"]

    def nghttp(self, address, path, body, *fields, method="POST"):
        words = [word for field in (f":method: {method}", *complete(fields)) for word in ("-H", field)]
        done = subprocess.run(["nghttp", "-v", "--no-dep", *words, "-d", body, f"http://{address}{path}"], capture_output=True, timeout=2 * PATIENCE)
        text = done.stdout.decode(errors="replace")
        self.assertIn(" :status: ", text, (path, fields, text[-500:], done.stderr))
        head, _, rest = text.partition(" :status: ")
        self.assertNotIn("RST_STREAM", head)
        return int(rest[:3])

    def send_all_first(self, address, path, body, *fields, method="POST"):
        """The status for a client that reads only after it has sent everything."""
        host, port = address.rsplit(":", 1)
        content = body.read_bytes()
        with socket.create_connection((host, int(port)), PATIENCE) as client:
            host = [] if any(field.startswith("host:") for field in fields) else [f"host: {address}"]
            head = [f"{method} {path} HTTP/1.1", *host, "connection: close", f"content-length: {len(content)}", *complete(fields)]
            client.sendall("\r\n".join(head).encode() + b"\r\n\r\n")
            client.sendall(content)
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        json.loads(answer.partition(b"\r\n\r\n")[2])  # it is whole
        return int(answer[9:12])

    def check_http1(self, server, status, code, path, size, *fields, listener):
        self.assertEqual(self.send_all_first(server.addresses[listener], path, self.bodies[size], *fields), status)

    def check_http2(self, server, status, code, path, size, *fields, listener):
        if shutil.which("nghttp"):
            self.assertEqual(self.nghttp(server.addresses[listener], path, self.bodies[size], *fields), status)
        if shutil.which("curl"):  # it makes the authority of a Host
            self.assertEqual(self.curl(server.addresses[listener], path, self.bodies[size], fields[0].replace(":authority", "host"), protocol=PROTOCOLS[1]), (status, code))

    def check(self, server, status, code, path, size, *fields, listener="data", method="POST", turns=2):
        address, body = server.addresses[listener], self.bodies.get(size, size)
        for protocol in PROTOCOLS if shutil.which("curl") else ():
            for _ in range(turns):
                self.assertEqual(self.curl(address, path, body, *fields, protocol=protocol, method=method), (status, code))
        if shutil.which("nghttp"):
            self.assertEqual(self.nghttp(address, path, body, *fields, method=method), status)
        self.assertEqual(self.send_all_first(address, path, body, *fields, method=method), status)

    def test_before_the_body(self):
        with Server() as server:
            for status, code, path, *more in ((404, "route_not_found", "/v1/none"), (405, "method_not_allowed", "/v1/models"),
                                              (413, "body_too_large", "/v1/completions"), (413, "body_too_large", "/tokenize"),
                                              (431, "headers_too_large", "/v1/completions", "x-long: " + 20000 * "a")):
                with self.subTest(status=status, path=path):
                    self.check(server, status, code, path, OVER, *more, turns=TURNS if path == "/v1/completions" and status == 413 else 2)
            self.check(server, 415, "unsupported_media_type", "/v1/chat/completions", OVER, "content-type: text/plain")
            self.check(server, 403, "permission_denied", "/v1/drain", OVER, "origin: http://evil.example", listener="control")
            self.check(server, 403, "permission_denied", "/v1/completions", OVER, "sec-fetch-site: cross-site", "content-type: text/plain")
            for listener in "data", "control":
                for field, clients in (("host: evil.example", self.check_http1), (":authority: evil.example", self.check_http2)):
                    clients(server, 421, "host_not_allowed", "/v1/adapters", OVER, field, listener=listener)
        with Server("--api-key-file", self.keys) as server:
            self.check(server, 401, "invalid_api_key", "/v1/completions", OVER)

    def test_after_the_body(self):
        with Server(model=self.long) as server:
            self.check(server, 400, None, "/v1/completions", WITHIN, "x-request-timeout: 0x10")
            self.check(server, 504, "deadline", "/v1/completions", self.few, "x-request-timeout: 0.01", turns=1)
        with Server("--max-queued-requests", 1, model=self.long) as server, contextlib.ExitStack() as stack:
            stream = stack.enter_context(server.stream("/v1/completions", {"prompt": "a", "max_tokens": 15000, "ignore_eos": True}))
            next(stream)
            self.check(server, 429, "overloaded", "/v1/completions", self.few)
            server.ask("POST", "/v1/drain", {}, listener="control")
            self.check(server, 503, "draining", "/v1/completions", OVER, listener="control")

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_a_body_of_unknown_length(self):
        with Server() as server:
            for _ in range(TURNS):
                for protocol in PROTOCOLS:
                    self.assertEqual(self.curl(server.addresses["data"], "/v1/completions", self.bodies[OVER], "transfer-encoding: chunked", protocol=protocol),
                                     (413, "body_too_large"))


class Heads(unittest.TestCase):
    """Headers that are refused."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server())

    def test_a_timeout_is_a_decimal_number(self):
        for value in "0x10", "0X1p3", " 1", "1 s", "inf", "NaN", "", "-1", "0":
            answer = self.server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"x-request-timeout": value})
            self.assertEqual((answer.status, answer.json["error"]["param"]) if value != " 1" else (400, "x-request-timeout"), (400, "x-request-timeout"), value)
        for value in "60", "60.5", "6e1", ".5e3":
            self.assertEqual(self.server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"x-request-timeout": value}).status, 200, value)

    def test_names_of_the_base_are_plain_text(self):
        for name in "a\x1b[31m", "a\nb", "\x7f", "a\u009b", "", b"\xff":
            with self.assertRaisesRegex(AssertionError, "ended with 2:(.|\n)*--model-name: name 2 is empty, not UTF-8, or has a control character"):
                Server("--model-name", "good", *([name] if isinstance(name, str) else [name.decode(errors="surrogateescape")]))
        with Server("--model-name", "größer/1.0") as server:
            self.assertEqual(server.ask("GET", "/v1/models").json["data"][0]["id"], "größer/1.0")


class HalfClosed(unittest.TestCase):
    """A client that shuts its sending side after whole requests, as nc -N does."""

    @classmethod
    def setUpClass(cls):
        root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="cambium-test-")))
        write_byte_model(root / "long", n_layer=2, n_head=2, n_embd=32, n_positions=16100)
        cls.server = cls.enterClassContext(Server(model=root / "long"))

    def send(self, *bodies, path="/v1/completions"):
        """Requests, and the end of what is sent."""
        host, port = self.server.addresses["data"].rsplit(":", 1)
        client = socket.create_connection((host, int(port)), PATIENCE)
        for body in bodies:
            content = json.dumps(body).encode()
            client.sendall(b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(content)) + content)
        client.shutdown(socket.SHUT_WR)
        return client

    def test_it_is_answered(self):
        bodies = [{"prompt": "a", "max_tokens": 3, "ignore_eos": True}, {"prompt": "b", "max_tokens": 4, "stream": True, "ignore_eos": True}]
        with self.send(*bodies) as client:
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK\r\n"), 2)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), answer[-200:])

    def test_it_is_answered_however_long_that_takes(self):
        with self.send({"prompt": "a", "max_tokens": 16000, "ignore_eos": True}) as client:
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        lines = answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        self.assertTrue(lines.startswith(b"HTTP/1.1 200 OK\r\n"), lines[:100])
        self.assertEqual(json.loads(lines.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"], 16000)

    def test_one_that_leaves_then_is_noticed(self):
        cancelled = 'cambium:requests_cancelled_total{reason="cancelled"}'
        for ended, stream in enumerate((False, True)):
            client = self.send({"prompt": "a", "max_tokens": 16000, "ignore_eos": True, "stream": stream, "n": MANY})
            self.server.await_metric("vllm:num_requests_running", MANY)
            self.assertEqual(self.server.metrics()[cancelled], ended)
            client.close()
            self.server.await_metric(cancelled, ended + 1)
            self.server.await_metric("vllm:num_requests_running", 0)

    def test_a_request_that_breaks_off_is_not(self):
        host, port = self.server.addresses["data"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), PATIENCE) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{")
            client.shutdown(socket.SHUT_WR)
            self.assertEqual(client.recv(100), b"")


if __name__ == "__main__":
    unittest.main()
