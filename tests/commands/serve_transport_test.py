"""HTTP/1.1 and HTTP/2 as the server speaks them, before any model comes into it: what every client may rely on."""
import json
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
import unittest

from interop_support import (ACK, CANCEL, DATA, END_STREAM, GOAWAY, HEADERS, INTERNAL_ERROR, NO_ERROR, PATIENCE, PING,
                             PRIORITY, PROTOCOL_ERROR, RST_STREAM, STREAM_CLOSED, Gone, Http2, Server, frame, hpack,
                             head_frames, read_all, read_until, settings, window_update)

AT_ONCE = 2

needs_hpack = unittest.skipUnless(hpack, "python3-hpack is not installed")
GET = b"GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n"
CLOSE = b"Connection: close\r\n"


def split(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


class Http1(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(requests_per_connection=5, body_bytes=100000))

    def test_an_answer_has_its_length_and_the_connection_stays(self):
        with self.server.connect() as client:
            for turn in range(3):
                client.sendall(GET % (b"/", b""))
                first, fields, body = split(read_until(client, b"hello"))
                self.assertEqual((first, fields["content-length"], body), ("HTTP/1.1 200 OK", "5", b"hello"))
                self.assertRegex(fields["date"], r"^[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} 20\d\d \d\d:\d\d:\d\d GMT$")
                self.assertNotIn("connection", fields)

    def test_requests_of_one_connection_are_answered_in_turn(self):
        post = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
        answer = self.server.ask(GET % (b"/stream?3", b"") + post + GET % (b"/", CLOSE))
        chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
        parts = re.findall(rb"HTTP/1.1 200 OK\r\n.*?\r\n\r\n", answer, re.S)
        self.assertEqual(len(parts), 3)
        self.assertEqual(answer.replace(parts[0], b"", 1).replace(parts[1], b"|", 1).replace(parts[2], b"|", 1),
                         3 * chunk + b"0\r\n\r\n|hi|hello")

    def test_the_last_request_of_a_connection_is_told(self):
        answer = self.server.ask(7 * (GET % (b"/", b"")))
        self.assertEqual(answer.count(b"hello"), 5)
        self.assertEqual(answer.count(b"connection: close"), 1)
        self.assertIn(b"connection: close", answer[answer.index(b"hello", len(answer) // 5 * 4 - 10) - 300:])

    def test_the_connection_ends_where_the_client_says_so(self):
        self.assertIn("connection", split(self.server.ask(GET % (b"/", CLOSE)))[1])
        first, fields, body = split(self.server.ask(b"GET /stream?2 HTTP/1.0\r\n\r\n"))
        self.assertEqual(body, 2048 * b"x")  # its length was not known: the end tells it
        self.assertNotIn("transfer-encoding", fields)

    def test_head_has_no_body(self):
        with self.server.connect() as client:
            client.sendall(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\nHEAD /stream?2 HTTP/1.1\r\nHost: a\r\n\r\n" +
                           GET % (b"/", CLOSE))
            answer = read_all(client)
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 3)
        self.assertEqual(answer.count(b"content-length: 5"), 2)
        self.assertNotIn(b"xxx", answer)
        self.assertEqual(answer.count(b"hello"), 1)

    def test_a_client_that_asks_is_told_to_continue(self):
        head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        with self.server.connect() as client:
            client.sendall(head % b"/echo")
            self.assertEqual(read_until(client, b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n")
            client.sendall(b"body")
            self.assertTrue(read_until(client, b"body").startswith(b"HTTP/1.1 200"))
        with self.server.connect() as client:  # who is refused is not told to continue
            client.sendall(head % b"/early")
            first, fields, body = split(read_all(client))
            self.assertEqual((first, fields["connection"]), ("HTTP/1.1 401 Unauthorized", "close"))

    def test_what_is_malformed_is_told_so_and_the_connection_ends(self):
        for request, status in ((b"GET /\r\n\r\n", 400), (b"GET /a b HTTP/1.1\r\n\r\n", 400),
                                (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", 400),
                                (b"\x16\x03\x01\x00\xa5\x01\x00\x00", 400), (b"GET / HTTP/1.1\r\n\r\n", 400),
                                (b"GET /" + 9000 * b"a" + b" HTTP/1.1\r\n", 414), (GET % (b"/", b"a: " + 17000 * b"b"), 431),
                                (GET % (b"/", 200 * b"a: b\r\n"), 431), (GET % (b"/", b"Expect: x\r\n"), 417),
                                (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501)):
            first, fields, body = split(self.server.ask(request))
            self.assertTrue(first.startswith(f"HTTP/1.1 {status} "), (request[:40], first))
            self.assertEqual(fields["connection"], "close")
            self.assertEqual(json.loads(body)["error"]["type"], "invalid_request_error")

    def test_what_names_no_version_of_http_is_not_answered(self):
        for request in b"INVALID CONNECTION PREFACE\r\n\r\n", GET.replace(b"HTTP/1.1", b"ICAP/1.0") % (b"/", b""):
            self.assertEqual(self.server.ask(request), b"")

    def test_a_broken_chunk_ends_the_request(self):
        before = self.server.counts()["broken"]
        head = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.assertTrue(self.server.ask(head + b"2\r\nhi\r\nzz\r\n").startswith(b"HTTP/1.1 400 "))
        self.assertEqual(self.server.counts()["broken"], before + 1)

    def test_a_body_over_the_limit_is_refused(self):
        for path in b"/echo", b"/wait":
            head = b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % path
            answer = self.server.ask(head + 2 * (b"c350\r\n" + 50000 * b"x" + b"\r\n") + b"1\r\n.\r\n")
            self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer[:100])
            self.assertIn(b'"code":"body_too_large"', answer)

    def test_a_late_body_does_not_destroy_the_answer(self):
        body = 90000 * b"x"
        for turn in range(20):
            answer = self.server.ask(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            self.assertTrue(answer.startswith(b"HTTP/1.1 401 ") and answer.endswith(b"no\n"), answer[-200:])

    def test_an_answer_that_is_broken_off_has_no_end(self):
        answer = self.server.ask(GET % (b"/broken", b""))
        self.assertTrue(answer.endswith(b"6\r\nso far\r\n"), answer)

    def test_a_long_answer_comes_whole_to_a_slow_reader(self):
        with self.server.connect() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.sendall(GET % (b"/stream?20000", CLOSE))
            answer = read_all(client)
        self.assertEqual(split(answer)[2].count(b"x"), 20000 * 1024)
        self.assertTrue(answer.endswith(b"x\r\n0\r\n\r\n"))
        self.assertLess(self.server.counts()["most_pending"], 300000)  # 256 KiB, and what overstepped it

    def test_a_client_that_leaves_is_noticed_before_its_answer(self):
        reset = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST
        wait, old = GET % (b"/wait", b""), b"GET /wait HTTP/1.0\r\n\r\n"
        post = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n%s\r\n"
        for request in (wait, old, wait + wait, wait + b"GET /", post % b"" + b"hi", post % b"" + b"h", post % b"",
                        post % b"Expect: 100-continue\r\n", post % b"Expect: 100-continue\r\n" + b"hi"):
            for is_reset in (False, True):
                with self.subTest(request, is_reset=is_reset):
                    before = self.server.counts()
                    with self.server.connect() as client:
                        if is_reset:
                            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                        client.sendall(request)
                        self.server.await_waiting()
                    self.server.await_counts(broken=before["broken"] + 1)

    def test_who_leaves_after_the_first_answer_is_noticed_before_the_second(self):
        before = self.server.counts()
        with self.server.connect() as client:
            client.sendall(GET % (b"/", b"") + GET % (b"/wait", b""))
            read_until(client, b"hello")
        self.server.await_counts(broken=before["broken"] + 1)

    def test_who_shuts_the_sending_side_is_answered(self):
        post = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
        for requests, wanted in ((GET % (b"/", b""), [b"hello"]), (post + GET % (b"/stream?2000", b""), [b"hi", b"0\r\n\r\n"]),
                                 (post + post[:-1], [b"hi"])):
            with self.subTest(requests), self.server.connect() as client:
                client.sendall(requests)
                client.shutdown(socket.SHUT_WR)
                answer = read_all(client)
                self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), len(wanted))
                self.assertTrue(answer.endswith(wanted[-1]), answer[-100:])

    def test_who_shuts_the_sending_side_and_waits_is_asked_to_go_on(self):
        before = self.server.counts()
        with self.server.connect() as client:
            client.sendall(GET % (b"/wait", b""))
            client.shutdown(socket.SHUT_WR)
            self.assertEqual(read_until(client, b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n")
            self.assertEqual(self.server.counts()["broken"], before["broken"])
        self.server.await_counts(broken=before["broken"] + 1)  # now that it has left

    def test_a_client_of_http10_that_shuts_the_sending_side_reads_its_answer_whole(self):
        """The server sends the first bytes early, to see if it is there: they are the answer's own."""
        with self.server.connect() as client:
            client.sendall(b"GET /wait HTTP/1.0\r\n\r\n")
            client.shutdown(socket.SHUT_WR)
            early = client.recv(1)
            self.server.ask(GET % (b"/wake", CLOSE))
            first, fields, body = split(early + read_all(client))
        self.assertEqual((first, fields["content-length"], body), ("HTTP/1.1 200 OK", "5", b"hello"))

    def test_a_client_beyond_the_limit_reads_that_it_is_one(self):
        with Server(connections=1) as server, server.connect() as busy:
            busy.sendall(GET % (b"/stream?100000", b""))
            busy.recv(1)
            for turn in range(70):
                with server.connect() as client:
                    client.sendall(GET % (b"/", b"") + bytes(100000))
                    self.assertTrue(read_all(client).startswith(b"HTTP/1.1 503 "))

    def test_all_of_a_body_is_taken_before_its_client_reads(self):
        """However long it is beside the limit."""
        body = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n" + bytes(50000000)
        answer = self.server.ask(body)
        self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer[:100])


@needs_hpack
class Http2Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(body_bytes=100000))

    def test_settings_announce_the_limits(self):
        with Http2(self.server) as client:
            kind, flags, stream, payload = client.read()
            values = dict(struct.unpack(">HI", payload[i:i + 6]) for i in range(0, len(payload), 6))
            self.assertEqual(values, {3: 100, 4: 256 << 10, 6: 16384})

    def test_streams_are_answered_side_by_side(self):
        with Http2(self.server) as client:
            client.send(client.request(1, "/wait") + client.request(3, "/echo", "POST", end=False) +
                        client.request(5) + frame(DATA, 0, 3, b"a") + frame(DATA, END_STREAM, 3, b"b"))
            head, body, trailer, error = client.answer(5)
            self.assertEqual((head[":status"], head["content-length"], body, error), ("200", "5", b"hello", None))
            client.send(client.request(7))
            self.assertEqual(client.answer(7)[1], b"hello")

    def test_a_mistake_with_a_stream_that_is_closed_or_with_its_priority_ends_the_connection(self):
        on_one = struct.pack(">IB", 1, 16)
        for name, error in ("HEADERS", STREAM_CLOSED), ("DATA", STREAM_CLOSED), ("itself", PROTOCOL_ERROR), ("0", PROTOCOL_ERROR):
            with self.subTest(name), Http2(self.server) as client:
                client.send(client.request(1))
                self.assertEqual(client.answer(1)[1], b"hello")
                client.send({"HEADERS": client.request(1), "DATA": frame(DATA, 0, 1, b"a"),
                             "itself": frame(PRIORITY, 0, 1, on_one), "0": frame(PRIORITY, 0, 0, on_one)}[name])
                self.assertEqual(client.goodbye()[1], error)

    def test_what_was_under_way_to_a_stream_that_the_server_has_reset_is_passed_over(self):
        with Http2(self.server) as client:
            client.send(client.request(1, "/broken", "POST", end=False))
            self.assertEqual(client.answer(1)[3], INTERNAL_ERROR)
            client.send(frame(DATA, 0, 1, b"a") + frame(DATA, END_STREAM, 1, b"b") + window_update(1, 1) + client.request(3))
            self.assertEqual(client.answer(3)[1], b"hello")

    def test_body_and_end_come_in_any_frames(self):
        with Http2(self.server) as client:
            client.send(client.request(1, "/echo", "POST", end=False))
            for byte in b"byte by byte":
                client.send(frame(DATA, 0, 1, bytes((byte,))))
            client.send(frame(DATA, END_STREAM, 1))
            self.assertEqual(client.answer(1)[1], b"byte by byte")

    def test_head_has_no_body(self):
        with Http2(self.server) as client:
            client.send(client.request(1, "/", "HEAD"))
            head, body, trailer, error = client.answer(1)
            self.assertEqual((head[":status"], head["content-length"], body, error), ("200", "5", b"", None))

    def test_a_call_of_grpc_that_is_given_up_early_does_not_take_others_along(self):
        """grpc core sends the reset of a call whose head has not gone out, and no head; elsewhere that is an error."""
        early, grpc = frame(RST_STREAM, 0, 7, struct.pack(">I", CANCEL)), (("content-type", "application/grpc"), ("te", "trailers"))
        call = lambda client, stream: client.request(stream, "/grpc.testing.TestService/EmptyCall", "POST", grpc, end=False)
        with Http2(self.server) as client:
            client.send(early)
            self.assertEqual(client.goodbye()[1], 1)  # PROTOCOL_ERROR
        for cut in range(1, 13):
            with self.subTest(cut=cut), Http2(self.server) as client:
                client.send(call(client, 1) + frame(DATA, END_STREAM, 1, bytes(5)))
                self.assertEqual(client.answer(1)[2]["grpc-status"], "0")
                client.send(call(client, 3) + early[:cut])
                client.send(early[cut:] + early + frame(DATA, END_STREAM, 3, bytes(5)) + client.request(9))
                self.assertEqual(client.answer(3)[2]["grpc-status"], "0")
                self.assertEqual(client.answer(9)[1], b"hello")

    def test_an_early_answer_comes_whole_and_the_rest_is_thrown_away(self):
        with Http2(self.server) as client:
            client.send(client.request(1, "/early", "POST", end=False))
            head, body, trailer, error = client.answer(1)
            self.assertEqual((head[":status"], body, error), ("401", b"no\n", None))
            self.server.await_counts(broken=self.server.counts()["broken"])
            for turn in range(5):
                client.send(frame(DATA, 0, 1, 16000 * b"x"))
            client.send(frame(DATA, END_STREAM, 1) + client.request(3))
            self.assertEqual(client.answer(3)[1], b"hello")
            client.send(client.request(5, "/early", "POST", end=False) + 5 * frame(DATA, 0, 5, 16000 * b"x"))
            self.assertEqual(client.answer(5)[0][":status"], "401")
            client.send(3 * frame(DATA, 0, 5, 16000 * b"x"))  # more than a body may have
            self.assertEqual(client.answer(5)[3], NO_ERROR)

    def test_a_body_over_the_limit_is_refused(self):
        with Http2(self.server) as client:
            client.send(client.request(1, "/wait", "POST", end=False) + 7 * frame(DATA, 0, 1, 16000 * b"x"))
            head, body, trailer, error = client.answer(1)
            self.assertEqual((head[":status"], json.loads(body)["error"]["code"]), ("413", "body_too_large"))

    def test_an_answer_comes_before_its_stream_is_stopped(self):
        """Also where all that is too much has come in one piece, and where the answer must wait for its window."""
        for window in 1 << 16, 1, 0:
            with self.subTest(window=window), Http2(self.server, settings(window=window)) as client:
                client.send(client.request(3, "/", "HEAD"))
                client.answer(3)  # the window is that of the settings from here on
                client.send(client.request(5, "/wait", "POST", end=False) + 15 * frame(DATA, 0, 5, 16000 * b"x"))
                kind, flags, stream, payload = client.read_kind(HEADERS, RST_STREAM)
                self.assertEqual((kind, dict(payload)[":status"] if kind == HEADERS else payload), (HEADERS, "413"))
                client.send(window_update(5, 1 << 16))
                while not flags & END_STREAM:
                    kind, flags, stream, payload = client.read_kind(DATA, RST_STREAM)
                    self.assertEqual(kind, DATA)
                client.send(8 * frame(DATA, 0, 5, 16000 * b"x"))
                self.assertEqual(client.answer(5)[3], NO_ERROR)

    def test_fields_over_the_limit_are_refused(self):
        long, many = [("a", 30000 * "b")], [(f"a{i}", "b") for i in range(120)]
        with Http2(self.server) as client:
            for stream, fields in (1, long), (3, many):
                client.send(client.request(stream, "/echo", "POST", fields))
                head, body, trailer, error = client.answer(stream)
                self.assertEqual((head[":status"], error), ("431", None))
            client.send(client.request(5, "/echo", "POST", end=False) + head_frames(5, client.encoder.encode(long, huffman=False)))
            self.assertEqual(client.answer(5)[0][":status"], "431")  # of a trailer
            client.send(client.request(7))
            self.assertEqual(client.answer(7)[1], b"hello")

    def test_a_host_must_be_the_authority(self):
        with Http2(self.server) as client:
            for stream, host, status in (1, client.authority, "200"), (3, client.authority.upper(), "200"), (5, "evil.example", "400"), (7, client.authority + "0", "400"):
                client.send(client.request(stream, fields=[("host", host)]))
                self.assertEqual(client.answer(stream)[0][":status"], status, host)

    def test_a_target_without_a_path_is_refused(self):
        with Http2(self.server) as client:
            client.send(head_frames(1, client.encoder.encode([(":method", "CONNECT"), (":authority", "a:1")], huffman=False), 0))
            self.assertEqual(client.answer(1)[0][":status"], "400")

    def test_an_answer_that_is_broken_off_has_what_came_before(self):
        with Http2(self.server) as client:
            client.send(client.request(1, "/broken"))
            head, body, trailer, error = client.answer(1)
            self.assertEqual((head[":status"], body, error), ("200", b"so far", INTERNAL_ERROR))

    def test_windows_are_kept_and_output_is_bounded(self):
        with Http2(self.server, settings(window=1000)) as client:
            client.send(client.request(1, "/stream?3000") + client.request(3))
            self.assertEqual(client.answer(3)[1], b"hello")
            left = 3000 * 1024 - 1000
            client.send(window_update(1, left) + window_update(0, left))
            got = 0
            while True:
                kind, flags, stream, payload = client.read_kind(DATA)
                got += len(payload)
                if flags & END_STREAM:
                    break
            self.assertLess(got, 3000 * 1024 + 1)
        self.assertLess(self.server.counts()["most_pending"], 300000)

    def test_a_client_that_leaves_is_noticed(self):
        for leave in (lambda client: client.send(frame(RST_STREAM, 0, 1, struct.pack(">I", CANCEL))),
                      lambda client: client.socket.close(), lambda client: client.socket.shutdown(socket.SHUT_WR)):
            before = self.server.counts()
            with Http2(self.server) as client:
                client.send(client.request(1, "/wait") + client.request(3))
                client.answer(3)
                leave(client)
                self.server.await_counts(broken=before["broken"] + 1)

    def test_grpc_stops_a_request_that_is_answered(self):
        """After its status, which arrives whole."""
        with Http2(self.server) as client:
            client.send(client.request(1, "/no.such.Service/Method", "POST", end=False, fields=[
                ("content-type", "application/grpc"), ("te", "trailers")]))
            head, body, trailer, error = client.answer(1)
            self.assertEqual((head[":status"], head["grpc-status"], body, trailer, error), ("200", "12", b"", None, None))
            self.assertEqual(client.answer(1)[3], NO_ERROR)
            client.send(frame(DATA, 0, 1, b"late") + client.request(3))
            self.assertEqual(client.answer(3)[1], b"hello")

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_curl_has_every_early_answer(self):
        url = "http://%s:%d/early" % self.server.address
        for turn in range(20):
            done = subprocess.run(["curl", "-sS", "--http2-prior-knowledge", "-d", 90000 * "x", url], capture_output=True)
            self.assertEqual((done.returncode, done.stdout), (0, b"no\n"), done.stderr)


class Times(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(header_timeout=0.4, idle_timeout=0.8, write_timeout=0.6))

    def dribble(self, client, text):
        """A byte now and then, until the server has had enough; what it says."""
        client.settimeout(0.05)
        answer = b""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                client.sendall(text[:1])
                text = text[1:] or text
                piece = client.recv(1 << 16)
                if not piece:
                    return answer
                answer += piece
            except TimeoutError:
                continue
            except ConnectionError:
                return answer
        self.fail("it goes on for ever")

    def test_a_head_that_comes_slowly_is_refused(self):
        with self.server.connect() as client:
            self.assertTrue(self.dribble(client, GET % (b"/", 1000 * b"a")).startswith(b"HTTP/1.1 408 "))

    def test_a_body_that_comes_slowly_is_refused(self):
        with self.server.connect() as client:
            client.sendall(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
            self.assertTrue(self.dribble(client, 1000 * b"a").startswith(b"HTTP/1.1 408 "))

    def test_silence_ends_a_connection(self):
        for first in b"", b"PRI * HTTP/2.0\r\n", b"\r\n", b"GET / HTTP/1.1\r\nHo", GET % (b"/", b""):
            with self.server.connect() as client:
                client.sendall(first)
                read_all(client)  # it comes to an end

    @needs_hpack
    def test_silence_ends_a_connection_of_http2(self):
        with Http2(self.server) as client:
            self.assertEqual(client.goodbye()[1], NO_ERROR)
            client.read_to_end()
        with Http2(self.server) as client:  # a head that is not whole
            block = client.block()
            client.send(frame(HEADERS, END_STREAM, 1, block[:4]))
            client.read_to_end()

    @needs_hpack
    def test_a_head_that_was_refused_is_over(self):
        with Http2(self.server) as client:
            client.send(client.request(1, "/wait") + client.request(3, fields=[("a", 30000 * "b")]))
            self.assertEqual(client.answer(3)[0][":status"], "431")
            time.sleep(0.7)  # longer than a head may take
            client.send(client.request(5))
            self.assertEqual(client.answer(5)[1], b"hello")

    @needs_hpack
    def test_a_body_over_http2_that_does_not_come_is_refused_and_then_given_up(self):
        with Http2(self.server) as client:
            client.send(client.request(1, "/echo", "POST", end=False))
            head, body, trailer, error = client.answer(1)
            self.assertEqual((head[":status"], json.loads(body)["error"]["message"], error), ("408", "request body arrived too slowly", None))
            self.assertEqual(client.answer(1)[3], NO_ERROR)

    def test_who_does_not_read_loses_the_answer(self):
        broken = self.server.counts()["broken"]
        with self.server.connect() as client:
            client.sendall(GET % (b"/stream?100000", b""))
            self.server.await_counts(broken=broken + 1)

    @needs_hpack
    def test_who_opens_no_window_loses_that_stream_alone(self):
        broken = self.server.counts()["broken"]
        with Http2(self.server, settings(window=0)) as client:
            client.send(client.request(1, "/stream?100"))
            self.server.await_counts(broken=broken + 1)
            self.assertEqual(client.answer(1)[3], CANCEL)
            client.send(client.request(3, "/", "HEAD"))
            self.assertEqual(client.answer(3)[0][":status"], "200")

    @needs_hpack
    def test_what_is_broken_off_waits_for_its_window_no_longer(self):
        with Http2(self.server, settings(window=0)) as client:
            client.send(client.request(1, "/broken"))
            self.assertEqual(client.answer(1)[3], INTERNAL_ERROR)

    @needs_hpack
    def test_a_stream_that_waits_for_nothing_but_us_is_left_alone(self):
        with Http2(self.server) as client:
            client.send(client.request(1, "/wait"))
            end = time.monotonic() + 1.8  # longer than any of the limits; its client answers pings
            while time.monotonic() < end:
                client.socket.settimeout(max(0.01, end - time.monotonic()))
                try:
                    kind, flags, stream, payload = client.read()
                except TimeoutError:
                    break
                self.assertNotIn(kind, (RST_STREAM, GOAWAY))
                if kind == PING and not flags & ACK:
                    client.send(frame(PING, ACK, 0, payload))
            client.socket.settimeout(PATIENCE)
            client.send(client.request(3))
            self.assertEqual(client.answer(3)[1], b"hello")


class Drain(unittest.TestCase):
    def test_idle_connections_close_and_running_requests_end(self):
        with Server() as server:
            with server.connect() as idle, server.connect() as busy:
                idle.sendall(GET % (b"/", b""))
                read_until(idle, b"hello")
                busy.sendall(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na")
                server.await_counts(begun=server.counts()["begun"] + 1)
                server.process.terminate()
                self.assertEqual(read_all(idle), b"")
                with self.assertRaises(ConnectionRefusedError):
                    server.connect()
                self.assertIsNone(server.process.poll())
                busy.sendall(b"bc")
                first, fields, body = split(read_all(busy))
                self.assertEqual((first, fields["connection"], body), ("HTTP/1.1 200 OK", "close", b"abc"))

    @needs_hpack
    def test_http2_is_told_twice_and_what_was_accepted_is_served(self):
        with Server() as server, Http2(server) as client:
            client.send(client.request(1, "/echo", "POST", end=False) + client.request(3))
            client.answer(3)
            server.process.terminate()
            self.assertEqual(client.goodbye(), ((1 << 31) - 1, NO_ERROR, ""))
            ping = client.read_kind(PING)
            client.send(client.request(5))  # sent before the client knew
            self.assertEqual(client.answer(5)[1], b"hello")
            client.send(frame(PING, ACK, 0, ping[3]))
            self.assertEqual(client.goodbye(), (5, NO_ERROR, ""))
            client.send(client.request(7) + frame(DATA, END_STREAM, 1, b"late"))
            self.assertEqual(client.answer(1)[1], b"late")
            self.assertEqual([one for one in client.read_to_end() if one[0] in (HEADERS, DATA)], [])

    @needs_hpack
    def test_what_is_left_at_the_end_is_given_up(self):
        with Server() as server, Http2(server) as client, server.connect() as other:
            client.send(client.request(1, "/wait") + client.request(3, "/stream?100000"))
            other.sendall(GET % (b"/wait", b"") + GET % (b"/", b""))
            while server.counts()["begun"] < 5:
                time.sleep(0.01)
            server.process.send_signal(signal.SIGINT)
            client.read_to_end()
            self.assertEqual(read_all(other), b"")
            server.process.wait(PATIENCE)

    @needs_hpack
    def test_an_idle_connection_of_http2_ends(self):
        with Server() as server, Http2(server) as client:
            client.send(client.request(1))
            client.answer(1)
            server.process.terminate()
            client.goodbye()
            client.send(frame(PING, ACK, 0, client.read_kind(PING)[3]))
            self.assertEqual(client.goodbye()[0], 1)
            client.read_to_end()


if __name__ == "__main__":
    unittest.main()
