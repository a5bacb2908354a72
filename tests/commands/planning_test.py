"""cambium plan: JSON alone on standard output, a page that is whole by itself, run files, and errors of one line."""
import json
import math
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from model_support import SOURCE, TINY, run

TRAIN = ("plan", "train", "--cluster", "a100-80gb", "--model-size", "126M", "--devices", "4", "--top", "3", "--fix",
         "train.micro_batch_size=2", "parallel.pipeline_model_parallel_size=2", "--tokens", "1e9")


class Training(unittest.TestCase):
    def test_one_plan_is_json_and_a_page_and_a_run_file(self):
        with tempfile.TemporaryDirectory() as directory:
            page, row = pathlib.Path(directory, "plan.html"), pathlib.Path(directory, "row.yaml")
            output, _ = run(*TRAIN, "--json", "-", "--html", page, "--yaml", row, "--row", "2")
            plan = json.loads(output)
            self.assertEqual((plan["plan"], plan["stack"], plan["model"]["num_layers"]), ("train", "cambium", 12))
            found = plan["plans"][0]
            counts = found["candidates"]
            self.assertEqual(counts["all"], sum(counts[key] for key in ("refused", "no_memory", "slower", "listed")))
            self.assertEqual(len(found["rows"]), 3)
            for best in found["rows"]:
                self.assertAlmostEqual(sum(best["time"].values()), best["step_seconds"], delta=1e-6 * best["step_seconds"])
                memory = best["memory"]
                self.assertEqual(sum(memory[part] for part in ("weights", "gradients", "optimizer", "activations", "workspace")),
                                 memory["device"])
                self.assertLessEqual(memory["device"], memory["limit"])
                self.assertEqual((best["layout"]["micro_batch_size"], best["layout"]["pipeline"]), (2, 2))
                low, high = best["step_seconds_range"]
                self.assertTrue(low < best["step_seconds"] < high)
            text = page.read_text()
            xml.etree.ElementTree.fromstring(text.replace("<!DOCTYPE html>", ""))
            self.assertGreater(text.count("<circle"), 3 + 100)  # the rows, and layouts that are none
            points = [(float(y), math.log(float(seconds))) for y, seconds in
                      re.findall(r'cy="([0-9.]+)" r="[0-9]"><title>(?:row [0-9]+: )?([0-9.e+]+) s, ', text)]
            (low, first), (high, last) = max(points), min(points)
            bound = 0.2 / (low - high) + 2e-3 / (last - first)  # two places of 0.1, and two times of four digits, on both sides
            for y, seconds in points:
                self.assertAlmostEqual((low - y) / (low - high), (seconds - first) / (last - first), delta=bound)
            self.assertRegex(text, r'class="grid" .*>[125](e[+-])?0* s</text>|class="grid" .*>0\.0*[125] s</text>')
            legends = [re.findall("</i>([a-z]+)</span>", legend) for legend in re.findall('class="legend">(.*)</p>', text)]
            self.assertEqual(legends, [["products", "other", "floor", "tensor", "stages", "bubble", "gradients", "optimizer"],
                                       ["weights", "gradients", "optimizer", "activations", "workspace"]])
            unboxed = re.sub(r'<div class="wrap">.*?</div>', "", text, flags=re.DOTALL)
            self.assertFalse(re.search("<table|<pre", unboxed))  # what is wider than the page scrolls in its box
            self.assertEqual(len(re.findall("stage [0-9]+, optimizer: ", text)), 2)
            self.assertIn("100.0%, ", text)
            self.assertIn("The memory of row 2<", text)
            self.assertIn(f"<td>{found['rows'][1]['memory']['device'] / 1e9:.2f}</td></tr>", text)
            self.assertEqual(set(re.findall(r"https?://[^\"<]*", text)), {"http://www.w3.org/2000/svg"})
            again, _ = run("plan", "train", "--cluster", "a100-80gb", "--config", row, "--devices", "4", "--space", "run",
                           "--json", "-")
            same = json.loads(again)["plans"][0]["rows"][0]
            self.assertEqual((same["memory"], same["layout"]), (found["rows"][1]["memory"], found["rows"][1]["layout"]))
            row.write_text(row.read_text().replace("precision: bf16", "precision: fp8"))
            _, errors = run("plan", "train", "--cluster", "a100-80gb", "--config", row, "--devices", "4", expect=2)
            self.assertIn("precision fp8: the cluster file has no device.peak_fp8", errors)

    def test_fp8_and_sharded_weights_are_rows_with_run_files(self):
        words = ("plan", "train", "--cluster", "h100", "--model-size", "126M", "--devices", "4", "--fix",
                 "train.micro_batch_size=2", "parallel.pipeline_model_parallel_size=2", "--also")
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "row.yaml")
            rows = json.loads(run(*words, "fp8,fsdp", "--top", "150", "--json", "-")[0])["plans"][0]["rows"]
            seen = set()
            for number, row in enumerate(rows, 1):
                self.assertTrue(row["is_built"])
                features = {"fp8": row["layout"]["precision"] == "fp8",
                            "fsdp": row["layout"]["sharding"] == "optim_grads_params"}
                self.assertEqual(set(row["saved"] or ()), {name for name, has in features.items() if has})
                kind = tuple(features.values())
                if kind in seen or not any(kind):
                    continue
                seen.add(kind)
                run(*words, "fp8,fsdp", "--top", "150", "--yaml", file, "--row", number, "--json", "-")
                output, _ = run("pretrain", "--config", file, "--dry-run", "--cluster", "h100", "--devices", "4")
                shown = float(re.search(r"# +device +([0-9.]+) MiB", output.decode())[1])
                self.assertAlmostEqual(shown, row["memory"]["device"] / 2**20, delta=0.06)
            self.assertEqual(len(seen), 3)
        table = run(*words, "fp8,fsdp", "--top", "150")[0].decode()
        self.assertEqual(len(re.findall("^ *[0-9]+ fp8 ", table, re.MULTILINE)),
                         sum("fp8" in (row["saved"] or ()) for row in rows))
        self.assertLessEqual(max(map(len, table.splitlines())), 120)
        for also, cluster, more, part in (
                ("fp8", "a100-80gb", (), "--also fp8: the cluster file has no device.peak_fp8"),
                ("fp9", "h100", (), "--also fp9: expected fp8, fsdp, or both with a comma"),
                ("fp8", "h100", ("--precision", "fp8"), "--also fp8: the run has it already"),
                ("fsdp", "azure-a100-80gb-2022", (), "the cluster's stack.train is megatron-2022, which has none"),
                ("fp8", "h100", ("--fix", "train.precision=bf16"), "--also fp8 and --fix train.precision contradict")):
            _, errors = run("plan", "train", "--cluster", cluster, "--model-size", "126M", "--devices", "4", "--also", also,
                            *more, expect=2)
            self.assertIn(part, errors)
            self.assertEqual(errors.count("\n"), 1, errors)

    def test_a_rows_run_file_has_its_memory_in_a_dry_run(self):
        with tempfile.TemporaryDirectory() as directory:
            row = pathlib.Path(directory, "row.yaml")
            output, _ = run(*TRAIN, "--json", "-", "--yaml", row)
            planned = json.loads(output)["plans"][0]["rows"][0]["memory"]["device"]
            words = ("pretrain", "--config", row, "--dry-run", "--cluster")
            output, _ = run(*words, "a100-80gb", "--devices", "4")
            shown = float(re.search(r"# +device +([0-9.]+) MiB", output.decode())[1])
            self.assertAlmostEqual(shown, planned / 2**20, delta=0.06)
            small = pathlib.Path(directory, "small.yaml")
            text = run("plan", "show", "a100-80gb")[0].decode()
            small.write_text(text.replace("memory: 80 GB", "memory: 1 GB", 1))
            _, errors = run(*words, small, "--devices", "4", expect=1)
            self.assertIn("not enough memory", errors)
            _, errors = run(*words, "a100-80gb", expect=2)
            self.assertIn("one of --nodes and --devices", errors)

    def test_uneven_ends_are_tried_and_come_with_the_run_file(self):
        """126 layers over 16 stages: only with both ends counted are there chunks. The table, JSON and YAML use one set of words."""
        embedding, loss = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
        words = ("plan", "train", "--cluster", "h100", "--model-size", "llama-3.1-405b", "--devices", "2048",
                 "--global-batch-size", "256", "--seq-length", "8192", "--top", "1", "--fix", "train.micro_batch_size=1",
                 "parallel.pipeline_model_parallel_size=16", "parallel.tensor_model_parallel_size=8",
                 "parallel.sequence_parallel=true", "parallel.use_distributed_optimizer=true",
                 "parallel.data_parallel_sharding_strategy=optim")
        with tempfile.TemporaryDirectory() as directory:
            row = pathlib.Path(directory, "row.yaml")
            best = json.loads(run(*words, "--json", "-", "--yaml", row)[0])["plans"][0]["rows"][0]
            layout = best["layout"]
            self.assertEqual((layout["chunks"], layout[embedding], layout[loss]), (8, True, True))
            self.assertEqual((layout["distributed_optimizer"], layout["sharding"]), (True, "optim"))
            text = row.read_text()
            for line in (f"{embedding}: true", f"{loss}: true", "use_distributed_optimizer: true",
                         "data_parallel_sharding_strategy: optim\n", "virtual_pipeline_model_parallel_size: 8"):
                self.assertIn(line, text)
            same = json.loads(run("plan", "train", "--cluster", "h100", "--config", row, "--devices", "2048", "--space", "run",
                                  "--json", "-")[0])["plans"][0]["rows"][0]
            self.assertEqual((same["layout"], same["memory"], same["step_seconds"]),
                             (layout, best["memory"], best["step_seconds"]))
            table = run(*words)[0].decode()
            self.assertRegex(table, r"\n +1 +8 +16 +8 both +16 +1 +16 yes optim +")
            without = json.loads(run(*words, f"parallel.{loss}=false", "--json", "-")[0])["plans"][0]["rows"][0]
            self.assertEqual(without["layout"]["chunks"], 1)
            self.assertLess(best["step_seconds"], 0.7 * without["step_seconds"])

    def test_a_tuning_has_the_memory_of_finetune(self):
        with tempfile.TemporaryDirectory() as directory:
            row, config = pathlib.Path(directory, "row.yaml"), json.loads((TINY / "config.json").read_text())
            config.update(n_embd=512, n_layer=6, n_head=8, vocab_size=8192)
            pathlib.Path(directory, "config.json").write_text(json.dumps(config))
            words = ("plan", "train", "--cluster", "a100-80gb", "--model", directory, "--devices", "4", "--seq-length", "64",
                     "--global-batch-size", "8", "--json", "-", "--fix", "train.micro_batch_size=2",
                     "parallel.pipeline_model_parallel_size=2", "parallel.data_parallel_sharding_strategy=optim_grads_params")
            output, _ = run(*words, "--method", "lora", "--peft.r=4", "--yaml", row)
            tuned = json.loads(output)["plans"][0]["rows"][0]
            output, _ = run("finetune", "--config", row, "--model", directory, "--dry-run", "--cluster", "a100-80gb",
                            "--devices", "4")
            for part in ("weights", "activations", "device"):
                shown = float(re.search(rf"# +{part} +([0-9.]+) MiB", output.decode())[1])
                self.assertGreater(shown, 1)
                self.assertAlmostEqual(shown, tuned["memory"][part] / 2**20, delta=0.06)
            self.assertIn("r: 4\n", output.decode())
            full = json.loads(run(*words)[0])["plans"][0]["rows"][0]
            self.assertLess(10 * tuned["memory"]["gradients"], full["memory"]["gradients"])
            self.assertLess(tuned["step_seconds"], full["step_seconds"])
            _, errors = run(*words, "--peft.r=4", expect=2)
            self.assertIn("peft.r does nothing without --method", errors)

    def test_the_largest_size_that_ends_in_time(self):
        words = ("plan", "train", "--cluster", "azure-a100-80gb-2022", "--space", "hp-tool", "--nodes", "20", "--tokens",
                 "300e9", "--top", "1", "--json", "-")
        plan = json.loads(run(*words, "--days", "5")[0])
        self.assertLessEqual(plan["plans"][0]["rows"][0]["days"], 5)
        self.assertAlmostEqual(plan["rule"]["billions"], 4.03, delta=0.005)
        larger = f"{plan['model']['parameters'] * 1.15 / 1e9:.2f}B"
        self.assertGreater(json.loads(run(*words, "--model-size", larger)[0])["plans"][0]["rows"][0]["days"], 5)
        _, errors = run(*words, "--days", "0.01", expect=1)
        self.assertIn("no size from 0.1 billion parameters on ends in 0.01 days", errors)

    def test_errors_are_one_line(self):
        for words, status, part in (
                (("--cluster", "h10", "--model-size", "5B", "--nodes", "1"), 1, "did you mean h100?"),
                (("--cluster", "h100", "--nodes", "1"), 2, "one of --model-size, --config and --model"),
                (("--cluster", "h100", "--model-size", "5", "--nodes", "1"), 2, "is not a size"),
                (("--cluster", "h100", "--model-size", "5B"), 2, "one of --nodes and --devices"),
                (("--cluster", "h100", "--model-size", "5B", "--nodes", "0"), 2, "--nodes 0 is 0 devices"),
                (("--cluster", "h100", "--model-size", "5B", "--nodes", "8,1000000000"), 2,
                 "--nodes 1000000000 is 8000000000 devices: expected a number from 0.125 to 131072"),
                (("--cluster", "h100", "--model-size", "5B", "--devices", "0"), 2, "--devices 0 is 0 devices")):
            _, errors = run("plan", "train", *words, expect=status)
            self.assertIn(part, errors)
            self.assertEqual(errors.count("\n"), 1, errors)


class NothingFits(unittest.TestCase):
    def plan(self, *words):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "plan.json")
            table = run("plan", "train", "--cluster", "h100", *words, "--json", file, expect=1)[0].decode()
            found = json.loads(file.read_text())["plans"][0]
        self.assertEqual(sum(found["candidates"]["refused_by"].values()), found["candidates"]["refused"])
        return found, table

    def test_the_layout_that_takes_least_is_named(self):
        """Weights, gradients and optimizer of 70B over 8 devices are 140 GB, and all else is least with one sample."""
        words = ("--model-size", "70B", "--nodes", "1", "--fix", "parallel.tensor_model_parallel_size=8")
        found, table = self.plan(*words)
        layout = found["closest"]["layout"]
        self.assertEqual((layout["recompute"], layout["micro_batch_size"]), ("full", 1))
        self.assertLess(found["closest"]["memory"]["device"], 162e9)
        self.assertRegex(table, r"nearest: tensor 8, pipeline 1, micro batch 1, recomputation full takes 16[01]\.[0-9] GB of 80.0 GB")
        self.assertEqual(found["devices_that_work"], [])

    def test_numbers_of_devices_that_work_are_named(self):
        found, table = self.plan("--model-size", "530B", "--nodes", "105")
        self.assertEqual(found["candidates"]["refused"], found["candidates"]["all"])
        self.assertEqual(found["devices_that_work"], [768, 848])
        self.assertIn("no layout divides 105 nodes; nearest that work: 96 and 106\n", table)
        self.assertRegex(table, r" refused \(.*[0-9]+ by train.global_batch_size.*\), 0 without memory")
        self.assertEqual(found["nearest"]["devices"], 848)


class Walking(unittest.TestCase):
    def test_a_walk_is_json_and_an_image_and_a_trace(self):
        with tempfile.TemporaryDirectory() as directory:
            image, events = pathlib.Path(directory, "line.svg"), pathlib.Path(directory, "line.json")
            output, _ = run("plan", "walk", "--stages", "4", "--micro-batches", "8", "--chunks", "2", "--forward", "1,1,1,1",
                            "--json", "-", "--svg", image, "--trace", events)
            walk = json.loads(output)
            self.assertEqual((walk["makespan"], walk["idle"], len(walk["steps"])), (28.5, [4.5] * 4, 2 * 4 * 2 * 8))
            bars = xml.etree.ElementTree.parse(image).findall("{http://www.w3.org/2000/svg}rect")
            trace = json.loads(events.read_text())["traceEvents"]
            self.assertEqual((len(bars), len(trace)), (len(walk["steps"]),) * 2)
            self.assertEqual(sum(event["dur"] for event in trace), 4 * (28.5 - 4.5) * 1e6)
            _, errors = run("plan", "walk", "--stages", "4", "--micro-batches", "8", "--forward", "1,1", expect=2)
            self.assertIn("--forward has 2 numbers, but there are 4 stages", errors)
            _, errors = run("plan", "walk", "--stages", "4", "--micro-batches", "8", "--forward", "1e308", "--json", "-", expect=2)
            self.assertIn("--forward 1e308: expected numbers from 0 to 1e+09", errors)

    def test_a_long_timeline_is_a_small_image_with_all_of_the_time(self):
        """50,880 steps of 53 stages: short neighbours are drawn together, bubbles stay where they are."""
        with tempfile.TemporaryDirectory() as directory:
            image = pathlib.Path(directory, "line.svg")
            output, _ = run("plan", "walk", "--stages", "53", "--micro-batches", "240", "--chunks", "2", "--json", "-", "--svg", image)
            walk = json.loads(output)
            self.assertLess(image.stat().st_size, 900_000)
            bars = xml.etree.ElementTree.parse(image).findall("{http://www.w3.org/2000/svg}rect")
            self.assertLess(len(bars), 5_000)
            for stage in (0, 26, 52):
                ours = [bar for bar in bars if bar.find("{http://www.w3.org/2000/svg}title").text.startswith(f"stage {stage}: ")]
                for kind, seconds in (("forward", 240), ("backward", 480)):
                    width = sum(float(bar.get("width")) for bar in ours if bar.get("class").startswith(kind))
                    self.assertAlmostEqual(width, 940 * seconds / walk["makespan"], delta=0.005 * len(ours) + 0.1)
                ends = [(float(bar.get("x")), float(bar.get("x")) + float(bar.get("width"))) for bar in ours]
                steps = [step for step in walk["steps"] if step["stage"] == stage]
                self.assertAlmostEqual(ends[0][0], 60 + 940 * steps[0]["start"] / walk["makespan"], delta=0.1)
                self.assertLess(max(end for _, end in ends), 1000.2)

    def test_a_latency_that_no_network_has_is_refused_by_its_line(self):
        with tempfile.TemporaryDirectory() as directory:
            ours, events = pathlib.Path(directory, "ours.yaml"), pathlib.Path(directory, "trace.json")
            text = run("plan", "show", "h100")[0].decode()
            words = ("plan", "train", "--cluster", ours, "--model-size", "126M", "--nodes", "1", "--top", "2", "--trace", events)
            for latency, status in (("1e308 us", 2), ("1000 s", 0)):
                ours.write_text(re.sub("node_latency: [^#\n]*", f"node_latency: {latency} ", text))
                _, errors = run(*words, expect=status)
                self.assertEqual(events.exists(), status == 0)
            json.loads(events.read_text(), parse_constant=self.fail)
            ours.write_text(re.sub("node_latency: [^#\n]*", "node_latency: 1e308 us ", text))
            _, errors = run(*words, expect=2)
            line = text[:text.index("node_latency")].count("\n") + 1
            self.assertIn(f"ours.yaml:{line}:17: links.node_latency: 1e308 us is out of range: expected 0 to 1000 s", errors)
            self.assertEqual(errors.count("\n"), 1, errors)


class Fitting(unittest.TestCase):
    def test_a_fit_writes_its_constants_and_names_what_it_did_not_use(self):
        with tempfile.TemporaryDirectory() as directory:
            rows, ours = pathlib.Path(directory, "rows.yaml"), pathlib.Path(directory, "ours.yaml")
            config = SOURCE / "tests/planner/azure/5b.yaml"
            rows.write_text("".join(f"- {{config: {config}, nodes: {nodes}, step_seconds: {seconds}}}\n"
                                    for nodes, seconds in ((2, 37.4), (10, 7.7))))
            words = ("plan", "fit", "--cluster", "a100-80gb", "--rows", rows, "--output", ours)
            output, errors = run(*words, "--only", "2", "--json", "-")
            fit = json.loads(output)
            self.assertEqual([row["is_fitted"] for row in fit["rows"]], [False, True])
            self.assertLess(abs(fit["rows"][1]["error"]), 0.01)
            self.assertIn(", not fitted", errors)
            written = run("plan", "show", ours)[0].decode()
            self.assertIn("fitted on 1 of 2 rows", written)
            self.assertIn(f"products: {fit['constants']['products']['value']:.5g} (", written)
            _, errors = run(*words, "--only", "3", expect=2)
            self.assertIn("--only 3: expected rows from 1 to 2", errors)
            for row, part in (("nodes: 0, step_seconds: 3", "nodes is 0: expected a whole number from 1"),
                              ("nodes: 1.5, step_seconds: 3", "nodes is 1.5: expected a whole number from 1"),
                              ("nodes: 1, step_seconds: -1", "step_seconds is -1: expected a number from 1e-06"),
                              ("nodes: 1, step_seconds: 1e308", "step_seconds is 1e308: expected a number from 1e-06")):
                rows.write_text(f"- {{config: {config}, nodes: 1, step_seconds: 9}}\n- {{config: {config}, {row}}}\n")
                _, errors = run(*words, expect=2)
                self.assertIn(f"rows.yaml:2: {part}", errors)


class Measuring(unittest.TestCase):
    def test_a_calibrated_file_plans_rows_that_are_measured(self):
        with tempfile.TemporaryDirectory() as directory:
            ours, found = pathlib.Path(directory, "ours.yaml"), pathlib.Path(directory, "found")
            with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
                _, errors = run("plan", "calibrate", TINY, "--output", ours, "--ranks", "2", "--precision", "fp32",
                                "--seq-length", "32")
                other.kill()
            self.assertIn("cores busy: the numbers are too slow", errors)
            self.assertRegex(errors, r"a step of [0-9]+ layers on each rank: [0-9.e-]+ s measured, [0-9.e-]+ s predicted, ")
            text = run("plan", "show", ours)[0].decode()
            for part in ("per_node: 2", "processors: ", "node_bandwidth: ", "# measured", "fp32 gemm 32x", "fp32 attention ", "fp32 norms ",
                         "fp32 loss ", "fp32 optimizer ", "fp32 rest ", "ranks 2, fp32; other programs kept "):
                self.assertIn(part, text)
            words = ("plan", "train", "--cluster", ours, "--model", TINY, "--devices", "2", "--seq-length", "32",
                     "--global-batch-size", "4", "--precision", "fp32", "--top", "2")
            _, errors = run(*words, "--measure", "2", "--steps", "3", "--output", found)
            self.assertEqual(len(re.findall(r"row +[0-9]+: +[0-9.e-]+ s measured, +[0-9.e-]+ s predicted, ", errors)), 2)
            header, *rows = found.joinpath("final_summary_1nodes.csv").read_text().splitlines()
            self.assertEqual(header.split(",")[:6], ["Model Name", "Model Size", "TP", "PP", "MBS", "Act Ckpt Layers"])
            self.assertEqual([len(row.split(",")) for row in rows], [len(header.split(","))] * 2)
            times = [float(row.split(",")[12]) for row in rows]
            self.assertEqual(times, sorted(times))
            best, = found.glob("optimal_config_*b_1nodes.yaml")
            named = found / "candidate_configs" / rows[0].split(",")[-1]
            self.assertEqual(best.read_text(), named.read_text())
            _, errors = run("plan", "fit", "--cluster", ours, "--rows", found / "rows.yaml", "--output", "-")
            self.assertIn("2 rows fitted", errors)
            _, errors = run(*words, "--output", found, expect=2)
            self.assertIn("--output does nothing without --measure", errors)

    def test_a_row_that_fails_says_why_and_the_others_run(self):
        with tempfile.TemporaryDirectory() as directory:
            large = pathlib.Path(directory, "large.yaml")
            text = run("plan", "show", "a100-80gb")[0].decode()
            large.write_text(text.replace("memory: 80 GB", "memory: 80 PB", 1).replace("kind: cuda:sm_80", "kind: cpu"))
            _, errors = run("plan", "train", "--cluster", large, "--model-size", "1000B", "--devices", "1", "--top", "1",
                            "--fix", "train.micro_batch_size=1", "--measure", "1", "--steps", "1", expect=1)
            self.assertRegex(errors, "row 1 failed: .*not enough memory")
            self.assertIn("no row could be measured", errors)

    def test_tf32_is_refused_where_there_is_none(self):
        with tempfile.TemporaryDirectory() as directory:
            ours = pathlib.Path(directory, "ours.yaml")
            _, errors = run("plan", "calibrate", TINY, "--output", ours, "--precision", "tf32", expect=1)
            self.assertIn("--precision tf32: no TF32 on cpu", errors)
            self.assertFalse(ours.exists())
            text = run("plan", "show", "h100")[0].decode()
            ours.write_text("".join(line for line in text.splitlines(True) if "peak_tf32" not in line))
            _, errors = run("plan", "serve", "126M", ours, "--devices", "1", "--precision", "tf32", expect=2)
            self.assertIn("precision tf32: the cluster file has no device.peak_tf32", errors)


class Constants(unittest.TestCase):
    def test_a_plan_says_what_decided_it_and_how_far_it_may_be_off(self):
        words = ("plan", "train", "--cluster", "h200", "--model-size", "126M", "--devices", "1")
        text = run(*words)[0].decode()
        self.assertRegex(text, "constants: not calibrated; fitted on .*; the range is [0-9.]+% either way\n")
        row, = re.findall(r"(?m)^  1 .*$", text)
        low, high = re.search(r"the step of row 1 takes ([0-9.]+)-([0-9.]+) s\n", text).groups()
        seconds = row.split()[-4]
        best = json.loads(run(*words, "--json", "-")[0])["plans"][0]["rows"][0]
        for printed, value in zip((seconds, low, high), (best["step_seconds"], *best["step_seconds_range"])):
            self.assertEqual(float(printed), float(f"{value:.2e}"))
        words = ("plan", "serve", "126M", "h100", "--devices", "1", "--batch", "4")
        text = run(*words)[0].decode()
        self.assertRegex(text, "constants: not calibrated; fitted on ")
        plan = json.loads(run(*words, "--json", "-")[0])
        self.assertIn("not calibrated", plan["constants"])
        best = plan["rows"][0]
        latency, low, high, prompts, token, tokens = re.search(
            r" 4 +([0-9.]+) +([0-9.]+)-([0-9.]+) +([0-9.]+) +([0-9.]+) +([0-9.]+) ", text).groups()
        for printed, value in zip((latency, low, high, prompts, token, tokens),
                                  (best["latency_ms"], *best["latency_ms_range"], best["prefill_ms"], best["token_ms"],
                                   best["tokens_per_s"])):
            self.assertEqual(float(printed), float(f"{value:.2e}"))

    def test_every_row_of_a_shipped_file_has_its_source(self):
        for name in ("azure-a100-80gb-2022", "a100-80gb", "h100", "h200"):
            for line in run("plan", "show", name)[0].decode().splitlines():
                if line.startswith("  "):
                    self.assertRegex(line, "^  [a-z_0-9]+: .+ # .+")

    def test_a_lora_step_skips_the_products_of_the_base_s_gradients(self):
        words = ("plan", "train", "--cluster", "h200", "--model-size", "126M", "--global-batch-size", "16", "--seq-length", "1024",
                 "--devices", "1", "--fix", "train.micro_batch_size=16", "--json", "-")
        full, lora = (json.loads(run(*words, *more)[0])["plans"][0]["rows"][0]
                      for more in ((), ("--method", "lora", "--peft.r", "8")))
        self.assertLess(lora["step_seconds"], 0.95 * full["step_seconds"])
        self.assertGreater(lora["step_seconds"], 0.667 * full["step_seconds"])
        self.assertEqual((lora["time"]["gradients"], lora["time"]["floor"]), (0, 0))
        self.assertLess(lora["time"]["optimizer"], 0.5 * full["time"]["optimizer"])


class Serving(unittest.TestCase):
    def test_prompts_are_planned_in_the_steps_of_serve(self):
        words = ("plan", "serve", "llama-3.1-8b", "h100", "--devices", "1", "--batch", "256", "--input-len", "512",
                 "--output-len", "128", "--adapters", "100")
        best, large = (json.loads(run(*words, *more, "--json", "-")[0])["rows"][0]
                       for more in ((), ("--max-batch-tokens", "1024")))
        self.assertLess(best["memory"]["device"], 80e9)
        self.assertLess(best["memory"]["workspace"], large["memory"]["workspace"])
        self.assertGreater(best["prefill_ms"], large["prefill_ms"])
        self.assertIn(b" --max-batch-tokens 1024", run(*words, "--max-batch-tokens", "1024")[0])
        self.assertNotIn(b" --max-batch-tokens", run(*words)[0])

    def test_an_adapter_of_rank_1_costs_little(self):
        words = ("plan", "serve", "llama-3.1-70b", "h100", "--devices", "8", "--tensor", "8", "--pipeline", "1", "--batch", "64",
                 "--json", "-")
        base, one, many = (json.loads(run(*words, *more)[0])["rows"][0]["token_ms"]
                           for more in ((), ("--adapters", "1", "--rank", "1"), ("--adapters", "64", "--rank", "64")))
        self.assertTrue(base < one < 1.15 * base, (base, one))
        self.assertGreater(many, 1.1 * one)

    def test_a_plan_has_a_best_row_within_its_limits(self):
        output, _ = run("plan", "serve", "126M", "h100", "--devices", "2", "--max-latency-ms", "1000", "--json", "-")
        plan = json.loads(output)
        best = plan["rows"][plan["best"]]
        self.assertTrue(best["is_allowed"] and best["is_pareto"])
        self.assertLessEqual(best["latency_ms"], 1000)
        self.assertEqual(max(row["requests_per_s_per_device"] for row in plan["rows"] if row["is_allowed"]),
                         best["requests_per_s_per_device"])
        with tempfile.TemporaryDirectory() as directory:
            page = pathlib.Path(directory, "serve.html")
            output, _ = run("plan", "serve", "126M", "h100", "--devices", "2", "--max-latency-ms", "1000", "--html", page,
                            "--adapters", "64", "--rank", "16")
            self.assertIn(b"\ncambium serve --model 126M", output)
            self.assertIn(b" --precision bf16 --max-batch-size ", output)
            memory = int(re.search(rb"--adapter-memory ([0-9]+)\n", output)[1])
            self.assertEqual(memory % 64, 0)
            text = page.read_text()
            xml.etree.ElementTree.fromstring(text.replace("<!DOCTYPE html>", ""))
            self.assertEqual(text.count("<circle"), len(plan["rows"]))
            self.assertEqual(text.count('class="best"'), 1)
            self.assertIn("At most 1000 ms.", text)
            self.assertEqual(set(re.findall(r"https?://[^\"<]*", text)), set())
        times = {}
        for precision in ("fp32", "tf32"):
            output, _ = run("plan", "serve", "126M", "h100", "--devices", "1", "--batch", "64", "--precision", precision,
                            "--json", "-")
            times[precision] = json.loads(output)["rows"][0]["prefill_ms"]
        self.assertLess(times["tf32"], times["fp32"])
        _, errors = run("plan", "serve", "126M", "h100", "--devices", "1", "--rank", "16", expect=2)
        self.assertIn("--rank does nothing without --adapters", errors)
        _, errors = run("plan", "serve", "126M", "h100", "--devices", "1", "--max-latency-ms", "0.001", expect=1)
        self.assertIn("nearest: tensor 1", errors)
        _, errors = run("plan", "serve", "175B", "h100", "--devices", "2", expect=1)
        self.assertRegex(errors, r"nearest: tensor [12], pipeline [12], batch 1 takes 1[78][0-9]\.[0-9] GB of 80\.0 GB")
        _, errors = run("plan", "serve", "126M", "h100", "--devices", "8", "--tensor", "5", expect=2)
        self.assertIn("no layout is possible: 9 refused", errors)

    def test_serve_takes_the_printed_command(self):
        """The command goes through a shell to the parser of serve, which refuses only the address that follows it."""
        with tempfile.TemporaryDirectory() as directory:
            model = pathlib.Path(directory, "it's a model")
            model.symlink_to(TINY)
            for more in ((), ("--batch", "1024"), ("--batch", "4", "--adapters", "2", "--rank", "4"),
                         ("--tensor", "2", "--pipeline", "2"), ("--precision", "fp32")):
                output, _ = run("plan", "serve", model, "h100", "--devices", "4", "--input-len", "8", "--output-len", "8", *more)
                command = output.decode().splitlines()[-1]
                self.assertTrue(command.startswith("cambium serve --model "), output)
                words = shlex.split(command)[1:]
                self.assertEqual(words[2], str(model))
                if "--adapter-root" in words:
                    words[words.index("--adapter-root") + 1] = directory
                if "--device" in words:  # of a build with CUDA; this machine may have no driver
                    at = words.index("--device")
                    del words[at:at + 2]
                _, errors = run(*words, "--listen", "nonsense", expect=2)
                self.assertIn("nonsense: an address is", errors, command)


if __name__ == "__main__":
    unittest.main()
