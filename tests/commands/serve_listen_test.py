"""The server's listeners: TLS and its negotiation, new certificates while it runs, unix sockets, addresses."""
import contextlib
import os
import pathlib
import re
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
import unittest

from interop_support import (PATIENCE, PROGRAM, Http2, Server, hpack, make_certificate, read_all, sighup,
                             tls_context)

GET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
WAITS = b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /wait HTTP/1.0\r\n\r\n"


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.cert, cls.key = make_certificate(cls.directory)
        cls.server = cls.enterClassContext(Server("--tls-cert", cls.cert, "--tls-key", cls.key, header_timeout=1))

    def wrap(self, server=None, **more):
        context = more.pop("context", None) or tls_context(self.cert, **more)
        return context.wrap_socket((server or self.server).connect(), server_hostname="localhost")

    def ask(self, **more):
        with self.wrap(**more) as client:
            client.sendall(GET)
            return read_all(client)

    def test_http1_is_spoken_where_it_is_agreed_on_or_nothing_is(self):
        for protocols in ("http/1.1", ), ():
            with self.wrap(protocols=protocols) as client:
                self.assertEqual(client.version(), "TLSv1.3")
                self.assertEqual(client.selected_alpn_protocol(), protocols[0] if protocols else None)
                client.sendall(GET)
                self.assertTrue(read_all(client).endswith(b"hello"))

    def test_a_client_that_leaves_is_noticed_before_its_answer(self):
        def say_goodbye(client):
            client.setblocking(False)
            with contextlib.suppress(ssl.SSLError):  # the beginning of an answer may have arrived
                client.unwrap()

        class Secure(Server):
            def ask(ours, request=GET):
                with self.wrap(ours, protocols=("http/1.1", )) as client:
                    client.sendall(request)
                    return read_all(client)

        server = self.enterContext(Secure("--tls-cert", self.cert, "--tls-key", self.key))
        for request in WAITS:
            for leave in (socket.socket.close, say_goodbye):
                with self.subTest(request, leave=leave.__name__):
                    before = server.counts()
                    with self.wrap(server, protocols=("http/1.1", )) as client:
                        client.sendall(request)
                        server.await_waiting()
                        leave(client)
                    server.await_counts(broken=before["broken"] + 1)

    @unittest.skipUnless(hpack, "python3-hpack is not installed")
    def test_http2_is_preferred(self):
        with self.wrap(protocols=("http/1.1", "h2")) as connection:
            self.assertEqual(connection.selected_alpn_protocol(), "h2")
            with Http2(self.server, connection=connection) as client:
                client.send(client.request(1))
                self.assertEqual(client.answer(1)[1], b"hello")

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_curl_over_both_protocols(self):
        url = "https://localhost:%d" % self.server.address[1]
        for protocol, version in (("--http1.1", "1.1"), ("--http2", "2")):
            for path, data, size in (("/", None, 5), ("/stream?5000", None, 5000 * 1024), ("/echo", 90000 * "x", 90000)):
                words = ["curl", "-sS", protocol, "--cacert", self.cert, "--resolve", f"localhost:{url.split(':')[2]}:127.0.0.1",
                         "-w", "|%{http_version}", url + path] + (["-d", data] if data else [])
                done = subprocess.run(words, capture_output=True, timeout=PATIENCE)
                self.assertEqual(done.returncode, 0, done.stderr)
                body, _, spoken = done.stdout.rpartition(b"|")
                self.assertEqual((len(body), spoken.decode()), (size, version))

    def test_nothing_else_can_be_agreed_on(self):
        with self.assertRaises(ssl.SSLError):
            self.wrap(protocols=("spdy/3", ))
        old = tls_context(self.cert)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with self.assertRaises((ssl.SSLError, ValueError, ConnectionError)):
            self.wrap(context=old)

    def test_tls_12_has_suites_that_http2_allows(self):
        context = tls_context(self.cert)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with self.wrap(context=context) as client:
            self.assertRegex(client.cipher()[0], "^ECDHE-.*(GCM|CHACHA20)")
        context.set_ciphers("AES128-SHA:ECDHE-ECDSA-AES128-SHA")
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.wrap(context=context)

    def test_cleartext_and_noise_are_closed(self):
        for noise in GET, b"\x16\x03\x01\xff\xff" + 70000 * b"\0", b"":
            with self.server.connect() as client:
                try:
                    client.sendall(noise)
                except ConnectionError:
                    pass
                self.assertNotIn(b"hello", read_all(client))  # silence ends with the deadline of the head
        self.assertTrue(self.ask(protocols=("http/1.1", )).endswith(b"hello"))

    def test_a_client_that_leaves_without_a_word_is_no_failure(self):
        with self.wrap(protocols=("http/1.1", )) as client:
            client.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
            socket.socket.shutdown(client, socket.SHUT_WR)  # no close_notify
            self.assertEqual(read_all(client), b"")

    def test_a_client_that_ends_tls_and_waits_is_answered(self):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = tls_context(self.cert, ("http/1.1", )).wrap_bio(incoming, outgoing, server_hostname="localhost")
        with self.server.connect() as connection:
            def step(function, *arguments):
                while True:
                    try:
                        result = function(*arguments)
                        connection.sendall(outgoing.read())
                        return result
                    except ssl.SSLWantReadError:
                        connection.sendall(outgoing.read())
                        incoming.write(connection.recv(1 << 16))
            step(tls.do_handshake)
            tls.write(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
            with self.assertRaises(ssl.SSLWantReadError):
                tls.unwrap()  # close_notify
            connection.sendall(outgoing.read())
            incoming.write(connection.recv(1 << 16))
            self.assertEqual(step(tls.read, 100), b"HTTP/1.1 100 Continue\r\n\r\n")

    def test_what_is_written_in_a_turn_is_one_record(self):
        """Head, pieces and end of an answer, which the handler writes one by one."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = tls_context(self.cert, ("http/1.1", )).wrap_bio(incoming, outgoing, server_hostname="localhost")
        with self.server.connect() as connection:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    incoming.write(connection.recv(1 << 16))
            tls.write(b"GET /stream?5 HTTP/1.1\r\nHost: a\r\n\r\n")
            connection.sendall(outgoing.read())
            answer, records, raw = b"", [], b""
            while not answer.endswith(b"0\r\n\r\n"):
                raw += connection.recv(1 << 16)
                while len(raw) >= 5 and len(raw) >= 5 + int.from_bytes(raw[3:5], "big"):
                    size = 5 + int.from_bytes(raw[3:5], "big")
                    incoming.write(raw[:size])
                    raw = raw[size:]
                    try:
                        piece = tls.read(1 << 16)
                    except ssl.SSLWantReadError:  # a session ticket
                        continue
                    records.append(len(piece))
                    answer += piece
        self.assertEqual(answer.count(b"x" * 1024), 5)
        self.assertEqual(len(records), 1, records)

    def test_a_certificate_is_read_again(self):
        cert, key = self.directory / "serving.pem", self.directory / "serving.key"
        shutil.copy(self.cert, cert)
        shutil.copy(self.key, key)
        new_cert, new_key = make_certificate(self.directory, "other")
        both = self.directory / "both.pem"
        both.write_bytes(self.cert.read_bytes() + new_cert.read_bytes())
        context = tls_context(both, ("http/1.1", ))
        context.check_hostname = False

        def name(server):
            with self.wrap(server, context=context) as client:
                client.sendall(GET)
                self.assertTrue(read_all(client).endswith(b"hello"))
                return dict(part[0] for part in client.getpeercert()["subject"])["commonName"]

        with Server("--tls-cert", cert, "--tls-key", key) as server:
            self.assertEqual(name(server), "localhost")
            with self.wrap(server, context=context) as old:
                cert.write_bytes(b"damaged")
                sighup(server)
                server.wait_line("serving.pem")
                self.assertEqual(name(server), "localhost")
                shutil.copy(new_cert, cert)
                sighup(server)
                server.wait_line("serving.key")
                self.assertEqual(name(server), "localhost")
                shutil.copy(new_key, key)
                sighup(server)
                server.wait_line("read again")
                self.assertEqual(name(server), "other")
                old.sendall(GET)  # continues with its old settings
                self.assertTrue(read_all(old).endswith(b"hello"))


class Addresses(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = self.directory / "control"

    def refused(self, where, part):
        done = subprocess.run([PROGRAM, "--control", str(where)], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(part, done.stderr)

    def ask(self, path):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(str(path))
            client.sendall(GET)
            return read_all(client)

    def test_a_unix_socket_is_private_and_goes_with_its_server(self):
        with Server("--control", f"unix:{self.path}") as server:
            self.assertEqual(server.ready["control"], f"unix:{self.path}")
            self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
            self.assertTrue(self.ask(self.path).endswith(b"hello"))
        self.assertFalse(self.path.exists())

    def test_a_client_of_a_unix_socket_that_leaves_is_noticed(self):
        with Server("--control", f"unix:{self.path}") as server:
            for request in WAITS:
                before = server.counts()
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(self.path))
                    client.sendall(request)
                    server.await_waiting()
                server.await_counts(broken=before["broken"] + 1)

    def test_what_a_killed_server_left_is_replaced_and_nothing_else(self):
        with Server("--control", f"unix:{self.path}") as server:
            self.refused(f"unix:{self.path}", "another server listens there")
            self.assertTrue(self.ask(self.path).endswith(b"hello"))
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(self.path))
        left.listen()
        left.close()
        with Server("--control", f"unix:{self.path}"):
            self.assertTrue(self.ask(self.path).endswith(b"hello"))
        self.path.write_text("mine")
        self.refused(f"unix:{self.path}", "not a socket")
        self.assertEqual(self.path.read_text(), "mine")
        link = self.directory / "link"
        link.symlink_to(self.path)
        self.refused(f"unix:{link}", "not a socket")

    def test_addresses_that_are_none(self):
        for where, part in (("unix:", "1 to 107 bytes"), ("unix:" + 108 * "a", "1 to 107 bytes"), ("here", "HOST:PORT"),
                            (":80", "HOST:PORT"), ("127.0.0.1:", "a port"), ("127.0.0.1:x", "a port"),
                            ("127.0.0.1:65536", "a port"), ("127.0.0.1:-1", "a port"), ("::1:80", "HOST:PORT"),
                            ("no.such.host.invalid:80", "no such host"), ("unix:/no/such/directory/s", "bind")):
            self.refused(where, part)

    def test_an_address_that_is_taken(self):
        with Server() as server:
            self.refused("127.0.0.1:%d" % server.address[1], "Address already in use")

    def test_control_is_another_listener(self):
        with Server("--control", "127.0.0.1:0") as server:
            host, port = server.ready["control"].rsplit(":", 1)
            with socket.create_connection((host, int(port)), PATIENCE) as client:
                client.sendall(GET)
                self.assertTrue(read_all(client).endswith(b"hello"))

    def test_version_6(self):
        try:
            socket.socket(socket.AF_INET6).bind(("::1", 0))
        except OSError:
            self.skipTest("no IPv6 on this machine")
        with Server("--control", "[::1]:0") as server:
            where = re.fullmatch(r"\[::1\]:(\d+)", server.ready["control"])
            with socket.create_connection(("::1", int(where[1])), PATIENCE) as client:
                client.sendall(GET)
                self.assertTrue(read_all(client).endswith(b"hello"))


if __name__ == "__main__":
    unittest.main()
