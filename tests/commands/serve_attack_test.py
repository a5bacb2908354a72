"""Attacks of hostile clients on a server: the attack ends, others are served meanwhile and in time, and memory does not
grow."""
import contextlib
import gzip
import json
import pathlib
import resource
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from health_support import Health
from interop_support import (ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, PADDED,
                             NO_ERROR, PATIENCE, PING, PREFACE, PRIORITY, PROTOCOL_ERROR, REFUSED_STREAM,
                             RST_STREAM, SANITIZED, SETTINGS, GOAWAY, Gone, Http2, Server, frame, head_frames, hpack, read_all, read_until, settings,
                             WINDOW_UPDATE, window_update)
from model_support import TINY, write_byte_model
from serve_grpc_support import Client, grpc
from serve_support import Server as Serving

AT_ONCE = 2  # much of it is waiting
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Attacks(unittest.TestCase):
    limits = {}
    growth = 8 << 20  # bytes that all attacks together may leave allocated

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(**cls.limits))
        for turn in range(20):  # its buffers are there
            cls.server.ask()
        cls.memory = cls.server.resident()

    @contextlib.contextmanager
    def attack(self):
        """Around an attack: somebody else is served, and memory and descriptors are as they were in the beginning."""
        descriptors = self.server.descriptors()
        def turns():
            counts = self.server.counts()
            return counts["turns"], counts["long_turns"], counts["longest_turn"]

        with Health(self.server.ask, turns, self.server.process.pid, b"hello"):
            yield
        end = time.monotonic() + PATIENCE
        while self.server.descriptors() > descriptors:
            self.assertLess(time.monotonic(), end, "connections stay")
            time.sleep(0.01)
        if not SANITIZED:
            self.assertLess(self.server.resident() - self.memory, self.growth)

    def flood(self, data, times, first=b""):
        """Sends data over and over, reading all that comes; GOAWAY's error, or None when it was left alone."""
        with Http2(self.server) as client:
            client.send(first)
            reader = threading.Thread(target=lambda: frames.extend(client.read_to_end()))
            frames = []
            reader.start()
            try:
                for turn in range(times):
                    client.send(data)
                client.socket.shutdown(socket.SHUT_WR)
            except (Gone, OSError):
                pass
            reader.join(PATIENCE)
            errors = [struct.unpack(">I", one[3][4:8])[0] for one in frames if one[0] == GOAWAY]
            return errors[0] if errors else None

    def flood_unread(self, data):
        """The same by who reads nothing, until it is stopped."""
        with Http2(self.server) as client, self.assertRaises(Gone):
            while True:
                client.send(data)


@unittest.skipUnless(hpack, "python3-hpack is not installed")
class Floods(Attacks):
    limits = {"write_timeout": 8}  # after which who reads nothing is stopped

    def test_rapid_reset(self):
        with self.attack(), Http2(self.server) as client:
            block = client.block("/wait")
            reset = struct.pack(">I", CANCEL)
            with contextlib.suppress(Gone):
                for i in range(5000):
                    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 2 * i + 1, block) +
                                frame(RST_STREAM, 0, 2 * i + 1, reset))
            self.assertIn(client.goodbye()[1], (ENHANCE_YOUR_CALM, ))

    def test_a_client_that_cancels_now_and_then_is_left_alone(self):
        with Http2(self.server) as client:
            for i in range(300):
                client.send(client.request(2 * i + 1, "/wait") + frame(RST_STREAM, 0, 2 * i + 1, struct.pack(">I", CANCEL)))
            client.send(client.request(10001))
            self.assertEqual(client.answer(10001)[1], b"hello")

    def test_resets_of_all_connections_count(self):
        with Server(resets=50, resets_per_s=1) as server, Http2(server) as other:
            whole = 0
            for turn in range(20):  # of 20 resets each: the third or fourth connection is not served to its end
                with Http2(server) as client:
                    try:
                        for i in range(20):
                            client.send(client.request(2 * i + 1, "/wait") +
                                        frame(RST_STREAM, 0, 2 * i + 1, struct.pack(">I", CANCEL)))
                        client.send(client.request(1001))
                        self.assertEqual(client.answer(1001)[1], b"hello")
                        whole += 1
                    except Gone:
                        break
            self.assertIn(whole, range(2, 10))
            other.send(other.request(1))  # it resets nothing, and has the same address
            self.assertEqual(other.answer(1)[1], b"hello")

    def test_continuation_flood(self):
        with self.attack():
            first = frame(HEADERS, 0, 1, b"\x82")
            self.assertIsNotNone(self.flood(100 * frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b"), 1000, first))

    def test_ping_flood(self):
        with self.attack():
            self.assertEqual(self.flood(1000 * frame(PING, 0, 0, 8 * b"a"), 100), ENHANCE_YOUR_CALM)
            self.flood_unread(1000 * frame(PING, 0, 0, 8 * b"a"))

    def test_pings_that_come_too_often(self):
        with Http2(self.server) as client:
            for turn in range(4):
                client.send(frame(PING, 0, 0, bytes((turn,)) * 8))
            self.assertEqual(client.goodbye()[1:], (ENHANCE_YOUR_CALM, "too_many_pings"))

    def test_pings_for_data_are_left_alone(self):
        """As a client that measures how fast data can come."""
        with Http2(self.server) as client:
            for i in range(200):
                client.send(client.request(2 * i + 1) + frame(PING, 0, 0, 8 * b"a") + window_update(0, 5))
                self.assertEqual(client.answer(2 * i + 1)[1], b"hello")

    def test_settings_flood(self):
        with self.attack():
            self.assertEqual(self.flood(1000 * settings(), 100), ENHANCE_YOUR_CALM)
            self.flood_unread(1000 * settings())
            self.assertIsNotNone(self.flood(frame(SETTINGS, 0, 0, 1000 * struct.pack(">HI", 99, 1)), 10))

    def test_empty_data(self):
        with self.attack():
            for payload, flags in ((b"", 0), (b"\x03\0\0\0", PADDED)):
                with Http2(self.server) as client:
                    first = client.request(1, "/echo", "POST", end=False)
                self.assertEqual(self.flood(1000 * frame(DATA, flags, 1, payload), 500, first), ENHANCE_YOUR_CALM)

    def test_made_you_reset(self):
        with self.attack():
            with Http2(self.server) as client:
                block = client.block("/wait")
                bad = block + b"\x00\x01A\x01b"  # a name in upper case
            overflow = [frame(HEADERS, END_HEADERS | END_STREAM, 2 * i + 1, block) + 2 * window_update(2 * i + 1, (1 << 31) - 1)
                        for i in range(5000)]
            # Those of one slice may be over the number of streams as well.
            self.assertIn(self.flood(b"".join(overflow), 1), (ENHANCE_YOUR_CALM, PROTOCOL_ERROR))
            mistakes = [frame(HEADERS, END_HEADERS | END_STREAM, 2 * i + 1, bad) for i in range(5000)]
            self.assertIn(self.flood(b"".join(mistakes), 1), (ENHANCE_YOUR_CALM, PROTOCOL_ERROR))
            self.assertIsNone(self.flood(mistakes[0], 1))

    def test_frames_that_nobody_knows(self):
        with self.attack():
            self.assertEqual(self.flood(1000 * frame(0x42, 0, 0, b"abc"), 20), ENHANCE_YOUR_CALM)

    def test_priorities_of_idle_streams(self):
        with self.attack():
            frames = b"".join(frame(PRIORITY, 0, 2 * i + 1, b"\0\0\0\0\x10") for i in range(20000))
            self.assertEqual(self.flood(frames, 10), ENHANCE_YOUR_CALM)

    def test_window_updates_for_nothing(self):
        with self.attack():
            self.assertEqual(self.flood(1000 * window_update(0, 1), 100), ENHANCE_YOUR_CALM)

    def test_mistakes_that_end_a_connection(self):
        with self.attack():
            with Http2(self.server) as client:
                get = client.request(1, "/wait")
            for data in (window_update(0, 0), get + frame(DATA, END_STREAM, 1, b"a"), frame(PRIORITY, 0, 1, b"abc"),
                         frame(SETTINGS, 0, 0, b"abc"), frame(SETTINGS, 0, 1), frame(PING, 0, 0, b"abc"),
                         frame(DATA, 0, 0, b"a"), frame(HEADERS, END_HEADERS, 2, b"\x82"), frame(CONTINUATION, 0, 1),
                         frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"), window_update(0, (1 << 31) - 1),
                         frame(RST_STREAM, 0, 1, b"\0\0\0\0"), b"\xff\xff\xff" + frame(DATA, 0, 1)[3:] + 20000 * b"a"):
                error = self.flood(data, 1)
                self.assertTrue(error is not None and error != NO_ERROR, data[:40])


@unittest.skipUnless(hpack, "python3-hpack is not installed")
class Oversized(Attacks):
    growth = 48 << 20  # no more than the largest of them, two bodies and a hundred windows, has to hold for a while

    def test_long_lists_of_fields(self):
        with self.attack(), Http2(self.server) as client:
            fields = [(f"a{i}", 1000 * "b") for i in range(30)]
            client.send(client.request(1, fields=fields))
            self.assertEqual(client.answer(1)[0][":status"], "431")
            client.send(client.request(3, fields=[(f"a{i}", "b") for i in range(120)]))
            self.assertEqual(client.answer(3)[0][":status"], "431")
            client.send(client.request(5))
            self.assertEqual(client.answer(5)[1], b"hello")

    def test_a_table_that_is_blown_up(self):
        """4,000 bytes in the table, and one byte for each of their repetitions: 39 MB from 10 KB."""
        with self.attack(), Http2(self.server) as client:
            value = 4000 * b"a"
            literal = b"\x40\x01x\x7f" + bytes(((len(value) - 127) & 127 | 128, (len(value) - 127) >> 7)) + value
            client.encoder = hpack.Encoder()
            client.send(head_frames(1, client.block() + literal + 10000 * b"\xbe"))
            self.assertEqual(client.answer(1)[0][":status"], "431")

    def test_more_streams_than_allowed(self):
        with self.attack(), Http2(self.server) as client:
            requests = b"".join(client.request(2 * i + 1, "/wait") for i in range(101))
            client.send(requests)  # before the settings are acknowledged
            kind, flags, stream, payload = client.read_kind(RST_STREAM)
            self.assertEqual((stream, struct.unpack(">I", payload)[0]), (201, REFUSED_STREAM))

    def test_bodies_that_are_never_whole(self):
        """A hundred streams of a connection, none of which ever ends: together they have little more than two may."""
        with self.attack():
            for turn in range(3):
                with Http2(self.server) as client:
                    for i in range(100):
                        client.send(client.request(2 * i + 1, "/echo", "POST", end=False))
                    windows, left, sent = {2 * i + 1: 256 << 10 for i in range(100)}, [8 << 20] * 200, 0
                    client.socket.settimeout(0.3)
                    with contextlib.suppress(TimeoutError):
                        while True:
                            stream = max(windows, key=lambda one: min(windows[one], left[one]))
                            while min(windows[stream], left[stream]) < 16000:
                                kind, flags, number, payload = client.read_kind(WINDOW_UPDATE)
                                if number:
                                    windows[number] += int.from_bytes(payload, "big")
                                    stream = max(windows, key=lambda one: min(windows[one], left[one]))
                            client.send(frame(DATA, 0, stream, 16000 * b"a"))
                            windows[stream] -= 16000
                            left[stream] -= 16000
                            sent += 16000
                    self.assertLess(sent, 48 << 20)  # two bodies, and a window of every stream

    @unittest.skipUnless(shutil.which("h2load"), "h2load is not installed")
    def test_bodies_that_are_whole_in_the_end_all_come(self):
        with tempfile.NamedTemporaryFile() as body:
            body.write(1000000 * b"a")
            body.flush()
            done = subprocess.run(["h2load", "-n50", "-c1", "-m50", "-d", body.name,
                                   "http://%s:%d/echo" % self.server.address], capture_output=True, text=True, timeout=120)
        self.assertIn("50 succeeded, 0 failed", done.stdout)

    def test_a_long_head_of_http1(self):
        with self.attack():
            for turn in range(20):
                with self.server.connect() as client, contextlib.suppress(ConnectionError):
                    client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n" + (1 << 20) * b"a")
                    self.assertTrue(read_all(client).startswith(b"HTTP/1.1 431 "))

    def test_requests_before_their_turn_are_bounded(self):
        """A client that sends requests before the first is answered; if it leaves then, that is noticed too."""
        def send_all():
            with self.server.connect() as client, self.assertRaises(ConnectionError):
                client.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
                while True:
                    client.sendall(1000 * GET)

        def send_some():
            with self.server.connect() as client:
                client.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n" + 100000 * GET)

        send_all()  # the allocator keeps what it had to have once
        with self.attack():
            for turn in range(3):
                send_all()
                send_some()

    def test_answers_that_are_not_read(self):
        def ask_and_leave():
            begun = self.server.counts()["begun"]
            with contextlib.ExitStack() as stack:
                for turn in range(50):
                    client = stack.enter_context(self.server.connect())
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    client.sendall(b"GET /stream?100000 HTTP/1.1\r\nHost: a\r\n\r\n")
                while self.server.counts()["begun"] < begun + 51:
                    time.sleep(0.01)

        ask_and_leave()  # the allocator keeps what it had to have once
        with self.attack():
            for turn in range(5):
                ask_and_leave()
        self.assertLess(self.server.counts()["most_pending"], 300000)


class Crowds(unittest.TestCase):
    def test_a_thousand_idle_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < 2200:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
            except ValueError:
                self.skipTest("too few descriptors are allowed")
        with Server() as server, contextlib.ExitStack() as stack:
            server.ask()
            memory = server.resident()
            for turn in range(1000):
                client = stack.enter_context(server.connect())
                if turn % 3 == 1:
                    client.sendall(b"GET / HTT")
                elif turn % 3 == 2 and hpack:
                    client.sendall(PREFACE + settings())
            for turn in range(50):
                self.assertTrue(server.ask().endswith(b"hello"))
            if not SANITIZED:
                self.assertLess(server.resident() - memory, 48 << 20)

    def connect(self, server, host="127.0.0.1"):
        return socket.create_connection(server.address, PATIENCE, (host, 0))

    def hold(self, stack, server, host="127.0.0.1"):
        """A connection whose answer has begun, and does not end."""
        client = stack.enter_context(self.connect(server, host))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /stream?100000 HTTP/1.1\r\nHost: a\r\n\r\n")
        self.assertEqual(client.recv(9), b"HTTP/1.1 ")
        return client

    def is_served(self, server, host):
        with self.connect(server, host) as client:
            client.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            return read_all(client).startswith(b"HTTP/1.1 200 ")

    def test_idle_connections_make_room(self):
        """Those that send nothing, half a header, half a body, or nothing after an answer."""
        for first in (b"", b"GET / HTT", b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\na", GET,
                      PREFACE + settings(), PREFACE[:9]):
            with self.subTest(first=first), Server(connections=8) as server, contextlib.ExitStack() as stack:
                busy = self.hold(stack, server)
                for turn in range(30):
                    client = stack.enter_context(self.connect(server))
                    client.sendall(first)
                    if first == GET:
                        client.recv(1)
                for turn in range(20):
                    self.assertTrue(self.is_served(server, "127.0.0.1"))
                self.assertGreater(len(busy.recv(1 << 16)), 0)

    def test_an_address_that_has_most_places_loses_them_first(self):
        with Server(connections=8) as server, contextlib.ExitStack() as stack:
            first = stack.enter_context(self.connect(server, "127.0.0.2"))
            first.sendall(GET)
            self.assertTrue(read_until(first, b"hello"))
            for turn in range(50):
                stack.enter_context(self.connect(server))
            self.assertTrue(self.is_served(server, "127.0.0.3"))
            first.sendall(GET)  # it was idle for longer than all others
            self.assertTrue(read_until(first, b"hello"))

    def test_one_address_does_not_get_all_places(self):
        with Server(connections=8) as server, contextlib.ExitStack() as stack:
            for turn in range(7):
                self.hold(stack, server)
            self.assertFalse(self.is_served(server, "127.0.0.1"))
            self.assertTrue(self.is_served(server, "127.0.0.2"))

    def test_refused_connections_have_no_places(self):
        """They stay open, and their client reads nothing. There are not many of them either."""
        with Server(connections=4) as server, contextlib.ExitStack() as stack:
            self.assertTrue(self.is_served(server, "127.0.0.1"))
            used = server.descriptors()
            for turn in range(300):
                client = stack.enter_context(self.connect(server))
                client.sendall(PREFACE + b"\xff" * 1000)
                if turn % 10 == 0:
                    self.assertTrue(self.is_served(server, "127.0.0.1"))
            self.assertTrue(self.is_served(server, "127.0.0.1"))
            self.assertLess(server.descriptors(), used + 200)

    def test_connections_over_the_limit_are_told(self):
        with Server(connections=5) as server, contextlib.ExitStack() as stack:
            for turn in range(5):
                self.hold(stack, server)
            with server.connect() as client:
                answer = read_all(client)
            self.assertTrue(answer.startswith(b"HTTP/1.1 503 "), answer)
            body = answer.partition(b"\r\n\r\n")[2]
            self.assertIn(b"content-length: %d\r\n" % len(body), answer)
            self.assertEqual(json.loads(body)["error"]["code"], "too_many_connections")
            stack.close()
            end = time.monotonic() + PATIENCE
            while not server.ask().startswith(b"HTTP/1.1 200 "):
                self.assertLess(time.monotonic(), end)

    def test_no_descriptors_are_left(self):
        with Server() as server, contextlib.ExitStack() as stack:
            used = server.descriptors()
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 10, used + 10))
            for turn in range(10):
                client = stack.enter_context(server.connect())
                client.sendall(GET)
                client.recv(1)
            for turn in range(3):  # the reserve answers, and is there again
                with server.connect() as client:
                    self.assertTrue(read_all(client).startswith(b"HTTP/1.1 503 "))
            stack.close()
            end = time.monotonic() + PATIENCE
            while not server.ask().startswith(b"HTTP/1.1 200 "):
                self.assertLess(time.monotonic(), end)


class Descriptors(unittest.TestCase):
    """The server itself, under limits of descriptors that are too low for its listeners."""

    def serve(self, limits, *words):
        return Serving(*words, launcher=("sh", "-c", f'ulimit -Sn {limits[0]} && ulimit -Hn {limits[1]} && exec "$@"', "sh"))

    def limits(self, server):
        text = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
        return next(line.split()[3:5] for line in text.splitlines() if line.startswith("Max open files"))

    def crowd(self, server, opened, count):
        host, port = server.addresses["data"].rsplit(":", 1)
        for turn in range(count):
            opened.enter_context(socket.create_connection((host, int(port)), PATIENCE))

    def check(self, server):
        for listener, path in ("control", "/health"), ("control", "/ready"), ("data", "/health"):
            self.assertEqual(server.ask("GET", path, listener=listener).status, 200)

    def test_the_soft_limit_is_raised(self):
        with self.serve((128, 2000), "--limits.connections", 300) as server, contextlib.ExitStack() as opened:
            soft, hard = map(int, self.limits(server))
            self.assertIn(soft, range(2 * 300 + 100, 2000))
            self.assertEqual(hard, 2000)
            self.crowd(server, opened, 400)
            self.check(server)
            self.assertFalse([line for line in server.lines if "descriptors" in line])
        with self.serve((1900, 2000), "--limits.connections", 300) as server:  # it is never lowered
            self.assertEqual(self.limits(server)[0], "1900")

    def test_a_hard_limit_that_is_too_low_leaves_control_its_places(self):
        with self.serve((400, 500)) as server, contextlib.ExitStack() as opened:
            self.assertEqual(self.limits(server), ["500", "500"])
            server.wait_line(r"hard limit of 500 descriptors is too low for --limits.connections 1024: each listener takes "
                             r"\d+ connections")
            self.crowd(server, opened, 450)
            self.check(server)


def numbers(count):
    return b"[" + b",".join([b"1"] * count) + b"]"


class Bytes(unittest.TestCase):
    """Requests that take long to read, to write in words or to tokenize, of a server with a model."""
    seconds = 1.5

    def serve(self, *words, **more):
        server = self.enterContext(Serving("--log-format", "json", *words, **more))
        host, port = server.addresses["data"].rsplit(":", 1)
        self.address = (host, int(port))
        for turn in range(5):
            self.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return server

    def connect(self):
        return socket.create_connection(self.address, PATIENCE)

    def send(self, request):
        with self.connect() as connection:
            connection.sendall(request)
            return read_all(connection)

    def health(self, server):
        def turns():
            metrics = server.metrics()
            short, = (value for name, value in metrics.items() if "loop_turn_seconds_bucket" in name and 'le="0.05"' in name)
            count = metrics["cambium:loop_turn_seconds_count"]
            return count, count - short, metrics["cambium:loop_turn_seconds_max"]

        return Health(lambda: self.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), turns,
                      server.process.pid)

    def post(self, path, body, *fields):
        head = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", "Content-Type: application/json",
                f"Content-Length: {len(body)}", *fields]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body

    def attack(self, server, *requests, clients=6, statuses=(b"200", b"400", b"413", b"429")):
        """Clients that send these requests in turn; meanwhile another client's small request is answered."""
        end, failures = time.monotonic() + self.seconds, []

        def run(number):
            turn = number
            try:
                while time.monotonic() < end:
                    answer = self.send(requests[turn % len(requests)])
                    assert answer.split(b" ")[1] in statuses, answer[:200]
                    turn += 1
            except BaseException as failure:
                failures.append(failure)

        with self.health(server):
            threads = [threading.Thread(target=run, args=(i, )) for i in range(clients)]
            for thread in threads:
                thread.start()
            answer = server.ask("POST", "/v1/completions", {"prompt": [1], "max_tokens": 1})
            self.assertIn(answer.status, (200, 429))
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])

    def test_half_a_million_numbers(self):
        server, many = self.serve(), numbers(524000)
        self.attack(server, self.post("/v1/completions", b'{"prompt":' + many + b"}"),
                    self.post("/detokenize", b'{"tokens":' + many + b"}"),
                    self.post("/v1/chat/completions", b'{"messages":[{"role":"user","content":"a"}],"documents":' + many + b"}"),
                    self.post("/v1/completions", b'{"prompt":[' + b",".join([numbers(2000)] * 250) + b"]}"),
                    self.post("/v1/completions", b'{"prompt":"a","stop_token_ids":' + many + b"}"))

    def test_numbers_short_of_the_worker(self):
        """As many bodies as fit that the loop reads itself."""
        server = self.serve()
        self.attack(server, self.post("/v1/completions", b'{"prompt":' + numbers(8000) + b"}"),
                    self.post("/v1/completions", b'{"prompt":"a","x":' + numbers(7000) + b"}"),
                    self.post("/detokenize", b'{"tokens":' + numbers(2000) + b"}"))

    def test_long_texts(self):
        server = self.serve()
        self.attack(server, self.post("/tokenize", b'{"prompt":"' + b"a " * 500000 + b'"}'),
                    self.post("/tokenize", b'{"prompt":"' + b"a" * 4000 + b'"}'),
                    self.post("/v1/completions", json.dumps({"prompt": ["a b " * 1000] * 250, "max_tokens": 1}).encode()),
                    self.post("/v1/completions", json.dumps({"prompt": "a", "stop": ["x" * 1024] * 64}).encode()),
                    self.post("/v1/completions", json.dumps({"prompt": "a", "logit_bias": {str(i): 1 for i in range(250)}}).encode()))

    def test_bodies_that_are_packed(self):
        server = self.serve()
        bombs = [gzip.compress(b'{"prompt":' + text + b"}") for text in (b'"' + 30000000 * b"a" + b'"', numbers(524000))]
        self.attack(server, *(self.post(path, bomb, "Content-Encoding: gzip") for bomb in bombs
                              for path in ("/v1/completions", "/tokenize")))

    def test_a_template_without_end(self):
        with tempfile.TemporaryDirectory() as directory:
            template = pathlib.Path(directory) / "template"
            template.write_text("{% for a in range(9000) %}{% for b in range(9000) %}{% set c = a * b %}{% endfor %}{% endfor %}"
                                "{{ messages[0].content }}")
            server = self.serve("--chat-template", template, "--template-timeout", "0.2")
            self.attack(server, self.post("/v1/chat/completions", b'{"messages":[{"role":"user","content":"a"}]}'))

    def test_a_pattern_that_goes_back_and_forth(self):
        with tempfile.TemporaryDirectory() as directory:
            for file in TINY.iterdir():
                shutil.copy(file, directory)
            path = pathlib.Path(directory) / "tokenizer.json"
            tokenizer = json.loads(path.read_text())
            split = {"type": "Split", "pattern": {"Regex": "a+a+x|a"}, "behavior": "Isolated", "invert": False}
            tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, {
                "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
            path.write_text(json.dumps(tokenizer))
            server = self.serve(model=directory)
            text = json.dumps({"prompt": "a" * 1500, "max_tokens": 1}).encode()
            self.attack(server, self.post("/tokenize", text), self.post("/v1/completions", text))

    def test_log_probabilities_of_long_prompts(self):
        """Answers of six megabytes of JSON, and of a message nearly as long as one may be."""
        count, most = 5000, 13000
        prompt = [number % 94 for number in range(count)]  # characters of one byte
        body = {"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 20, "echo": True, "logprobs": 20}
        with tempfile.TemporaryDirectory() as directory:
            model = pathlib.Path(directory) / "long"
            write_byte_model(model, n_layer=1, n_head=1, n_embd=8, n_positions=most + 100)
            server = self.serve(model=model)
            request = self.post("/v1/completions", json.dumps(body).encode())
            self.attack(server, request, clients=2)
            choice = json.loads(self.send(request).partition(b"\r\n\r\n")[2])["choices"][0]
            self.assertEqual([token["id"] for token in choice["prompt_logprobs"]], prompt)
            self.assertEqual(len(choice["prompt_logprobs"][-1]["top"]), 20)
            self.assertEqual(len(choice["logprobs"]["tokens"]), count + 1)
            self.assertEqual(choice["logprobs"]["text_offset"], [*range(count + 1)])
            with self.connect() as leaving:  # its answer is built for nobody
                leaving.sendall(request)
            if grpc:
                with self.health(server), Client(server.addresses["data"]) as client:
                    asked = [number % 94 for number in range(most)]
                    tokens = client.call("Score", tokens={"ids": asked}, top=20).tokens
                self.assertEqual([token.id for token in tokens], asked)
                self.assertGreater(sum(len(token.top) for token in tokens) * 13, 3 << 20)

    def test_bodies_that_are_never_whole(self):
        server = self.serve("--limits.gathered_bytes", "32M")
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 8000000\r\n\r\n")
        with self.health(server), contextlib.ExitStack() as stack:
            clients = [stack.enter_context(self.connect()) for turn in range(200)]
            for turn in range(8):
                for client in clients:
                    with contextlib.suppress(ConnectionError):
                        client.sendall((head if not turn else b"") + 100000 * b" ")
            self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": [1], "max_tokens": 1}).status, 200)

    @unittest.skipUnless(hpack, "python3-hpack is not installed")
    def test_messages_of_millions_of_tokens(self):
        server = self.serve()
        many = b"\x0a" + self.varint(2000000) + 2000000 * b"\x01"  # packed ids
        messages = (("Detokenize", many), ("Generate", b"\x22" + self.varint(len(many)) + many), ("Tokenize", many))
        end, failures = time.monotonic() + self.seconds, []

        def run(name, message):
            try:
                while time.monotonic() < end:
                    with contextlib.suppress(Gone), Http2(self, connection=self.connect()) as client:
                        self.call(client, name, message)
            except BaseException as failure:
                failures.append(failure)

        with self.health(server):
            threads = [threading.Thread(target=run, args=messages[i % 3]) for i in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])

    @staticmethod
    def varint(value):
        digits = [value >> shift & 127 for shift in range(0, 35, 7) if value >> shift]
        return bytes([digit | 128 for digit in digits[:-1]] + digits[-1:])

    def call(self, client, name, message):
        fields = [("content-type", "application/grpc"), ("te", "trailers")]
        client.send(client.request(1, f"/cambium.v1.Cambium/{name}", "POST", fields, end=False))
        data, window = b"\0" + struct.pack(">I", len(message)) + message, 256 << 10
        for at in range(0, len(data), 16000):
            while window < 16000:
                kind, flags, stream, payload = client.read_kind(WINDOW_UPDATE, RST_STREAM, HEADERS)
                if kind != WINDOW_UPDATE:
                    return
                window += int.from_bytes(payload, "big") if stream else 0
            piece = data[at:at + 16000]
            client.send(frame(DATA, END_STREAM if at + 16000 >= len(data) else 0, 1, piece))
            window -= len(piece)
        client.read_kind(HEADERS, RST_STREAM)


if __name__ == "__main__":
    unittest.main()
