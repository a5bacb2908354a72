"""Clients that die at every moment of a request, and a machine that runs out of descriptors or disk space. Everything
that they held is released, and others are served."""
import contextlib
import json
import os
import pathlib
import resource
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from model_support import CAMBIUM, SANITIZED, TINY
from pretrain_support import LONG
from rank_watch_test import write_long_model
from serve_grpc_support import Client, grpc, needs_grpcio
from serve_support import PATIENCE, Server, write_prompt

ENDLESS = {"prompt": "It was", "max_tokens": 90_000, "ignore_eos": True}
BATCH = 4


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


class Deaths(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with contextlib.ExitStack() as opened:
            top = pathlib.Path(opened.enter_context(tempfile.TemporaryDirectory()))
            write_long_model(top / "long")
            write_prompt(top / "root/ahead", 5, 32)
            cls.server = opened.enter_context(Server("--kv-cache-memory", "64M", "--max-batch-size", BATCH, "--adapter-root", top / "root",
                                                     "--max-queued-requests", 64, model=top / "long"))
            cls.server.complete("It was", max_tokens=2)
            cls.addClassCleanup(opened.pop_all().close)

    def setUp(self):
        self.assert_nothing_is_held()
        self.before = descriptors(self.server)

    def tearDown(self):
        self.assert_nothing_is_held()
        wait_until(lambda: descriptors(self.server) <= self.before, "descriptors are still open")
        self.server.complete("It was", max_tokens=2)

    def assert_nothing_is_held(self):
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            self.server.await_metric(name, 0)

    def connect(self):
        host, port = self.server.addresses["data"].rsplit(":", 1)
        return socket.create_connection((host, int(port)), PATIENCE)

    def die(self, connection, is_hard):
        """With a goodbye, or by a reset, as a process that was killed with bytes unread."""
        if is_hard:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def request(self, body, is_stream=True):
        content = json.dumps(body | {"stream": is_stream}).encode()
        return b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(content) + content

    def each(self, content, reached=lambda connection: None):
        """Connections that send the content, reach a moment, and die in both ways."""
        for is_hard in (False, True):
            connection = self.connect()
            connection.sendall(content)
            reached(connection)
            self.die(connection, is_hard)

    def running(self, count):
        return lambda _: self.server.await_metric("vllm:num_requests_running", count)

    def test_before_and_in_the_head_and_the_body(self):
        whole = self.request(ENDLESS)
        for length in (0, 1, 10, whole.index(b"\r\n\r\n"), whole.index(b"\r\n\r\n") + 4, len(whole) - 1):
            self.each(whole[:length])

    def test_while_it_waits(self):
        with contextlib.ExitStack() as opened:
            for _ in range(BATCH):  # a stream that nobody reads would give its place to others
                opened.enter_context(self.connect()).sendall(self.request(ENDLESS, is_stream=False))
            self.server.await_metric("vllm:num_requests_running", BATCH)
            for _ in range(3):
                self.each(self.request(ENDLESS), lambda _: self.server.await_metric("vllm:num_requests_waiting", 1))
                self.server.await_metric("vllm:num_requests_waiting", 0)

    def test_in_the_prefill(self):
        for is_stream in (True, False):
            self.each(self.request(ENDLESS | {"prompt": [5] * 60_000, "max_tokens": 30_000}, is_stream), self.running(1))
            self.assert_nothing_is_held()

    def test_in_the_midst_of_texts(self):
        self.each(self.request(ENDLESS), lambda connection: connection.recv(1000))
        self.each(self.request(ENDLESS | {"n": 3}, is_stream=False), self.running(3))
        self.each(self.request(ENDLESS | {"prompt": ["a", "b"], "adapters": ["ahead"]}), lambda connection: connection.recv(1000))

    def test_where_nothing_is_read(self):
        self.each(self.request(ENDLESS), lambda connection: connection.recv(1000))
        connection = self.connect()  # until what waits for it fills all there is: its text is paused, and others are served
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(self.request(ENDLESS))
        connection.recv(1000)
        self.server.complete("It was", max_tokens=50)
        self.die(connection, True)

    def test_with_the_answer_on_its_way(self):
        self.each(self.request({"prompt": "It was", "max_tokens": 3}, is_stream=False))
        self.each(self.request({"prompt": "It was", "max_tokens": 3}))

    def test_several_requests_of_one_connection(self):
        self.each(self.request(ENDLESS) * 3, self.running(1))

    def test_a_long_text_that_is_tokenized(self):
        self.each(self.request({"prompt": "a long text " * 5_000, "max_tokens": 3}))

    @needs_grpcio
    def test_calls_of_grpc(self):
        for ask in (dict(text="It was"), dict(tokens={"ids": [5] * 60_000}), dict(text="It was", n=3), dict(text="a", adapters=["ahead"])):
            for leaves in (lambda client, call: call.cancel(), lambda client, call: client.close()):
                with Client(self.server.addresses["data"]) as client:
                    call = client.call("Generate", max_tokens=30_000, ignore_eos=True, **ask)
                    self.running(ask.get("n", 1))(call)
                    leaves(client, call)
                    self.assert_nothing_is_held()
            with Client(self.server.addresses["data"]) as client, contextlib.suppress(grpc.RpcError):
                client.call("GenerateOnce", max_tokens=30_000, ignore_eos=True, timeout=0.05, **ask)

    @needs_grpcio
    def test_a_client_that_is_killed(self):
        """With many requests at once over both protocols."""
        script = ("import sys, os; sys.path.insert(0, sys.argv[1])\n"
                  "import threading, urllib.request\nfrom serve_grpc_support import Client\n"
                  "client = Client(sys.argv[2])\n"
                  "calls = [client.call('Generate', text='It was', max_tokens=30000, ignore_eos=True) for _ in range(8)]\n"
                  "next(iter(calls[0]))\n"
                  "print('there', flush=True)\n"
                  "for call in calls: list(call)\n")
        client = subprocess.Popen(["python3", "-c", script, os.path.dirname(__file__), self.server.addresses["data"]], stdout=subprocess.PIPE)
        self.assertEqual(client.stdout.readline(), b"there\n")
        self.server.await_metric("vllm:num_requests_running", BATCH)
        client.kill()
        client.wait()
        client.stdout.close()

    def test_at_random_moments(self):
        """A hundred at once, each of which dies a moment after it has begun."""
        import random

        def live(number):
            draw = random.Random(number)
            for _ in range(20 if LONG else 3):
                connection = self.connect()
                content = self.request(ENDLESS | {"prompt": [5] * draw.choice((1, 100, 3000)), "n": draw.choice((1, 2))}, draw.random() < 0.7)
                with contextlib.suppress(OSError):
                    connection.sendall(content[:draw.randrange(len(content)) if draw.random() < 0.3 else None])
                    time.sleep(draw.random() * 0.1)
                self.die(connection, draw.random() < 0.5)

        threads = [threading.Thread(target=live, args=(i,)) for i in range(100 if LONG else 40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Machine(unittest.TestCase):
    def test_without_descriptors_it_says_so_and_goes_on(self):
        with tempfile.TemporaryDirectory() as root, Server("--adapter-root", root, model=TINY) as server:
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (48, 48))  # fewer than its listeners' places
            write_prompt(pathlib.Path(root) / "late", 3, 32)
            server.complete("It was", max_tokens=2)
            before = descriptors(server)
            host, port = server.addresses["data"].rsplit(":", 1)
            with contextlib.closing(server.connect("control")) as control:
                control.connect()
                control.request("GET", "/health")
                control.getresponse().read()
                held = [socket.create_connection((host, int(port)), PATIENCE) for _ in range(60)]
                # Clients that came too late get an answer; those in time are served.
                answer = held[-1].recv(1000)
                self.assertTrue(answer.startswith(b"HTTP/1.1 503 ") or not answer, answer)
                # A change needs descriptors, and fails without them.
                control.request("POST", "/v1/adapters", json.dumps({"name": "late", "path": "late"}))
                refused = control.getresponse()
                self.assertIn("Too many open files", refused.read().decode())
                self.assertGreaterEqual(refused.status, 422)
                held[0].sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                self.assertIn(b"200 OK", held[0].recv(1000))
                self.assert_idle(server)
                for connection in held:
                    connection.close()
                wait_until(lambda: descriptors(server) <= before + 1, "descriptors are still open")
                control.request("POST", "/v1/adapters", json.dumps({"name": "late", "path": "late"}))
                self.assertEqual(control.getresponse().status, 200)
            server.complete("It was", max_tokens=2, adapters=["late"])

    def assert_idle(self, server):
        """A listener that cannot accept does not spin."""
        seconds = lambda: sum(int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{server.process.pid}/task").glob("*/schedstat")) / 1e9
        before = seconds()
        time.sleep(0.5)
        if not SANITIZED:
            self.assertLess(seconds() - before, 0.1)

    def test_a_full_disk_holds_up_nobody(self):
        with open("/dev/full", "wb") as full, Server("--log-format", "json", errors=full, model=TINY) as server:
            for _ in range(5):
                server.complete("It was", max_tokens=2)
            self.assertEqual(server.ask("GET", "/nowhere").status, 404)

    def test_nobody_can_be_told_that_it_is_ready(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([CAMBIUM, "serve", "--model", TINY, "--listen", "127.0.0.1:0", "--control", "none"],
                                  stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("No space left on device", done.stderr.decode())

    def test_a_log_that_nobody_reads_holds_up_nobody(self):
        reading, writing = os.pipe()
        try:
            with Server(errors=writing, model=TINY) as server:
                for _ in range(600):  # lines, which is more than a pipe holds
                    self.assertEqual(server.ask("GET", "/" + "long" * 50, timeout=20).status, 404)
        finally:
            os.close(reading)
            os.close(writing)


if __name__ == "__main__":
    unittest.main()
