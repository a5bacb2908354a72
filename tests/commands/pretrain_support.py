"""The common part of the tests of pretrain: datasets, runs, and their files."""
import itertools, json, os, pathlib, random, re, signal, struct, subprocess, tempfile, time

CAMBIUM = os.environ["CAMBIUM"]
SOURCE = pathlib.Path(os.environ["CAMBIUM_SOURCE"])
LONG = os.environ.get("CAMBIUM_TEST_LONG", "0") not in ("", "0")
VOCAB = 61
os.environ["OMP_WAIT_POLICY"] = "passive"  # threads that spin steal time from whatever else a machine under test runs


def as_jansson(value):
    """JSON without spaces, with keys in order and with the digits of numbers that the program writes."""
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(k, ensure_ascii=False) + ":" + as_jansson(value[k]) for k in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_jansson, value)) + "]"
    if isinstance(value, float):
        text = re.sub(r"e([+-])0*", lambda m: "e" + m[1].strip("+"), "%.17g" % value)
        return text if re.search("[.e]", text) else text + ".0"
    return json.dumps(value, ensure_ascii=False)


def sign_state(path, **keys):
    """Changes keys of a trainer_state.json (None: removes), and its digest with them (FNV-1a)."""
    state = {k: v for k, v in (json.loads(path.read_text()) | keys).items() if k != "digest" and v is not None}
    digest = 0xcbf29ce484222325
    for byte in as_jansson(state).encode():
        digest = (digest ^ byte) * 0x100000001b3 & (1 << 64) - 1
    path.write_text(json.dumps(state | {"digest": f"{digest:016x}"}))


def write_dataset(prefix, documents):
    """A Megatron dataset of uint16 tokens: one sequence a document."""
    lengths = [len(d) for d in documents]
    offsets = [2 * n for n in itertools.accumulate(lengths, initial=0)][:-1]
    with open(f"{prefix}.bin", "wb") as f:
        for d in documents:
            f.write(struct.pack(f"<{len(d)}H", *d))
    n = len(documents)
    with open(f"{prefix}.idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1))
        f.write(struct.pack(f"<{n}i", *lengths) + struct.pack(f"<{n}q", *offsets) + struct.pack(f"<{n + 1}q", *range(n + 1)))


def walk_documents(count=60, seed=5):
    """Random walks over the vocabulary: a small model learns them in a few steps."""
    r = random.Random(seed)
    documents = []
    for _ in range(count):
        at, d = r.randrange(VOCAB), []
        for _ in range(r.randrange(15, 90)):
            at = (at + r.choice((1, 1, 1, 2))) % VOCAB
            d.append(at)
        documents.append(d)
    return documents


KEYS = {
    "model.num_layers": 2, "model.hidden_size": 32, "model.num_attention_heads": 4, "model.vocab_size": VOCAB,
    "data.seq_length": 16, "data.split": "90,10,0",
    "train.train_iters": 20, "train.micro_batch_size": 2, "train.global_batch_size": 4,
    "optim.lr": 1e-2, "optim.lr_decay_style": "cosine", "optim.lr_warmup_iters": 2,
}


class Run:
    """A directory with a dataset, and runs of the program in it."""

    def __init__(self, documents=None):
        self.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.directory = pathlib.Path(self.temporary.name)
        self.prefix = self.directory / "text"
        self.seconds = 600  # after which a run hangs
        write_dataset(self.prefix, documents or walk_documents())

    def command(self, name="run", use=(), **keys):
        """Arguments of a run whose outputs are called `name`. Keys are section__key; None leaves a key out."""
        values = dict(KEYS)
        values["data.data_path"] = self.prefix
        values["checkpoint.save"] = values["checkpoint.load"] = self.directory / name
        values["log.metrics_file"] = self.directory / f"{name}.jsonl"
        values.update({k.replace("__", "."): v for k, v in keys.items()})
        return [CAMBIUM, "pretrain", *use, *(f"--{k}={v}" for k, v in values.items() if v is not None)]

    def start(self, *arguments, **keys):
        return subprocess.Popen(self.command(*arguments, **keys), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments, expect=0, **keys):
        done = subprocess.run(self.command(*arguments, **keys), capture_output=True, text=True, timeout=self.seconds)
        assert done.returncode == expect, f"exit status {done.returncode}, expected {expect}:\n{done.stderr}"
        return done

    def records(self, name="run"):
        return [json.loads(line) for line in (self.directory / f"{name}.jsonl").read_text().splitlines()]

    def checkpoints(self, name="run"):
        root = self.directory / name
        return sorted(p.name for p in root.glob("iter_???????"))

    def files(self, name="run"):
        """Everything below the directory of checkpoints but what killed writers left, by its relative path."""
        root = self.directory / name
        return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file() and ".cambium-" not in str(p)}

    def tree(self):
        return sorted(str(p.relative_to(self.directory)) for p in self.directory.rglob("*"))


def timeless(records):
    """Records without what the clock says."""
    return [{k: v for k, v in r.items() if k not in ("seconds", "tokens_per_s", "model_tflops")} for r in records]


def assert_same_run(test, records, expected, losses=1e-6, norms=1e-5):
    """That a run in one layout is that in another: what differs is the order of additions."""
    test.assertEqual([r["iteration"] for r in records], [r["iteration"] for r in expected])
    for ours, one in zip(records, expected):
        for key, bound in (("lm_loss", losses), ("valid_loss", losses), ("grad_norm", norms), ("lr", 0)):
            test.assertEqual(key in ours, key in one)
            if key in one:
                test.assertLessEqual(abs(ours[key] - one[key]), bound * one[key], (key, one))


def wait_for(condition, process, seconds=120):
    """Waits until the condition holds; False when the process ended before."""
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return condition()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)
    return True


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 & -(crc & 1))
    return crc ^ 0xffffffff


def masked_crc32c(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def fields(message):
    """Fields of a protobuf message as (number, value): varints as int, the rest as bytes."""
    at, found = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        found.append((key >> 3, message[at:at + size]))
        at += size
    return found


def read_events(path):
    """Events of a TensorBoard file: dicts with step, and version, start or scalars. Checks every checksum."""
    data, at, events = path.read_bytes(), 0, []
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert crc == masked_crc32c(data[at:at + 8])
        record = data[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(record)
        at += length + 16
        event = {"step": 0}
        for number, value in fields(record):
            if number == 2:
                event["step"] = value
            elif number == 3:
                event["version"] = value.decode()
            elif number == 7:
                event["start"] = dict(fields(value)) == {1: 1}
            elif number == 5:
                values = [dict(fields(v)) for n, v in fields(value) if n == 1]
                event["scalars"] = {v[1].decode(): struct.unpack("<f", v[2])[0] for v in values}
        events.append(event)
    return events
