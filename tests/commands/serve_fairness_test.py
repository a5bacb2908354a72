"""Clients with different keys are fair to each other: before the queue, in it, and where a priority is asked for."""
import contextlib
import json
import pathlib
import socket
import struct
import tempfile
import threading
import types
import unittest

from interop_support import CANCEL, DATA, END_STREAM, HEADERS, PATIENCE, RST_STREAM, Gone, Http2, frame, hpack
from model_support import write_byte_model
from serve_grpc_support import Client, grpc, needs_grpcio
from serve_support import Server

LONG = 16000  # tokens, seconds of work for the model below
KEYS = "heavy sk-heavy\nlight sk-light\nmodest sk-modest priority>=0\n"


class Fairness(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(cls.temporary.cleanup)
        root = pathlib.Path(cls.temporary.name)
        cls.model, cls.keys = root / "long", root / "keys"
        write_byte_model(cls.model, n_layer=2, n_head=2, n_embd=32, n_positions=LONG + 100)
        cls.keys.write_text(KEYS)

    def serve(self, *words):
        return Server("--api-key-file", self.keys, *words, model=self.model)

    def send(self, server, key, opened, **more):
        """A request whose answer nobody reads yet."""
        connection = opened.enter_context(contextlib.closing(server.connect()))
        body = {"prompt": "a", "max_tokens": 4, "ignore_eos": True, "stream": True} | more
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"content-type": "application/json", "authorization": f"Bearer {key}"})
        return connection

    def hold(self, server, key, opened):
        """A request that runs for long. It is not streamed, as a text whose client does not read leaves its place."""
        connection = self.send(server, key, opened, max_tokens=LONG, stream=False)
        server.await_metric("vllm:num_requests_running", 1, key)
        return connection

    def test_who_fills_the_queue_makes_room_for_another(self):
        with self.serve("--max-batch-size", 1, "--max-queued-requests", 8) as server, contextlib.ExitStack() as opened:
            running = self.hold(server, "sk-heavy", opened)
            heavy = []
            for i in range(7):
                heavy.append(self.send(server, "sk-heavy", opened))
                server.await_metric("vllm:num_requests_waiting", i + 1, "sk-heavy")
            self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": "a"}, "sk-heavy").status, 429)
            light = [self.send(server, "sk-light", opened) for _ in range(4)]  # half of eight is its share
            for connection in heavy[:2:-1]:  # its youngest four
                response = connection.getresponse()
                error = json.loads(response.read())["error"]
                self.assertEqual((response.status, error["code"]), (429, "overloaded"))
                self.assertIn("more than its share", error["message"])
                self.assertGreater(int(response.headers["retry-after-ms"]), 0)
            server.await_metric("vllm:num_requests_waiting", 7, "sk-light")
            answer = server.ask("POST", "/v1/completions", {"prompt": "a"}, "sk-light")  # and no more than that
            self.assertEqual((answer.status, answer.code), (429, "overloaded"))
            now = server.metrics("sk-light")
            self.assertEqual(now['vllm:admission_rejections_total{model_name="long",reason="max_num_queued_reqs"}'], 6)
            running.close()
            for connection in light + heavy[:3]:
                response = connection.getresponse()
                self.assertEqual(response.status, 200)
                self.assertIn(b"[DONE]", response.read())

    def test_who_fills_the_queue_of_tokens_makes_room_for_another(self):
        with self.serve("--max-batch-size", 1, "--max-queued-tokens", 100) as server, contextlib.ExitStack() as opened:
            running = self.hold(server, "sk-heavy", opened)
            heavy = [self.send(server, "sk-heavy", opened, prompt=[1] * 45) for _ in range(2)]
            server.await_metric("vllm:num_requests_waiting", 2, "sk-heavy")
            self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": [1] * 45}, "sk-heavy").status, 429)
            light = self.send(server, "sk-light", opened, prompt=[2] * 45)
            response = heavy[1].getresponse()
            self.assertEqual((response.status, json.loads(response.read())["error"]["code"]), (429, "overloaded"))
            self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": [2] * 45}, "sk-light").status, 429)
            now = server.metrics("sk-light")
            self.assertEqual(now['vllm:admission_rejections_total{model_name="long",reason="max_num_queued_tokens"}'], 3)
            running.close()
            for connection in (light, heavy[0]):
                self.assertEqual(connection.getresponse().status, 200)

    def test_a_flood_of_one_key_does_not_keep_another_out(self):
        """Many connections ask again whatever the answer; each of the other key's requests is answered."""
        with self.serve("--max-batch-size", 2, "--max-queued-requests", 4) as server:
            is_over, refused = threading.Event(), []

            def flood():
                with contextlib.closing(server.connect()) as connection:
                    while not is_over.is_set():
                        response = server.send(connection, "POST", "/v1/completions",
                                               {"prompt": "b", "max_tokens": 200, "ignore_eos": True}, "sk-heavy", None)
                        response.read()
                        if response.status != 200:
                            refused.append(response.status)
            threads = [threading.Thread(target=flood) for _ in range(12)]
            for thread in threads:
                thread.start()
            try:
                server.await_metric("vllm:num_requests_running", 2, "sk-light")
                statuses = [server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 4}, "sk-light").status
                            for _ in range(30)]
            finally:
                is_over.set()
                for thread in threads:
                    thread.join()
            self.assertLessEqual(statuses.count(429), 2)
            self.assertGreaterEqual(statuses.count(200), 28)
            self.assertEqual(set(refused), {429})

    def http2(self, server, opened):
        host, port = server.addresses["data"].rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), PATIENCE)
        return opened.enter_context(Http2(types.SimpleNamespace(address=(host, int(port))), connection=connection))

    def request(self, client, stream, key):
        body = json.dumps({"prompt": [1, 2], "max_tokens": 2}).encode()
        fields = [("content-type", "application/json")] + ([("authorization", f"Bearer {key}")] if key else [])
        return client.request(stream, "/v1/completions", "POST", fields, end=False) + frame(DATA, END_STREAM, stream, body)

    def given_up(self, client, stream, key):
        return self.request(client, stream, key) + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))

    @unittest.skipUnless(hpack, "python3-hpack is not installed")
    def test_a_request_that_was_reset_leaves_its_place_at_once(self):
        """All of it comes at once, so the engine cannot have answered before the last request is there."""
        with self.serve("--max-queued-requests", 4) as server, contextlib.ExitStack() as opened:
            client = self.http2(server, opened)
            client.send(b"".join(self.given_up(client, 2 * i + 1, "sk-heavy") for i in range(12)) +
                        b"".join(self.request(client, 101 + 2 * i, "sk-heavy") for i in range(4)))
            statuses = {}
            while len(statuses) < 4:
                kind, flags, stream, payload = client.read_kind(HEADERS)
                if stream > 100:
                    statuses[stream] = dict(payload)[":status"]
            self.assertEqual(set(statuses.values()), {"200"})

    @unittest.skipUnless(hpack, "python3-hpack is not installed")
    def test_resets_count_for_their_key_and_for_who_has_none(self):
        with self.serve("--limits.resets", 50, "--limits.resets_per_s", 1) as server:
            for key in ("sk-heavy", None, "sk-light"):  # one after the other, from one address
                whole = 0
                for turn in range(20):
                    with contextlib.ExitStack() as opened, contextlib.suppress(Gone):
                        client = self.http2(server, opened)
                        for i in range(20):
                            client.send(self.given_up(client, 2 * i + 1, key))
                        client.send(self.request(client, 101, key))
                        self.assertEqual(client.answer(101)[0][":status"], "200" if key else "401")
                        whole += 1
                self.assertIn(whole, range(1, 15))
            self.assertEqual(server.ask("GET", "/v1/models", key="sk-modest").status, 200)

    def test_a_priority_orders_the_requests_of_its_own_key(self):
        """The other key has had less: it is next, and not after all that call themselves urgent."""
        ended = []

        def read(name, connection):
            connection.getresponse().read()
            ended.append(name)
        with self.serve("--max-batch-size", 1) as server, contextlib.ExitStack() as opened:
            with contextlib.ExitStack() as held:
                self.hold(server, "sk-light", held)
                sent = []
                for name, key, tokens, priority in (("late", "sk-heavy", 300, 7), *[("urgent", "sk-heavy", 300, -2147483648)] * 5,
                                                    ("other", "sk-modest", 4, 0)):
                    sent.append((name, self.send(server, key, opened, max_tokens=tokens, priority=priority)))
                    server.await_metric("vllm:num_requests_waiting", len(sent), "sk-heavy")
                threads = [threading.Thread(target=read, args=item) for item in sent]
                for thread in threads:
                    thread.start()
            for thread in threads:
                thread.join()
        self.assertLess(ended.index("other"), 2, ended)
        self.assertEqual(ended[-1], "late", ended)

    def test_a_key_has_a_lowest_priority(self):
        with self.serve() as server:
            ask = lambda priority, key: server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "priority": priority}, key)
            for priority, key, status in ((0, "sk-modest", 200), (5, "sk-modest", 200), (-1, "sk-modest", 400),
                                          (-2147483648, "sk-modest", 400), (-2147483648, "sk-light", 200)):
                self.assertEqual(ask(priority, key).status, status, (priority, key))
            error = ask(-1, "sk-modest").json["error"]
            self.assertEqual(error["param"], "priority")
            self.assertIn("this key may ask for 0 at least, not -1", error["message"])

    @needs_grpcio
    def test_grpc_has_the_same_lowest_priority(self):
        with self.serve() as server, Client(server.addresses["data"], "sk-modest") as client:
            client.call("GenerateOnce", text="a", max_tokens=1, priority=0)
            with self.assertRaises(grpc.RpcError) as raised:
                client.call("GenerateOnce", text="a", max_tokens=1, priority=-1)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)


if __name__ == "__main__":
    unittest.main()
