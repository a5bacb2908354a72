"""A server that stops gives out whole what it has begun, however slowly it is read."""
import json
import signal
import socket
import time
import unittest

from serve_support import PATIENCE, Server


class Drain(unittest.TestCase):
    def test_a_slow_reader_has_its_whole_answer(self):
        body = json.dumps({"prompt": [1, 2, 3], "n": 100, "max_tokens": 60, "stream": True, "logprobs": 20, "ignore_eos": True}).encode()
        with Server("--drain-timeout", PATIENCE) as server, socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(PATIENCE)
            host, port = server.addresses["data"].rsplit(":", 1)
            client.connect((host, int(port)))
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
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


if __name__ == "__main__":
    unittest.main()
