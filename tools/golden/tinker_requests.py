"""Records the requests of Tinker's own client, for tests/serve/tinker_test.c: tests/serve/golden/tinker_requests.

The client (tinker 0.38.0) asks a server through a relay, which keeps each request. A line has its method, path, content
type and length; its body and a line feed follow. The session's id becomes zeros. Heartbeats, telemetry and fetches are
left out, because their times vary.

    CAMBIUM=... CAMBIUM_SOURCE=. PYTHONPATH=tests/commands:tests/interop python tools/golden/tinker_requests.py
"""
import os
import pathlib
import re
import socketserver
import tempfile
import threading
import http.client
import http.server

import tinker
from interop_support import random_gpt2
from model_support import write_byte_tokenizer
from serve_support import Server
from tinker import types

OUT = pathlib.Path(os.environ["CAMBIUM_SOURCE"]) / "tests/serve/golden/tinker_requests"
LEFT_OUT = ("session_heartbeat", "telemetry", "retrieve_future", "dynamic_config")
requests, lock = [], threading.Lock()


class Relay(http.server.BaseHTTPRequestHandler):
    protocol_version, upstream = "HTTP/1.1", None

    def relay(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.path.split("?")[0].endswith(LEFT_OUT):
            with lock:
                requests.append((self.command, self.path, self.headers.get("content-type", "-"), body))
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        connection.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k.lower() != "host"})
        answer = connection.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "connection", "date"):
                self.send_header(name, value)
        if answer.status != 204:
            self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = relay
    log_message = lambda *_: None


class Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


def ask(service):
    client = service.create_lora_training_client("tiny", rank=4, seed=7).result()
    one = types.Datum(model_input=types.ModelInput.from_ints([5, 9, 33]),
                      loss_fn_inputs={"target_tokens": [9, 33, 7], "weights": [1.0, 0.5, 0.0]})
    drawn = types.Datum(model_input=types.ModelInput.from_ints([5, 9]), loss_fn_inputs={
        "target_tokens": [9, 33], "logprobs": [-1.0, -2.0], "advantages": [1.0, -0.5]})
    client.forward_backward([one, one], "cross_entropy").result()
    client.forward_backward([drawn], "ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}).result()
    client.forward([drawn], "dro", {"beta": 0.05}).result()
    client.optim_step(types.AdamParams(learning_rate=1e-3, grad_clip_norm=1.0)).result()
    state = client.save_state("first", user_metadata={"of": "golden"}).result().path
    named = client.save_weights_for_sampler("best").result().path
    for sampler in service.create_sampling_client(model_path=named), client.save_weights_and_get_sampling_client():
        sampler.sample(types.ModelInput.from_ints([5, 9]), 2, types.SamplingParams(max_tokens=3, seed=1, stop=[4]),
                       include_prompt_logprobs=True, topk_sample_logprobs=1).result()
    again = service.create_training_client_from_state_with_optimizer(state)
    again.forward([one], "cross_entropy").result()
    rest = service.create_rest_client()
    rest.list_training_runs().result()
    rest.list_user_checkpoints().result()
    rest.delete_checkpoint_from_tinker_path(state).result()
    service.close("success").result()


def main():
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder) / "base"
        random_gpt2(1, vocab_size=260, n_positions=64).save_pretrained(base)
        write_byte_tokenizer(base)
        with Server("--tuning-root", pathlib.Path(folder) / "root", "--tuning-memory", "64M", "--model-name", "tiny", model=base) as server:
            Relay.upstream = server.addresses["data"]
            relay = Threads(("127.0.0.1", 0), Relay)
            threading.Thread(target=relay.serve_forever, daemon=True).start()
            service = tinker.ServiceClient(base_url=f"http://127.0.0.1:{relay.server_port}", api_key="tml-golden")
            ask(service)
            relay.shutdown()
    text = b"".join(b"%s %s %s %d\n%s\n" % (method.encode(), path.encode(), kind.encode(), len(body), body)
                    for method, path, kind, body in requests)
    session, = set(re.findall(rb"([0-9a-f]{32}):train", text))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_bytes(text.replace(session, b"0" * 32))


if __name__ == "__main__":
    main()
