"""Without memory the transport drops a request or a connection, and never the server: each allocation fails once, of
ours and of libevent."""
import contextlib
import os
import pathlib
import random
import tempfile
import time
import unittest

from interop_support import DATA, END_STREAM, PATIENCE, Gone, Http2, Server, frame, hpack

INJECTOR = os.environ.get("CAMBIUM_INJECTOR")
LONG = os.environ.get("CAMBIUM_TEST_LONG") == "1"
SHORT_PART = 40  # failures


@unittest.skipUnless(INJECTOR and hpack, "this build has no library that fails allocations, or there is no python3-hpack")
class Memory(unittest.TestCase):
    def attempt(self, report, n):
        """All kinds of requests, with the n-th allocation failing; whether the server had begun, and its answers."""
        sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        server = Server(env={"CAMBIUM_FAIL_ALLOCATION": str(n), "CAMBIUM_FAIL_REPORT": str(report), "LD_PRELOAD": INJECTOR,
                             "ASAN_OPTIONS": sanitizer.lstrip(":")})
        try:
            server.__enter__()
        except AssertionError as failure:
            self.assertIn("out of memory", str(failure))
            self.assertEqual(server.process.wait(), 1)
            server.process.stdout.close()
            return None
        with contextlib.ExitStack() as stack:
            stack.push(server)
            answers = []
            for request in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /stream?3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                            b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA: b\r\n\r\n",
                            b"bad\r\n\r\n"):
                answers.append(server.ask(request + b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
            with contextlib.suppress(Gone), Http2(server) as client:
                client.send(client.request(1) + client.request(3, "/echo", "POST", end=False))
                answers.append(client.answer(1)[1])
                client.send(frame(DATA, END_STREAM, 3, b"hi") + client.request(5, "/stream?3") + client.request(7, "/wait"))
                answers.append(client.answer(5)[1])
            now, end = None, time.monotonic() + PATIENCE
            while True:  # the failure may be in these requests themselves
                with contextlib.suppress(ValueError):
                    now = server.counts()
                    if now["begun"] == now["whole"] + now["broken"] + 1:  # every handler is called, once
                        break
                self.assertLess(time.monotonic(), end, now)
            self.assertGreaterEqual(sum(server.ask().endswith(b"hello") for turn in range(3)), 2)
        return answers

    def test_each_allocation_fails_once(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            report = pathlib.Path(directory) / "count"
            good = self.attempt(report, 0)
            count = int(report.read_text())
            self.assertGreater(count, 100)
            part = range(1, count + 1) if LONG else sorted(random.Random(12).sample(range(1, count + 1), SHORT_PART))
            different = 0
            for n in part:
                with self.subTest(n=n):
                    different += self.attempt(report, n) != good
            self.assertGreater(different, len(part) // 4)


if __name__ == "__main__":
    unittest.main()
