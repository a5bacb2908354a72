"""llama.cpp's server beside ours: both run, and `cambium bench serve --url` asks them in turn.

    llama_server.py --cambium PROGRAM --llama-server PROGRAM --model DIR --gguf FILE [--rounds 5] [--threads 2]

DIR and FILE are the same model, in bf16. A line for each pair, and for each case the medians of tokens/s and of the pairs'
ratios, ours over llama.cpp's. One server waits while the other is asked; both sleep when they wait."""
import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request

PARALLEL, CONTEXT = 16, 1024  # sequences, and positions of each
CASES = ((1, 128, 128), (16, 128, 128), (16, 16, 240))  # streams, tokens in, tokens out


@contextlib.contextmanager
def program(words, **more):
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, **more)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def serve_ours(o):
    words = [o.cambium, "serve", "--model", o.model, "--precision", "bf16", "--threads", str(o.threads),
             "--max-batch-size", str(PARALLEL), "--listen", "127.0.0.1:0", "--control", "none", "--drain-delay", "0"]
    with program(words, stdout=subprocess.PIPE) as process:
        yield json.loads(process.stdout.readline())["listen"]


@contextlib.contextmanager
def serve_theirs(o):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [o.llama_server, "-m", o.gguf, "--host", "127.0.0.1", "--port", str(port), "--parallel", str(PARALLEL),
             "-c", str(PARALLEL * CONTEXT), "-t", str(o.threads), "-tb", str(o.threads)]
    with program(words, stdout=subprocess.DEVNULL) as process:
        await_health(process, port)
        yield f"127.0.0.1:{port}"


def await_health(process, port):
    """It listens before it has its model, and answers 503 until then."""
    while process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read()
            return
        time.sleep(0.1)
    raise SystemExit("llama-server has ended")


def ask(o, address, streams, tokens_in, tokens_out):
    words = [o.cambium, "bench", "serve", "--url", f"http://{address}", "--model", o.model, "--streams", streams,
             "--requests", streams, "--input-len", tokens_in, "--output-len", tokens_out]
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("cambium", "llama-server", "model", "gguf"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    with serve_ours(o) as ours, serve_theirs(o) as theirs:
        for case in CASES:
            pairs = []
            for _ in range(o.rounds):
                pairs.append([ask(o, address, *case)["output_throughput"] for address in (ours, theirs)])
                print(json.dumps({"streams": case[0], "in": case[1], "out": case[2], "tokens_per_s": pairs[-1][0],
                                  "peer_tokens_per_s": pairs[-1][1]}), flush=True)
            print(json.dumps({"streams": case[0], "in": case[1], "out": case[2],
                              "tokens_per_s": statistics.median(own for own, _ in pairs),
                              "peer_tokens_per_s": statistics.median(other for _, other in pairs),
                              "ratio": statistics.median(own / other for own, other in pairs)}), flush=True)


main()
