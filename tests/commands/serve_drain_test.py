"""A server that stops gives out whole what it has begun, however slowly it is read, and waits for nobody who has nothing."""
import contextlib
import json
import pathlib
import shutil
import signal
import socket
import tempfile
import time
import types
import unittest

from interop_support import ACK, PING, Http2, frame, hpack, make_certificate, tls_context
from serve_support import PATIENCE, Server

MOMENT = 2  # seconds that the server waits for clients which had a request to read their answers and to go


class Drain(unittest.TestCase):
    def test_a_slow_reader_has_its_whole_answer(self):
        body = json.dumps({"prompt": [1, 2, 3], "n": 100, "max_tokens": 60, "stream": True, "logprobs": 20, "ignore_eos": True}).encode()
        with Server("--drain-timeout", 10 * PATIENCE) as server, socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(PATIENCE)
            host, port = server.addresses["data"].rsplit(":", 1)
            client.connect((host, int(port)))
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            data = client.recv(100)
            server.process.send_signal(signal.SIGTERM)
            server.wait_line(" drain ")
            while server.metrics()["vllm:num_requests_running"] and (part := client.recv(1 << 15)):
                data += part  # the engine is held up by what is not read
            time.sleep(3)  # longer than connections without an answer have
            while part := client.recv(1 << 15):
                data += part
            self.assertTrue(data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), data[-100:])
            self.assertEqual(data.count(b'"finish_reason":"length"'), 100)
            self.assertEqual(server.process.wait(PATIENCE), 0)

    def assert_waits_for_nobody(self, *words, idle):
        """idle(server): a connection that is kept open, and what it does when it is told to go. The machine may be slow now and then."""
        for _ in range(6):
            with Server(*words) as server, contextlib.ExitStack() as stack:
                connection, answer = idle(server)
                stack.enter_context(contextlib.closing(connection))
                start = time.monotonic()
                server.signal(signal.SIGTERM)
                answer()
                self.assertEqual(server.process.wait(PATIENCE), 0)
                if time.monotonic() - start < MOMENT - 0.2:
                    return
        self.fail("the server has waited for a client that had no request")

    def test_a_connection_that_is_kept_alive_delays_nothing(self):
        def idle(server):
            connection = server.connect()
            connection.request("GET", "/version")
            connection.getresponse().read()
            return connection, lambda: None
        self.assert_waits_for_nobody(idle=idle)

    @unittest.skipUnless(hpack, "python3-hpack is not installed")
    def test_a_connection_of_http2_that_was_told_to_go_delays_nothing(self):
        def idle(server):
            host, port = server.addresses["data"].rsplit(":", 1)
            address = (host, int(port))
            client = Http2(types.SimpleNamespace(address=address), connection=socket.create_connection(address, PATIENCE))
            client.send(client.request(1, "/version"))
            client.answer(1)

            def answer():
                client.goodbye()
                client.send(frame(PING, ACK, 0, client.read_kind(PING)[3]))
                client.goodbye()
            return client.socket, answer
        self.assert_waits_for_nobody(idle=idle)

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl to make a certificate")
    def test_a_connection_of_tls_without_a_request_delays_nothing(self):
        cert, key = make_certificate(pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())))

        def idle(server):
            host, port = server.addresses["data"].rsplit(":", 1)
            connection = tls_context(cert, ()).wrap_socket(socket.create_connection((host, int(port)), PATIENCE), server_hostname="localhost")
            time.sleep(2.5)  # longer than the first request may be on its way
            return connection, lambda: None
        self.assert_waits_for_nobody("--tls-cert", cert, "--tls-key", key, idle=idle)


if __name__ == "__main__":
    unittest.main()
