"""serve_interop_server, the transport of the server with handlers for tests, and clients that send what they like: frames
of HTTP/2 by hand, bytes of HTTP/1.1 as they stand."""
import json
import os
import pathlib
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

try:
    import hpack
except ImportError:  # Debian's is pure Python, and does for any interpreter of version 3
    sys.path.append("/usr/lib/python3/dist-packages")
    try:
        import hpack
    except ImportError:
        hpack = None

PROGRAM = os.environ["CAMBIUM_INTEROP_SERVER"]
SANITIZED = "CAMBIUM_SANITIZED" in os.environ
PATIENCE = 120 if SANITIZED else 30  # seconds, for what comes at once where nothing is wrong
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, STREAM_CLOSED, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0, 1, 2, 5, 7, 8, 11


class Server:
    """The program until the block ends; then it must end by itself, with status 0, at SIGTERM. `limits` by name."""

    def __init__(self, *words, env=None, **limits):
        self.env = os.environ | (env or {})
        self.words = [str(word) for word in words] + [
            str(word) for key, value in limits.items() for word in (f"--limits.{key}", value)]

    def __enter__(self):
        self.process = subprocess.Popen([PROGRAM, *self.words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env=self.env)
        self.errors, self.news = [], threading.Condition()
        self.reader = threading.Thread(target=self.read_errors, daemon=True)
        self.reader.start()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("it has not started: " + self.all_errors())
        self.ready = json.loads(line)
        host, port = self.ready["listen"].rsplit(":", 1)
        self.address = (host, int(port))
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()
        if not kind:
            assert status == 0, f"it ended with {status}: " + self.all_errors()

    def read_errors(self):
        for line in self.process.stderr:
            with self.news:
                self.errors.append(line.decode(errors="replace"))
                self.news.notify_all()

    def all_errors(self):
        self.reader.join(PATIENCE)
        return "".join(self.errors)

    def wait_line(self, part, number=1):
        """Waits until `count` lines of standard error contain the part."""
        with self.news:
            assert self.news.wait_for(lambda: sum(part in line for line in self.errors) >= number, PATIENCE), self.errors

    def connect(self):
        connection = socket.create_connection(self.address, PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def ask(self, request=b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"):
        """All that comes back for these bytes, until the server closes."""
        with self.connect() as connection:
            connection.sendall(request)
            return read_all(connection)

    def await_waiting(self, number=1):
        """Waits until this number of exchanges is open, beside the one that asks."""
        end = time.monotonic() + PATIENCE
        while (counts := self.counts())["begun"] - counts["whole"] - counts["broken"] != number + 1:
            assert time.monotonic() < end, counts
            time.sleep(0.001)

    def counts(self):
        answer = self.ask(b"GET /counts HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    def await_counts(self, **wanted):
        """Waits until the handlers have been called this often."""
        end = time.monotonic() + PATIENCE
        while not all(self.counts()[name] == value for name, value in wanted.items()):
            assert time.monotonic() < end, f"{self.counts()}, not {wanted}"
            time.sleep(0.01)

    def resident(self):
        """Bytes."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def read_all(connection):
    """To the end, which may be a reset where the client has sent more than was read."""
    pieces = []
    try:
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def read_until(connection, mark):
    text = b""
    while mark not in text:
        piece = connection.recv(1 << 16)
        assert piece, f"the end came before {mark!r}: {text!r}"
        text += piece
    return text


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def head_frames(stream, block, flags=END_STREAM, most=16384):
    """HEADERS, and CONTINUATION where it is long."""
    pieces = [block[at:at + most] for at in range(0, len(block), most)]
    last = len(pieces) - 1
    return b"".join(frame(CONTINUATION if i else HEADERS, (0 if i else flags) | (END_HEADERS if i == last else 0), stream, one)
                    for i, one in enumerate(pieces))


def window_update(stream, more):
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", more))


def settings(**values):
    numbers = {"table": 1, "push": 2, "streams": 3, "window": 4, "frame": 5, "list": 6}
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", numbers[name], value) for name, value in values.items()))


class Gone(Exception):
    """The server has closed."""


class Http2:
    """A connection of HTTP/2 in which nothing happens by itself, but for the acknowledgement of settings."""

    def __init__(self, server, first=settings(), connection=None):
        self.socket = connection or server.connect()
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.encoder.header_table_size = 0  # so that blocks can be repeated
        self.input = b""
        self.authority = "%s:%d" % server.address
        self.send(PREFACE + first)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except ConnectionError:
            raise Gone from None

    def block(self, path="/", method="GET", fields=()):
        return self.encoder.encode([(":method", method), (":scheme", "http"), (":path", path),
                                    (":authority", self.authority), *fields], huffman=False)

    def request(self, stream, path="/", method="GET", fields=(), end=True):
        return head_frames(stream, self.block(path, method, fields), END_STREAM if end else 0)

    def take(self, size):
        while len(self.input) < size:
            try:
                piece = self.socket.recv(1 << 16)
            except ConnectionError:
                piece = b""
            if not piece:
                raise Gone
            self.input += piece
        taken, self.input = self.input[:size], self.input[size:]
        return taken

    def read(self):
        """(type, flags, stream, payload) of the next frame; that of HEADERS is a list of fields."""
        head = self.take(9)
        kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0]
        payload = self.take(int.from_bytes(head[:3], "big"))
        if kind == SETTINGS and not flags & ACK:
            try:
                self.socket.sendall(frame(SETTINGS, ACK, 0))
            except ConnectionError:
                pass
        if kind == HEADERS:
            payload = self.decoder.decode(payload)
        return kind, flags, stream, payload

    def read_kind(self, *kinds):
        while True:
            one = self.read()
            if one[0] in kinds:
                return one

    def answer(self, stream):
        """(fields of the head, body, fields of the trailer or None, error of RST_STREAM or None) of a stream."""
        head = trailer = None
        body = b""
        while True:
            kind, flags, number, payload = self.read_kind(HEADERS, DATA, RST_STREAM, GOAWAY)
            if kind == GOAWAY and struct.unpack(">I", payload[4:8])[0]:
                raise Gone
            if number != stream:
                continue
            if kind == RST_STREAM:
                return head, body, trailer, struct.unpack(">I", payload)[0]
            if kind == HEADERS and head is None:
                head = dict(payload)
            elif kind == HEADERS:
                trailer = dict(payload)
            else:
                body += payload
            if flags & END_STREAM:
                return head, body, trailer, None

    def goodbye(self):
        """(last stream, error, text) of GOAWAY, after which the server closes."""
        payload = self.read_kind(GOAWAY)[3]
        return *struct.unpack(">II", payload[:8]), payload[8:].decode()

    def read_to_end(self):
        """All frames up to the close."""
        frames = []
        try:
            while True:
                frames.append(self.read())
        except Gone:
            return frames


def make_certificate(directory, name="localhost"):
    """A certificate that nobody has signed, and its key; their paths."""
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", key, "-out", cert, "-days", "2", "-subj", f"/CN={name}",
                    "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


def tls_context(cert, protocols=("h2", "http/1.1")):
    context = ssl.create_default_context(cafile=cert)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def sighup(server):
    server.process.send_signal(signal.SIGHUP)
