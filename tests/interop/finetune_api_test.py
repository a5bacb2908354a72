"""Tuning at `cambium serve` with the stock openai client: every call, and a job that outlives its server."""
import pathlib
import signal
import sys
import unittest

import openai
from interop_support import Case
from model_support import SOURCE
from serve_tuning_test import Tuner, chats

sys.path.insert(0, str(SOURCE / "tests/commands/golden"))
import tuning_api  # noqa: E402


class Tuned(Case):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.directory) / "root"

    def client(self, server):
        return openai.OpenAI(base_url=f"http://{server.addresses['data']}/v1", api_key="none", max_retries=0)

    def test_every_call(self):
        with Tuner(self.root) as server:
            tuning_api.use(self.client(server), server.await_job)

    def test_refusals_are_the_clients_exceptions(self):
        with Tuner(self.root) as server:
            client = self.client(server)
            file = client.files.create(file=("rows.jsonl", chats(3).encode()), purpose="fine-tune")
            for more, param in (({"method": {"type": "reinforcement"}}, "method.type"), ({"suffix": "x" * 65}, "suffix"),
                                ({"training_file": "file-none"}, "training_file"), ({"hyperparameters": {"n_epochs": -1}}, "hyperparameters.n_epochs")):
                with self.assertRaises(openai.BadRequestError) as raised:
                    client.fine_tuning.jobs.create(**{"model": "model", "training_file": file.id} | more)
                self.assertEqual(raised.exception.param, param)
            self.assertRaises(openai.NotFoundError, client.fine_tuning.jobs.retrieve, "ftjob-none")
            self.assertRaises(openai.BadRequestError, client.files.create, file=("x", b"no"), purpose="fine-tune")

    def test_a_job_outlives_its_server(self):
        with Tuner(self.root, "--tuning-save", "0") as server:
            client = self.client(server)
            file = client.files.create(file=("rows.jsonl", chats(8).encode()), purpose="fine-tune")
            job = client.fine_tuning.jobs.create(model="model", training_file=file.id, hyperparameters={"n_epochs": 20})
            server.await_step(job.id, 5)
            server.signal(signal.SIGKILL)
        with Tuner(self.root) as server:
            server.await_job(job.id)
            steps = [event.data["step"] for event in self.client(server).fine_tuning.jobs.list_events(job.id) if event.type == "metrics"]
            self.assertEqual(steps, list(range(40, 0, -1)))


if __name__ == "__main__":
    unittest.main()
