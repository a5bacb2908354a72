"""`cambium eval` on a tiny model: tokens, sums, flags and metrics are those that lm_eval computed
(golden/eval/expected.json.gz and ../tasks/golden, by tools/golden/eval_tasks.py)."""
import gzip
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest

from model_support import CAMBIUM, SOURCE, TINY, run

EXPECTED = json.loads(gzip.decompress((SOURCE / "tests/commands/golden/eval/expected.json.gz").read_bytes()))
TASKS = ["hellaswag", "piqa", "winogrande", "boolq", "arc_easy", "arc_challenge", "race", "wikitext", "lambada_openai",
         "lambada_standard", "choice", "text"]


def add_bos(directory):
    """Lets the tiny model's tokenizer put its first token before every text."""
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    name = "<|endoftext|>"
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {name: {"id": name, "ids": [0], "tokens": [name]}}}
    path.write_text(json.dumps(tokenizer))


class Eval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.scratch.name)
        for task in TASKS:
            lines = (SOURCE / f"tests/tasks/golden/{task}.jsonl").read_text().splitlines()
            rows = "".join(json.dumps(json.loads(line)["row"]) + "\n" for line in lines)
            (cls.root / f"{task}.jsonl").write_text(rows)
        (cls.root / "boolq.jsonl").write_bytes(gzip.compress((cls.root / "boolq.jsonl").read_bytes()))

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def evaluate(self, model, *words, tasks=TASKS):
        """The metrics by task, the requests by task, and what was printed."""
        output, samples = self.root / "out.json", self.root / "samples.jsonl"
        files = [f"{task}={self.root / task}.jsonl" for task in tasks]
        printed, _ = run("eval", "--model", model, "--task", *files, "--output", output, "--samples", samples, *words)
        requests = {}
        for line in samples.read_text().splitlines():
            one = json.loads(line)
            requests.setdefault(one["task"], []).append(one)
        return json.loads(output.read_text()), requests, printed.decode()

    def compare(self, kind, model, *words, tasks=TASKS):
        output, requests, printed = self.evaluate(model, *words, tasks=tasks)
        self.assertEqual([one["task"] for one in output["tasks"]], tasks)
        for of_task in output["tasks"]:
            name, expected = of_task["task"], EXPECTED[f"{kind}/{of_task['task']}"]
            self.assertEqual((of_task["rows"], of_task["requests"]), (60, len(expected["requests"])))
            for ours, (context, continuation, logprob, is_greedy) in zip(requests[name], expected["requests"], strict=True):
                where = f"{kind} {name} row {ours['row']} choice {ours['choice']}"
                self.assertEqual((ours["context_tokens"], ours["continuation_tokens"]), (context, continuation), where)
                self.assertLessEqual(abs(ours["logprob"] - logprob), 1e-5 * abs(logprob), where)
                self.assertEqual(ours["is_greedy"], is_greedy, where)
            for metric, value in expected["metrics"].items():
                bound = 0 if metric.startswith("acc") else 1e-6 * value
                self.assertLessEqual(abs(of_task["metrics"][metric] - value), bound, f"{kind} {name} {metric}")
            self.assertEqual(set(of_task["metrics"]), set(expected["metrics"]))
            for metric, hits in expected["rows"].items():
                mean = sum(hits) / len(hits)
                error = math.sqrt(sum((hit - mean) ** 2 for hit in hits) / (len(hits) - 1) / len(hits))
                self.assertAlmostEqual(of_task["stderr"][metric], error, places=12)
        return output, printed

    def test_the_figures_are_those_of_lm_eval(self):
        output, printed = self.compare("plain", TINY)
        self.assertEqual((output["model"], output["adapters"], output["precision"], output["ranks"]), (str(TINY), [], "fp32", 1))
        self.assertRegex(output["digest"], "^[0-9a-f]{16}$")
        for task in TASKS:
            self.assertRegex(printed, rf"(?m)^{task} +60  ")

    def test_names_of_special_tokens_are_tokens_or_text(self):
        (self.root / "choice.named").write_text(json.dumps({"context": "a<|endoftext|>", "choices": ["b<|endoftext|>"], "gold": 0}))
        samples = self.root / "named.jsonl"
        for words, counts in (((), (2, 2)), (("--special-tokens", "parse"), (2, 2)), (("--special-tokens", "text"), (14, 14))):
            run("eval", "--model", TINY, "--task", f"choice={self.root}/choice.named", "--samples", samples, *words)
            one = json.loads(samples.read_text())
            self.assertEqual((len(one["context_tokens"]), len(one["continuation_tokens"])), counts)

    def test_a_tokenizer_may_put_a_bos_before_each_text(self):
        model = self.root / "bos"
        shutil.copytree(TINY, model)
        add_bos(model)
        self.compare("bos", model)

    def test_layouts_give_the_figures_of_one_rank(self):
        tasks = ["hellaswag", "lambada_openai", "text"]
        for words in (("--ranks", 2), ("--ranks", 2, "--parallel.tensor_model_parallel_size=2"),
                      ("--ranks", 2, "--parallel.pipeline_model_parallel_size=2")):
            output, _ = self.compare("plain", TINY, *words, tasks=tasks)
            self.assertEqual(output["ranks"], 2)

    def test_equal_input_gives_equal_bytes(self):
        made = []
        for _ in range(2):
            output, _, printed = self.evaluate(TINY, "--limit", 7, tasks=["race", "text"])
            for task in output["tasks"]:
                del task["seconds"]
                self.assertEqual(task["rows"], 7)
            made.append((output, printed, (self.root / "samples.jsonl").read_bytes()))
        self.assertEqual(made[0], made[1])

    def test_the_model_sees_at_most_max_length_tokens(self):
        _, requests, _ = self.evaluate(TINY, "--max-length", 24, "--limit", 5, tasks=["lambada_openai", "text"])
        sizes = [len(one["context_tokens"]) + len(one["continuation_tokens"]) for of in requests.values() for one in of]
        self.assertEqual(max(sizes), 25)  # the last token is scored and not seen
        windows = [one for one in requests["text"] if one["row"] == requests["text"][-1]["row"]]
        self.assertEqual([one["choice"] for one in windows], list(range(len(windows))))

    def test_a_faulty_row_ends_the_run(self):
        path, good = self.root / "faulty.jsonl", '{"context": "It", "choices": [" was"], "gold": 0}\n'
        for line, message in (('{"context": "It", "choices": [" was"]}', '"gold": expected a number from 0 to 0'),
                              ('{"context": "It", "choices": [""], "gold": 0}', "a continuation without a token of its own"),
                              (json.dumps({"context": "It", "choices": ["!?" * 60], "gold": 0}),
                               "a continuation of 120 tokens: the model sees 64"),
                              ("[]", "expected a JSON object"), ("{", "column")):
            path.write_text(good + "\n" + line + "\n")
            _, errors = run("eval", "--model", TINY, "--task", f"choice={path}", expect=1)
            self.assertIn(f"{path}:3: ", errors)
            self.assertIn(message, errors)
            self.assertEqual(errors.count("\n"), 1, errors)

    def test_wrong_tasks_are_bad_usage(self):
        for item, message in (("none=a.jsonl", "no task is called that; there are hellaswag"), ("piqa", "expected NAME=FILE"),
                              ("piqa=", "expected NAME=FILE")):
            _, errors = run("eval", "--model", TINY, "--task", item, expect=2)
            self.assertIn(message, errors)
        _, errors = run("eval", "--model", TINY, "--task", f"piqa={self.root}/none", expect=1)
        self.assertIn("none", errors)

    def test_a_signal_keeps_what_is_finished(self):
        """Rows come through a pipe that stays open, so the run is waiting when the signal comes."""
        output, fifo = self.root / "stopped.json", self.root / "rows"
        os.mkfifo(fifo)
        process = subprocess.Popen([CAMBIUM, "eval", "--model", TINY, "--task", f"piqa={self.root}/piqa.jsonl", f"text={fifo}", "--output", output],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with open(fifo, "wb") as pipe:  # opens when the program does
            pipe.write(b'{"text": "It was the best of times"}\n')
            pipe.flush()
            process.send_signal(signal.SIGINT)
            printed, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 1, errors)
        self.assertIn(b"interrupted by SIGINT", errors)
        self.assertEqual([(task["task"], task["rows"]) for task in json.loads(output.read_text())["tasks"]][0], ("piqa", 60))
        self.assertRegex(printed.decode(), "(?m)^piqa +60  ")


if __name__ == "__main__":
    unittest.main()
