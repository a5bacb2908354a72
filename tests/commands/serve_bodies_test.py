"""Bodies on their way to a request: packed ones, those that are never whole, and the bound that they share."""
import contextlib
import gzip
import json
import pathlib
import socket
import tempfile
import time
import unittest
import zlib

from model_support import SANITIZED
from serve_support import PATIENCE, Server

JSON = {"content-type": "application/json"}
MIB = 1 << 20


def resident(server):
    text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


class Half:
    """A client that promises a body of 8 MiB and sends a part of it."""

    def __init__(self, server, sent=b"", path="/v1/completions", key=None):
        host, port = server.addresses["data"].rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), PATIENCE)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {8 * MIB}\r\n"
        self.socket.sendall(head.encode() + (f"Authorization: Bearer {key}\r\n".encode() if key else b"") + b"\r\n" + sent)

    def send(self, data):
        """Whether the server took it without an answer."""
        self.socket.settimeout(0.01)
        with contextlib.suppress(OSError):
            self.socket.sendall(data)
            self.socket.recv(1, socket.MSG_PEEK)
            return False
        self.socket.settimeout(PATIENCE)
        return True

    def answer(self):
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := self.socket.recv(65536):
                data += piece
        return data

    def close(self):
        self.socket.close()


class Encodings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def post(self, data, encoding, path="/v1/completions", listener="data"):
        return self.server.ask("POST", path, data, headers=JSON | {"content-encoding": encoding}, listener=listener)

    def test_a_packed_body_is_what_is_in_it(self):
        body = json.dumps({"prompt": "Love", "max_tokens": 3, "seed": 1}).encode()
        plain = self.post(body, "identity").json["choices"]
        for encoding in ("gzip", "GZIP", "x-gzip"):
            answer = self.post(gzip.compress(body), encoding)
            self.assertEqual((answer.status, answer.json["choices"]), (200, plain), encoding)
        long = gzip.compress(json.dumps({"prompt": [1] * 20, "max_tokens": 1, "more": "x" * 500000}).encode())
        self.assertEqual(self.post(long, "gzip").status, 200)
        self.assertEqual(self.post(gzip.compress(b'{"prompt": "Love"}'), "gzip", "/tokenize").json,
                         self.post(b'{"prompt": "Love"}', "identity", "/tokenize").json)
        self.assertEqual(self.post(gzip.compress(b'{"name": "?"}'), "gzip", "/v1/adapters", "control").status, 400)

    def test_other_encodings_are_refused(self):
        for encoding in ("deflate", "br", "zstd", "gzip, gzip", "identity, gzip"):
            answer = self.post(zlib.compress(b'{"prompt": "a"}'), encoding)
            self.assertEqual((answer.status, answer.code), (415, "unsupported_media_type"), encoding)

    def test_what_is_not_whole_is_refused(self):
        packed = gzip.compress(b'{"prompt": "a"}')
        for bad in (b'{"prompt": "a"}', packed[:-1], packed + b"x", b"", zlib.compress(b'{"prompt": "a"}')):
            self.assertEqual(self.post(bad, "gzip").status, 400, bad)

    def test_a_bomb_is_measured_while_it_comes_out(self):
        bomb = gzip.compress(b'{"prompt": "' + 60 * MIB * b"a" + b'"}')
        self.assertLess(len(bomb), 100000)
        before = resident(self.server)
        for turn in range(3):
            answer = self.post(bomb, "gzip")
            self.assertEqual((answer.status, answer.code), (413, "body_too_large"))
        if not SANITIZED:
            self.assertLess(resident(self.server) - before, 24 * MIB)

    def test_control_takes_short_bodies_alone(self):
        answer = self.server.ask("POST", "/v1/adapters", b'{"name": "' + 20000 * b"a" + b'"}', headers=JSON, listener="control")
        self.assertEqual((answer.status, answer.code), (413, "body_too_large"))


class Gathered(unittest.TestCase):
    def fill(self, server, count, most):
        """Clients that each send until they are answered, or have sent enough."""
        clients = [Half(server) for turn in range(count)]
        for client in clients:
            self.addCleanup(client.close)
        for turn in range(most // MIB):
            for client in clients:
                client.send(MIB * b" ")
        return clients

    def await_memory(self, server, most):
        end = time.monotonic() + PATIENCE
        while not SANITIZED and resident(server) > most:
            self.assertLess(time.monotonic(), end, resident(server) - most)
            time.sleep(0.1)

    def test_bodies_share_one_bound_and_leave_nothing(self):
        with Server("--limits.gathered_bytes", "32M") as server:
            server.complete("Love", max_tokens=1)
            before = resident(server)
            for turn in range(2):
                clients = self.fill(server, 24, 4 * MIB)
                if not SANITIZED:
                    self.assertLess(resident(server) - before, 56 * MIB)  # 96 were sent
                refused = [client for client in clients if not client.send(b" ")]
                self.assertTrue(refused)
                answer = refused[0].answer()
                self.assertTrue(answer.startswith(b"HTTP/1.1 429 "), answer[:100])
                self.assertIn(b"\r\nretry-after: ", answer)
                self.assertEqual(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"], "overloaded")
                self.assertLess(len(refused), len(clients))
                for body in ({"prompt": "a", "max_tokens": 1}, {"prompt": "a", "max_tokens": 1, "more": "x" * 50000}):
                    self.assertEqual(server.ask("POST", "/v1/completions", body).status, 200)  # short ones are served
                self.assertEqual(server.ask("POST", "/v1/adapters", {"name": "?"}, listener="control").status, 400)
                for client in clients:
                    client.close()
                self.await_memory(server, before + 16 * MIB)
            whole = json.dumps({"prompt": "a", "max_tokens": 1, "more": "x" * (7 * MIB)}).encode()
            self.assertEqual(server.ask("POST", "/v1/completions", whole, headers=JSON).status, 200)

    def test_requests_before_their_turn_are_bodies_too(self):
        """A client that sends more requests while the first answer waits to be read."""
        with Server("--limits.gathered_bytes", "2M") as server:
            host, port = server.addresses["data"].rsplit(":", 1)
            with socket.create_connection((host, int(port)), PATIENCE) as client, self.assertRaises(ConnectionError):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                body = json.dumps({"prompt": "a", "n": 128, "max_tokens": 60, "logprobs": 20, "ignore_eos": True})
                client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
                for turn in range(8):
                    client.sendall(MIB * b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[:1])
            self.assertEqual(server.ask("GET", "/health").status, 200)

    def test_nothing_is_gathered_without_a_key(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("alice sk-alice\n")
            keys.flush()
            with Server("--api-key-file", keys.name) as server:
                client = Half(server)
                self.addCleanup(client.close)
                self.assertTrue(client.answer().startswith(b"HTTP/1.1 401 "))  # before a byte of the body has come


if __name__ == "__main__":
    unittest.main()
