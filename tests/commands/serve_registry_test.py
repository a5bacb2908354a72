"""Adapters in directories: checked before they are served and before they are read, found when they come, and refused for
as long as their files stay what they are."""
import json
import os
import pathlib
import re
import shutil
import time
import unittest

from model_support import SANITIZED, read_safetensors, run, write_safetensors
from pretrain_support import wait_for
from rank_watch_test import write_long_model
from requests_support import BASE
from serve_adapters_support import AdapterRoot
from serve_grpc_support import Client, grpc
from serve_swap_support import damaged, weights_of

AT_ONCE = 3

SHORT = {"prompt": [3, 4, 5], "max_tokens": 2, "ignore_eos": True, "temperature": 0}
ENDLESS = SHORT | {"max_tokens": 90_000}
GIB = 1 << 30
REQUEST = b'{"prompt": [1], "max_tokens": 1}\n'


def memory(server, line):
    """KiB: VmRSS or VmHWM."""
    return int(re.search(rf"{line}:\s+(\d+)", pathlib.Path(f"/proc/{server.process.pid}/status").read_text())[1])


class Registry(AdapterRoot):
    def ask(self, server, name, status=200, **more):
        answer = server.ask("POST", "/v1/completions", SHORT | {"model": name} | more)
        self.assertEqual(answer.status, status, (name, answer.body))
        return answer.json

    def models(self, server):
        return {model["id"] for model in server.ask("GET", "/v1/models").json["data"]}

    def long_model(self):
        write_long_model(self.top / "long", BASE)
        return self.top / "long"

    def sparse(self, name, header=b""):
        """An adapter whose tensors are a file of 1 GiB of zeros after the header."""
        shutil.copytree(self.root / "lora.a", self.root / name)
        with open(weights_of(self.root / name), "wb") as file:
            file.write(header)
            file.truncate(GIB)

    # ---- before files are read

    def test_a_file_of_zeros_costs_no_memory_and_no_time(self):
        self.sparse("zeros")
        tensor = json.dumps({"x": {"dtype": "F32", "shape": [GIB // 4 - 64], "data_offsets": [0, GIB - 256]}})
        self.sparse("header", (248).to_bytes(8, "little") + tensor.encode().ljust(248))
        with self.serve() as server:
            self.ask(server, "lora.a")
            before, start = memory(server, "VmRSS"), time.monotonic()
            for _ in range(20):
                for name, part in (("zeros", ".safetensors"), ("header", "missing tensors")):
                    error = self.ask(server, name, status=422)["error"]
                    self.assertEqual(error["code"], "adapter_invalid")
                    self.assertIn(part, error["message"])
            took = time.monotonic() - start
            self.change(server, "POST", "new", {"path": "zeros"}, status=422)
            if not SANITIZED:
                self.assertLess(memory(server, "VmHWM") - before, 64 << 10, "KiB")
            self.assertLess(took, 20)  # forty times a GiB would take minutes

    def test_an_adapter_larger_than_all_memory_is_not_read(self):
        with self.serve("--adapter-memory", "1K") as server:
            for _ in range(2):
                error = self.ask(server, "lora.a", status=507)["error"]
                self.assertEqual(error["code"], "adapter_memory_full")
                self.assertRegex(error["message"], r"takes \d+ bytes, and all adapters have 1024")

    def test_a_refusal_lasts_until_the_files_change(self):
        weights = weights_of(self.root / "ia3.a")
        whole = weights.read_bytes()
        info = weights.stat()
        weights.write_bytes(whole[:-1])
        with self.serve() as server:
            messages = {self.ask(server, "ia3.a", status=422)["error"]["message"] for _ in range(3)}
            self.assertEqual(len(messages), 1)
            weights.write_bytes(whole)  # the same inode
            os.utime(weights, ns=(info.st_atime_ns, info.st_mtime_ns))
            self.ask(server, "ia3.a")

    # ---- at the start

    def test_a_damaged_adapter_of_the_command_line_is_found_at_the_start(self):
        tensors = read_safetensors(weights_of(self.root / "lora.a"))
        cases = {"config": None, "header": None, "missing": None, "shape": None}
        for name in cases:
            shutil.copytree(self.root / "lora.a", self.top / name)
        (self.top / "config/adapter_config.json").write_text('{"peft_type": "LORA", ')
        weights_of(self.top / "header").write_bytes(weights_of(self.root / "lora.a").read_bytes()[:-5])
        first = sorted(tensors)[0]
        write_safetensors(weights_of(self.top / "missing"), {n: t for n, t in tensors.items() if n != first})
        kind, shape, data = tensors[first]
        write_safetensors(weights_of(self.top / "shape"), tensors | {first: (kind, shape[::-1], data)})
        for name, part in (("config", "adapter_config.json"), ("header", ".safetensors"), ("missing", f"missing tensors: {first}"),
                           ("shape", f"{first} has shape [")):
            expected = f"--adapter mine: {self.top}/{name}"
            with self.subTest(name):
                given = ("--model", BASE, "--adapter", f"mine={self.top / name}")
                for output, errors in (run("serve", *given, "--listen", "127.0.0.1:0", "--control", "none", expect=1),
                                       run("generate", *given, "--requests", "-", input=REQUEST, expect=1)):
                    self.assertIn(expected, errors)
                    self.assertIn(part, errors)
                    self.assertEqual(output, b"")

    def test_one_line_names_what_is_damaged_below_the_root(self):
        bad = damaged(self.root, self.top / "outside")
        names = {name for name in bad if (self.root / name).is_dir() and not (self.root / name).is_symlink()}
        with self.serve() as server:
            line = server.wait_line("below --adapter-root will be refused")
            refused, total = map(int, re.search(r"(\d+) of (\d+) adapters below", line).groups())
            listed = set(self.states(server))
            self.assertEqual(total, len(listed))
            self.assertEqual(refused, sum(server.ask("POST", "/v1/completions", SHORT | {"model": name}).status == 422 for name in listed))
            self.assertGreaterEqual(refused, 8)
            for name in re.findall(r"[:;] (\S+) \(", line):
                self.assertIn(name, names)
            self.assertNotIn(str(self.root), line)
            self.assertEqual(sum("will be refused" in line for line in server.lines), 1)

    def test_what_is_refused_is_not_listed_as_usable(self):
        """Until its files change."""
        weights = weights_of(self.root / "lora.b")
        good = weights.read_bytes()
        weights.write_bytes(good[:-5])
        with self.serve() as server:
            server.wait_line("below --adapter-root will be refused")
            self.assertEqual((self.states(server)["lora.b"]["state"], self.states(server)["ia3.a"]["state"]), ("refused", "evicted"))
            listed = lambda: {model["id"] for model in server.ask("GET", "/v1/models").json["data"]}
            self.assertIn("lora.a", listed())
            self.assertNotIn("lora.b", listed())
            self.assertEqual(server.ask("GET", "/v1/models/lora.b").status, 404)
            weights.write_bytes(good)
            self.assertIn("lora.b", listed())
            self.ask(server, "lora.b")
            weights_of(self.root / "ia3.a").write_bytes(b"no")
            self.assertEqual(server.ask("POST", "/v1/completions", SHORT | {"model": "ia3.a"}).status, 422)
            self.assertEqual((self.states(server)["lora.b"]["state"], self.states(server)["ia3.a"]["state"]), ("resident", "refused"))
            self.assertNotIn("ia3.a", listed())

    def test_generate_and_score_say_what_is_damaged_below_the_root(self):
        (self.root / "lora.b/adapter_config.json").write_text("{")
        weights_of(self.root / "ia3.b").write_bytes(b"no")
        total = sum(path.is_dir() for path in self.root.iterdir())
        for words in (("generate", "--requests", "-"), ("score", "--input", "-")):
            line = b'{"tokens": [1, 2]}\n' if words[0] == "score" else REQUEST
            _, errors = run(*words, "--model", BASE, "--adapter-root", self.root, input=line)
            found = re.findall(r"(\d+) of (\d+) adapters below --adapter-root will be refused: (.*)", errors)
            self.assertEqual([(refused, names) for refused, names, _ in found], [("2", str(total))])
            self.assertEqual(set(re.findall(r"(?:^|; )(\S+) \(", found[0][2])), {"lora.b", "ia3.b"})
        for name in ("lora.b", "ia3.b"):
            shutil.rmtree(self.root / name)
        _, errors = run("generate", "--requests", "-", "--model", BASE, "--adapter-root", self.root, input=REQUEST)
        self.assertNotIn("will be refused", errors)

    def test_no_line_where_all_are_right(self):
        with self.serve() as server:
            self.ask(server, "lora.a")
            self.change(server, "POST", "new", {"path": "lora.b"})
        self.assertFalse([line for line in server.lines if "will be refused" in line])

    # ---- names that come and go

    def test_a_directory_that_comes_later_is_found_when_it_is_named(self):
        with self.serve() as server:
            self.ask(server, "late", status=404)
            expected = self.ask(server, "lora.b", return_token_ids=True)
            staged = self.top / "late"
            shutil.copytree(self.root / "lora.b", staged)
            staged.rename(self.root / "late")
            self.assertNotIn("late", self.states(server))
            told = self.ask(server, "late", return_token_ids=True)
            self.assertEqual(told["choices"][0]["token_ids"], expected["choices"][0]["token_ids"])
            self.assertEqual((told["model"], told["adapters"][0]["name"]), ("late", "late"))
            self.assertEqual(self.states(server)["late"]["state"], "resident")
            self.assertIn("late", self.models(server))
            # By the field of adapters, too, and beside others.
            shutil.copytree(self.root / "ia3.a", self.root / "later")
            answer = server.ask("POST", "/v1/completions", SHORT | {"adapters": ["lora.a", "later"]})
            self.assertEqual(answer.status, 200, answer.body)

    def test_an_unloaded_name_is_not_found_again_but_a_new_directory_is(self):
        with self.serve() as server:
            self.ask(server, "lora.b")
            self.change(server, "DELETE", "lora.b")
            self.ask(server, "lora.b", status=404)
            shutil.rmtree(self.root / "lora.b")
            self.ask(server, "lora.b", status=404)
            shutil.copytree(self.root / "lora.a", self.top / "staged")
            (self.top / "staged").rename(self.root / "lora.b")
            self.ask(server, "lora.b")
            self.change(server, "DELETE", "lora.b")
            self.ask(server, "lora.b", status=404)
            self.change(server, "POST", "lora.b", {})
            self.ask(server, "lora.b")

    def unload(self, server, route, name):
        """By one of the three routes."""
        if route == "DELETE":
            self.change(server, "DELETE", name)
        elif route == "vLLM":
            answer = server.ask("POST", "/v1/unload_lora_adapter", {"lora_name": name}, listener="control")
            self.assertEqual(answer.status, 200, answer.body)
        else:
            with Client(server.addresses["control"]) as client:
                client.raw("/cambium.v1.Control/UnloadAdapter", b"\x0a" + bytes([len(name)]) + name.encode())

    def test_by_each_route_an_unloaded_name_stays_away_until_it_is_loaded_or_replaced(self):
        for route in ("DELETE", "vLLM") + (("gRPC", ) if grpc else ()):
            with self.subTest(route=route), self.serve() as server:
                name, other = f"by-{route.lower()}", f"as-{route.lower()}"
                for one in (name, other):  # one that was there at the start, and one that came later
                    shutil.copytree(self.root / "lora.b", self.root / one)
                    self.ask(server, one)
                    self.unload(server, route, one)
                # Neither a file that comes, nor one that changes, nor another time of the directory.
                (self.root / name / "notes").write_text("a")
                config = self.root / name / "adapter_config.json"
                config.write_text(config.read_text() + "\n")
                os.utime(self.root / name, (1, 1))
                (self.root / name).chmod(0o750)
                for one in (name, other):
                    self.ask(server, one, status=404)
                    answer = server.ask("POST", "/v1/completions", SHORT | {"adapters": [one]})
                    self.assertEqual((answer.status, answer.code), (404, "adapter_not_found"))
                    self.assertNotIn(one, self.models(server))
                self.change(server, "POST", name, {})  # it is loaded
                self.ask(server, name)
                self.unload(server, route, name)
                self.ask(server, name, status=404)
                (self.root / other).rename(self.top / f"old-{other}")
                self.ask(server, other, status=404)
                (self.top / f"old-{other}").rename(self.root / other)
                self.ask(server, other, status=404)  # the same directory is back
                (self.root / other).rename(self.top / f"older-{other}")
                shutil.copytree(self.root / "lora.a", self.root / other)  # and now another
                self.ask(server, other)

    def test_what_is_no_adapter_is_not_found(self):
        with self.serve() as server:
            (self.root / "empty").mkdir()
            (self.root / "file").write_text("no")
            shutil.copytree(self.root / "lora.b", self.top / "outside")
            (self.root / "link").symlink_to(self.top / "outside")
            for name in ("empty", "file", "link", "nowhere"):
                self.assertEqual(self.ask(server, name, status=404)["error"]["code"], "model_not_found")
            self.assertFalse({"empty", "file", "link", "nowhere"} & set(self.states(server)))
            shutil.copytree(self.root / "lora.b", self.root / "damaged")
            (self.root / "damaged/adapter_config.json").write_text("{")
            for _ in range(2):
                self.assertEqual(self.ask(server, "damaged", status=422)["error"]["code"], "adapter_invalid")

    def test_what_is_unloaded_is_listed_as_retiring_until_its_last_text_has_ended(self):
        with self.serve(model=self.long_model()) as server:
            generation = self.change(server, "POST", "guest", {"path": "lora.a"})["generation"]
            with server.stream("/v1/completions", ENDLESS | {"model": "guest"}) as stream, \
                    server.stream("/v1/completions", ENDLESS | {"model": "guest", "max_tokens": 2000}) as other:
                next(stream)
                next(other)
                self.change(server, "DELETE", "guest")
                self.change(server, "PUT", "lora.b", {"path": "nowhere"}, status=404)  # a refused change of another
                entry = self.states(server)["guest"]
                self.assertEqual((entry["state"], entry["generation"]), ("retiring", generation))
                self.assertGreater(entry["running"], 0)
                self.assertNotIn("guest", self.models(server))
                self.assertNotIn('adapter_name="guest"', server.ask("GET", "/metrics", listener="control").body.decode())
                self.assertEqual(sum(1 for _ in other), 2000 - 1)
                self.assertTrue(other.is_done)
            self.assertTrue(wait_for(lambda: "guest" not in self.states(server), server.process))

    def test_errors_of_control_name_no_absolute_path(self):
        bad = damaged(self.root, self.top / "outside")
        with self.serve("--adapter", f"apart={self.root / 'ia3.a'}") as server:
            weights_of(self.root / "ia3.a").write_bytes(b"no")
            asked = [("POST", "x", {"path": name}) for name in bad] + [("PUT", "lora.a", {"path": name}) for name in bad] + \
                [("POST", "x", {"path": "nowhere"}), ("PUT", "apart", {}), ("POST", "apart", {})]
            for method, name, body in asked:
                path = "/v1/adapters" if method == "POST" else f"/v1/adapters/{name}"
                answer = server.ask(method, path, {"name": name} | body if method == "POST" else body, listener="control")
                self.assertGreaterEqual(answer.status, 400, (method, name, body))
                message = answer.json["error"]["message"]
                self.assertNotRegex(message, r"(^|[\s'\"(:,])/\w", (method, name, body))
                self.assertNotIn(str(self.top), message)
            self.assertNotIn(str(self.top), self.ask(server, "apart", status=422)["error"]["message"])

    # ---- metrics

    def test_residency_and_requests_as_a_gateway_reads_them(self):
        """https://github.com/kubernetes-sigs/gateway-api-inference-extension, docs/proposals/003-model-server-protocol."""
        def read(text, name):
            found = [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value))
                     for labels, value in re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.M)]
            return sorted(found, key=lambda item: item[1])
        with self.serve("--max-batch-size", 1, model=self.long_model()) as server:
            self.change(server, "POST", "pinned", {"path": "lora.a", "pinned": True})
            self.ask(server, "lora.b")
            with server.stream("/v1/completions", ENDLESS | {"model": "pinned"}) as stream:
                next(stream)
                text = server.ask("GET", "/metrics", listener="control").body.decode()
            labels, moment = read(text, "vllm:lora_requests_info")[-1]  # the picker takes the latest
            self.assertEqual(set(labels), {"max_lora", "running_lora_adapters", "waiting_lora_adapters"})
            self.assertGreater(int(labels["max_lora"]), 0)
            self.assertLess(abs(moment - time.time()), 600)
            self.assertEqual((labels["running_lora_adapters"], labels["waiting_lora_adapters"]), ("pinned", ""))
            loaded = {labels["adapter_name"]: (labels["level"], labels["pinned"], value)
                      for labels, value in read(text, "vllm:lora_adapter_loaded")}
            self.assertEqual(loaded, {"pinned": ("gpu", "true", 1), "lora.b": ("gpu", "false", 1)})

    def test_counters_of_unloaded_names_leave(self):
        with self.serve() as server:
            for number in range(100):
                self.change(server, "POST", f"guest{number}", {"path": "ia3.a"})
                self.ask(server, f"guest{number}", max_tokens=1)
                self.change(server, "DELETE", f"guest{number}")
            text = server.ask("GET", "/metrics", listener="control").body.decode()
            self.assertEqual(len(re.findall(r'^cambium:adapter_requests_total\{adapter="guest', text, re.M)), 64)
            self.assertFalse([name for name in self.states(server) if name.startswith("guest")])


if __name__ == "__main__":
    unittest.main()
