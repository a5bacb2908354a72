"""The interop cases of gRPC: Debian's ruby client, and grpcio, against the server's gRPC under a test service (tests/serve)."""
import glob
import json
import os
import shutil
import subprocess
import unittest

from serve_grpc_support import field, fields, grpc, needs_grpcio

CLIENT = next(iter(glob.glob("/usr/lib/*/rubygems-integration/*/gems/grpc-*/src/ruby/pb/test/client.rb")), None)
HAS_CLIENT = CLIENT and shutil.which("ruby") and subprocess.run(
    ["ruby", "-e", "require 'grpc'; require 'googleauth'"], capture_output=True).returncode == 0
CASES = """empty_unary large_unary client_streaming server_streaming ping_pong empty_stream cancel_after_begin
cancel_after_first_response timeout_on_sleeping_server custom_metadata status_code_and_message unimplemented_method
unimplemented_service""".split()
STATUS_TEXT = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP \U0001f608\t\n"


class Interop(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.process = subprocess.Popen([os.environ["CAMBIUM_INTEROP_SERVER"], "--port", "0"], stdout=subprocess.PIPE)
        cls.address = json.loads(cls.process.stdout.readline())["listen"]

    @classmethod
    def tearDownClass(cls):
        cls.process.terminate()
        status = cls.process.wait(60)
        cls.process.stdout.close()
        assert status == 0, status

    @unittest.skipUnless(HAS_CLIENT, "there is no ruby-grpc with its googleauth")
    def test_every_case_of_the_ruby_client(self):
        host, port = self.address.rsplit(":", 1)
        for case in CASES:
            with self.subTest(case):
                done = subprocess.run(["ruby", CLIENT, f"--server_host={host}", f"--server_port={port}",
                                       f"--test_case={case}"], capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stderr[-2000:])
                self.assertIn(f"OK: {case}", done.stdout)

    @needs_grpcio
    def test_special_status_message(self):
        request = field(7, b"\x08\x02" + field(2, STATUS_TEXT.encode()))
        with grpc.insecure_channel(self.address) as channel:
            with self.assertRaises(grpc.RpcError) as caught:
                channel.unary_unary("/grpc.testing.TestService/UnaryCall")(request, timeout=60)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNKNOWN)
        self.assertEqual(caught.exception.details(), STATUS_TEXT)

    @needs_grpcio
    def test_a_thousand_large_calls_at_once(self):
        request = b"\x10" + b"\xaf\x96\x13" + field(3, field(2, bytes(271828)))  # response_size 314159
        with grpc.insecure_channel(self.address) as channel:
            call = channel.unary_unary("/grpc.testing.TestService/UnaryCall")
            for batch in range(10):
                for answer in [call.future(request, timeout=60) for _ in range(100)]:
                    (number, payload), = fields(answer.result())
                    self.assertEqual(len(dict(fields(payload))[2]), 314159)

    @needs_grpcio
    def test_an_output_that_is_read_late_comes_whole(self):
        sizes = [100000] * 30
        request = b"".join(field(2, b"\x08\xa0\x8d\x06") for _ in sizes)
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        with grpc.insecure_channel(self.address, options) as channel:
            answers = channel.unary_stream("/grpc.testing.TestService/StreamingOutputCall")(request, timeout=60)
            other = channel.unary_unary("/grpc.testing.TestService/EmptyCall")
            self.assertEqual(other(b"", timeout=60), b"")  # meanwhile
            self.assertEqual([len(dict(fields(dict(fields(answer))[1]))[2]) for answer in answers], sizes)


if __name__ == "__main__":
    unittest.main()
