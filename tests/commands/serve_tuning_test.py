"""Tuning by OpenAI's API at a server that runs: a job's adapter equals that of its command line, whatever happens between."""
import contextlib
import gzip
import json
import pathlib
import shlex
import signal
import sys
import tempfile
import time
import unittest

from browser_support import Browser, needs_chromium
from model_support import SOURCE, run
from serve_support import PATIENCE, Server

GOLDEN = SOURCE / "tests/commands/golden"
sys.path.insert(0, str(GOLDEN))
import tuning_api  # noqa: E402

ENDS = ("succeeded", "failed", "cancelled")


def chats(count):
    return "".join(json.dumps({"messages": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": f"{n} and {n}"},
                                            {"role": "user", "content": "more"}, {"role": "assistant", "content": "no", "weight": n % 2}]})
                   + "\n" for n in range(count))


PAIRS = "".join(json.dumps({"input": {"messages": [{"role": "user", "content": f"say {n}"}]},
                            "preferred_output": [{"role": "assistant", "content": "yes"}],
                            "non_preferred_output": [{"role": "assistant", "content": "no no"}]}) + "\n" for n in range(6))


class Tuner(Server):
    """A server with tuning, and what its tests ask of it."""

    def __init__(self, root, *words, **more):
        super().__init__("--tuning-root", root, "--chat-template", "chatml", *words, **more)

    def upload(self, rows, key=None):
        body = ('--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
                '--edge\r\nContent-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n').encode()
        answer = self.ask("POST", "/v1/files", body + rows.encode() + b"\r\n--edge--\r\n", key,
                          headers={"content-type": "multipart/form-data; boundary=edge"})
        assert answer.status == 200, answer.body
        return answer.json["id"]

    def begin(self, file, key=None, **more):
        answer = self.ask("POST", "/v1/fine_tuning/jobs", {"model": "model", "training_file": file, "seed": 5} | more, key)
        assert answer.status == 200, answer.body
        return answer.json["id"]

    def job(self, job, verb="", method="GET", key=None):
        answer = self.ask(method, f"/v1/fine_tuning/jobs/{job}{verb}", key=key)
        assert answer.status == 200, answer.body
        return answer.json

    def events(self, job):
        return self.job(job, "/events?limit=1000")["data"]

    def await_job(self, job, status="succeeded", key=None):
        end = time.monotonic() + PATIENCE
        while (now := self.job(job, key=key))["status"] not in (*ENDS, status):
            assert time.monotonic() < end, now
            time.sleep(0.02)
        assert now["status"] == status, now
        return now

    def await_step(self, job, step):
        end = time.monotonic() + PATIENCE
        while not any((event["data"] or {}).get("step", 0) >= step for event in self.events(job)):
            assert time.monotonic() < end, self.job(job)
            time.sleep(0.02)


class Tuning(unittest.TestCase):
    def setUp(self):
        # in memory, where there is one: each save is synced, and a busy disk takes its time
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None)
        self.addCleanup(self.directory.cleanup)
        self.root = pathlib.Path(self.directory.name) / "root"

    def files(self, directory):
        return {path.name: path.read_bytes() for path in pathlib.Path(directory).iterdir() if path.is_file()}

    def check_command(self, server, job):
        """The first event's command line writes the job's adapter."""
        words = shlex.split(server.events(job)[-1]["message"])
        self.assertEqual(words[:2], ["cambium", "finetune"])
        output = pathlib.Path(self.directory.name) / f"output-{job}"
        words = [f"--output={output}" if word.startswith("--output=") else word for word in words[1:]]
        run(*words)
        made, own = self.files(self.root / "jobs" / job / "adapter"), self.files(output)
        self.assertEqual(made["adapter_model.safetensors"], own["adapter_model.safetensors"])
        for name in made:
            self.assertEqual(made[name], own[name], name)

    def test_adapters_equal_those_of_finetune(self):
        ways = (({}, chats(6)), ({"hyperparameters": {"n_epochs": 2, "batch_size": 3, "learning_rate_multiplier": 10}}, chats(5)),
                ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.3, "n_epochs": 1}}}}, PAIRS),
                ({"cambium": {"peft": "ia3", "optim.lr": 0.01, "tuning.epochs": 1}}, chats(3)),
                ({"cambium": {"peft": ["prompt"], "peft.num_virtual_tokens": 3, "train.train_iters": 2}}, chats(3)))
        with Tuner(self.root) as server:
            for more, rows in ways:
                with self.subTest(more):
                    job = server.begin(server.upload(rows), **more)
                    name = server.await_job(job)["fine_tuned_model"]
                    self.assertEqual(server.complete("say", model=name, max_tokens=2)["model"], name)
                    self.check_command(server, job)

    def test_a_killed_server_resumes_a_job_with_the_same_bytes(self):
        more = {"hyperparameters": {"n_epochs": 10, "batch_size": 2}}
        with Tuner(self.root, "--tuning-save", "0") as server:
            file = server.upload(chats(8))
            job = server.begin(file, **more)
            server.await_step(job, 7)
            server.signal(signal.SIGKILL)
        with Tuner(self.root, "--tuning-save", "0") as server:
            server.await_step(job, 15)
            server.signal(signal.SIGTERM)
            server.process.wait(PATIENCE)
        with Tuner(self.root) as server:
            ended = server.await_job(job)
            steps = [event["data"]["step"] for event in server.events(job) if event["type"] == "metrics"]
            self.assertEqual(steps, list(range(40, 0, -1)))
            self.assertEqual([point["step_number"] for point in server.job(job, "/checkpoints")["data"]], [40, 36, 32])
            self.check_command(server, job)
        with Tuner(self.root) as server:
            names = {model["id"] for model in server.ask("GET", "/v1/models").json["data"]}
            self.assertLessEqual({ended["fine_tuned_model"], ended["fine_tuned_model"] + ":ckpt-step-36"}, names)
            answer = server.complete("say", model=ended["fine_tuned_model"], max_tokens=2)
            self.assertEqual(server.ask("DELETE", "/v1/models/" + ended["fine_tuned_model"]).json["deleted"], True)
            self.assertEqual(server.ask("GET", "/v1/models/" + ended["fine_tuned_model"]).status, 404)
            self.assertEqual(server.ask("DELETE", "/v1/models/model").status, 404)
            self.assertTrue(answer["choices"])

    def test_ranks_that_share_a_model_tune_on_it(self):
        with Tuner(self.root, "--ranks", "2", "--parallel.tensor_model_parallel_size=2") as server:
            job = server.begin(server.upload(chats(4)))
            server.await_job(job)
            self.check_command(server, job)
        with Tuner(self.root, "--ranks", "2", "--parallel.pipeline_model_parallel_size=2") as server:
            refused = server.ask("POST", "/v1/fine_tuning/jobs", {"model": "model", "training_file": server.upload(chats(4))})
            self.assertEqual(refused.status, 400, refused.body)

    def test_eight_jobs_of_three_keys_end(self):
        keys = pathlib.Path(self.directory.name) / "keys"
        keys.write_text("alice sk-a tune\nbob sk-b 2 tune\ncarol sk-c tune\n")
        with Tuner(self.root, "--api-key-file", keys, "--tuning-jobs", "3") as server:
            files = {key: server.upload(chats(4), key) for key in ("sk-a", "sk-b", "sk-c")}
            jobs = [(key, server.begin(files[key], key, hyperparameters={"n_epochs": 2})) for key in [*files] * 3][:8]
            with self.assertRaisesRegex(AssertionError, "--tuning-root"):  # no second server may use it
                Server("--tuning-root", self.root)
            for key, job in jobs:
                self.assertEqual(server.await_job(job, key=key)["status"], "succeeded")
            self.assertEqual([one["id"] for one in server.ask("GET", "/v1/fine_tuning/jobs", key="sk-b").json["data"]],
                             [job for key, job in reversed(jobs) if key == "sk-b"])

    def test_an_adapter_is_the_start_of_a_job(self):
        with Tuner(self.root) as server:
            first = server.await_job(server.begin(server.upload(chats(4)), suffix="first"))["fine_tuned_model"]
            second = server.begin(server.upload(chats(3)), model=first)
            server.await_job(second)
            self.check_command(server, second)

    def test_the_stock_client_gets_the_answers_that_were_recorded(self):
        kept = json.loads(gzip.decompress((GOLDEN / "tuning_api.json.gz").read_bytes()))["kept"]
        numbers = tuning_api.Numbers()
        with Tuner(self.root) as server:
            for number, one in enumerate(kept):
                if "await" in one:
                    server.await_job(numbers.show(one["job"].encode()).decode(), one["await"])
                    continue
                request = numbers.show(one["request"].encode("latin-1"))
                status, body = tuning_api.ask(server.addresses["data"], request)
                what = f"request {number}: {request[:80]!r}: {body[:300]!r}"
                self.assertEqual(status, one["status"], what)
                if one["shape"] != "text":
                    self.assertEqual(tuning_api.shape(json.loads(body)), one["shape"], what)
                numbers.learn(body)

    def test_keys_see_only_what_is_theirs(self):
        keys = pathlib.Path(self.directory.name) / "keys"
        keys.write_text("alice sk-a tune\nbob sk-b tune tuning_jobs=0 tuning_bytes=5000\ncarol sk-c\n")
        with Tuner(self.root, "--api-key-file", keys) as server:
            file = server.upload(chats(3), "sk-a")
            job = server.begin(file, "sk-a")
            ways = (("GET", f"/v1/files/{file}", None, 404), ("DELETE", f"/v1/files/{file}", None, 404),
                    ("GET", f"/v1/fine_tuning/jobs/{job}", None, 404), ("POST", f"/v1/fine_tuning/jobs/{job}/cancel", None, 404))
            for method, path, body, status in ways:
                self.assertEqual(server.ask(method, path, body, "sk-b").status, status, path)
            self.assertEqual(server.ask("GET", "/v1/files", key="sk-b").json["data"], [])
            own = server.upload(chats(3), "sk-b")
            body = {"model": "model", "training_file": own}
            refused = server.ask("POST", "/v1/fine_tuning/jobs", body, "sk-b")
            self.assertEqual((refused.status, "retry-after" in refused.headers), (429, True))
            self.assertEqual(server.ask("GET", "/v1/files", key="sk-c").status, 403)
            self.assertRaisesRegex(AssertionError, "tuning_disk_full", server.upload, chats(100), "sk-b")

    @needs_chromium
    def test_the_page_shows_jobs_and_tries_their_models(self):
        with Tuner(self.root) as server, contextlib.closing(Browser()) as browser:
            job = server.begin(server.upload(chats(4)), hyperparameters={"n_epochs": 4})
            name = server.await_job(job)["fine_tuned_model"]
            browser.open(server.addresses["data"])
            browser.wait("document.querySelector('#jobs polyline')")
            self.assertEqual(browser.run("return document.querySelector('#jobs polyline').getAttribute('points').split(' ').length"), 4)
            self.assertIn("succeeded", browser.run("return document.getElementById('jobs').textContent"))
            browser.run("[...document.querySelectorAll('#jobs button')].find(b => b.textContent === 'Try').click()")
            browser.wait(f"document.querySelector('#targets input:checked')?.value === '{name}'")
            other = server.begin(server.upload(chats(4)), hyperparameters={"n_epochs": 5000, "batch_size": 1})
            browser.run("return readJobs()")
            browser.wait(f"document.querySelector('tr[data-job={other}] button')")
            browser.run(f"document.querySelector('tr[data-job={other}] button').click()")
            server.await_job(other, "cancelled")
            self.assertEqual(browser.log(), [])

    def test_metrics_and_log_lines_tell_of_jobs(self):
        with Tuner(self.root) as server:
            job = server.begin(server.upload(chats(3)))
            server.await_job(job)
            server.wait_line(rf"tuning job={job} status=succeeded")
            metrics = server.metrics()
            self.assertEqual(metrics['cambium:tuning_jobs{status="succeeded"}'], 1)
            self.assertEqual(metrics["cambium:tuning_step_seconds_count"], 3)
            self.assertGreater(metrics["cambium:tuning_slices_total"], 0)


if __name__ == "__main__":
    unittest.main()
