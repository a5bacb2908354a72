"""Adapters of a server where memory is short, files change, and names come and go."""
import array
import shutil
import threading
import unittest

from model_support import read_safetensors, write_safetensors
from serve_adapters_support import AdapterRoot
from serve_swap_support import METHODS, change_weights, weights_of

LONG = {"prompt": [3, 4, 5], "max_tokens": 28, "ignore_eos": True, "temperature": 0}
SHORT = LONG | {"max_tokens": 2, "return_token_ids": True}


class Adapters(AdapterRoot):
    def ask(self, server, *names, status=200, **more):
        answer = server.ask("POST", "/v1/completions", SHORT | {"adapters": names} | more)
        self.assertEqual(answer.status, status, (names, answer.body))
        return answer.json

    def bytes_of(self, name):
        """The bytes of its image."""
        with self.serve() as server:
            self.ask(server, name)
            return self.states(server)[name]["bytes"]

    # ---- memory

    def test_the_one_used_longest_ago_makes_room_and_pinned_ones_stay(self):
        three = ("lora.a", "lora.b", "ia3.a")
        memory = 2 * self.bytes_of("lora.a") + self.bytes_of("ia3.a") + 1024
        with self.serve("--adapter-memory", memory) as server:
            for name in three:
                self.ask(server, name)
            self.ask(server, "lora.a")
            self.change(server, "PUT", "ia3.a", {"path": "ia3.b"})
            self.ask(server, "adapter_seq_bn.a")
            states = self.states(server)
            self.assertEqual((states["lora.b"]["state"], states["lora.a"]["state"]), ("evicted", "resident"))
            generation = states["lora.b"]["generation"]
            told = self.ask(server, "lora.b")  # as it was
            self.assertEqual(told["adapters"], [{"name": "lora.b", "generation": generation}])

    def test_a_replacement_is_pinned_as_what_it_replaces(self):
        with self.serve() as server:
            self.change(server, "POST", "kept", {"path": "lora.a", "pinned": True})
            self.assertTrue(self.change(server, "PUT", "kept", {"path": "lora.b"})["pinned"])
            answer = server.ask("POST", "/v1/load_lora_adapter", {"lora_name": "kept", "lora_path": "ia3.a", "load_inplace": True}, listener="control")
            self.assertEqual(answer.status, 200, answer.body)
            self.assertTrue(self.states(server)["kept"]["pinned"])
            self.change(server, "POST", "other", {"path": "lora.a"})
            self.assertFalse(self.change(server, "PUT", "other", {"path": "lora.b"})["pinned"])

    def test_who_needs_the_room_of_a_busy_adapter_has_its_turn(self):
        memory = self.bytes_of("lora.a") + 1024
        with self.serve("--adapter-memory", memory, "--max-batch-size", 4) as server:
            is_over, failures = threading.Event(), []

            def keep_busy():
                while not is_over.is_set():
                    answer = server.ask("POST", "/v1/completions", LONG | {"adapters": ["lora.a"]})
                    if answer.status != 200:
                        failures.append(answer.body)
                        return

            self.ask(server, "lora.a")
            threads = [threading.Thread(target=keep_busy) for _ in range(6)]
            for thread in threads:
                thread.start()
            try:
                for _ in range(2):
                    self.ask(server, "lora.b")
            finally:
                is_over.set()
                for thread in threads:
                    thread.join()
            self.assertEqual(failures, [])

    def test_a_stack_that_does_not_fit_is_refused_and_who_wants_less_is_served(self):
        memory = self.bytes_of("lora.a") + 1024
        with self.serve("--adapter-memory", memory) as server:
            answers = []
            threads = [threading.Thread(target=lambda: answers.append(self.ask(server, "lora.a", "lora.b", status=507)["error"]["code"])) for _ in range(4)]
            for thread in threads:
                thread.start()
            for _ in range(5):
                self.ask(server, "lora.a")
                self.ask(server, "lora.b")
            for thread in threads:
                thread.join()
            self.assertEqual(answers, ["adapter_memory_full"] * 4)
            self.change(server, "POST", "pinned", {"path": "ia3.a", "pinned": True})
            self.ask(server, "lora.a", status=507)
            self.ask(server, "pinned")

    def test_a_stack_waits_for_texts_and_does_not_push_out_its_own(self):
        memory = 2 * self.bytes_of("lora.a") + 1024
        with self.serve("--adapter-memory", memory) as server:
            with server.stream("/v1/completions", LONG | {"adapters": ["adapter_seq_bn.a"]}) as stream:
                next(stream)
                loads = server.metrics()['cambium:adapter_loads_total{result="success"}']
                self.ask(server, "lora.a", "lora.b")
            # If free memory is in two pieces, the first adapter is loaded once more.
            self.assertLessEqual(server.metrics()['cambium:adapter_loads_total{result="success"}'] - loads, 3)

    def test_several_that_wait_for_room_hold_up_nobody(self):
        memory = self.bytes_of("lora.a") + 1024
        with self.serve("--adapter-memory", memory) as server:
            with server.stream("/v1/completions", LONG | {"adapters": ["lora.a"], "n": 128, "logprobs": 20}) as stream:
                next(stream)
                threads = [threading.Thread(target=self.ask, args=(server, name)) for name in ("lora.b", "ia3.a", "ia3.b")]
                for thread in threads:
                    thread.start()
                reason = 'vllm:num_requests_waiting_by_reason{{model_name="base",engine="0",reason="{}"}}'
                server.await_metric(reason.format("deferred"), 3)
                now = server.metrics()
                self.assertEqual(now["vllm:num_requests_waiting"], now[reason.format("capacity")] + 3)
                for _ in range(3):  # each end of a change lets them try again, whether or not there was room for it
                    answer = server.ask("POST", "/v1/adapters", {"name": "x", "path": "lora.b"}, listener="control")
                    self.assertIn(answer.status, (200, 409, 507), answer.body)
                    self.ask(server)
            for thread in threads:
                thread.join()

    # ---- files

    def test_files_that_have_changed_are_refused_until_replaced(self):
        memory = self.bytes_of("lora.a") + 1024
        with self.serve("--adapter-memory", memory) as server:
            first = self.ask(server, "lora.a")
            self.ask(server, "lora.b")
            change_weights(weights_of(self.root / "lora.a"), 2)
            self.assertIn("have changed since it was loaded", self.ask(server, "lora.a", status=422)["error"]["message"])
            self.change(server, "PUT", "lora.a", {})
            second = self.ask(server, "lora.a")
            self.assertGreater(second["adapters"][0]["generation"], first["adapters"][0]["generation"])

    def test_a_failed_load_may_be_tried_again(self):
        weights = weights_of(self.root / "ia3.a")
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1])
        with self.serve() as server:
            for _ in range(2):
                self.ask(server, "ia3.a", status=422)
            self.change(server, "POST", "new", {"path": "ia3.a"}, status=422)
            self.assertNotIn("new", self.states(server))
            weights.write_bytes(whole)
            self.ask(server, "ia3.a")
            self.change(server, "POST", "new", {"path": "ia3.a"})

    def test_numbers_that_are_none_cost_the_request_alone(self):
        tensors = read_safetensors(weights_of(self.root / "lora.b"))
        nan = {name: (kind, shape, array.array("f", [float("nan")] * (len(data) // 4)).tobytes()) for name, (kind, shape, data) in tensors.items()}
        write_safetensors(weights_of(self.root / "lora.b"), nan)
        with self.serve() as server:
            expected = self.ask(server, "lora.a")["choices"]
            for _ in range(2):
                self.ask(server, "lora.b", status=500)
                self.assertEqual(self.ask(server, "lora.a")["choices"], expected)

    def test_links_lead_nowhere_however_the_root_is_written(self):
        shutil.copytree(self.root / "lora.b", self.top / "outside")
        (self.root / "link").symlink_to(self.top / "outside")
        shutil.copytree(self.root / "lora.a", self.root / "linked")
        (self.root / "linked/adapter_model.safetensors").unlink()
        (self.root / "linked/adapter_model.safetensors").symlink_to(self.top / "outside/adapter_model.safetensors")
        for root in (f"{self.root}/", f"{self.root}//", f"{self.root}/.", f"{self.root}/../root"):
            with self.serve(root=root) as server:
                self.ask(server, "linked", status=422)
                self.change(server, "POST", "x", {"path": "link"}, status=422)
                self.change(server, "POST", "x", {"path": "linked"}, status=422)
                self.change(server, "POST", "x", {"path": "../outside"}, status=400)
                self.ask(server, "lora.a")

    # ---- names

    def test_a_text_outlives_its_name_and_then_nothing_is_left(self):
        with self.serve() as server:
            before = set(self.states(server))
            self.change(server, "POST", "guest", {"path": "lora.a"})
            with server.stream("/v1/completions", LONG | {"adapters": ["guest"]}) as stream:
                next(stream)
                self.change(server, "DELETE", "guest")
                self.ask(server, "guest", status=404)
                self.assertEqual(sum(1 for _ in stream), LONG["max_tokens"] - 1)
            self.assertEqual(set(self.states(server)), before)
            server.await_metric("cambium:adapter_memory_bytes", 0)
            for number in range(50):  # names that only once were, and those that never came to be
                self.change(server, "POST", f"guest{number}", {"path": METHODS[number % len(METHODS)] + ".a"})
                self.change(server, "DELETE", f"guest{number}")
                self.change(server, "DELETE", f"guest{number}", status=404)
                self.change(server, "POST", f"guest{number}", {"path": "nowhere"}, status=404)
            self.assertEqual(set(self.states(server)), before)

    def test_a_name_that_waits_for_room_is_replaced_meanwhile(self):
        memory = self.bytes_of("lora.a") + self.bytes_of("ia3.a") + 1024
        with self.serve("--adapter-memory", memory) as server:
            first = self.ask(server, "lora.b")["adapters"][0]["generation"]
            for _ in range(5):
                with server.stream("/v1/completions", LONG | {"adapters": ["adapter_seq_bn.a"], "max_tokens": 27}) as stream:
                    next(stream)
                    answers = []
                    thread = threading.Thread(target=lambda: answers.append(self.ask(server, "lora.b")))
                    thread.start()
                    self.change(server, "PUT", "lora.b", {"path": "ia3.b"})
                    thread.join()
                self.assertGreaterEqual(answers[0]["adapters"][0]["generation"], first)
                self.change(server, "DELETE", "lora.b")
                first = self.change(server, "POST", "lora.b", {"path": "lora.b"})["generation"]

    def test_changes_are_answered_in_order_and_refused_where_they_come_too_late(self):
        with self.serve() as server:
            generation = self.change(server, "POST", "x", {"path": "lora.a"})["generation"]
            answers = []
            threads = [threading.Thread(target=lambda: answers.append(server.ask("PUT", "/v1/adapters/x", {"path": "lora.b", "if_generation": generation}, listener="control").status)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(sorted(answers), [200] + [409] * 7)


if __name__ == "__main__":
    unittest.main()
