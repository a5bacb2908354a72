"""A server that is replaced fails no request: it says that it is not ready, still takes what comes, closes, and lets what runs
end. A small balancer asks /ready, as routers do."""
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import select
import signal
import socket
import tempfile
import threading
import time
import unittest

from model_support import TINY, write_byte_model
from serve_grpc_support import grpc, needs_grpcio
from serve_support import PATIENCE, Server

AT_ONCE = 3

LONG = "CAMBIUM_TEST_LONG" in os.environ
RESTARTS, REQUESTS, CLIENTS = (20, 10000, 32) if LONG else (2, 300, 32)
DELAY = 2  # seconds, in which the balancer asks some twenty times


class Balancer:
    """Forwards each connection to a server whose /ready was 200 a moment ago. A connection that fails is not tried again."""

    def __init__(self):
        self.servers, self.turn = {}, itertools.count()  # address -> whether it is ready
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = self.listener.getsockname()
        self.threads = []
        self.begin(self.accept)

    def begin(self, function, *arguments):
        self.threads = [thread for thread in self.threads if thread.is_alive()] + [threading.Thread(target=function, args=arguments)]
        self.threads[-1].start()

    def accept(self):
        with contextlib.suppress(OSError):  # it is shut
            while True:
                self.begin(self.forward, self.listener.accept()[0])

    def forward(self, client):
        with client, contextlib.suppress(OSError):
            ready = [address for address, is_ready in list(self.servers.items()) if is_ready]
            host, port = ready[next(self.turn) % len(ready)].rsplit(":", 1)
            with socket.create_connection((host, int(port)), 2 * PATIENCE) as server:
                other = {client: server, server: client}
                while True:
                    for one in select.select([client, server], [], [])[0]:
                        piece = one.recv(1 << 16)
                        if not piece:
                            return
                        other[one].sendall(piece)

    def watch(self, address):
        while address in self.servers:
            try:
                with contextlib.closing(http.client.HTTPConnection(*address.rsplit(":", 1), timeout=PATIENCE)) as connection:
                    connection.request("GET", "/ready")
                    is_ready = connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                is_ready = False
            if address in self.servers:
                self.servers[address] = is_ready
            time.sleep(0.1)

    def add(self, address):
        self.servers[address] = False
        self.begin(self.watch, address)
        end = time.monotonic() + PATIENCE
        while not self.servers[address]:
            assert time.monotonic() < end, f"{address} is not ready"
            time.sleep(0.01)

    def close(self):
        self.servers.clear()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join()


class Clients:
    """Each opens a connection per request, until they are stopped."""

    def __init__(self, address, count):
        self.address, self.done, self.failures, self.is_over = address, itertools.count(), [], False
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        for turn in itertools.count(number):
            if self.is_over:
                return
            self.finished = next(self.done)
            try:
                self.ask(turn)
            except (OSError, http.client.HTTPException, AssertionError, ValueError) as problem:
                self.failures.append(repr(problem))

    def ask(self, turn):
        is_stream, tokens = turn % 2 == 0, 40 if turn % 10 == 0 else 3
        with contextlib.closing(http.client.HTTPConnection(*self.address, timeout=2 * PATIENCE)) as connection:
            connection.request("POST", "/v1/completions", json.dumps({"prompt": [1, 2], "max_tokens": tokens, "ignore_eos": True, "stream": is_stream}),
                               {"content-type": "application/json", "host": "localhost"})
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, (response.status, body)
            assert body.endswith(b"data: [DONE]\n\n") if is_stream else json.loads(body)["usage"]["completion_tokens"] == tokens, body[-200:]

    def stop(self):
        self.is_over = True
        for thread in self.threads:
            thread.join()


class Health:
    """Asks control about a stopping server until it has ended: /health and /ready."""

    def __init__(self, server):
        self.server, self.told = server, []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                self.told.append((self.server.ask("GET", "/health", listener="control").status,
                                  self.server.ask("GET", "/ready", listener="control").status))
                time.sleep(0.05)


class Rollout(unittest.TestCase):
    def test_no_request_fails_while_servers_are_replaced(self):
        balancer = Balancer()
        self.addCleanup(balancer.close)
        start = lambda: self.enterContext(Server("--drain-delay", DELAY, model=TINY))
        servers = [start(), start()]
        for server in servers:
            balancer.add(server.addresses["data"])
        clients = Clients(balancer.address, CLIENTS)
        try:
            for restart in range(RESTARTS):
                servers.append(start())
                balancer.add(servers[-1].addresses["data"])
                old = servers.pop(0)
                old.signal(signal.SIGTERM)
                old.wait_line(" leave ")
                health = Health(old)
                self.assertEqual(old.wait(), 0)
                health.thread.join()
                self.assertEqual(set(health.told), {(200, 503)})
                balancer.servers.pop(old.addresses["data"])
            end = time.monotonic() + 10 * PATIENCE
            while clients.finished < REQUESTS and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            clients.stop()
        print(f"{clients.finished + 1} requests during {RESTARTS} restarts, {len(clients.failures)} failed")
        self.assertEqual(clients.failures, [])
        self.assertGreaterEqual(clients.finished, REQUESTS)


class Stages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="cambium-test-")))
        cls.long = root / "long"
        write_byte_model(cls.long, n_layer=2, n_head=2, n_embd=32, n_positions=16000)

    def begin(self, server, tokens):
        stream = self.enterContext(server.stream("/v1/completions", {"prompt": "a", "max_tokens": tokens, "ignore_eos": True}))
        next(stream)
        return stream

    def is_serving(self, server, listener="data"):
        """For a new connection."""
        answer = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2, "ignore_eos": True}, listener=listener)
        return answer.status == 200 and answer.json["usage"]["completion_tokens"] == 2

    def states(self, server, listener):
        return [server.ask("GET", path, listener=listener).status for path in ("/ready", "/health")]

    def test_a_signal_is_told_at_once_and_requests_are_taken_for_a_while(self):
        with Server("--drain-delay", 4, "--drain-timeout", 300, model=self.long) as server:
            kept = server.connect()
            self.assertEqual(server.send(kept, "GET", "/ready", None, None, None).read() and 0, 0)
            server.signal(signal.SIGTERM)
            server.wait_line(" leave .*requests are still taken for 4 s")
            for listener in "data", "control":
                self.assertEqual(self.states(server, listener), [503, 200])
            response = server.send(kept, "GET", "/health", None, None, None)
            self.assertEqual((response.read() and 0, response.status, response.headers["connection"]), (0, 200, "close"))  # elsewhere, from now on
            self.assertTrue(self.is_serving(server))
            stream = self.begin(server, 12000)  # longer than the delay
            server.wait_line(" drain ", 2 * PATIENCE)
            with self.assertRaises(ConnectionRefusedError):
                server.connect().connect()
            self.assertEqual(self.states(server, "control"), [503, 200])
            self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": "a"}, listener="control").code, "draining")
            list(stream)
            self.assertTrue(stream.is_done)
            stream.close()
            self.assertEqual(server.wait(), 0)

    @needs_grpcio
    def test_grpc_is_told_at_once_and_calls_are_taken_for_a_while(self):
        with Server("--drain-delay", 60) as server, grpc.insecure_channel(server.addresses["data"]) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            self.assertEqual(check(b"", timeout=PATIENCE), b"\x08\x01")
            server.signal(signal.SIGTERM)
            server.wait_line(" leave ")
            self.assertEqual(check(b"", timeout=PATIENCE), b"\x08\x02")
            self.assertTrue(channel.unary_unary("/cambium.v1.Cambium/ServerInfo")(b"", timeout=PATIENCE))
            with grpc.insecure_channel(server.addresses["control"]) as control:
                control.unary_unary("/cambium.v1.Control/Drain")(b"\x10\x00", timeout=PATIENCE)  # delay_s 0
            self.assertEqual(server.wait(), 0)

    def test_a_second_signal_ends_at_once(self):
        with Server("--drain-delay", 60) as server:
            server.signal(signal.SIGTERM)
            server.wait_line(" leave ")
            server.signal(signal.SIGTERM)
            self.assertEqual(server.wait(), 1)
            server.expected = (1,)

    def test_who_sits_before_it_does_not_wait(self):
        with Server("--drain-delay", 3600) as server:
            server.signal(signal.SIGINT)
            self.assertEqual(server.wait(), 0)

    def test_control_sets_both_times_and_may_shorten_them(self):
        drain = lambda server, **fields: self.assertEqual(server.ask("POST", "/v1/drain", fields, listener="control").status, 200)
        with Server(model=self.long) as server:
            drain(server, delay_s=3600, timeout_s=3600)
            self.assertEqual(self.states(server, "data"), [503, 200])
            drain(server, delay_s=7200)  # no longer than it was
            self.assertTrue(self.is_serving(server))
            stream = self.begin(server, 3000)
            drain(server, delay_s=0)
            server.signal(signal.SIGTERM)  # as after a hook: what runs has its time
            list(stream)
            self.assertTrue(stream.is_done)
            stream.close()
            self.assertEqual(server.wait(), 0)
        with Server(model=self.long) as server:
            stream = self.begin(server, 15000)
            drain(server, timeout_s=3600)
            drain(server, timeout_s=0.1)
            self.assertEqual(list(stream)[-1]["error"]["code"], "draining")
            stream.close()
            self.assertEqual(server.wait(), 0)
        with Server() as server:
            for wrong in ({"delay_s": -1}, {"delay_s": "soon"}, {"timeout_s": []}):
                self.assertEqual(server.ask("POST", "/v1/drain", wrong, listener="control").status, 400)
            self.assertEqual(self.states(server, "data"), [200, 200])

    def test_who_waits_to_be_accepted_is_answered(self):
        with Server() as server, contextlib.ExitStack() as stack:
            host, port = server.addresses["data"].rsplit(":", 1)
            server.signal(signal.SIGSTOP)
            clients = [stack.enter_context(socket.create_connection((host, int(port)), PATIENCE)) for _ in range(100)]
            for client in clients:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            server.signal(signal.SIGTERM)
            server.signal(signal.SIGCONT)
            for client in clients:
                self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 200 "))
            stack.close()
            self.assertEqual(server.wait(), 0)


if __name__ == "__main__":
    unittest.main()
