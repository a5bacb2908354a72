"""Traces. A request's span is in its answer and its log line, and goes to a collector in OTLP's JSON. A collector that
is slow, broken or absent costs nothing but a count."""
import contextlib
import http.server
import json
import pathlib
import re
import signal
import socket
import tempfile
import threading
import time
import unittest

from model_support import TINY
from serve_grpc_support import grpc, needs_grpcio
from serve_support import PATIENCE, Server, write_prompt

WIDTH = json.loads((TINY / "config.json").read_text())["n_embd"]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector(http.server.ThreadingHTTPServer):
    """A collector that keeps its input in `posts`. `answer` makes (status, body), or returns None and answers nothing."""
    daemon_threads = True

    def __init__(self, answer=lambda: (200, {})):
        self.posts, self.answer, self.news = [], answer, threading.Condition()
        super().__init__(("127.0.0.1", 0), Asked)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self, count):
        """All that came, once they are `count`."""
        find = lambda: [span for _, _, body in self.posts for group in body["resourceSpans"] for scope in group["scopeSpans"]
                        for span in scope["spans"]]
        with self.news:
            assert self.news.wait_for(lambda: len(find()) >= count, PATIENCE), find()
            return find()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Asked(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.news:
            self.server.posts.append((self.path, dict(self.headers), body))
            self.server.news.notify_all()
        answer = self.server.answer()
        if answer is None:
            return
        self.send_response(answer[0])
        text = json.dumps(answer[1]).encode()
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def attributes(span):
    def plain(value):
        (kind, inner), = value.items()
        return int(inner) if kind == "intValue" else [plain(item) for item in inner["values"]] if kind == "arrayValue" else inner
    names = [item["key"] for item in span["attributes"]]
    assert len(set(names)) == len(names), names
    return {item["key"]: plain(item["value"]) for item in span["attributes"]}


class Context(unittest.TestCase):
    def test_answers_and_logs_carry_the_servers_span(self):
        with Server() as server:
            headers = {"traceparent": TRACEPARENT, "tracestate": "a=1,b=2", "x-request-id": "with-trace"}
            answer = server.ask("POST", "/v1/completions", {"prompt": [1, 2], "max_tokens": 2}, headers=headers)
            trace, span = re.fullmatch("00-([0-9a-f]{32})-([0-9a-f]{16})-01", answer.headers["traceparent"]).groups()
            self.assertEqual((trace, answer.headers["tracestate"]), (TRACE, "a=1,b=2"))
            self.assertNotEqual(span, PARENT)
            self.assertIn(f"trace_id={TRACE} span_id={span}", server.wait_line("id=with-trace"))
            other = server.ask("GET", "/v1/none", headers={"traceparent": "00-" + "0" * 32 + "-" + PARENT + "-01", "tracestate": "a=1"})
            self.assertRegex(other.headers["traceparent"], "^00-(?!0{32})[0-9a-f]{32}-[0-9a-f]{16}-00$")
            self.assertNotIn("tracestate", other.headers)
            self.assertNotEqual(other.headers["traceparent"], server.ask("GET", "/health").headers["traceparent"])

    @needs_grpcio
    def test_metadata_of_grpc_carries_it(self):
        with Collector() as collector, Server("--otlp-endpoint", collector.url) as server, \
                grpc.insecure_channel(server.addresses["data"]) as channel:
            request = b"\x22\x04\x0a\x02\x01\x02" + b"\x30\x03" + b"\x50\x01"  # tokens 1 and 2, max_tokens 3, ignore_eos
            call = channel.unary_unary("/cambium.v1.Cambium/GenerateOnce")
            _, state = call.with_call(request, metadata=(("traceparent", TRACEPARENT), ("tracestate", "a=1")), timeout=PATIENCE)
            found = dict(state.initial_metadata())
            self.assertRegex(found["traceparent"], f"^00-{TRACE}-[0-9a-f]{{16}}-01$")
            self.assertEqual(found["tracestate"], "a=1")
            with self.assertRaises(grpc.RpcError):
                channel.unary_unary("/cambium.v1.Cambium/None")(b"", metadata=(("traceparent", TRACEPARENT),), timeout=PATIENCE)
            good, bad = sorted(collector.spans(2), key=lambda span: int(span["startTimeUnixNano"]))
            told = attributes(good)
            self.assertEqual(told | {"rpc.system": "grpc", "rpc.service": "cambium.v1.Cambium", "rpc.method": "GenerateOnce",
                                     "rpc.grpc.status_code": 0, "gen_ai.operation.name": "text_completion",
                                     "gen_ai.usage.output_tokens": 3, "gen_ai.request.max_tokens": 3,
                                     "gen_ai.response.finish_reasons": ["length"]}, told)
            told = attributes(bad)
            self.assertEqual((told["rpc.grpc.status_code"], told["error.type"], bad["name"]), (12, "route_not_found", "cambium.v1.Cambium/None"))


class Spans(unittest.TestCase):
    def test_a_request_is_a_span_with_the_names_of_gen_ai(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory, Collector() as collector:
            write_prompt(pathlib.Path(directory) / "verse", 1, width=WIDTH)
            with Server("--otlp-endpoint", collector.url, "--adapter-root", directory, "--chat-template", "plain") as server:
                before = time.time_ns()
                body = {"model": "verse", "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0.5, "top_p": 0.75, "n": 2, "ignore_eos": True}
                answer = server.ask("POST", "/v1/completions", body, headers={"traceparent": TRACEPARENT, "tracestate": "a=1"})
                server.ask("POST", "/v1/completions", {"model": "none", "prompt": [1]})
                server.ask("GET", "/health")
                server.ask("GET", "/v1/models")
                server.ask("POST", "/v1/completions", {"prompt": [1], "max_tokens": 1}, headers={"traceparent": TRACEPARENT[:-1] + "0"})
                after = time.time_ns()
                text, refused, models = sorted(collector.spans(3), key=lambda span: int(span["startTimeUnixNano"]))
                server.await_metric('cambium:otlp_spans_total{result="sent"}', 3)  # neither the probe nor what was not sampled
                self.assertEqual(server.metrics()['cambium:otlp_spans_total{result="dropped"}'], 0)
        self.assertEqual((text["traceId"], text["parentSpanId"], text["traceState"], text["kind"]), (TRACE, PARENT, "a=1", 2))
        self.assertEqual(text["spanId"], answer.headers["traceparent"].split("-")[2])
        self.assertEqual((text["name"], text["flags"]), ("text_completion verse", 0x301))
        self.assertLessEqual(before, int(text["startTimeUnixNano"]) + 10**6)
        self.assertLess(int(text["startTimeUnixNano"]), int(text["endTimeUnixNano"]))
        self.assertLessEqual(int(text["endTimeUnixNano"]), after + 10**6)
        told = attributes(text)
        self.assertEqual(told | {
            "http.request.method": "POST", "url.path": "/v1/completions", "http.route": "/completions", "http.response.status_code": 200,
            "url.scheme": "http", "network.protocol.version": "1.1", "client.address": "127.0.0.1",
            "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "cambium", "gen_ai.request.model": "verse",
            "gen_ai.response.model": "verse", "gen_ai.request.max_tokens": 4, "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 0.75, "gen_ai.request.choice.count": 2, "gen_ai.usage.input_tokens": 3,
            "gen_ai.usage.output_tokens": 8, "gen_ai.response.finish_reasons": ["length", "length"], "cambium.adapters": ["verse"],
            "cambium.request.id": answer.headers["x-request-id"]}, told)
        self.assertGreater(told["gen_ai.server.time_to_first_token"], told["gen_ai.latency.time_in_queue"])
        self.assertNotIn("status", text)
        told = attributes(refused)
        self.assertEqual((told["http.response.status_code"], told["error.type"], told["gen_ai.operation.name"]), (404, "model_not_found", "text_completion"))
        self.assertNotIn("parentSpanId", refused)
        self.assertEqual(models["name"], "GET /models")
        path, headers, body = collector.posts[0]
        self.assertEqual((path, headers["content-type"]), ("/v1/traces", "application/json"))
        self.assertEqual(body["resourceSpans"][0]["resource"]["attributes"][0], {"key": "service.name", "value": {"stringValue": "cambium"}})

    def test_what_waits_is_sent_at_the_end(self):
        with Collector() as collector, Server("--otlp-endpoint", collector.url) as server:
            server.complete([1, 2], max_tokens=1)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(len(collector.spans(1)), 1)

    def test_rejected_spans_are_dropped_ones(self):
        answers = iter([(200, {"partialSuccess": {"rejectedSpans": "1", "errorMessage": "x"}}), (400, {})])
        with Collector(lambda: next(answers)) as collector, Server("--otlp-endpoint", collector.url) as server:
            for dropped in (1, 2):
                server.complete([1, 2], max_tokens=1)
                server.await_metric('cambium:otlp_spans_total{result="dropped"}', dropped)
            self.assertEqual((server.metrics()['cambium:otlp_spans_total{result="sent"}'], len(collector.posts)), (0, 2))

    def test_an_overloaded_collector_is_asked_again(self):
        answers = iter([(503, {}), (200, {})])
        with Collector(lambda: next(answers)) as collector, Server("--otlp-endpoint", collector.url) as server:
            server.complete([1, 2], max_tokens=1)
            server.await_metric('cambium:otlp_spans_total{result="sent"}', 1)
            self.assertEqual(len(collector.posts), 2)

    def test_wrong_endpoints_are_refused_by_name(self):
        with self.assertRaisesRegex(AssertionError, "ended with 2:(.|\n)*--otlp-endpoint https://c: https is not spoken"):
            Server("--otlp-endpoint", "https://c")


class Absent(unittest.TestCase):
    """Requests do not wait for the collector: each is answered although the one that is named never answers."""

    def check(self, url, expects_drops=True):
        with Server("--otlp-endpoint", url) as server:
            for _ in range(20):
                server.complete([1, 2], max_tokens=1)
            now = server.metrics()
            self.assertEqual(now['cambium:otlp_spans_total{result="sent"}'], 0)
            if expects_drops:
                server.await_metric('cambium:otlp_spans_total{result="dropped"}', 20)
            begin = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - begin, PATIENCE / 2)
            self.assertNotIn("otlp", "\n".join(server.lines).replace("--otlp", ""))

    def test_nobody_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        self.check(f"http://127.0.0.1:{port}")

    def test_the_name_has_no_address(self):
        self.check("http://collector.invalid:4318")

    def test_it_accepts_and_says_nothing(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.check(f"http://127.0.0.1:{silent.getsockname()[1]}", expects_drops=False)

    def test_it_resets_every_connection(self):
        def reset(listener):
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                    connection.close()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=reset, args=(listener,), daemon=True).start()
            self.check(f"http://127.0.0.1:{listener.getsockname()[1]}")
            listener.shutdown(socket.SHUT_RDWR)

    def test_the_queue_has_an_end(self):
        """With a collector that accepts and says nothing, what does not fit into the queue is dropped at once."""
        with socket.create_server(("127.0.0.1", 0)) as silent, \
                Server("--otlp-endpoint", f"http://127.0.0.1:{silent.getsockname()[1]}", "--limits.requests_per_connection", 100000) as server, \
                contextlib.closing(server.connect()) as connection:
            for _ in range(3000):
                server.send(connection, "GET", "/v1/version", None, None, None).read()
            self.assertGreaterEqual(server.metrics()['cambium:otlp_spans_total{result="dropped"}'], 3000 - 2048 - 512)
            server.signal(signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
