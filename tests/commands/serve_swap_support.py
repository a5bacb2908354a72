"""The common part of the tests of swapping: adapters of six methods with several contents each, requests, and the right
answer for each content. An answer names the generation of each adapter, and a change tells which content that is.
Every answer can therefore be compared with the program's output for a file, and an answer of mixed generations
equals none."""
import array
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import threading

from model_support import CAMBIUM, read_safetensors, rows, write_safetensors
from requests_support import ADAPTERS, BASE, as_lines

METHODS = ("lora", "ia3", "prefix", "prompt", "adapter_seq_bn", "adapter_par_bn")
CONTENTS = ("a", "b")
PIECES = [f"{method}.{content}" for method in METHODS for content in CONTENTS]
# A name that stands for one method, one that roams over all, and those that come and go.
ROAMING, STAYING, LEAVING = "any", METHODS, ("guest1", "guest2")
STACKS = (("lora", "ia3"), ("prefix", "adapter_par_bn"))
SHARED = [3 + i % 40 for i in range(18)]  # more than a page, for the prefix cache


def weights_of(directory):
    return next(path for name in ("adapter_model.safetensors", "adapter.safetensors") if (path := directory / name).exists())


def change_weights(path, factor):
    tensors = read_safetensors(path)
    for name, (kind, shape, data) in tensors.items():
        assert kind == "F32", (path, name, kind)
        values = array.array("f", data)
        tensors[name] = (kind, shape, array.array("f", [value * factor for value in values]).tobytes())
    write_safetensors(path, tensors)


def write_contents(root):
    """root/METHOD.CONTENT: the same shapes, other numbers."""
    for method in METHODS:
        for content, factor in zip(CONTENTS, (1, -0.7)):
            directory = pathlib.Path(root) / f"{method}.{content}"
            shutil.copytree(ADAPTERS / method, directory)
            (directory / "expected.safetensors").unlink()
            if factor != 1:
                change_weights(weights_of(directory), factor)


def request(kind, number):
    """Three kinds: greedy on the shared beginning; drawn, two texts, with probabilities; a short one."""
    prompt = ([*SHARED, 7 + number % 20], [5 + number % 31, *SHARED[:2]], [9 + number % 13])[kind]
    more = ({"temperature": 0, "logprobs": 0}, {"n": 2, "temperature": 1.2, "logprobs": 2}, {"temperature": 0.8, "logprobs": 0})[kind]
    return {"prompt": prompt, "seed": 11 + number, "max_tokens": (7, 6, 9)[kind], "ignore_eos": True} | more


REQUESTS = [request(kind, number) for kind in range(3) for number in range(2)]


def told_in_file(answer):
    return [(choice["tokens"], [token["logprob"] for token in choice["logprobs"]]) for choice in answer["choices"]]


class Expected:
    """expected[(number of the request, contents)]: tokens and their log-probabilities, as `generate --requests` has them."""

    def __init__(self, root, *words, launcher=()):
        pieces = [(), *[(piece,) for piece in PIECES]]
        for stack in STACKS:
            pieces += [(f"{stack[0]}.{one}", f"{stack[1]}.{two}") for one in CONTENTS for two in CONTENTS]
        lines = [(number, piece) for number in range(len(REQUESTS)) for piece in pieces]
        asked = as_lines(REQUESTS[number] | {"adapters": list(piece)} for number, piece in lines)
        done = subprocess.run([str(word) for word in (*launcher, CAMBIUM, "generate", "--model", BASE, "--requests", "-", "--adapter-root", root, *words)],
                              input=asked, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr.decode()
        self.texts = {line: told_in_file(answer) for line, answer in zip(lines, rows(done.stdout), strict=True)}
        for number in range(len(REQUESTS)):  # else a mixture would not be seen
            told = [str(self.texts[number, piece]) for piece in pieces]
            assert len(set(told)) == len(told), "two contents give the same answer"

    def __getitem__(self, key):
        return self.texts[key]


class Book:
    """The record of changes: the content of each generation, the latest generation of each name, and since when a name
    exists or is gone. Moments are numbered; the earlier of two has the smaller number."""

    def __init__(self):
        self.lock, self.moments = threading.Lock(), itertools.count(1)
        self.contents, self.latest = {}, {}
        self.lives = {}  # name -> [(moment of the request, moment of the answer, whether it is there then)]

    def moment(self):
        with self.lock:
            return next(self.moments)

    def told(self, name, generation, content):
        with self.lock:
            assert generation not in self.contents, (name, generation)
            assert generation > self.latest.get(name, 0), (name, generation)
            self.contents[generation] = (name, content)
            self.latest[name] = generation

    def lived(self, name, asked, is_there):
        moment = self.moment()
        with self.lock:
            self.lives.setdefault(name, []).append((asked, moment, is_there))

    def least(self, names):
        """The generations that a request which is sent now must get, or later ones."""
        with self.lock:
            return [self.latest.get(name, 0) for name in names]

    def may_be(self, name, is_there, sent, answered):
        """Whether the name was there (or was not) at some moment between."""
        if name not in LEAVING:
            return is_there
        state_before, begins = False, 0
        for asked, told, then in [*self.lives.get(name, []), (float("inf"), float("inf"), None)]:
            # From `begins` on it might be in that state, until the answer to the next change.
            if state_before == is_there and begins <= answered and sent <= told:
                return True
            state_before, begins = then, asked
        return False


def damaged(root, outside):
    """Directories below the root that no change may bring in; {name: (status, part of the line)}."""
    root, cases = pathlib.Path(root), {}

    def case(name, of, status, part):
        cases[name] = (status, part)
        shutil.copytree(root / of, root / name)
        return root / name

    directory = case("bad-json", "lora.a", 422, "adapter_config.json")
    (directory / "adapter_config.json").write_text('{"peft_type": "LORA", ')
    directory = case("bad-deep", "lora.a", 422, "adapter_config.json")
    (directory / "adapter_config.json").write_text("[" * 100_000)
    directory = case("bad-bytes", "ia3.a", 422, "adapter_config.json")
    (directory / "adapter_config.json").write_bytes(b"\xff\xfe\x00" * 50)
    directory = case("bad-type", "ia3.a", 422, "peft_type")
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "BOFT"}))
    directory = case("bad-rank", "lora.a", 422, '"r"')
    config = json.loads((directory / "adapter_config.json").read_text())
    (directory / "adapter_config.json").write_text(json.dumps(config | {"r": 1 << 40}))
    for method in METHODS:
        directory = case(f"cut-{method}", f"{method}.a", 422, ".safetensors")
        content = weights_of(directory).read_bytes()
        weights_of(directory).write_bytes(content[:-5])
    directory = case("cut-header", "prefix.a", 422, ".safetensors")
    weights_of(directory).write_bytes(b"\xff" * 7 + b"\x7f" + b"{}")
    directory = case("cut-empty", "prompt.a", 422, ".safetensors")
    weights_of(directory).write_bytes(b"")
    directory = case("other-shape", "ia3.a", 422, "has shape [")
    tensors = read_safetensors(weights_of(directory))
    write_safetensors(weights_of(directory), {name: (kind, [2 * shape[0], *shape[1:]], 2 * data) for name, (kind, shape, data) in tensors.items()})
    directory = case("pickle", "lora.a", 422, "a pickle")
    weights_of(directory).rename(directory / "adapter_model.bin")
    (directory / "adapter_model.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
    directory = case("fifo", "lora.a", 422, "not a regular file")
    weights_of(directory).unlink()
    os.mkfifo(directory / "adapter_model.safetensors")
    directory = case("fifo-config", "lora.a", 422, "not a regular file")
    (directory / "adapter_config.json").unlink()
    os.mkfifo(directory / "adapter_config.json")
    shutil.copytree(root / "lora.b", outside)
    for name, file in (("link-weights", "adapter_model.safetensors"), ("link-config", "adapter_config.json")):
        directory = case(name, "lora.a", 422, file)
        (directory / file).unlink()
        (directory / file).symlink_to(pathlib.Path(outside) / file)
    (root / "link-all").symlink_to(outside)
    cases["link-all"] = (422, "link-all")
    (root / "link-inside").symlink_to(root / "lora.b")
    cases["link-inside"] = (422, "link-inside")
    (root / "empty").mkdir()
    cases["empty"] = (404, "holds no adapter")
    cases["nowhere"] = (404, "nowhere")
    return cases
