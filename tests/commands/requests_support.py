"""The common part of the tests of generate --requests: requests as lines, and their answers."""
import json

from model_support import SOURCE, TINY, rows, run

BASE = SOURCE / "tests/peft/golden/base"
ADAPTERS = SOURCE / "tests/peft/golden"


def as_lines(requests):
    """Requests, or bytes as they are, a line each."""
    return b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in requests)


def ask(requests, *words, model=TINY, expect=0):
    """The answers to requests in one run."""
    return rows(run("generate", "--model", model, "--requests", "-", *words, input=as_lines(requests), expect=expect)[0])


def ask_one(request, *words, **more):
    (answer,) = ask([request], *words, **more)
    return answer


def tokens(answer):
    return [choice["tokens"] for choice in answer["choices"]]
