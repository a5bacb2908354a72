#!/usr/bin/env python3
"""Records lm_eval with examples before each row, and its completions, for the tests of `eval`. Made with lm_eval 0.4.13,
transformers 5.24.0, torch 2.15.0.

The rows are the first 30 of tests/tasks/golden, of which 12 are asked; the others are the file of examples. EVAL/shots.json.gz
has those of `generate` and of chats too, and of each case the words after `eval`, the requests (tokens, sum, flag) or the
completions, and the metrics. The model is the committed tiny one. Nothing is fetched.

    python tools/golden/eval_shots.py tests/tasks/golden tests/commands/golden/eval
"""
import gzip
import json
import pathlib
import sys
import tempfile

import eval_tasks
import lm_eval
from eval_tasks import EXTRAS, TINY, Recorder, rng, text
from lm_eval.tasks import TaskManager

ASKED, SHOTS, MAX_GEN = 12, 2, 12
GENERATE = {"output_type": "generate_until", "doc_to_text": "{{context}}", "doc_to_target": "{{answer}}", "target_delimiter": " ",
            "metric_list": [{"metric": "exact_match"}]}
TASKS = ["hellaswag", "winogrande", "arc_easy", "lambada_openai", "choice", "generate"]
WAYS = [("own", None), ("own", 7), ("file", None), ("file", 1234)]


def evaluate(model, directory, name, rows, shots_from, seed, shots, until):
    """The requests or completions, and the metrics, of lm_eval."""
    for part, some in (("test", rows[:ASKED]), ("shots", rows[ASKED:])):
        (directory / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    split = "shots" if shots_from == "file" else "test"
    files = {part: str(directory / f"{part}.jsonl") for part in ("test", "shots")}
    lines = {"task": "local", "dataset_path": "json", "dataset_name": None, "test_split": "test", "training_split": None,
             "validation_split": None, "fewshot_split": split, "dataset_kwargs": {"data_files": files}}
    if seed is None:
        lines["fewshot_config"] = {"sampler": "first_n", "split": split}
    shipped = pathlib.Path(lm_eval.__file__).parent / "tasks"
    lines |= {"include": str(shipped / eval_tasks.SHIPPED[name])} if name in eval_tasks.SHIPPED else EXTRAS[name] if name in EXTRAS else GENERATE
    if name == "generate":
        lines["generation_kwargs"] = {"until": until, "max_gen_toks": MAX_GEN, "do_sample": False}
    (directory / "local.yaml").write_text(json.dumps(lines))  # YAML includes JSON
    model.noted = []
    manager = TaskManager(include_path=str(directory), include_defaults=False)
    done = lm_eval.simple_evaluate(model=model, tasks=["local"], task_manager=manager, num_fewshot=shots, log_samples=True, bootstrap_iters=0,
                                   fewshot_random_seed=1234 if seed is None else seed)
    samples = sorted(done["samples"]["local"], key=lambda sample: sample["doc_id"])
    metrics = {key.removesuffix(",none"): value for key, value in done["results"]["local"].items() if key.endswith(",none") and "stderr" not in key}
    return (samples if name == "generate" else model.noted), metrics


def make_rows(golden, name):
    if name != "generate":
        return [json.loads(line)["row"] for line in (golden / f"{name}.jsonl").read_text().splitlines()[:30]]
    return [{"context": text(2, 14) + rng.choice(["", "\nA:"]), "answer": text(1, 3)} for _ in range(30)]


def main():
    golden, out = map(pathlib.Path, sys.argv[1:3])
    rng.seed(5)
    model = Recorder(pretrained=str(TINY), dtype="float32", device="cpu", batch_size=1)
    rows, cases = {name: make_rows(golden, name) for name in TASKS}, []
    with tempfile.TemporaryDirectory() as scratch:
        def record(name, way, seed, shots, until, words):
            found, metrics = evaluate(model, pathlib.Path(scratch), name, rows[name], way, seed, shots, until)
            if name == "generate":
                found = [{"prompt": model.tok_encode(sample["arguments"][0][0])[-(model.max_length - MAX_GEN):], "completion": sample["resps"][0][0],
                          "exact_match": sample["resps"][0][0].strip() == sample["doc"]["answer"].strip()} for sample in found]
                metrics = {"exact_match": sum(one["exact_match"] for one in found) / len(found)}
            cases.append({"task": name, "words": words, "results": found, "metrics": metrics})
            print(name, words, metrics)
            return found
        first = evaluate(model, pathlib.Path(scratch), "generate", rows["generate"], "own", None, 0, ["\n\n"])[0]
        for i in range(0, ASKED, 2):  # some answers are right without examples
            rows["generate"][i]["answer"] = "  " + first[i]["resps"][0][0].strip() + "\n"
        for name in TASKS:
            for way, seed in WAYS:
                words = ["--num-fewshot", str(SHOTS)] + (["--fewshot-data", "FILE"] if way == "file" else []) + ([] if seed is None else ["--fewshot-seed", str(seed)])
                record(name, way, seed, SHOTS, ["\n\n"], words + (["--max-gen-toks", str(MAX_GEN)] if name == "generate" else []))
        for until in (["\n\n"], [" ", "e"]):
            record("generate", "own", None, 0, until, ["--max-gen-toks", str(MAX_GEN), "--until", *until])
    (golden / "generate.jsonl").write_text("".join(json.dumps({"row": row, "requests": [[row["context"], row["answer"]]]}) + "\n"
                                                   for row in rows["generate"] + make_rows(golden, "generate")))
    with open(out / "shots.json.gz", "wb") as file:
        file.write(gzip.compress(json.dumps({"asked": ASKED, "rows": rows, "cases": cases}).encode(), mtime=0))


if __name__ == "__main__":
    main()
