"""bench serve: what its lines say of a server that it starts, of one that runs, and of one that is not ours. Nothing here
is a bar for speed."""
import contextlib
import http.server
import json
import os
import shutil
import statistics
import tempfile
import threading
import unittest

from model_support import TINY, rows, run, write_reciting_model
from serve_support import Server, write_prompt

# 128, 128, 512 and 16 of 1,024 positions, as shares of the 64 that the tiny model has.
IN, OUT, SHARED, OWN = 8, 8, 32, 1
COUNTS = ["completed", "failed", "num_prompts", "max_concurrency", "total_input_tokens", "total_output_tokens"]
RATES = ["duration", "request_throughput", "output_throughput", "total_token_throughput", "client_cpu_seconds"]
TIMES = [f"{kind}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for kind in ("mean", "median", "std", "p99")]


class BenchServe(unittest.TestCase):
    def bench(self, *words, expect=0, env=None):
        """Lines and summary; what is written for the run goes with it."""
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as scratch:
            own = [] if "--url" in words else ["--threads", 1]
            output, errors = run("bench", "serve", *own, *words, expect=expect,
                                 env=dict(os.environ, TMPDIR=scratch) | (env or {}))
            self.assertEqual(os.listdir(scratch), [])
        if expect:
            return errors
        self.assertEqual(errors, "")
        *lines, summary = rows(output)
        self.assertEqual((summary["bench"], summary["backend"]), ("serve", "grpc" if "grpc" in words else "http"))
        for key in [*COUNTS, *RATES, *TIMES]:
            self.assertGreaterEqual(summary[key], 0, key)
        return lines, summary

    def check_ratio(self, lines, summary, name, is_speed=True):
        ratios = [line["baseline_seconds"] / line["seconds"] for line in lines]
        ratios = ratios if is_speed else [1 / ratio for ratio in ratios]
        self.assertAlmostEqual(summary[name] / statistics.median(ratios), 1, delta=1e-4)
        low, high = summary["quartiles"]
        self.assertTrue(low <= summary[name] <= high, summary)

    def check_texts(self, summary, count, prompt=IN, text=OUT):
        self.assertEqual((summary["completed"], summary["num_prompts"], summary["failed"]), (count, count, 0))
        self.assertEqual((summary["total_input_tokens"], summary["total_output_tokens"]), (count * prompt, count * text))
        self.assertAlmostEqual(summary["output_throughput"] * summary["duration"] / (count * text), 1, delta=1e-4)
        self.assertAlmostEqual(summary["request_throughput"] * summary["duration"] / count, 1, delta=1e-4)
        for name in ("ttft", "e2el"):
            self.assertGreater(summary[f"median_{name}_ms"], 0)
            self.assertLessEqual(summary[f"median_{name}_ms"], summary[f"p99_{name}_ms"])

    def check_memory(self, summary):
        self.assertGreater(summary["peak_rss_bytes"], 1 << 20)
        self.assertGreater(summary["planned_bytes"], 512 << 20)  # for adapters alone

    # ---- servers that it starts

    def test_streams_beside_bare_steps(self):
        for protocol in ("http", "grpc"):
            lines, summary = self.bench("--model", TINY, "--protocol", protocol, "--streams", 3, "--requests", 7)
            self.check_texts(summary, 9)  # whole rounds
            self.assertEqual((len(lines), summary["max_concurrency"]), (3, 3))
            self.check_ratio(lines, summary, "ratio")
            bare = statistics.median(line["baseline_seconds"] for line in lines)
            self.assertAlmostEqual(summary["engine_output_throughput"] * bare / (3 * OUT), 1, delta=1e-4)
            self.check_memory(summary)

    def test_lengths_and_the_servers_own_options(self):
        lines, summary = self.bench("--model", TINY, "--streams", 2, "--requests", 2, "--input-len", 5, "--output-len", 11,
                                    "--ranks", 2, "--parallel.tensor_model_parallel_size=2", "--prefix-cache", "off")
        self.check_texts(summary, 2, 5, 11)
        self.assertNotIn("ratio", summary)  # bare steps are those of one rank
        self.check_memory(summary)

    def test_texts_of_any_characters(self):
        with tempfile.TemporaryDirectory() as directory:
            write_reciting_model(directory, b"\0\"\n\\" * 16)
            for last in range(5, 9):  # each of them once the last
                _, summary = self.bench("--model", directory, "--streams", 2, "--requests", 2, "--input-len", 4, "--output-len", last)
                self.check_texts(summary, 2, 4, last)

    def test_a_shared_beginning(self):
        lines, summary = self.bench("--model", TINY, "--scenario", "prefix", "--requests", 6)
        self.check_texts(summary, 6, SHARED + OWN, 1)
        self.assertEqual(len(lines), 3)
        self.check_ratio(lines, summary, "ttft_cached_over_uncached", is_speed=False)
        _, summary = self.bench("--model", TINY, "--scenario", "prefix", "--requests", 2, "--shared-prefix", 40,
                                "--input-len", 3)
        self.check_texts(summary, 2, 43, 1)

    def test_prompts_that_come_in(self):
        for protocol in ("http", "grpc"):
            _, summary = self.bench("--model", TINY, "--scenario", "long-prompt", "--streams", 3, "--requests", 4,
                                    "--protocol", protocol)
            for key in ("gap_p99_over_median", "ttft_over_alone", "ttft_alone_ms", "busy_p99_gap_ms", "quiet_p99_gap_ms"):
                self.assertGreater(summary[key], 0, key)
            self.assertGreaterEqual(summary["completed"], 4)

    def test_adapters_that_are_replaced(self):
        for words, adapters in ((["--adapters", 3, "--method", "lora"], 3), (["--protocol", "grpc"], 8)):
            _, summary = self.bench("--model", TINY, "--scenario", "swap", "--streams", 2, "--requests", 5, *words)
            self.assertGreaterEqual(summary["swaps"], 5)
            self.assertEqual(summary["adapters"], adapters)
            for key in ("gap_p99_over_quiet", "swap_ms"):
                self.assertGreater(summary[key], 0, key)

    def test_a_bank(self):
        lines, summary = self.bench("--model", TINY, "--scenario", "bank", "--streams", 4, "--adapters", 10,
                                    "--method", "lora", "--peft.r=2", "--requests", 8)
        self.check_texts(summary, 8)  # those on adapters; the base is what they are compared with
        self.check_ratio(lines, summary, "bank_over_none")
        self.assertEqual((summary["adapters"], len(lines)), (10, 2))
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            for tokens in (1, 3):
                write_prompt(f"{directory}/{tokens}", tokens, width=32)
            _, summary = self.bench("--model", TINY, "--scenario", "bank", "--streams", 2, "--requests", 2,
                                    "--adapters", f"{directory}/1", f"{directory}/3")
        self.assertEqual(summary["adapters"], 2)

    def test_two_stages(self):
        lines, summary = self.bench("--model", TINY, "--scenario", "pipeline", "--streams", 2, "--requests", 4)
        self.check_texts(summary, 4)
        self.check_ratio(lines, summary, "in_flight_gain")

    def test_nothing_to_do(self):
        _, summary = self.bench("--model", TINY, "--scenario", "idle", "--seconds", 0.2, "--ranks", 2,
                                "--parallel.tensor_model_parallel_size=2")
        self.assertEqual(len(summary["idle_cpu_share"]), 2)
        self.assertTrue(all(0 <= share for share in summary["idle_cpu_share"]))

    @unittest.skipUnless(shutil.which("h2load") and shutil.which("nghttpd"), "h2load or nghttpd is not installed")
    def test_health(self):
        lines, summary = self.bench("--model", TINY, "--scenario", "health", "--requests", 200)
        self.check_ratio(lines, summary, "calls_over_nghttpd")
        self.assertGreater(summary["calls_per_s"], 0)

    def test_programs_that_are_not_there_are_named(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as empty:
            _, summary = self.bench("--model", TINY, "--scenario", "health", "--requests", 200, env={"PATH": empty})
            self.assertEqual(summary["absent"], "nghttpd")
            self.assertNotIn("calls_over_nghttpd", summary)

    # ---- servers that run

    def test_a_server_that_runs(self):
        with Server() as server:
            url = f"http://{server.ready['listen']}"
            for words in ([], ["--protocol", "grpc"]):
                lines, summary = self.bench("--url", url, "--model", TINY, "--streams", 2, "--requests", 4, *words)
                self.check_texts(summary, 4)
                self.assertEqual(lines, [])
                self.assertNotIn("ratio", summary)
                self.assertNotIn("peak_rss_bytes", summary)
            _, summary = self.bench("--url", url, "--model", TINY, "--scenario", "prefix", "--requests", 2)
            self.check_texts(summary, 2, SHARED + OWN, 1)
            errors = self.bench("--url", url, "--model", TINY, "--scenario", "bank", "--adapters", "nobody", expect=1)
            self.assertIn('there is no model "nobody"', errors)
            errors = self.bench("--url", url, "--model", TINY, "--scenario", "bank", "--adapters", "nobody", "--protocol",
                                "grpc", expect=1)
            self.assertIn("gRPC status 5", errors)
            asked = sum(value for name, value in server.metrics().items()
                        if name.startswith("vllm:request_success_total") and 'finished_reason="length"' in name)
        self.assertEqual(asked, 2 * (2 + 4) + 1 + 2)  # with the rounds that warm up

    def test_servers_of_others(self):
        for style in ("close", "length", "pieces", "leaves"):  # leaves: closes what it kept, without a word
            with other(style) as (url, asked):
                _, summary = self.bench("--url", url, "--model", TINY, "--streams", 2, "--requests", 2)
                self.check_texts(summary, 2, text=3)
            self.assertEqual(len(asked), 4)
            for body in asked:
                self.assertEqual((len(body["prompt"]), body["max_tokens"], body["stream"]), (IN, OUT, True))
        for style, part in (("broken", "the stream ended before its end"), ("refused", "status 503: too busy"),
                            ("in-stream", "it went wrong")):
            with other(style) as (url, _):
                self.assertIn(part, self.bench("--url", url, "--model", TINY, "--streams", 1, expect=1))

    def test_what_cannot_be_measured(self):
        for words, part, status in (
                (["--model", TINY, "--input-len", 64], "leave no room", 2),
                (["--model", TINY, "--url", "http://127.0.0.1:1", "--max-batch-size", 4], "--max-batch-size", 2),
                (["--url", "http://127.0.0.1:1", "--scenario", "swap"], "--url asks one that runs", 2),
                (["--url", "https://127.0.0.1:1"], "only http://", 2), (["--url", "nowhere"], "http://HOST:PORT", 2),
                (["--url", "http://127.0.0.1:1"], "cannot connect", 1),
                (["--url", "http://127.0.0.1:1", "--protocol", "grpc"], "cannot connect", 1),
                (["--model", TINY, "--scenario", "bank", "--adapters", 0], "1 to", 2),
                (["--model", TINY, "--scenario", "naught"], "naught", 2),
                (["--model", TINY, "--streamz", 4], "--streamz", 2),
                (["--model", "/nowhere"], "/nowhere", 1)):
            self.assertIn(part, self.bench(*words, expect=status))


EVENTS = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("a", "\u00e9", "c")]
EVENTS += [{"choices": [{"index": 0, "text": "", "finish_reason": "length"}]},
           {"choices": [], "usage": {"prompt_tokens": IN, "completion_tokens": 3}}]


@contextlib.contextmanager
def other(style):
    """A server that streams three tokens whatever it is asked, each style in its own way; what it was asked."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            if style == "refused":
                body = b'{"error": {"message": "too busy"}}'
                self.send_response(503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            events = [*EVENTS[:2], {"error": {"message": "it went wrong"}}] if style == "in-stream" else EVENTS
            ending = "" if style == "broken" else "data: [DONE]\n\n"
            body = ("".join(f"data: {json.dumps(e, ensure_ascii=False)}\n\n" for e in events) + ending).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.close_connection = style != "pieces"
            if style in ("pieces", "leaves"):
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for i in range(0, len(body), 7):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7]))
                self.wfile.write(b"0\r\n\r\n")
                return
            if style == "length":
                self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    unittest.main()
