"""Records what the stock client of OpenAI sends to tune, byte by byte: python3 tuning_api.py, with CAMBIUM and CAMBIUM_SOURCE
set and `openai` installed, writes tuning_api.json.gz, which names the client's version. `use` is also the live test's scenario
(tests/interop/finetune_api_test.py). Ids of the server are replaced by their number in order of appearance."""
import gzip
import json
import pathlib
import re
import socket
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).parent
IDS = re.compile(rb"(?:file-|ftjob-|ftckpt_)[0-9a-v]{24}|ftevent-[0-9a-v]{8}-\d+|ft:[\w.-]+:[\w.-]*:[0-9a-v]{8}(?::ckpt-step-\d+)?")
ROWS = "".join(json.dumps({"messages": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": f"{n}"}]}) + "\n"
               for n in range(6))


def use(client, wait):
    """Every call of the client for files and tuning jobs. `wait` returns when a job has a status."""
    file = client.files.create(file=("r\u00f6ws.jsonl", ROWS.encode()), purpose="fine-tune")
    assert client.files.retrieve(file.id) == file and client.files.content(file.id).read() == ROWS.encode()
    assert [other.id for other in client.files.list(purpose="fine-tune")] == [file.id]
    job = client.fine_tuning.jobs.create(model="model", training_file=file.id, validation_file=file.id, suffix="my model", seed=7,
                                         metadata={"a": "b"}, extra_body={"cambium": {"peft.r": 4}},
                                         method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}})
    wait(job.id, "succeeded")
    job = client.fine_tuning.jobs.retrieve(job.id)
    assert job.fine_tuned_model.startswith("ft:model:my-model:") and job.trained_tokens > 0 and job.hyperparameters.batch_size == 4
    first = client.fine_tuning.jobs.list_events(job.id, limit=3)
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=3))
    assert len({event.id for event in events}) == len(events) > len(first.data) == 3
    steps = [event.data for event in events if event.type == "metrics"]
    assert [step["step"] for step in steps] == [3, 2, 1] and steps[0]["full_valid_loss"] > 0
    points = client.fine_tuning.jobs.checkpoints.list(job.id).data
    assert [point.step_number for point in points] == [3, 2] and points[0].fine_tuned_model_checkpoint == job.fine_tuned_model
    assert client.files.content(job.result_files[0]).read().startswith(b"step,train_loss")
    assert client.chat.completions.create(model=job.fine_tuned_model, messages=[{"role": "user", "content": "say"}],
                                          max_completion_tokens=2, seed=1).model == job.fine_tuned_model
    other = client.fine_tuning.jobs.create(model="model", training_file=file.id, hyperparameters={"n_epochs": 5000, "batch_size": 1})
    client.fine_tuning.jobs.pause(other.id)
    wait(other.id, "paused")
    client.fine_tuning.jobs.resume(other.id)
    wait(other.id, "running")
    client.fine_tuning.jobs.cancel(other.id)
    wait(other.id, "cancelled")
    assert [one.id for one in client.fine_tuning.jobs.list(limit=1)] == [other.id, job.id]
    assert client.models.delete(points[1].fine_tuned_model_checkpoint).deleted and client.models.delete(job.fine_tuned_model).deleted
    assert client.files.delete(file.id).deleted


# ---- requests of a connection, as bytes

def read_message(stream):
    """A message whose length its header tells: (header, body)."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return None, None
        head += line
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return head, stream.read(int(length.group(1))) if length else b""


def shape(value):
    """The form of an answer: names and types. Steps and other events come in an order that saves decide, too."""
    if isinstance(value, dict) and value.get("object") == "fine_tuning.job.event":
        return sorted(value)
    if isinstance(value, dict):
        return {name: shape(member) for name, member in sorted(value.items())}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "number" if isinstance(value, float) else type(value).__name__


class Numbers:
    """Numbers of the ids in a server's answers, those of a kind in order, and back."""

    def __init__(self):
        self.ids = {}

    def of_kind(self, name):
        return self.ids.setdefault(re.match(rb"[a-z]+", name).group(), [])

    def learn(self, body):
        for name in IDS.findall(body):
            if name not in self.of_kind(name):
                self.of_kind(name).append(name)

    def hide(self, text):
        return IDS.sub(lambda found: b"<%s %d>" % (re.match(rb"[a-z]+", found.group()).group(), self.of_kind(found.group()).index(found.group()))
                       if found.group() in self.of_kind(found.group()) else found.group(), text)

    def show(self, text):
        return re.sub(rb"<([a-z]+) (\d+)>", lambda found: self.ids[found.group(1)][int(found.group(2))], text)


def ask(address, request):
    """Sends the bytes of a request on its own connection. Returns (status, body)."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as connection, connection.makefile("rb") as stream:
        connection.sendall(request)
        head, body = read_message(stream)
        return int(head.split(b" ", 2)[1]), body


class Proxy(threading.Thread):
    """Passes requests to a server, one at a time, and keeps them with their answers."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.numbers, self.kept = address, Numbers(), []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.start()

    def run(self):
        while True:
            connection, _ = self.listener.accept()
            with connection, connection.makefile("rb") as stream:
                while True:
                    head, body = read_message(stream)
                    if head is None:
                        break
                    status, answer = ask(self.address, head + body)
                    kind = "text" if b"/content" in head.split(b"\r\n")[0] else shape(json.loads(answer))
                    self.kept.append({"request": self.numbers.hide(head + body).decode("latin-1"), "status": status, "shape": kind})
                    self.numbers.learn(answer)
                    connection.sendall(b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(answer))
                                       + answer)


def record():
    import openai
    sys.path.insert(0, str(HERE.parent))
    from serve_tuning_test import Tuner
    with tempfile.TemporaryDirectory() as root, Tuner(pathlib.Path(root) / "root") as server:
        proxy = Proxy(server.addresses["data"])
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{proxy.listener.getsockname()[1]}/v1", api_key="sk-none", max_retries=0)

        def wait(job, status):
            proxy.kept.append({"await": status, "job": proxy.numbers.hide(job.encode()).decode()})
            server.await_job(job, status)
        use(client, wait)
        kept = {"openai": openai.__version__, "kept": proxy.kept}
    with gzip.GzipFile(HERE / "tuning_api.json.gz", "wb", mtime=0) as out:
        out.write(json.dumps(kept).encode())
    print(f"{len(proxy.kept)} requests of openai {openai.__version__}")


if __name__ == "__main__":
    record()
