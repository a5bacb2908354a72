"""HTTP/2 as h2spec sees it (github.com/summerwind/h2spec, a program in Go that no package has): on PATH, or where the
environment variable H2SPEC says."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import interop_support
import serve_support
from interop_support import SANITIZED, make_certificate

H2SPEC = os.environ.get("H2SPEC") or shutil.which("h2spec")
PASSED = 145
# nghttp2 passes over a new stream whose number is below an older one's, instead of ending the connection.
EXCEPTIONS = {"5.1.1/2: Sends stream identifier that is numerically smaller than previous"}


def failures(report):
    """The failures, as "section/number: what was sent"."""
    section, found = None, set()
    for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;]*m", "", report)):
        if match := re.match(r"\s*(\d+(?:\.\d+)*)\. ", line):
            section = match[1]
        elif match := re.match(r"\s*× (\d+: .*)", line):
            found.add(f"{section}/{match[1]}")
    return found


@unittest.skipUnless(H2SPEC, "h2spec is neither on PATH nor in the environment variable H2SPEC")
class Conformance(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="cambium-test-")))
        cls.certificate = make_certificate(directory) if shutil.which("openssl") else None

    def words(self, is_tls):
        """For the server, and for h2spec."""
        if not is_tls:
            return [], []
        if not self.certificate:
            self.skipTest("openssl is not installed")
        cert, key = self.certificate
        return ["--tls-cert", cert, "--tls-key", key], ["-t", "-k"]

    def judge(self, address, words):
        host, port = address
        run = subprocess.run([H2SPEC, "-h", host, "-p", str(port), "-o", "20" if SANITIZED else "2", *words],
                             capture_output=True, text=True, stdin=subprocess.DEVNULL)
        self.assertIn(f"{PASSED + len(EXCEPTIONS)} tests, {PASSED} passed, 0 skipped, {len(EXCEPTIONS)} failed", run.stdout,
                      run.stderr)
        self.assertEqual(failures(run.stdout), EXCEPTIONS)

    def test_the_transport(self):
        for is_tls in False, True:
            with self.subTest(is_tls=is_tls):
                server_words, words = self.words(is_tls)
                with interop_support.Server(*server_words) as server:
                    self.judge(server.address, words)

    def test_cambium_serve(self):
        for is_tls in False, True:
            with self.subTest(is_tls=is_tls):
                server_words, words = self.words(is_tls)
                with serve_support.Server(*server_words) as server:
                    host, port = server.addresses["data"].rsplit(":", 1)
                    self.judge((host, port), words)


if __name__ == "__main__":
    unittest.main()
