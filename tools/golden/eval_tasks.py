#!/usr/bin/env python3
"""Records lm_eval on rows of every task, for the tests of `eval`. Made with lm_eval 0.4.13, transformers 5.24.0, torch 2.15.0.

A line of TASKS/NAME.jsonl is a row and the texts of its requests. TASKS/strings.json has random texts and literals, and
results of Python for them. EVAL/expected.json.gz has tokens, sums and flags of all requests, and the metrics. The model is the
committed tiny one, with its tokenizer ("plain") and with one that puts a BOS before every text ("bos"). Nothing is fetched.

    python tools/golden/eval_tasks.py tests/tasks/golden tests/commands/golden/eval
"""
import ast
import gzip
import json
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import lm_eval  # noqa: E402
import torch  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

TINY = pathlib.Path(__file__).parents[2] / "tests/commands/golden/tiny/model"
ROWS = 60
WORDS = """the of times it was best worst age wisdom cat sat on mat dog ate dinner didn't café Où près forêt ΣΊΣΥΦΟΣ ΑΣ ǆungla İstanbul
ﬁne STRASSE ß 春眠 不觉 🌲 🌳 x1 12 3.5 (a) [b] {c} "q" 's don't N ° = @-@ @,@ @.@ . , ; : ! ? <|endoftext|> [title] [step] _a naïve""".split()
SPACES = [" "] * 14 + ["  ", "   ", "\u00a0", "\u3000", "\n", " \n ", "\t", "\u2003", "\x1c"]
EXTRAS = {  # tasks of one's own data
    "choice": {"output_type": "multiple_choice", "doc_to_text": "{{context}}", "doc_to_choice": "{{choices}}", "doc_to_target": "{{gold}}",
               "target_delimiter": "", "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True}
                                                        for m in ("acc", "acc_norm")]},
    "text": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
             "metric_list": [{"metric": m} for m in ("word_perplexity", "byte_perplexity", "bits_per_byte")]},
}
SHIPPED = {"hellaswag": "hellaswag/hellaswag.yaml", "piqa": "piqa/piqa.yaml", "winogrande": "winogrande/default.yaml",
           "boolq": "super_glue/boolq/default.yaml", "arc_easy": "arc/arc_easy.yaml", "arc_challenge": "arc/arc_challenge.yaml",
           "race": "race/race.yaml", "wikitext": "wikitext/wikitext.yaml", "lambada_openai": "lambada/lambada_openai.yaml",
           "lambada_standard": "lambada/lambada_standard.yaml"}
rng = random.Random(31)


def text(low, high, spaces=SPACES):
    """Some words, now and then with white space around them."""
    words = [rng.choice(WORDS) for _ in range(rng.randint(low, high))]
    made = "".join(word + (rng.choice(spaces) if i + 1 < len(words) else "") for i, word in enumerate(words))
    if rng.random() < 0.1:
        made = rng.choice(["<|endoftext|>", " ", "\n"]) + made
    return made + rng.choice([" ", "\u3000"]) if rng.random() < 0.1 else made


def ending():
    return "" if rng.random() < 0.08 else text(1, 5)


def problem():
    question = text(2, 6) + "  _  ." if rng.random() < 0.5 else text(2, 6)
    return {"question": question, "answer": rng.choice("ABCD"), "options": [text(1, 3) for _ in range(4)]}


def page():
    pieces = [" = Title = ", " = = Part = = ", "( a , b )", "[ x ]", "{ y }", '" said "', "' so '", "dogs ' ", "1 @,@ 000", "2 @.@ 5",
              "well @-@ known", "/' 3/", "10 ° C", " \n ", "N", "it 's", text(1, 12)]
    return " ".join(rng.choice(pieces) for _ in range(rng.randint(1, 30)))


def row(task):
    if task == "hellaswag":
        return {"ind": rng.randrange(99), "activity_label": text(1, 3), "ctx_a": text(3, 20), "ctx_b": text(0, 4),
                "endings": [ending() for _ in range(4)], "label": str(rng.randrange(4))}
    if task == "piqa":
        return {"goal": text(3, 20), "sol1": text(1, 6), "sol2": text(1, 6), "label": rng.randrange(2)}
    if task == "winogrande":
        return {"sentence": text(2, 9).replace("_", "") + " _ " + text(1, 6), "option1": text(1, 2), "option2": text(1, 2),
                "answer": rng.choice("12")}
    if task == "boolq":
        return {"passage": text(5, 40), "question": text(3, 8), "idx": 0, "label": rng.randrange(2)}
    if task.startswith("arc"):
        labels = rng.choice(["ABCD", "1234", "ABC", "ABCDE"])
        return {"id": "a", "question": text(3, 15), "answerKey": rng.choice(labels),
                "choices": {"text": [ending() for _ in labels], "label": list(labels)}}
    if task == "race":
        return {"article": text(5, 20), "problems": str([problem() for _ in range(rng.randint(1, 4))])}
    if task == "wikitext":
        return {"page": page()}
    if task == "text":
        return {"text": text(0, 60) or "a"}
    if task == "choice":
        return {"context": text(0, 12) + rng.choice(["", "z", "z "]), "choices": [text(1, 4) or "b" for _ in range(rng.randint(1, 5))], "gold": 0}
    words = text(1, 14, [" "] * 9 + ["  ", "\n"])
    return {"text": words + rng.choice([" best", " times", "  x", ""])}


def write_tasks(directory, rows):
    """Definitions of the tasks over local rows; their rows."""
    shipped = pathlib.Path(lm_eval.__file__).parent / "tasks"
    for name in rows:
        data = directory / f"{name}.jsonl"
        data.write_text("".join(json.dumps(r) + "\n" for r in rows[name]))
        lines = {"task": f"local_{name}", "dataset_path": "json", "dataset_name": None, "test_split": "test", "training_split": None,
                 "validation_split": None, "fewshot_split": None, "dataset_kwargs": {"data_files": {"test": str(data)}}}
        lines |= {"include": str(shipped / SHIPPED[name])} if name in SHIPPED else EXTRAS[name]
        (directory / f"local_{name}.yaml").write_text(json.dumps(lines))  # YAML includes JSON


class Recorder(HFLM):
    """Notes the tokens and the result of each request, in their order."""

    def _loglikelihood_tokens(self, requests, **more):
        results = super()._loglikelihood_tokens(requests, **more)
        for (_, context, continuation), (logprob, is_greedy) in zip(requests, results, strict=True):
            seen = (context + continuation)[-(self.max_length + 1):]
            self.noted.append((seen[:-len(continuation)], list(continuation), float(logprob), bool(is_greedy)))
        return results


def evaluate(model, manager, task):
    model.noted = []
    done = lm_eval.simple_evaluate(model=model, tasks=[f"local_{task}"], task_manager=manager, log_samples=True, bootstrap_iters=0)
    samples = sorted(done["samples"][f"local_{task}"], key=lambda sample: sample["doc_id"])
    found = done["results"][f"local_{task}"]
    metrics = {key.removesuffix(",none"): value for key, value in found.items() if key.endswith(",none") and "stderr" not in key}
    return samples, metrics


def is_possible(model, requests):
    """lm_eval stops at a continuation that has no tokens, or more than there are positions."""
    for context, continuation in requests:
        tokens = model._encode_pair(context, continuation)[1] if context else model.tok_encode(continuation, add_special_tokens=False)
        if not context and tokens[:1] == [model.prefix_token_id]:
            tokens = tokens[1:]
        if not 0 < len(tokens) <= model.max_length - 1:
            return False
    return True


def arguments(task, found):
    """The texts of a row's requests, in the order of its choices."""
    return [list(found.args) if len(found.args) == 2 else ["", found.args[0]] for found in found]


def requests_of(manager, tasks):
    made = {}
    for name in tasks:
        task = manager.load([f"local_{name}"])["tasks"][f"local_{name}"] if hasattr(manager, "load") else None
        task.build_all_requests(limit=None, rank=0, world_size=1)
        by_row = {}
        for instance in task.instances:
            by_row.setdefault(instance.doc_id, []).append(instance)
        made[name] = [arguments(name, by_row[i]) for i in sorted(by_row)]
    return made


def make_rows(directory, models, count):
    """Random rows of every task at which lm_eval does not stop, the texts of their requests, and the tasks' manager."""
    rows = {name: [row(name) for _ in range(2 * count)] for name in (*SHIPPED, *EXTRAS)}
    for attempt in ("all", "possible"):
        folder = directory / attempt
        folder.mkdir()
        write_tasks(folder, rows)
        manager = TaskManager(include_path=str(folder))
        made = requests_of(manager, rows)
        if attempt == "all":
            rows = {name: [r for r, asked in zip(rows[name], made[name], strict=True)
                           if name in ("wikitext", "text") or all(is_possible(m, asked) for m in models)][:count] for name in rows}
    return rows, made, manager


def strings():
    """Random texts, and the results of Python's str and re for them."""
    made = []
    points = [*range(0, 0x250), *range(0x370, 0x400), 0x1E9E, 0x2028, 0x3000, 0x85, 0x130, 0x149, 0x1F0, 0xFB01, 0x1F88, 0x1C5, 0x10D0, 0x1C90,
              0x3A3, 0x3A3, 0x3A3, 0x3C3, 0x301, 0x27, 0x2019, 0xAD, 0x2160, 0x24B6, 0x1F130, 0x4E00, 0x1F332]
    for i in range(400):
        some = points if i % 2 else [0x3A3, 0x41, 0x61, 0x20, 0x2E, 0x301, 0x2019, 0x1D4D, 0x2160, 0x24D0, 0x31]
        value = "".join(chr(rng.choice(some)) for _ in range(rng.randint(0, 12)))
        made.append({"text": value, "capitalized": value.capitalize(), "stripped": value.strip(), "rstripped": value.rstrip(),
                     "length": len(value), "words": len(re.split(r"\s+", value))})
    return made


def literals():
    """Texts and their values by ast.literal_eval; null: it refuses them, or JSON cannot hold the value."""
    def value():
        kind = rng.randrange(9)
        if kind < 4:
            return text(0, 4) + rng.choice(["", "'", '"', "\\", "\n", "\x01", "'\""])
        return [rng.randrange(-9, 10 ** 6), rng.random(), None, rng.choice([True, False]), [value() for _ in range(rng.randrange(3))]][kind - 4]
    texts = [repr(value()) for _ in range(80)] + [repr({text(0, 2): value() for _ in range(rng.randrange(4))}) for _ in range(40)]
    texts += ["()", "(1)", "(1,)", "(1, 2)", "[1,2,]", "{'a':1,}", "'a' \"b\"", "r'\\n'", "u'x'", "'''a\nb'''", '"""x"y"""', "'\\x41\\u00e9\\U0001F332\\101\\7\\q'",
              "'a\\\nb'", " [1]", "[1] # c", "[ 1 ,\n 2 ]", "-1", "+1", "1e3", ".5", "5.", "'", "'a\nb'", "[1", "[1 2]", "{'a'}", "{'a':}", "{1:2}", "[,]", "{,}",
              "", "x", "f('a')", "[].a", "1+", "'a'+'b'", "b'a'", "{'a', 'b'}", "'\\x4'", "'\\ud'", "'\\U00110000'", "[1]]", "True", "None", "truE", "__import__('os')",
              "['a' 'b', 'c']", "(\n'a'\n)", "[" * 70 + "]" * 70, "lambda: 1", "[1 for x in y]", "\\"]
    made = []
    for one in texts:
        try:
            result = ast.literal_eval(one)
            json.dumps(result)
            result = [json.loads(json.dumps(result))]
            if isinstance(ast.literal_eval(one), dict) and not all(isinstance(key, str) for key in ast.literal_eval(one)):
                result = None
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            result = None
        if one.startswith("[" * 70):
            result = None  # deeper than is read here
        if one == "'a'+'b'" or one == "1+":
            result = None
        made.append({"text": one, "value": result})
    return made


def main():
    tasks_out, eval_out = map(pathlib.Path, sys.argv[1:3])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        bos = scratch / "bos"
        shutil.copytree(TINY, bos)
        tokenizer = json.loads((bos / "tokenizer.json").read_text())
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}}
        (bos / "tokenizer.json").write_text(json.dumps(tokenizer))
        models = {name: Recorder(pretrained=str(path), dtype="float32", device="cpu", batch_size=8)
                  for name, path in (("plain", TINY), ("bos", bos))}
        rows, made, manager = make_rows(scratch, models.values(), ROWS)
        tasks_out.mkdir(parents=True, exist_ok=True)
        eval_out.mkdir(parents=True, exist_ok=True)
        for name in rows:
            assert len(rows[name]) == ROWS, (name, len(rows[name]))
            (tasks_out / f"{name}.jsonl").write_text("".join(json.dumps({"row": r, "requests": asked}) + "\n"
                                                             for r, asked in zip(rows[name], made[name], strict=True)))
        (tasks_out / "strings.json").write_text(json.dumps({"strings": strings(), "literals": literals()}))
        expected = {}
        for kind, model in models.items():
            for name in rows:
                samples, metrics = evaluate(model, manager, name)
                acc = {i: [sample[i] for sample in samples] for i in ("acc", "acc_norm") if i in samples[0]}
                expected[f"{kind}/{name}"] = {"requests": model.noted, "metrics": metrics, "rows": acc}
                print(kind, name, len(model.noted), metrics)
        with open(eval_out / "expected.json.gz", "wb") as file:
            file.write(gzip.compress(json.dumps(expected).encode(), mtime=0))


if __name__ == "__main__":
    main()
