"""--device cuda, on libraries that stand in for NVIDIA's: they execute the program's own kernels on the CPU. Training,
tuning and completions are those of the CPU, and checkpoints go from one device to the other."""
import collections
import json
import math
import os
import pathlib
import tempfile
import unittest
import unittest.mock

import finetune_support
from model_support import SANITIZED, SOURCE, TINY, needs_bf16, rows, run
from pretrain_support import LONG, Run, assert_same_run, timeless
from quantised_support import FAMILIES, quantise
from serve_support import Server

STANDIN = os.environ.get("CAMBIUM_CUDA_STANDIN")  # of a build with CUDA
CUDA = ["--device", "cuda"]
LAYOUTS = {
    "data": dict(use=["--ranks", "2"]),
    "tensor": dict(use=["--ranks", "2"], parallel__tensor_model_parallel_size=2),
    "pipeline": dict(use=["--ranks", "2"], parallel__pipeline_model_parallel_size=2),
    "all": dict(use=["--ranks", "4"], parallel__tensor_model_parallel_size=2, parallel__sequence_parallel="true",
                parallel__use_distributed_optimizer="true"),
}
SMALL_CARD = 200  # MB: for model and workspace, but not for the cache of all completions
METHODS = ["lora", "prefix", "ia3", "adapter", "prompt", "ptuning"]
if SANITIZED:  # the stand-in is several times slower
    LAYOUTS = {"tensor": LAYOUTS["tensor"]}
    METHODS = METHODS[:1]


def setUpModule():
    if not STANDIN:
        raise unittest.SkipTest("this build has no CUDA")
    os.environ["LD_LIBRARY_PATH"] = STANDIN


class Runs(unittest.TestCase):
    def setUp(self):
        self.run_of = Run()

    def train(self, name, use=(), device=CUDA, **keys):
        self.run_of.run(name, [*use, *device], **keys)
        return self.run_of.records(name)


class Pretraining(Runs):
    def test_losses_are_the_cpus_in_every_layout_of_one_card(self):
        expected = self.train("cpu", device=[])
        self.assertEqual(len(expected), 20)
        assert_same_run(self, self.train("one"), expected, losses=1e-5, norms=1e-3)
        for name, layout in LAYOUTS.items():
            with self.subTest(name):
                assert_same_run(self, self.train(name, **layout), expected, losses=1e-5, norms=1e-3)

    @unittest.skipIf(SANITIZED, "the stand-in is several times slower under a sanitizer")
    @needs_bf16
    def test_dropout_and_bf16_are_the_same_each_time(self):
        keys = dict(model__hidden_dropout=0.1, model__attention_dropout=0.1, train__precision="bf16", train__train_iters=5)
        expected = self.train("cpu", device=[], **keys)
        os.environ["CAMBIUM_CUDA_SEED"] = "1"
        first = self.train("first", **keys)
        os.environ["CAMBIUM_CUDA_SEED"] = "2"  # blocks and warps run in another order
        second = self.train("second", **keys)
        del os.environ["CAMBIUM_CUDA_SEED"]
        self.assertEqual(timeless(first), timeless(second))
        assert_same_run(self, first, expected, losses=1e-2, norms=1e-1)

    def test_tf32_is_close_to_fp32_and_resumes_as_fp32(self):
        keys = dict(train__train_iters=4, train__exit_interval=2)
        expected = self.train("fp32", device=[], train__train_iters=4)
        found = self.train("tf32", train__precision="tf32", **keys)
        assert_same_run(self, found, expected[:2], losses=2e-3, norms=2e-2)
        self.assertNotEqual([record["lm_loss"] for record in found], [record["lm_loss"] for record in expected[:2]])
        assert_same_run(self, self.train("tf32", device=[], train__precision="fp32", **keys), expected, losses=2e-3, norms=2e-2)

    @needs_bf16
    def test_fp8_is_the_cpus_and_resumes_there(self):
        keys = dict(train__precision="fp8", train__train_iters=8)
        expected = self.train("cpu", device=[], **keys)
        found = self.train("cuda", train__exit_interval=4, **keys)
        assert_same_run(self, found, expected[:4], losses=1e-2, norms=1e-1)
        self.assertNotIn("they begin empty", self.run_of.run("cuda", train__exit_interval=4, **keys).stderr)
        assert_same_run(self, self.run_of.records("cuda"), expected, losses=1e-2, norms=1e-1)

    def test_a_checkpoint_of_one_device_resumes_on_the_other(self):
        whole = self.train("whole", device=[])
        directions = [("to-cpu", (CUDA, [])), ("to-cuda", ([], CUDA))]
        for name, devices in directions[1:] if SANITIZED else directions:
            with self.subTest(name):
                self.train(name, device=devices[0], train__exit_interval=10)
                assert_same_run(self, self.train(name, device=devices[1]), whole, losses=1e-5, norms=1e-3)

    def test_a_run_from_a_model_is_the_cpus(self):
        self.train("first", device=[], train__train_iters=4)
        use = ["--init-from", self.run_of.directory / "first/iter_0000004"]
        keys = dict(train__train_iters=4, checkpoint__load=None)
        expected = self.train("cpu", use, device=[], **keys)
        assert_same_run(self, self.train("card", use, **keys), expected, losses=1e-5, norms=1e-3)

    def test_a_launch_that_fails_within_a_step_ends_the_run(self):
        with unittest.mock.patch.dict(os.environ, CAMBIUM_CUDA_FAIL="launch:300"):
            done = self.run_of.run("run", CUDA, expect=1)
        (line,) = [line for line in done.stderr.splitlines() if "error" in line]
        self.assertEqual(line, "cambium: error: cuda:0: work on the device failed: unspecified launch failure (719)")
        self.assertEqual(self.run_of.checkpoints("run"), [])


def counted(action):
    """Returns the stand-in's counts of an action: launches by kernel, and the driver's calls."""
    with tempfile.TemporaryDirectory() as directory:
        report = pathlib.Path(directory, "report")
        os.environ["CAMBIUM_CUDA_REPORT"] = str(report)
        action()
        del os.environ["CAMBIUM_CUDA_REPORT"]
        counts = collections.Counter()
        for line in rows(report.read_bytes()):
            counts.update({line["kernel"]: line["launches"]} if "kernel" in line else line)
        return counts


@unittest.skipIf(SANITIZED, "the counts are the same")
class Counts(Runs):
    """The calls of one step are the difference between two runs, divided by the steps between them."""

    def step(self, layers, ranks=1, **keys):
        def train(iterations):
            return counted(lambda: self.train(f"{layers}-{ranks}-{iterations}", ["--ranks", str(ranks)], train__train_iters=iterations,
                                              train__global_batch_size=2 * ranks, model__num_layers=layers, **keys))
        more = train(6)
        more.subtract(train(4))
        return {name: count / 2 for name, count in more.items()}

    def test_a_training_step(self):
        two, three, ranks = self.step(2), self.step(3), self.step(2, ranks=2)
        self.assertGreater(ranks["reduce"], 0)
        for name in ("allocations", "uploads", "downloads"):  # what ranks add up does not go through the host
            self.assertEqual(ranks[name], 2 * two[name], name)
        for step in (two, three):
            self.assertEqual((step.pop("allocations"), step.pop("waits"), step["adamw_fp32"]), (0, 1, 1))
            for name in ("uploads", "downloads", "launches", "graph_launches"):
                del step[name]
        # A layer has 11 launches forward and 24 backward, 4 and 8 of which are the library's products.
        self.assertLessEqual(sum(three.values()) - sum(two.values()), 11 + 24 - 4 - 8)

    def test_a_training_step_in_fp8(self):
        two, three = (self.step(layers, train__precision="fp8") for layers in (2, 3))
        layer = {name: three[name] - two[name] for name in three}
        # Four weights, and attention's output forward and backward; the gradients of all outputs but fc1's.
        self.assertEqual((layer["fp8_cast_e4m3"], layer["fp8_cast_e5m2"]), (4 + 2, 3))
        # Norms and activations write the other inputs, forward by rows and backward by columns.
        writers = ("norm_rows_fp8", "fp8_norm", "fp8_gelu", "fp8_gelu_gradient")
        self.assertEqual([layer[name] for name in writers], [2, 2, 2, 1])
        self.assertLessEqual(layer["launches"], 39)  # without the library's 12 products

    def decode(self, *more):
        """Returns the counts of five decode steps."""
        def generate(tokens):
            return counted(lambda: run("generate", "--model", TINY, "--prompt", "Hello there", "--max-new-tokens", tokens,
                                       "--ignore-eos", "--temperature", "0", *CUDA, *more))
        counts = generate("13")
        counts.subtract(generate("8"))
        return counts

    def test_a_decode_layer_has_8_launches(self):
        layers = json.loads(pathlib.Path(TINY, "config.json").read_bytes())["n_layer"]
        counts = self.decode("--precision", "bf16", "--cuda-graphs", "off")
        products = sum(count for name, count in counts.items() if name.startswith("few_rows"))
        self.assertEqual(products / 5, 4 * layers + 1)
        ends = 6  # pages, embedding, wanted rows, norm, head, draw
        self.assertLessEqual(counts["launches"] / 5, 8 * layers + ends)

    def test_a_decode_step(self):
        more = self.decode()
        names = ("allocations", "graph_launches", "launches", "uploads", "downloads", "waits")
        self.assertEqual([more[name] / 5 for name in names], [0, 1, 0, 1, 1, 1])


@unittest.skipIf(SANITIZED, "the stand-in is several times slower under a sanitizer")
class Algorithms(Runs):
    """The stand-in adds in an order that follows the algorithm. So a run in which all products take the file's algorithm
    has the bits of one in which the library proposes that algorithm first. Others have other bits."""
    STEPS = dict(train__train_iters=2, optim__lr_warmup_iters=0, train__precision="fp32")

    def setUp(self):
        super().setUp()
        self.train("first", device=[], **self.STEPS)
        self.model = self.run_of.directory / "first/iter_0000002"
        self.file = self.run_of.directory / "card.json"

    def tune(self):
        """Measures where the algorithm of order 5 is the fastest."""
        with unittest.mock.patch.dict(os.environ, CAMBIUM_CUDA_FASTEST="5"):
            output, _ = run("bench", "gemm", "--tune", self.file, "--model", self.model, "--micro-batch-size", "2", "--seq-length", "16",
                            *CUDA)
        return rows(output)[-1], json.loads(self.file.read_text())

    def test_the_fastest_algorithms_of_a_file_are_taken(self):
        summary, content = self.tune()
        self.assertEqual(summary["products"], len(content["products"]))
        self.assertLess(summary["seconds"], summary["first_seconds"])
        self.assertTrue(all(product["first_seconds"] >= 5 > 1 > product["seconds"] for product in content["products"]), content)
        words = ["--gemm-algorithms", self.file]
        for ranks in ("1", "2"):
            with self.subTest(ranks):
                plain = self.train(f"plain-{ranks}", ["--ranks", ranks], **self.STEPS)
                found = self.train(f"file-{ranks}", ["--ranks", ranks, *words], **self.STEPS)
                with unittest.mock.patch.dict(os.environ, CAMBIUM_CUDA_ALGORITHMS="5"):
                    expected = self.train(f"library-{ranks}", ["--ranks", ranks], **self.STEPS)
                self.assertEqual(timeless(found), timeless(expected))
                self.assertNotEqual(timeless(found), timeless(plain))

        def decode(*more):
            request = b'{"prompt": [5], "max_tokens": 6, "temperature": 0, "logprobs": 1}\n'
            return rows(run("generate", "--model", self.model, "--requests", "-", *more, *CUDA, input=request)[0])[0]["choices"]
        found, plain = decode(*words), decode()
        with unittest.mock.patch.dict(os.environ, CAMBIUM_CUDA_ALGORITHMS="5"):
            self.assertEqual(found, decode())
        self.assertNotEqual(found, plain)

    def refused(self, change):
        """The error for the file after a change of its content or of its text."""
        text = self.file.read_text()
        content = json.loads(text)
        changed = change(content) or json.dumps(content)
        other = self.run_of.directory / "other.json"
        other.write_text(changed)
        _, errors = run("score", "--model", self.model, "--input", "-", "--gemm-algorithms", other, *CUDA, input=b'{"tokens": [1, 2]}\n',
                        expect=1)
        self.assertRegex(errors, r"^cambium: error: [^\n]+\n$")
        return errors.removeprefix("cambium: error: ").strip().replace(str(other), "FILE")

    def test_a_file_of_another_card_or_library_and_a_damaged_one_are_refused(self):
        _, content = self.tune()
        first = content["products"][0]["product"]
        measure = ": measure this one with cambium bench gemm --tune"
        cases = [
            (lambda c: c.update(device="cuda, Other"), f"FILE: it is of cuda, Other, and this is {content['device']}{measure}"),
            (lambda c: c.update(library="cuBLASLt 12.9.1"), f"FILE: it is of cuBLASLt 12.9.1, and this is cuBLASLt 13.1.0{measure}"),
            (lambda c: c.pop("library") and None, 'FILE: it has no "library"'),
            (lambda c: c.pop("products") and None, 'FILE: it has no list "products"'),
            (lambda c: c["products"][0].update(product="1 x 1"), "FILE: '1 x 1' is not a product"),
            (lambda c: c["products"][0].update(algorithm="00"), f"FILE: '{first}' has no algorithm of 128 hexadecimal digits"),
            (lambda c: c["products"][0].update(algorithm="0" * 128), f"FILE: '{first}': cuBLASLt refuses its algorithm"),
            (lambda c: c["products"].append(c["products"][0]), f"FILE: '{first}' is there twice"),
        ]
        for change, reason in cases:
            self.assertEqual(self.refused(change), f"--gemm-algorithms {reason}")
        self.assertRegex(self.refused(lambda c: json.dumps(c)[:200]), r"^--gemm-algorithms FILE:\d+: ")
        _, errors = run("score", "--model", self.model, "--input", "-", "--gemm-algorithms", self.file, input=b'{"tokens": [1, 2]}\n', expect=1)
        self.assertEqual(errors, "cambium: error: --gemm-algorithms: products on cpu have no choice of algorithms\n")
        _, errors = run("bench", "gemm", "--tune", self.file, expect=2)
        self.assertIn("only a GPU's products have a choice of algorithms: add --device cuda", errors)
        launched = {**os.environ, "OMPI_COMM_WORLD_SIZE": "2"}
        _, errors = run("bench", "gemm", "--tune", self.file, *CUDA, env=launched, expect=2)
        self.assertIn("bench gemm --tune is one process: run it without a launcher of ranks", errors)


class Tuning(finetune_support.Tuning):
    def test_methods_train_as_on_the_cpu(self):
        for method, *words in [*([method] for method in METHODS), ["lora", "--load-in", "nf4"]]:
            with self.subTest(method, words=words):
                name = "-".join([method, *words[1:]])
                _, expected = self.tune(f"{name}-cpu", method, *words)
                _, found = self.tune(f"{name}-cuda", method, *words, *CUDA)
                self.assertEqual(len(found), 8)
                for ours, one in zip(found, expected, strict=True):
                    self.assertLess(abs(ours - one), 1e-5 * one)

    @unittest.skipIf(SANITIZED, "the stand-in is several times slower")
    def test_training_and_serving_have_the_same_bits(self):
        """With --batch-invariant on; the stand-in's algorithms follow the number of rows."""
        with unittest.mock.patch.dict(os.environ, CAMBIUM_CUDA_ALGORITHMS="rows"):
            cases = (("lora ia3", "bf16"), ("adapter", "fp32"), ("full", "bf16"),
                     ("lora", "bf16", "--ranks", "2", "--parallel.tensor_model_parallel_size=2"))
            for method, precision, *layout in cases if LONG else cases[:1]:
                gaps = {}
                for switch in ("on", "off"):
                    with self.subTest(method=method, precision=precision, layout=layout, switch=switch):
                        name = f"{method}-{len(layout)}-{switch}"
                        (_, errors), _ = self.tune(name, method, "--valid-data", self.data, "--train.eval_interval=8",
                                                   "--batch-invariant", switch, f"--train.precision={precision}", *layout, *CUDA)
                        self.assertIn("serving_gap", self.lines(name)[-1], errors)
                        gaps[switch] = self.lines(name)[-1]["serving_gap"]
                self.assertEqual(gaps["on"], 0)
                self.assertGreater(gaps["off"], 0)
            texts = "".join(json.dumps({"tokens": [7 * i % 250 for i in range(n)]}) + "\n" for n in (3, 40, 17)).encode()
            (self.root / "texts.jsonl").write_bytes(texts)
            words = ["--model", self.base, "--adapter", self.root / "lora ia3-0-on", "--input", self.root / "texts.jsonl", *CUDA]
            for precision in ("fp32", "bf16", "tf32") if LONG else ("bf16",):
                *paths, summary = rows(run("verify", "serving", *words, "--precision", precision, "--batch-invariant", "on")[0])
                self.assertEqual((summary["equal"], summary["device"], len(paths)), (True, "cuda", 6))
            run("verify", "serving", *words, "--precision", "bf16", expect=1)


class Completions(unittest.TestCase):
    def assert_scores_are_the_cpus(self, *words, line):
        expected, found = (rows(run("score", *words, *more, input=line)[0]) for more in ([], CUDA))
        self.assertEqual(len(found), line.count(b"\n"))
        for ours, one in zip(found, expected, strict=True):
            self.assertEqual(ours.keys(), one.keys())
            for key, value in one.items():
                if isinstance(value, float):
                    self.assertAlmostEqual(ours[key], value, delta=1e-5 * abs(value))

    def test_greedy_texts_and_scores_are_the_cpus(self):
        words = ["--model", TINY, "--prompt", "Hello there", "--max-new-tokens", "12", "--temperature", "0"]
        self.assertEqual(run("generate", *words, *CUDA)[0], run("generate", *words)[0])
        self.assert_scores_are_the_cpus("--model", TINY, "--input", "-", line=b'{"text": "the first text"}\n{"text": "another"}\n')

    def test_ranks_of_a_card_share_a_model_and_an_adapter(self):
        golden = SOURCE / "tests/peft/golden"
        words = ["--model", golden / "base", "--adapter", golden / "lora_all_linear", "--input", "-"]
        for layout, ranks in (("tensor", 2), ("pipeline", 3)):
            self.assert_scores_are_the_cpus(*words, "--ranks", ranks, f"--parallel.{layout}_model_parallel_size={ranks}",
                                            line=b'{"tokens": [1, 2, 3, 4]}\n{"tokens": [9, 4, 1]}\n')

    def test_a_served_request_has_the_cpus_text(self):
        request = {"prompt": "Hello there", "max_tokens": 12, "temperature": 0}
        expected = rows(run("generate", "--model", TINY, "--requests", "-", input=json.dumps(request).encode() + b"\n")[0])[0]
        with unittest.mock.patch.dict(os.environ, CAMBIUM_TEST_DEVICE="cuda"), Server() as server:
            self.assertEqual(server.complete(**request)["choices"][0]["text"], expected["choices"][0]["text"])

    def assert_is_invariant(self, answer, variants, whole):
        """Each variant's answer is the part of the whole answer that it names."""
        with unittest.mock.patch.dict(os.environ, CAMBIUM_CUDA_ALGORITHMS="rows"):
            expected = answer(whole, "on")
            for variant, part in variants:
                self.assertEqual(answer(variant, "on"), part(expected))

    @unittest.skipIf(SANITIZED, "the stand-in is several times slower under a sanitizer")
    def test_scores_do_not_depend_on_what_runs_beside_them(self):
        golden = SOURCE / "tests/peft/golden"
        ids = [(7 * i * i + 3 * i) % 61 for i in range(32)]
        lines = [{"tokens": ids}, {"tokens": ids[:17]}, {"tokens": ids[:2]}, {"tokens": ids, "adapters": ["lora"]}]
        others = [{"tokens": ids[k:], "adapters": ["lora"] * (k % 2)} for k in range(1, 4)]

        def score(lines, switch, *words):
            text = "".join(json.dumps(line) + "\n" for line in lines).encode()
            return rows(run("score", "--model", golden / "base", *words, "--adapter", f"lora={golden / 'lora_all_linear'}", "--input", "-",
                            "--precision", "bf16", "--batch-invariant", switch, *CUDA, input=text)[0])
        together = lines + others
        self.assert_is_invariant(score, [(lines[1:2], lambda all: all[1:2]), (lines[3:4], lambda all: all[3:4])], together)
        with unittest.mock.patch.dict(os.environ, CAMBIUM_CUDA_ALGORITHMS="rows"):  # off, this test would see other bits
            self.assertNotEqual(score(lines[1:2], "off"), score(together, "off")[1:2])
        bits = lambda lines, switch: score(lines, switch, "--load-in", "int8")
        self.assert_is_invariant(bits, [(lines[1:2], lambda all: all[1:2]), (lines[3:4], lambda all: all[3:4])], together)

    @unittest.skipIf(SANITIZED, "the stand-in is several times slower under a sanitizer")
    def test_completions_do_not_depend_on_how_rows_are_grouped(self):
        prompts = ["Hello there", "It was the best of times", "a"]
        requests = [{"prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 1} for prompt in prompts]

        def generate(variant, switch):
            batch, words = variant
            text = "".join(json.dumps(request) + "\n" for request in batch).encode()
            return [row["choices"] for row in rows(run("generate", "--model", TINY, "--requests", "-", "--precision", "bf16", *words,
                                                       "--batch-invariant", switch, *CUDA, input=text)[0])]
        chunks = ["--max-batch-size", "3", "--max-batch-tokens", "5"]
        alone = ["--max-batch-size", "1", "--max-batch-tokens", "17", "--cuda-graphs", "off"]
        self.assert_is_invariant(generate, [((requests, chunks), lambda all: all), ((requests[1:2], alone), lambda all: all[1:2])],
                                 (requests, ["--max-batch-size", "4"]))

    def answer_on(self, megabytes, expect=0):
        """The answer to a request, on a GPU with so much memory, whose cache could have 4,000 completions."""
        return run("generate", "--model", TINY, "--requests", "-", "--max-batch-size", "4000", "--max-batch-tokens", "4000",
                   "--cuda-graphs", "off", *CUDA,
                   input=b'{"prompt": "Hello there", "max_tokens": 4, "temperature": 0}\n', expect=expect,
                   env={**os.environ, "CAMBIUM_CUDA_MEMORY": str(megabytes)})

    def test_the_cache_takes_what_the_card_has_left(self):
        one, other = (rows(self.answer_on(megabytes)[0])[0] for megabytes in (SMALL_CARD, 8192))
        self.assertEqual(one["choices"], other["choices"])
        output, errors = self.answer_on(1, expect=1)
        self.assertEqual(output, b"")
        self.assertRegex(errors, r"^cambium: error: .*cuda:0: cannot allocate [0-9.]+ MB: [0-9.]+ MB of 1\.0 MB are free\n$")

    @needs_bf16
    def test_quantised_models_answer_as_on_the_cpu(self):
        """Six families, each in another form. In bf16, many rows multiply as the plain copy's, and few as on the CPU."""
        few = [json.dumps({"tokens": [(i * i + 7 * i + start) % 40 for i in range(28)]}) + "\n" for start in range(3)]
        forms = ("gptq4", "gptq-order", "packed8-asymmetric", "naive-block", "nf4-twice", "fp8-tensor")
        held = ("12 of 14", "14 of 16", "14 of 16", "0 of 16", "14 of 15", "8 of 10")  # in their bits
        distances = {"cpu": 0, "cuda": 0}
        with tempfile.TemporaryDirectory() as directory:
            for family, form, matrices in zip(FAMILIES, forms, held, strict=True):
                model, plain = (pathlib.Path(directory, form + ending) for ending in ("", "-plain"))
                quantise(FAMILIES[family], model, form)
                run("convert", "--from", model, "--to", "model", "--output", plain, "--dtype", "fp32")
                with self.subTest(form=form, family=family):
                    found, errors = self.logprobs(model, "fp32", few, "cuda")
                    exact, _ = self.logprobs(model, "fp32", few, "cpu")
                    self.assertIn(f": {matrices} matrices", errors)
                    self.assertLess(max(abs(one - other) for one, other in zip(exact, found, strict=True)), 1e-4)
                    self.assertEqual(*(self.logprobs(one, "bf16", few, "cuda")[0] for one in (model, plain)))
                    for device in distances:
                        distances[device] += math.dist(exact[:27], self.logprobs(model, "bf16", few[:1], device)[0])
        self.assertLess(distances["cuda"], 1.25 * distances["cpu"])

    def logprobs(self, model, precision, lines, device):
        output, errors = run("score", "--model", model, "--input", "-", "--precision", precision, "--device", device,
                             input="".join(lines).encode())
        return [logprob for row in rows(output) for logprob in row["logprobs"][1:]], errors

    @needs_bf16
    def test_completions_of_a_base_in_4_bits_have_the_same_tokens_by_graphs(self):
        words = ["generate", "--model", TINY, "--load-in", "int4", "--prompt", "Hello there", "--max-new-tokens", "6",
                 "--temperature", "0", "--precision"]
        self.assertEqual(run(*words, "fp32", *CUDA)[0], run(*words, "fp32")[0])
        self.assertEqual(run(*words, "bf16", *CUDA)[0], run(*words, "bf16", "--cuda-graphs", "off", *CUDA)[0])

    def test_a_merged_model_is_the_cpus(self):
        golden = SOURCE / "tests/peft/golden"
        with tempfile.TemporaryDirectory() as directory:
            merged = [pathlib.Path(directory, name) for name in ("cpu", "cuda")]
            for output, device in zip(merged, ([], CUDA)):
                run("merge", "--model", golden / "base", "--adapter", golden / "lora_all_linear", "--output", output, *device)
            expected, found = (finetune_support.values(output / "model.safetensors") for output in merged)
        self.assertEqual(expected.keys(), found.keys())
        for name, numbers in expected.items():
            off = max(abs(x - y) for x, y in zip(numbers, found[name], strict=True))
            self.assertLessEqual(off, 1e-6 * max(map(abs, numbers)), name)


if __name__ == "__main__":
    unittest.main()
