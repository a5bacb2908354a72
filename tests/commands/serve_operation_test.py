"""Features that an operator relies on: keys on every listener, reloaded files, drain, readiness, limits of time and
queue, logs, and exact counts."""
import contextlib
import json
import pathlib
import shutil
import signal
import ssl
import subprocess
import tempfile
import unittest

from model_support import write_byte_model
from serve_grpc_support import grpc, needs_grpcio
from serve_support import PATIENCE, Server, Stream, read_metrics, write_prompt

AT_ONCE = 3

LONG = 16000  # tokens, seconds of work for the model below
ROUTES = [("POST", path) for path in ("/v1/completions", "/v1/chat/completions", "/completions", "/tokenize", "/detokenize")] + \
         [("GET", path) for path in ("/v1/models", "/models", "/v1/models/x", "/tokenizer_info", "/version", "/metrics")]
CONTROL_ROUTES = ROUTES + [("GET", "/v1/adapters"), ("POST", "/v1/adapters"), ("PUT", "/v1/adapters/x"), ("DELETE", "/v1/adapters/x"),
                           ("POST", "/v1/drain"), ("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter")]
PUBLIC = ("/", "/health", "/ready")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
DATA_CALLS = [f"/cambium.v1.Cambium/{name}" for name in ("Generate", "GenerateOnce", "Score", "Tokenize", "Detokenize", "ServerInfo", "None")] + \
             ["/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/none/None"]
CONTROL_CALLS = DATA_CALLS + [f"/cambium.v1.Control/{name}" for name in ("LoadAdapter", "ReplaceAdapter", "UnloadAdapter", "ListAdapters", "Drain")]


class Operation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.root = pathlib.Path(cls.temporary.name)
        cls.long = cls.root / "long"
        write_byte_model(cls.long, n_layer=2, n_head=2, n_embd=32, n_positions=LONG + 100)

    def write(self, name, text):
        path = self.root / name
        path.write_text(text)
        return path

    def begin(self, server, tokens=LONG, **more):
        """A stream that has begun, and lasts for long."""
        stream = server.stream("/v1/completions", {"prompt": "a", "max_tokens": tokens, "ignore_eos": True} | more)
        self.assertEqual(stream.status, 200)
        next(stream)
        return stream


class Keys(Operation):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        words = ("--api-key-file", cls.write(cls, "keys", "alice sk-alice\nbob sk-bob 2\n"),
                 "--control-key-file", cls.write(cls, "control-keys", "admin sk-admin\n"), "--metrics-on-data")
        cls.server = cls.enterClassContext(Server(*words))

    def test_every_route_and_method_wants_a_key_of_its_listener(self):
        for listener, routes, good, wrong in (("data", ROUTES, "sk-alice", "sk-admin"), ("control", CONTROL_ROUTES, "sk-admin", "sk-alice")):
            with contextlib.closing(self.server.connect(listener)) as connection:
                for path in {path for _, path in routes} | {"/none", "//", "/v1", "/v1/", "/.", "/%2e", "/models/../version", "/READY"}:
                    for method in METHODS:
                        for key in (None, "", wrong, "sk-alic", "sk-alice sk-admin"):
                            response = self.server.send(connection, method, path, {} if method in ("POST", "PUT") else None, key, None)
                            response.read()
                            self.assertEqual(response.status, 401, (listener, method, path, key))
                for method, path in routes:
                    if path == "/v1/drain":
                        continue  # it would be one
                    response = self.server.send(connection, method, path, {} if method in ("POST", "PUT") else None, good, None)
                    response.read()
                    self.assertNotEqual(response.status, 401, (listener, method, path))

    def test_health_readiness_and_the_page_want_none(self):
        for listener in ("data", "control"):
            for path in PUBLIC:
                self.assertEqual(self.server.ask("GET", path, listener=listener).status, 200, path)

    def test_a_refusal_says_what_is_wanted(self):
        answer = self.server.ask("GET", "/v1/models", key="sk-none")
        self.assertEqual((answer.code, answer.json["error"]["type"], answer.headers["www-authenticate"]), ("invalid_api_key", "authentication_error", "Bearer"))
        self.assertNotIn(b"sk-none", answer.body)

    @needs_grpcio
    def test_every_call_of_grpc_wants_a_key_of_its_listener(self):
        for listener, calls, good, wrong in (("data", DATA_CALLS, "sk-bob", "sk-admin"), ("control", CONTROL_CALLS, "sk-admin", "sk-bob")):
            with grpc.insecure_channel(self.server.addresses[listener]) as channel:
                for path in calls:
                    call = channel.unary_unary(path)
                    for metadata in ((), (("authorization", "Bearer"),), (("authorization", "Bearer " + wrong),)):
                        with self.assertRaises(grpc.RpcError) as raised:
                            call(b"", metadata=metadata, timeout=PATIENCE)
                        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED, (listener, path, metadata))
                info = channel.unary_unary("/cambium.v1.Cambium/ServerInfo")
                self.assertTrue(info(b"", metadata=(("authorization", "Bearer " + good),), timeout=PATIENCE))
                health = channel.unary_unary("/grpc.health.v1.Health/Check")
                self.assertEqual(health(b"", timeout=PATIENCE), b"\x08\x01")

    def test_keys_are_in_no_log(self):
        self.server.ask("GET", "/v1/models?key=sk-alice", key="sk-nobody")
        self.server.ask("GET", "/v1/models", key="sk-alice", headers={"x-request-id": "the-last-of-keys"})
        self.server.wait_line("the-last-of-keys")
        self.assertNotRegex("\n".join(self.server.lines), "sk-")
        self.assertRegex(self.server.wait_line("the-last-of-keys"), "client=alice")


class MetricsKeys(Operation):
    """/metrics on the data listener: with the keys of the rest, with its own, or without any."""
    SCRAPER, CLIENT, ADMIN = "sk-scraper", "sk-client", "sk-admin"

    def statuses(self, server, listener="data", path="/metrics"):
        return [server.ask("GET", path, key=key, listener=listener).status for key in (None, self.SCRAPER, self.CLIENT, self.ADMIN)]

    def files(self):
        return {"api": self.write("scraped-keys", f"alice {self.CLIENT}\n"), "metrics": self.write("scrapers", f"prometheus {self.SCRAPER}\n"),
                "control": self.write("scraped-control", f"admin {self.ADMIN}\n")}

    def test_its_own_keys_open_it_and_nothing_else(self):
        files = self.files()
        words = ("--api-key-file", files["api"], "--metrics-on-data", "--metrics-key-file", files["metrics"])
        with Server(*words, "--control-key-file", files["control"]) as server:
            self.assertEqual(self.statuses(server), [401, 200, 401, 401])
            self.assertEqual(self.statuses(server, "control"), [401, 200, 401, 200])
            self.assertEqual(server.ask("HEAD", "/v1/metrics", key=self.SCRAPER).status, 200)
            for path in ("/v1/models", "/version", "/none"):
                self.assertEqual(server.ask("GET", path, key=self.SCRAPER).status, 401, path)
                self.assertEqual(server.ask("GET", path, key=self.SCRAPER, listener="control").status, 401, path)
            files["metrics"].write_text("prometheus sk-new\n")
            server.signal(signal.SIGHUP)
            server.wait_line("reload.*--metrics-key-file: 1 keys")
            self.assertEqual(self.statuses(server), [401, 401, 401, 401])
            self.assertEqual(server.ask("GET", "/metrics", key="sk-new").status, 200)

    def test_a_listener_without_keys_can_have_them_for_metrics(self):
        with Server("--metrics-on-data", "true", "--metrics-key-file", self.files()["metrics"]) as server:
            self.assertEqual(self.statuses(server), [401, 200, 401, 401])
            self.assertEqual(self.statuses(server, path="/v1/models"), [200] * 4)
            self.assertEqual(self.statuses(server, "control"), [200] * 4)

    def test_it_can_be_open(self):
        with Server("--api-key-file", self.files()["api"], "--metrics-on-data", "open") as server:
            self.assertEqual(self.statuses(server), [200] * 4)
            self.assertEqual(self.statuses(server, path="/v1/models"), [401, 401, 200, 401])
            # what a page can read without a key, it may not read by a name of its own
            self.assertEqual(server.ask("GET", "/metrics", headers={"host": "rebound.example"}).status, 421)

    def test_keys_that_open_nothing_are_refused(self):
        scrapers = self.files()["metrics"]
        for words, error in (((), "needs --metrics-on-data"), (("--metrics-on-data", "open"), "lets anybody read"),
                             (("--metrics-on-data", "false"), "needs --metrics-on-data")):
            with self.assertRaisesRegex(AssertionError, f"ended with 2:(.|\n)*--metrics-key-file: .*{error}"):
                Server("--metrics-key-file", scrapers, *words)
        with self.assertRaisesRegex(AssertionError, "ended with 2:(.|\n)*--metrics-on-data: 'opne' is none of .*did you mean open"):
            Server("--metrics-on-data=opne")


class Reload(Operation):
    def test_keys_are_read_again_and_a_damaged_file_changes_nothing(self):
        keys = self.write("reloaded", "alice sk-old\n")
        with Server("--api-key-file", keys) as server:
            status = lambda key: server.ask("GET", "/v1/models", key=key).status
            self.assertEqual((status("sk-old"), status("sk-new")), (200, 401))
            keys.write_text("alice sk-new\n")
            server.signal(signal.SIGHUP)
            server.wait_line("reload.*--api-key-file: 1 keys")
            self.assertEqual((status("sk-old"), status("sk-new")), (401, 200))
            keys.write_text("bob sk-bob\nalice\n")
            server.signal(signal.SIGHUP)
            line = server.wait_line("error reload")
            self.assertIn("reloaded: line 2: expected 'name key [weight] [priority>=N] [tune] [tuning_jobs=N] [tuning_bytes=SIZE]'", line)
            self.assertEqual((status("sk-new"), status("sk-bob")), (200, 401))

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl to make a certificate")
    def test_a_certificate_is_read_again_and_a_damaged_one_changes_nothing(self):
        cert, key = self.root / "cert.pem", self.root / "key.pem"

        def make(name):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                            "-subj", f"/CN={name}", "-keyout", key, "-out", cert], check=True, capture_output=True)
            return ssl.PEM_cert_to_DER_cert(cert.read_text())

        def served():
            host, port = server.addresses["data"].split(":")
            return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port)), timeout=PATIENCE))

        first = make("first")
        with Server("--tls-cert", cert, "--tls-key", key, control="none") as server:
            self.assertEqual(served(), first)
            cert.write_text("damaged")
            server.signal(signal.SIGHUP)
            self.assertIn("the certificate is as it was", server.wait_line("error reload"))
            self.assertEqual(served(), first)
            second = make("second")
            server.signal(signal.SIGHUP)
            server.wait_line("info reload")
            self.assertEqual(served(), second)

    def test_a_damaged_key_file_is_told_at_the_start(self):
        keys = self.write("damaged", "alice\n")
        with self.assertRaisesRegex(AssertionError, "damaged: line 1: expected 'name key"):
            Server("--api-key-file", keys)

    def test_control_beyond_loopback_wants_keys(self):
        with self.assertRaisesRegex(AssertionError, "ended with 2:(.|\n)*--control-key-file"):
            Server(control="0.0.0.0:0")


class Drain(Operation):
    def test_an_idle_server_ends_at_once(self):
        with Server() as server:
            self.assertEqual(server.ask("GET", "/ready").status, 200)
            self.assertEqual(server.stop(), 0)

    def test_what_runs_ends_whole_and_nothing_new_is_taken(self):
        with Server(model=self.long) as server, self.begin(server, tokens=3000) as stream, contextlib.closing(server.connect("control")) as control:
            ask = lambda method, path, body=None: server.send(control, method, path, body, None, None)
            self.assertEqual(ask("GET", "/ready").read() and 200, 200)
            server.signal(signal.SIGTERM)
            server.wait_line("drain")
            ready = ask("GET", "/ready")
            ready.read()
            refused = ask("POST", "/v1/completions", {"prompt": "a"})
            self.assertEqual((ready.status, refused.status, json.loads(refused.read())["error"]["code"]), (503, 503, "draining"))
            with self.assertRaises(OSError):
                server.ask("GET", "/health")
            chunks = list(stream)
            self.assertTrue(stream.is_done)
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
            control.close()
            self.assertEqual(server.wait(), 0)

    def test_drain_over_control_is_as_a_signal(self):
        with Server() as server:
            self.assertEqual(server.ask("POST", "/v1/drain", {}, listener="control").status, 200)
            self.assertEqual(server.wait(), 0)

    def test_what_does_not_end_in_time_is_broken_off_and_told(self):
        with Server("--drain-timeout", 0.2, model=self.long) as server, self.begin(server) as stream:
            server.signal(signal.SIGTERM)
            last = list(stream)[-1]
            self.assertEqual(last["error"]["code"], "draining")
            self.assertFalse(stream.is_done)
            stream.close()
            self.assertEqual(server.wait(), 0)

    def test_a_second_signal_ends_at_once(self):
        with Server(model=self.long) as server, self.begin(server):
            server.signal(signal.SIGTERM)
            server.wait_line("drain")
            server.signal(signal.SIGTERM)
            self.assertEqual(server.wait(), 1)
            server.expected = (1,)
            self.assertIn("second signal", server.lines[-1])


class Limits(Operation):
    def test_the_queue_overflows_with_429(self):
        with Server("--max-batch-size", 1, "--max-queued-requests", 2, model=self.long) as server, self.begin(server):
            waiting = server.connect()
            body = {"prompt": "a", "max_tokens": LONG, "ignore_eos": True, "stream": True}
            waiting.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            server.await_metric("vllm:num_requests_waiting", 1)
            answer = server.ask("POST", "/v1/completions", {"prompt": "a"})
            self.assertEqual((answer.status, answer.code, answer.json["error"]["type"]), (429, "overloaded", "rate_limit_error"))
            self.assertGreater(int(answer.headers["retry-after-ms"]), 0)
            self.assertGreater(int(answer.headers["retry-after"]), 0)
            now = server.metrics()
            self.assertEqual(now['vllm:admission_rejections_total{model_name="long",reason="max_num_queued_reqs"}'], 1)
            self.assertEqual(now['cambium:requests_rejected_total{reason="overloaded"}'], 1)
            self.assertEqual(now['vllm:num_requests_waiting_by_reason{model_name="long",engine="0",reason="capacity"}'], 1)
            waiting.close()
            # the text that runs may be waiting by now: nobody reads it, so it pauses and gives up its place
            server.await_metric('cambium:requests_cancelled_total{reason="cancelled"}', 1)

    def test_prompts_that_wait_are_bounded_by_their_tokens(self):
        with Server("--max-batch-size", 1, "--max-queued-tokens", 50, model=self.long) as server, self.begin(server):
            waiting = server.connect()
            waiting.request("POST", "/v1/completions", json.dumps({"prompt": [1] * 40, "stream": True}), {"content-type": "application/json"})
            server.await_metric("vllm:num_requests_waiting", 1)
            answer = server.ask("POST", "/v1/completions", {"prompt": [2] * 40})
            self.assertEqual((answer.status, answer.code), (429, "overloaded"))
            self.assertGreater(int(answer.headers["retry-after-ms"]), 0)
            now = server.metrics()
            self.assertEqual(now['vllm:admission_rejections_total{model_name="long",reason="max_num_queued_tokens"}'], 1)
            self.assertEqual(now['vllm:admission_rejections_total{model_name="long",reason="max_num_queued_reqs"}'], 0)
            waiting.close()

    def test_a_request_has_its_time(self):
        with Server("--request-timeout", 0.2, model=self.long) as server:
            body = {"prompt": "a", "max_tokens": LONG, "ignore_eos": True}
            for headers in (None, {"x-request-timeout": "0.1"}):
                answer = server.ask("POST", "/v1/completions", body, headers=headers)
                self.assertEqual((answer.status, answer.code, answer.headers["x-should-retry"]), (504, "deadline", "false"))
            for wrong in ("-1", "nan", "soon", "", "1e9999"):
                answer = server.ask("POST", "/v1/completions", body, headers={"x-request-timeout": wrong})
                self.assertEqual(answer.status, 400, wrong)
            server.await_metric("vllm:num_requests_running", 0)
            now = server.metrics()
            self.assertEqual(now['cambium:requests_cancelled_total{reason="deadline"}'], 2)
            self.assertEqual(now['vllm:request_success_total{model_name="long",engine="0",finished_reason="abort"}'], 2)


class Metrics(Operation):
    def test_counts_of_requests_one_after_another_are_exact(self):
        n, p, g = 5, 7, 9
        with Server("--metrics-on-data", "--prefix-cache", "off") as server:
            for i in range(n):
                answer = server.complete([3 + i, *range(p - 1)], max_tokens=g, ignore_eos=True)
                self.assertEqual(answer["usage"]["completion_tokens"], g)
            now, labels = server.metrics(), '{model_name="model",engine="0"'
            self.assertEqual(read_metrics(server.ask("GET", "/metrics").body.decode()).keys(), now.keys())
            expected = {"vllm:time_to_first_token_seconds_count": n, "vllm:inter_token_latency_seconds_count": n * (g - 1),
                        "vllm:request_time_per_output_token_seconds_count": n, "vllm:e2e_request_latency_seconds_count": n,
                        "vllm:request_queue_time_seconds_count": n, "vllm:request_prefill_time_seconds_count": n,
                        "vllm:request_decode_time_seconds_count": n, "vllm:request_inference_time_seconds_count": n,
                        "vllm:prompt_tokens_total": n * p, "vllm:generation_tokens_total": n * g,
                        "vllm:iteration_tokens_total_sum": n * (p + g), "vllm:iteration_tokens_total_count": n * g,
                        "vllm:request_prompt_tokens_sum": n * p, "vllm:request_generation_tokens_sum": n * g,
                        "vllm:request_prefill_kv_computed_tokens_sum": n * p, "vllm:prompt_tokens_cached_total": 0,
                        "vllm:prefix_cache_hits_total": 0, "vllm:num_preemptions_total": 0, "vllm:num_requests_running": 0,
                        "vllm:num_requests_waiting": 0, "vllm:kv_cache_usage_perc": 0, 'cambium:rank_up{rank="0"}': 1,
                        f'vllm:request_success_total{labels},finished_reason="length"}}': n,
                        f'vllm:prompt_tokens_by_source_total{labels},source="local_compute"}}': n * p}
            for name, value in expected.items():
                self.assertEqual(now[name], value, name)

    def test_cached_tokens_are_counted_as_the_answers_tell_them(self):
        with Server(model=self.long) as server:
            ids = list(range(100))
            told = [server.complete(ids, max_tokens=2)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(3)]
            now = server.metrics()
            self.assertGreater(told[2], 0)
            self.assertEqual((now["vllm:prompt_tokens_total"], now["vllm:prefix_cache_queries_total"]), (300, 300))
            self.assertEqual((now["vllm:prompt_tokens_cached_total"], now["vllm:prefix_cache_hits_total"]), (sum(told), sum(told)))
            server.complete(ids, max_tokens=2, echo=True, logprobs=1)
            later = server.metrics()
            self.assertEqual((later["vllm:prefix_cache_queries_total"], later["vllm:prompt_tokens_cached_total"]), (300, sum(told)))

    def test_adapters_are_counted_by_name_and_method(self):
        for name, tokens in (("one", 1), ("two", 2)):
            write_prompt(self.root / "adapters" / name, tokens, width=32)
        (self.root / "adapters" / "two" / "adapter_model.safetensors").write_bytes(b"damaged")
        with Server("--adapter-root", self.root / "adapters", model=self.long) as server:
            for adapters in (["one"], ["one"], []):
                server.complete("a", adapters=adapters, max_tokens=1)
            self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": "a", "model": "two"}).status, 422)
            now = server.metrics()
            self.assertEqual(now['cambium:adapter_requests_total{adapter="one",method="prompt"}'], 2)
            self.assertEqual(now['cambium:adapter_loads_total{result="success"}'], 1)
            self.assertEqual(now['cambium:adapter_loads_total{result="adapter_invalid"}'], 1)
            self.assertEqual(now["cambium:adapter_memory_bytes"], server.ask("GET", "/v1/adapters", listener="control").json["adapters"][0]["bytes"])
            with server.stream("/v1/completions", {"prompt": "a", "model": "one", "max_tokens": LONG, "ignore_eos": True}) as stream:
                next(stream)
                text = server.ask("GET", "/metrics", listener="control").body.decode()
                self.assertRegex(text, r'vllm:lora_requests_info\{max_lora="64",waiting_lora_adapters="",running_lora_adapters="one"\} \d{10}\.')

    def test_nothing_is_held_when_all_clients_have_left(self):
        with Server(model=self.long) as server:
            streams = [self.begin(server) for _ in range(4)]
            server.await_metric("vllm:num_requests_running", 4)
            self.assertGreater(server.metrics()["vllm:kv_cache_usage_perc"], 0)
            for stream in streams:
                stream.close()
            for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
                server.await_metric(name, 0)
            server.await_metric('cambium:requests_cancelled_total{reason="cancelled"}', 4)
            now = server.metrics()
            self.assertEqual(now['vllm:request_success_total{model_name="long",engine="0",finished_reason="abort"}'], 4)

    def test_a_stream_of_http10_ends_when_its_client_leaves(self):
        with Server(model=self.long) as server, contextlib.closing(server.connect()) as connection:
            connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"
            body = {"prompt": "a", "max_tokens": LONG, "ignore_eos": True, "stream": True}
            with Stream(connection, server.send(connection, "POST", "/v1/completions", body, None, None),
                        "/v1/completions") as stream:
                self.assertNotIn("transfer-encoding", stream.headers)
                next(stream)
            server.await_metric('cambium:requests_cancelled_total{reason="cancelled"}', 1)
            server.await_metric("vllm:num_requests_running", 0)

    def test_the_text_is_what_clients_of_prometheus_read(self):
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            self.skipTest("no python3-prometheus-client")
        with Server() as server:
            server.complete([1, 2], max_tokens=3)
            answer = server.ask("GET", "/metrics", listener="control")
            self.assertEqual(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
            families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
            self.assertEqual(families["vllm:time_to_first_token_seconds"].type, "histogram")
            self.assertEqual(families["vllm:generation_tokens"].samples[0].value, 3)

    @unittest.skipUnless(shutil.which("promtool"), "no promtool")
    def test_promtool_has_nothing_to_say_but_of_names_that_are_vllms(self):
        with Server() as server:
            done = subprocess.run(["promtool", "check", "metrics"], input=server.ask("GET", "/metrics", listener="control").body,
                                  capture_output=True, timeout=PATIENCE)
            told = [line for line in (done.stdout + done.stderr).decode().splitlines() if not line.endswith("should not contain ':'")]
            self.assertEqual(told, ['vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix'])

    def test_metrics_are_not_on_the_data_listener_unasked(self):
        with Server() as server:
            self.assertEqual(server.ask("GET", "/metrics").status, 404)


class Logs(Operation):
    def test_lines_of_json_have_every_request_and_no_prompt(self):
        with Server("--log-format", "json") as server:
            server.wait_line('"event":"ready"')
            server.ask("POST", "/v1/completions", {"prompt": "a-secret-of-mine", "max_tokens": 2, "seed": 3}, headers={"x-request-id": "one"})
            server.ask("GET", "/v1/none?a-secret-of-mine", headers={"x-request-id": 'two"\\'})
            server.ask("POST", "/v1/completions", {"prompt": "a", "a-secret-of-mine": 1, "max_tokens": "a-secret-of-mine"}, headers={"x-request-id": "three"})
            server.wait_line('"id":"three"')
            self.assertEqual(server.stop(), 0)
            self.assertNotIn("a-secret-of-mine", "\n".join(line for line in server.lines if '"event":"request"' in line))
            lines = [json.loads(line) for line in server.lines]
            requests = {line["id"]: line for line in lines if line["event"] == "request"}
            self.assertEqual(requests["one"] | {"status": 200, "method": "POST", "path": "/v1/completions", "completion_tokens": 2, "listener": "data"}, requests["one"])
            self.assertGreaterEqual(requests["one"]["seconds"], requests["one"]["first_token_seconds"])
            self.assertEqual((requests['two"\\']["status"], requests['two"\\']["path"]), (404, "/v1/none"))
            self.assertEqual(requests["three"]["status"], 400)
            self.assertEqual([line["event"] for line in lines if line["event"] not in ("request", "process")][:2], ["ready", "drain"])
            loading, memory = [line["message"] for line in lines if line["event"] == "process"][:2]
            self.assertRegex(loading, "^loading ")
            self.assertRegex(memory, "^memory of each rank: ")

    def test_lines_of_json_say_why_a_server_does_not_begin(self):
        server = Server("--log-format", "json", "--max-model-len", 10**8, is_awaited=False)
        self.assertEqual(server.wait(), 2)
        lines = [json.loads(line) for line in server.lines]
        self.assertEqual([line["event"] for line in lines if line["level"] == "error"], ["process"])
        self.assertRegex(lines[-1]["message"], r"^--max-model-len 100000000: the model has \d+ positions$")

    @needs_grpcio
    def test_a_call_of_grpc_has_the_same_line(self):
        with Server() as server, grpc.insecure_channel(server.addresses["data"]) as channel:
            request = b"\x22\x04\x0a\x02\x01\x02" + b"\x30\x03" + b"\x50\x01"  # tokens 1 and 2, max_tokens 3, ignore_eos
            channel.unary_unary("/cambium.v1.Cambium/GenerateOnce")(request, metadata=(("x-request-id", "of-grpc"),), timeout=PATIENCE)
            self.assertRegex(server.wait_line("of-grpc"), "protocol=HTTP/2 .* prompt_tokens=2 cached_tokens=0 completion_tokens=3 queue_seconds=.* first_token_seconds=")

    def test_a_client_makes_no_lines(self):
        with Server() as server:
            hostile = "x\x1b[2J\u009b31m"
            answer = server.ask("GET", "/" + hostile.encode("utf-8").hex(), headers={"x-request-id": "id with blanks"})
            self.assertEqual((answer.status, answer.headers["x-request-id"]), (404, "id with blanks"))
            self.assertIn('id="id with blanks"', server.wait_line("id with blanks"))
            answer = server.ask("GET", "/health", headers={"x-request-id": "y" * 129})
            self.assertRegex(answer.headers["x-request-id"], "^[0-9a-f]{32}$")

    def test_adapters_and_failures_are_told(self):
        with Server("--adapter-root", self.root) as server:
            answer = server.ask("POST", "/v1/adapters", {"name": "none", "path": "nowhere"}, listener="control")
            self.assertGreaterEqual(answer.status, 400)
            self.assertRegex(server.wait_line(" adapter "), "warning adapter change=load name=none error=.*nowhere")


if __name__ == "__main__":
    unittest.main()
