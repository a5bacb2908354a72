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

SHOTS = json.loads(gzip.decompress((SOURCE / "tests/commands/golden/eval/shots.json.gz").read_bytes()))  # tools/golden/eval_shots.py
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

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def setUp(self):
        for task in TASKS:  # a test may have its own
            lines = (SOURCE / f"tests/tasks/golden/{task}.jsonl").read_text().splitlines()
            rows = "".join(json.dumps(json.loads(line)["row"]) + "\n" for line in lines)
            (self.root / f"{task}.jsonl").write_text(rows)
        (self.root / "boolq.jsonl").write_bytes(gzip.compress((self.root / "boolq.jsonl").read_bytes()))

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

    def test_messages_need_special_tokens(self):
        (self.root / "chat.named").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}], "choices": ["b"], "gold": 0}))
        words = ("eval", "--model", TINY, "--task", f"choice={self.root}/chat.named", "--chat-template", "chatml")
        run(*words)
        _, errors = run(*words, "--special-tokens", "text", expect=1)
        self.assertIn('chat.named:1: field "messages": a chat has the special tokens of its template', errors)

    def test_a_tokenizer_may_put_a_bos_before_each_text(self):
        model = self.root / "bos"
        shutil.copytree(TINY, model)
        add_bos(model)
        self.compare("bos", model)

    def test_examples_and_completions_are_those_of_lm_eval(self):
        for case in SHOTS["cases"]:
            name, rows = case["task"], SHOTS["rows"][case["task"]]
            more = self.root / "more.jsonl"
            for path, some in ((self.root / f"{name}.jsonl", rows[:SHOTS["asked"]]), (more, rows[SHOTS["asked"]:])):
                path.write_text("".join(json.dumps(row) + "\n" for row in some))
            words = [more if word == "FILE" else word for word in case["words"]]
            for ranks in ((), ("--ranks", 2)) if name == "generate" else ((),):
                output, requests, _ = self.evaluate(TINY, *words, *ranks, tasks=[name])
                for ours, expected in zip(requests[name], case["results"], strict=True):
                    where = f"{name} {case['words']} row {ours['row']}"
                    if name == "generate":
                        self.assertEqual((ours["context_tokens"], ours["completion"], ours["exact_match"]),
                                         (expected["prompt"], expected["completion"], expected["exact_match"]), where)
                        continue
                    context, continuation, logprob, is_greedy = expected
                    self.assertEqual((ours["context_tokens"], ours["continuation_tokens"]), (context, continuation), where)
                    self.assertLessEqual(abs(ours["logprob"] - logprob), 1e-5 * abs(logprob), where)
                    self.assertEqual(ours["is_greedy"], is_greedy, where)
                for metric, value in case["metrics"].items():
                    bound = 1e-6 * value if metric == "perplexity" else 0
                    self.assertLessEqual(abs(output["tasks"][0]["metrics"][metric] - value), bound, f"{name} {words} {metric}")

    def test_chats_are_rendered_with_their_examples_as_turns(self):
        def ask(text):
            return [{"role": "system", "content": "S"}, {"role": "user", "content": text}]
        rows = [{"messages": ask(f"q{i}"), "choices": ["a", "b"], "gold": i % 2, "answer": f" A{i} "} for i in range(3)]
        for task in ("choice", "generate"):
            (self.root / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            answers = [row["choices"][row["gold"]] if task == "choice" else row["answer"].strip() for row in rows]
            for shots, before in ((0, [[], [], []]), (2, [[1, 2], [0, 2], [0, 1]])):
                _, requests, _ = self.evaluate(TINY, "--chat-template", "plain", "--num-fewshot", shots, tasks=[task])
                for one in requests[task]:
                    chat = ask("")[:1]
                    for i in before[one["row"]]:
                        chat += [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": answers[i]}]
                    chat.append({"role": "user", "content": f"q{one['row']}"})
                    (self.root / "chat.json").write_text(json.dumps(chat))
                    ids = run("tokenize", "--tokenizer", TINY, "--messages", self.root / "chat.json", "--chat-template", "plain")[0].split()
                    whole = one["context_tokens"] + one.get("continuation_tokens", [])  # white space goes to the continuation
                    self.assertEqual(whole[:len(ids)] if task == "choice" else whole, [int(id) for id in ids])
        for row, part in ((rows[0] | {"messages": []}, '"messages": expected a list'), (rows[0] | {"context": "x"}, 'no "context" beside it'),
                          (rows[0] | {"messages": [{"role": 1}]}, 'message 1: field "role" is not a string')):
            (self.root / "choice.jsonl").write_text(json.dumps(row) + "\n")
            self.assertIn(part, run("eval", "--model", TINY, "--task", f"choice={self.root}/choice.jsonl", expect=1)[1])

    def test_a_template_that_no_row_needs_is_not_read(self):
        model = self.root / "broken-template"
        shutil.copytree(TINY, model)
        (model / "chat_template.jinja").write_text("{% for %}")
        run("eval", "--model", model, "--task", f"piqa={self.root}/piqa.jsonl", "--limit", 2)
        (self.root / "chat.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}], "answer": "b"}) + "\n")
        self.assertIn("chat_template.jinja: line 1", run("eval", "--model", model, "--task", f"generate={self.root}/chat.jsonl", expect=1)[1])

    def test_wrong_examples_are_refused(self):
        few, chats = self.root / "few.jsonl", self.root / "chats.jsonl"
        few.write_text('{"context": "a", "answer": "b"}\n' * 2)
        chats.write_text('{"messages": [{"role": "user", "content": "a"}], "answer": "b"}\n')
        task = ("--task", f"generate={few}")
        for words, part, status in (((*task, "--num-fewshot", 2), "few.jsonl has 2 rows, of which one is asked", 1),
                                    ((*task, "--num-fewshot", 1), "only 0 rows differ from this one", 1),
                                    ((*task, "--num-fewshot", 1, "--fewshot-seed", 3), "only 0 rows differ from this one", 1),
                                    ((*task, "--num-fewshot", 3, "--fewshot-data", few), "few.jsonl has 2 rows", 1),
                                    ((*task, "--num-fewshot", 1, "--fewshot-data", chats), "example 1 has the field", 1),
                                    ((*task, "--fewshot-data", few), "does nothing without --num-fewshot", 2),
                                    ((*task, "--until", ""), "empty", 1),
                                    ((*task, "--max-gen-toks", 64), "the model sees 64 tokens", 2),
                                    (("--task", f"piqa={few}", "--until", "x"), "--until is for the task generate", 2),
                                    (("--task", f"text={few}", "--num-fewshot", 1), "--num-fewshot does nothing for text", 2)):
            self.assertIn(part, run("eval", "--model", TINY, *words, expect=status)[1], words)

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

    def test_more_tokens_than_the_model_has_positions_are_refused_by_the_option_s_name(self):
        path = self.root / "rows.jsonl"
        path.write_text('{"text": "It was"}\n')
        _, errors = run("eval", "--model", TINY, "--task", f"text={path}", "--max-length", 100000, expect=2)
        self.assertRegex(errors, r"error: --max-length 100000: the model has \d+ positions\n")

    def test_a_faulty_row_ends_the_run(self):
        path, good = self.root / "faulty.jsonl", '{"context": "It", "choices": [" was"], "gold": 0}\n'
        for line, message in (('{"context": "It", "choices": [" was"]}', '"gold": expected a number from 0 to 0'),
                              ('{"context": "It", "choices": [""], "gold": 0}', "a continuation that adds no token"),
                              (json.dumps({"context": "It", "choices": ["!?" * 60], "gold": 0}),
                               "a continuation of 120 tokens: the model sees 64"),
                              ("[]", "expected a JSON object"), ("{", "column")):
            path.write_text(good + "\n" + line + "\n")
            _, errors = run("eval", "--model", TINY, "--task", f"choice={path}", expect=1)
            self.assertIn(f"{path}:3: ", errors)
            self.assertIn(message, errors)
            self.assertEqual(errors.count("\n"), 1, errors)

    def test_wrong_tasks_are_bad_usage(self):
        for item, message in (("none=a.jsonl", "unknown task; known: hellaswag"), ("piqa", "expected NAME=FILE"),
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
