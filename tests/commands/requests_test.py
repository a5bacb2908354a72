"""generate --requests: what the fields of a request mean, and what is said of those that are wrong."""
import json
import math
import pathlib
import tempfile
import unittest

from model_support import EOS, EXPECTED, TINY, rows, run, write_model, write_reciting_model
from requests_support import ask, ask_one, tokens

SAMPLES = json.loads((pathlib.Path(__file__).parent.parent / "infer/golden/samples.json").read_text())
SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty")
FIELDS = ["id", "choices", "prompt_logprobs", "adapters", "seed", "prompt_tokens", "completion_tokens"]


def philox(seed, counter):
    """Philox4x32-10 (Salmon et al. 2011)."""
    keys, c = [seed & 0xffffffff, seed >> 32], list(counter)
    for _ in range(10):
        a, b = 0xd2511f53 * c[0], 0xcd9e8d57 * c[2]
        c = [b >> 32 ^ c[1] ^ keys[0], b & 0xffffffff, a >> 32 ^ c[3] ^ keys[1], a & 0xffffffff]
        keys = [(keys[0] + 0x9e3779b9) & 0xffffffff, (keys[1] + 0xbb67ae85) & 0xffffffff]
    return c


class Golden(unittest.TestCase):
    def test_draws_are_the_recorded_ones(self):
        vectors = [v for v in SAMPLES if int(v["seed"]) < 2 ** 63]
        self.assertGreater(len(vectors), 15)
        answers = ask([{"prompt": v["prompt"], "seed": int(v["seed"]), "n": len(v["texts"]), "max_tokens": len(v["texts"][0]),
                        "ignore_eos": True} | {key: v[key] for key in SAMPLING} for v in vectors])
        self.assertEqual([tokens(a) for a in answers], [v["texts"] for v in vectors])

    def test_greedy_equals_transformers(self):
        cases = EXPECTED["greedy"]
        plain = {"temperature": 0, "max_tokens": EXPECTED["new_tokens"]}
        requests = [{"prompt": c[key]} | plain | more for c in cases for key in ("prompt", "prompt_tokens")
                    for more in ({}, {"repetition_penalty": EXPECTED["penalty"]})]
        expected = [[c[key]] for c in cases for _ in range(2) for key in ("tokens", "penalised")]
        self.assertEqual([tokens(a) for a in ask(requests)], expected)

    def drawn(self, request, past, likeliest, position, choice):
        """The token that the definition draws, of those that are the likeliest by the plain logits; None where rounding
        could decide."""
        bias = {int(key): value for key, value in request.get("logit_bias", {}).items()}
        if any(value > 0 and token not in [top["id"] for top in likeliest] for token, value in bias.items()):
            return None
        scores = {}
        for top in likeliest:
            count = past.count(top["id"])
            scores[top["id"]] = top["logprob"] + bias.get(top["id"], 0) - count * request.get("frequency_penalty", 0) - (
                request.get("presence_penalty", 0) if count else 0)
        order = sorted(scores, key=lambda token: -scores[token])
        weight = {token: math.exp((scores[token] - scores[order[0]]) / request["temperature"]) for token in order}
        kept, close = order[:request["top_k"]], [scores[order[request["top_k"] - 1]] - scores[order[request["top_k"]]]]
        if "top_p" in request:
            mass, before, all_kept = sum(weight[t] for t in kept), 0, kept
            kept = []
            for token in all_kept:
                if before >= request["top_p"] * mass:
                    break
                kept.append(token)
                before += weight[token]
                close.append(abs(before / mass - request["top_p"]))
        if "min_p" in request:
            close += [abs(weight[token] - request["min_p"]) for token in kept]
            kept = [token for token in kept if weight[token] >= request["min_p"]]
        unit = (philox(request["seed"], [choice, position, 0, 4 << 24])[0] + 0.5) / 2 ** 32
        total, before, found = sum(weight[t] for t in kept), 0, None
        for token in sorted(kept):
            before += weight[token] / total
            if found is None and unit < before:
                found = token
            if token != max(kept):
                close.append(abs(unit - before))
        return found if min(close) > 1e-4 else None

    def test_each_change_of_the_logits_is_what_its_definition_says(self):
        """Draws again, here, from the plain log-probabilities that the answer has beside each token."""
        first = [top["id"] for top in ask_one({"prompt": [7, 8], "max_tokens": 1, "logprobs": 20})["choices"][0]["logprobs"][0]["top"]]
        kinds = ({}, {"min_p": 0.5}, {"min_p": 0.2, "top_p": 0.9}, {"presence_penalty": 2.0}, {"frequency_penalty": 1.5},
                 {"presence_penalty": 0.7, "frequency_penalty": 0.4, "min_p": 0.3},
                 {"logit_bias": {str(token): -1.5 for token in first[::3]}}, {"logit_bias": {str(first[0]): -3, str(first[1]): 2.5}})
        requests = [{"prompt": [7, 8], "seed": 11 + number, "n": 2, "max_tokens": 8, "temperature": 0.9, "top_k": 8, "logprobs": 20,
                     "ignore_eos": True} | kind for number, kind in enumerate(kinds * 3)]
        checked = [0] * len(kinds)
        for number, (request, answer) in enumerate(zip(requests, ask(requests), strict=True)):
            for index, choice in enumerate(answer["choices"]):
                for i, entry in enumerate(choice["logprobs"]):
                    expected = self.drawn(request, choice["tokens"][:i], entry["top"], 2 + i, index)
                    checked[number % len(kinds)] += expected is not None
                    self.assertIn(expected, (None, entry["id"]), (request, index, i))
        self.assertGreater(min(checked), 20, checked)  # of 48

    def test_log_probabilities_are_those_of_score(self):
        request = {"prompt": "The cat sat", "temperature": 0, "max_tokens": 9, "ignore_eos": True}
        plain, alone, three = ask([request, request | {"logprobs": 0, "prompt_logprobs": 0},
                                   request | {"logprobs": 3, "prompt_logprobs": 20}])
        self.assertEqual((plain["choices"][0]["logprobs"], plain["prompt_logprobs"]), (None, None))
        prompt = [entry["id"] for entry in alone["prompt_logprobs"]]
        written = alone["choices"][0]["tokens"]
        output, _ = run("score", "--model", TINY, "--input", "-", input=json.dumps({"tokens": prompt + written}).encode())
        (scored,) = rows(output)
        for answer, top, prompt_top in ((alone, 0, 0), (three, 3, 20)):
            entries = answer["prompt_logprobs"] + answer["choices"][0]["logprobs"]
            self.assertEqual([e["id"] for e in entries], prompt + written)
            self.assertEqual(entries[0], {"id": prompt[0], "logprob": None, "top": []})
            for entry, expected in zip(entries[1:], scored["logprobs"][1:], strict=True):
                self.assertAlmostEqual(entry["logprob"], expected, delta=2e-5)
            for entry in answer["choices"][0]["logprobs"]:
                self.assertEqual(entry["top"][:1], [{"id": entry["id"], "logprob": entry["logprob"]}] if top else [])
            for entry, count in [(e, prompt_top) for e in answer["prompt_logprobs"][1:]] + [(e, top) for e in answer["choices"][0]["logprobs"]]:
                self.assertEqual(len(entry["top"]), count)
                found = [t["logprob"] for t in entry["top"]]
                self.assertEqual(found, sorted(found, reverse=True))
                self.assertTrue(all(t["logprob"] == entry["logprob"] for t in entry["top"] if t["id"] == entry["id"]))


class Fields(unittest.TestCase):
    """With a model that recites a text, one byte a token, after a prompt of one byte."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.text = "Es grünt so grün,\x85\u2028 春眠不觉晓. The end. Of it."
        cls.model = pathlib.Path(temporary.name, "recites")
        write_reciting_model(cls.model, cls.text.encode())

    def recite(self, **fields):
        answer = ask_one({"prompt": "x", "temperature": 0} | fields, model=self.model)
        (choice,) = answer["choices"]
        return choice["text"], choice["finish_reason"], answer["completion_tokens"]

    def test_an_answer_has_all_its_fields(self):
        answer = ask_one({"id": "a\u00e4\"\\\0", "prompt": "x", "temperature": 0, "max_tokens": 2}, model=self.model)
        self.assertEqual(list(answer), FIELDS)
        seed = answer.pop("seed")
        self.assertTrue(0 <= seed < 2 ** 53)
        self.assertEqual(answer, {
            "id": "a\u00e4\"\\\0", "choices": [{"index": 0, "text": "Es", "tokens": [69, 115], "logprobs": None,
                                               "finish_reason": "length"}],
            "prompt_logprobs": None, "adapters": [], "prompt_tokens": 1, "completion_tokens": 2})
        for given, told in ((7, 7), (-3, -3), (None, None), ("", "")):
            self.assertEqual(ask_one({"id": given, "prompt": "x", "max_tokens": 1}, model=self.model)["id"], told)

    def test_the_end_of_text_ends_a_text_and_is_counted(self):
        count = len(self.text.encode())
        self.assertEqual(self.recite(), (self.text, "stop", count + 1))
        self.assertEqual(self.recite(max_tokens=count), (self.text, "length", count))
        text, reason, drawn = self.recite(ignore_eos=True)
        self.assertEqual((text, reason, drawn), (self.text + "<|endoftext|>", "length", count + 1))
        answer = ask_one({"prompt": "x", "temperature": 0, "logprobs": 1}, model=self.model)
        self.assertEqual(len(answer["choices"][0]["logprobs"]), count)

    def test_nothing_is_written_where_max_tokens_is_0(self):
        self.assertEqual(self.recite(max_tokens=0), ("", "length", 0))
        answer = ask_one({"prompt": [120, 5, 6], "max_tokens": 0, "prompt_logprobs": 0}, model=self.model)
        self.assertEqual([e["id"] for e in answer["prompt_logprobs"]], [120, 5, 6])

    def test_a_text_that_is_cut_within_a_character_is_mended(self):
        self.assertEqual(self.recite(max_tokens=6)[0], "Es gr\N{REPLACEMENT CHARACTER}")

    def test_stop_strings(self):
        for stop, end in ((". The", self.text.index(". The")), (["zzz", "不觉", "Of"], self.text.index("不觉")), ("E", 0)):
            self.assertEqual(self.recite(stop=stop)[:2], (self.text[:end], "stop"))
        self.assertEqual(self.recite(stop=[])[:2], (self.text, "stop"))

    def test_stop_ids(self):
        text, reason, drawn = self.recite(stop_token_ids=[ord("z"), ord("n")])
        end = self.text.encode().index(b"n")
        self.assertEqual((text, reason, drawn), (self.text.encode()[:end].decode(), "stop", end + 1))
        # They are ends of their own: ignore_eos leaves them.
        self.assertEqual(self.recite(stop_token_ids=[ord("n")], ignore_eos=True), (text, reason, drawn))

    def test_no_end_comes_before_min_tokens(self):
        raw = self.text.encode()
        first = raw.index(b"n")
        text, _, drawn = self.recite(stop_token_ids=[ord("n")], min_tokens=first)
        self.assertEqual(text.encode(), raw[:first])
        text, _, drawn = self.recite(stop_token_ids=[ord("n")], min_tokens=first + 2)  # it is banned where it would come
        self.assertEqual((len(text.encode()) > first, raw[first] in text.encode()[:first + 2]), (True, False))
        # A stop string counts if it begins after them.
        second = raw.index(" gr".encode(), 5)
        for least, end in ((0, 2), (2, 2), (3, second), (5, second)):
            self.assertEqual(self.recite(stop=" gr", min_tokens=least)[0], raw[:end].decode(), least)
        with tempfile.TemporaryDirectory() as temporary:
            write_reciting_model(temporary, b"abc", positions=10)
            for least in (0, 3, 4, 7):
                answer = ask_one({"prompt": "x", "temperature": 0, "min_tokens": least}, model=temporary)
                written = answer["choices"][0]["tokens"]
                self.assertEqual(written[:3], [*b"abc"])
                self.assertGreaterEqual(len(written), least)
                self.assertNotIn(EOS, written)

    def test_samples_are_those_of_num_samples(self):
        words = ("generate", "--model", TINY, "--prompt", "The cat", "--num-samples", 5, "--seed", 3, "--temperature", 1,
                 "--max-new-tokens", 12, "--json")
        expected = [row["tokens"] for row in rows(run(*words)[0])]
        request = {"prompt": "The cat", "n": 5, "seed": 3, "max_tokens": 12}
        for more in ((), ("--max-batch-size", 2, "--max-batch-tokens", 2), ("--prefix-cache", "off")):
            answer = ask_one(request, *more)
            self.assertEqual(tokens(answer), expected)
            self.assertEqual([c["index"] for c in answer["choices"]], list(range(5)))

    def test_a_seed_that_was_not_given_is_told_and_gives_the_same_again(self):
        request = {"prompt": "The cat", "max_tokens": 20}
        one, two = ask([request, request])
        self.assertNotEqual(one["seed"], two["seed"])
        self.assertNotEqual(tokens(one), tokens(two))
        self.assertEqual(tokens(ask_one(request | {"seed": one["seed"]})), tokens(one))

    def test_fields_that_are_null_are_absent(self):
        request = {"prompt": "The cat", "max_tokens": 5, "seed": 4}
        names = ("messages", "adapters", "n", "temperature", "top_k", "top_p", "min_p", "stop", "logit_bias", "logprobs", "priority")
        self.assertEqual(ask_one(request | dict.fromkeys(names)), ask_one(request))

    def test_an_empty_text_begins_a_document(self):
        request = {"temperature": 0, "max_tokens": 5}
        self.assertEqual(*map(tokens, ask([request | {"prompt": ""}, request | {"prompt": [EXPECTED["eos"]]}])))

    def test_names_of_special_tokens_are_tokens_or_text(self):
        request = {"prompt": "<|endoftext|>x", "max_tokens": 1}
        body = lambda **more: {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": request | more}
        for words, default in (((), 2), (("--special-tokens", "text"), 14)):
            lines = [request, request | {"parse_special": True}, request | {"parse_special": False}, request | {"parse_special": None}]
            found = ask(lines, *words)
            self.assertEqual([answer["prompt_tokens"] for answer in found], [default, 2, 14, default])
            found = ask([body(), body(parse_special=True), body(parse_special=False)], *words)
            self.assertEqual([answer["response"]["body"]["usage"]["prompt_tokens"] for answer in found], [default, 2, 14])

    def test_ids_need_no_tokenizer(self):
        with tempfile.TemporaryDirectory() as temporary:
            write_model(temporary)
            answers = ask([{"prompt": [1, 2], "max_tokens": 3, "seed": 1}, {"prompt": "a"}, {"prompt": [1], "stop": "a"},
                           {"messages": [{"role": "user", "content": "a"}]}], model=temporary, expect=1)
            self.assertEqual((answers[0]["choices"][0]["text"], len(tokens(answers[0])[0])), (None, 3))
            self.assertEqual([a["field"] for a in answers[1:]], ["prompt", "stop", "messages"])
            self.assertTrue(all("tokenizer" in a["error"] for a in answers[1:]))

    def test_a_rendering_that_no_context_holds(self):
        with tempfile.TemporaryDirectory() as temporary:
            template = pathlib.Path(temporary) / "much.jinja"
            template.write_text("{{ messages[0].content * 30000 }}")
            answer = ask_one({"messages": [{"role": "user", "content": "Hello"}]}, "--chat-template", template, expect=1)
        self.assertEqual(answer["field"], "messages")
        self.assertIn("its text has 150000 bytes", answer["error"])

    def test_weights_that_are_not_numbers_are_told(self):
        with tempfile.TemporaryDirectory() as temporary:
            write_model(temporary, **{"transformer.ln_f.weight": ("F32", (8,), b"\0\0\xc0\x7f" * 8)})
            answers = ask([{"prompt": [1, 2]}, {"prompt": [1, 2], "prompt_logprobs": 1, "max_tokens": 0}], model=temporary, expect=1)
            for answer in answers:
                self.assertIn("the model's numbers are broken", answer["error"])


class Refused(unittest.TestCase):
    def check(self, *cases, **more):
        """Each line has one error, of this field and with these words, and what stands between them is answered."""
        good = {"prompt": [1, 2], "max_tokens": 1, "seed": 1}
        lines = [line for bad, _, _ in cases for line in (bad, good)]
        output, errors = run("generate", "--model", TINY, "--requests", "-", input=b"".join(
            (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines), expect=1, **more)
        answers = rows(output)
        self.assertEqual(len(answers), len(lines))
        for number, (bad, field, part) in enumerate(cases):
            answer = answers[2 * number]
            self.assertEqual(list(answer), ["id", "line", "field", "error"], answer)
            self.assertEqual((answer["line"], answer["field"]), (2 * number + 1, field), (bad, answer))
            self.assertIn(part, answer["error"])
            self.assertNotIn("\n", answer["error"])
        self.assertEqual(len({json.dumps(tokens(a)) for a in answers[1::2]}), 1)
        self.assertEqual(errors, f"cambium: error: {len(cases)} of {len(lines)} requests were refused: "
                                 "their lines of the output say why\n")

    def test_values_of_other_servers(self):
        """Seeds are any integers of 64 bits, and -1 draws one; top_p 0 takes the likeliest token; top_k -1 is all."""
        plain = {"prompt": [7, 8], "max_tokens": 6, "temperature": 1}
        greedy, least, minus, any_seed, other, whole, all_ids, empty = ask(
            [plain | more for more in ({"temperature": 0, "seed": 1}, {"top_p": 0, "temperature": 90, "seed": -2 ** 63}, {"seed": -2},
                                       {"seed": -1}, {"seed": -1}, {"seed": -2, "top_k": 0}, {"seed": -2, "top_k": -1},
                                       {"seed": -2, "suffix": ""})])
        self.assertEqual(tokens(least), tokens(greedy))
        self.assertEqual([least["seed"], minus["seed"]], [-2 ** 63, -2])
        for same in (whole, all_ids, empty):
            self.assertEqual(tokens(same), tokens(minus))
        self.assertNotEqual(any_seed["seed"], other["seed"])
        self.assertEqual(tokens(ask([plain | {"seed": any_seed["seed"]}])[0]), tokens(any_seed))
        self.check((plain | {"suffix": "a"}, "suffix", "there is no such field"))

    def test_values_out_of_their_ranges(self):
        ranges = {"max_tokens": (0, 10 ** 9), "min_tokens": (0, 10 ** 9), "n": (1, 128), "top_k": (-1, 10 ** 9), "logprobs": (0, 20),
                  "prompt_logprobs": (0, 20), "priority": (-2 ** 31, 2 ** 31 - 1), "seed": (-2 ** 63, 2 ** 63 - 1)}
        cases = []
        for name, (low, high) in ranges.items():
            wrong = [low - 1] if low > -2 ** 63 else []
            wrong += [1.5, float(low), "1", True, [1], {}]
            wrong += [high + 1] if high + 1 < 2 ** 63 else []
            cases += [({"prompt": [1], name: value}, name, f"expected an integer from {low} to {high}") for value in wrong]
        numbers = {"temperature": (0, 100), "top_p": (0, 1), "min_p": (0, 1), "repetition_penalty": (0.01, 100),
                   "presence_penalty": (-100, 100), "frequency_penalty": (-100, 100)}
        for name, (low, high) in numbers.items():
            for value in (low - 1e-3, high + 1e-3, "1", False, [], {"a": 1}):
                cases.append(({"prompt": [1], name: value}, name, f"expected a number from {low:g} to {high}"))
        for name in ("ignore_eos", "parse_special"):
            cases += [({"prompt": [1], name: value}, name, "expected true or false") for value in (0, 1, "true", [])]
        cases.append(({"messages": [{"role": "user", "content": "a"}], "parse_special": True}, "parse_special", "in messages are text"))
        self.check(*cases)

    def test_lists_and_texts(self):
        bias = {str(i): 1 for i in range(300)}
        self.check(
            ({"prompt": 1}, "prompt", "expected a text, or a list of token ids"),
            ({"prompt": []}, "prompt", "expected a text, or a list of token ids"),
            ({"prompt": [1, 300]}, "prompt", "token 1 is not an id from 0 to 299"),
            ({"prompt": [-1]}, "prompt", "token 0 is not an id"), ({"prompt": [1.0]}, "prompt", "token 0 is not an id"),
            ({"prompt": ["a"]}, "prompt", "token 0 is not an id"), ({"prompt": [[1]]}, "prompt", "token 0 is not an id"),
            ({"prompt": [1] * 65}, "prompt", "65 tokens, more than the model's 64 positions"),
            ({}, "prompt", "either \"prompt\" or \"messages\""), ({"prompt": None}, "prompt", "either"),
            ({"prompt": [1], "messages": [{"role": "user", "content": "a"}]}, "prompt", "either"),
            ({"messages": []}, "messages", "at least one"), ({"messages": "a"}, "messages", "a list of messages"),
            ({"messages": [{"content": "a"}]}, "messages", "message 1: there is no field \"role\""),
            ({"prompt": [1], "tools": []}, "messages", "go with messages"),
            ({"messages": [{"role": 1, "content": "a"}]}, "messages", "message 1: field \"role\" is not a string"),
            ({"messages": [{"role": "user", "content": "a"}]}, "messages", "need a chat template"),
            ({"messages": [{"role": "assistant", "content": "a"}]}, "messages", "nothing to answer"),
            ({"prompt": [1], "id": 1.5}, "id", "a string or an integer"), ({"prompt": [1], "id": [1]}, "id", "a string"),
            ({"prompt": [1], "adapters": "a"}, "adapters", "at most 4"), ({"prompt": [1], "adapters": [1]}, "adapters", "adapter 0"),
            ({"prompt": [1], "adapters": ["a"] * 5}, "adapters", "at most 4"), ({"prompt": [1], "adapters": ["a"]}, "adapters",
                                                                             "there is no adapter a"),
            ({"prompt": [1], "adapters": ["a\0b"]}, "adapters", "adapter 0 is not a name"),
            ({"prompt": [1], "stop": 1}, "stop", "a string, or a list"), ({"prompt": [1], "stop": ["a", 1]}, "stop", "stop string 2"),
            ({"prompt": [1], "stop": ""}, "stop", "is empty"), ({"prompt": [1], "stop": ["a"] * 65}, "stop", "at most 64"),
            ({"prompt": [1], "stop": "a" * 1025}, "stop", "at most 1024"),
            ({"prompt": [1], "stop_token_ids": 1}, "stop_token_ids", "a list of token ids"),
            ({"prompt": [1], "stop_token_ids": [1, 300]}, "stop_token_ids", "token 1 is not an id from 0 to 299"),
            ({"prompt": [1], "stop_token_ids": [1] * 1023}, "stop_token_ids", "at most 1022"),
            ({"prompt": [1], "logit_bias": [1]}, "logit_bias", "an object"), ({"prompt": [1], "logit_bias": {"1": "1"}}, "logit_bias",
                                                                              "the bias of token 1 is not a number"),
            *(({"prompt": [1], "logit_bias": {key: 1}}, "logit_bias", f"\"{key}\" is not a token id from 0 to 299")
              for key in ("300", "-1", "01", "1.0", "", "a", "99999999999999999999")),
            ({"prompt": [1], "logit_bias": {"1": 1e10}}, "logit_bias", "from -1e+09 to 1e+09"),
            ({"prompt": [1], "min_tokens": 5, "max_tokens": 4}, "min_tokens", "5 is more than the max_tokens 4"),
            ({"prompt": [1, 2], "min_tokens": 64}, "min_tokens", "64 tokens after a prompt of 2"),
            ({"prompt": [1, 2], "max_tokens": 64}, "max_tokens", "room for 63"))

    def test_lines_that_are_no_requests(self):
        self.check((b"nonsense", None, "bad JSON"), (b'{"prompt":[1]', None, "column 13: bad JSON"), (b'{"prompt":"\xff"}', None, "bad JSON"),
                   (b'[1]', None, "expected an object"), (b'"a"', None, "bad JSON"), (b'{"prompt":[1]} {}', None, "bad JSON"),
                   (b'{"prompt":[1],"seed":1,"seed":2}', None, "duplicate"), (b'{"prompt":[1],"seed":99999999999999999999}', None, "too big"),
                   (b'{"prompt":[1],"temperature":1e999}', None, "bad JSON"), (b'{"prompt":[1],"temperature":NaN}', None, "bad JSON"),
                   (b'{"prompt":[1],"min_p":-Infinity}', None, "bad JSON"), (b"[" * 5000, None, "bad JSON"),
                   ({"prompt": [1], "max_token": 1}, "max_token", "there is no such field (did you mean max_tokens?)"),
                   ({"prompt": [1], "temprature": 1}, "temprature", "(did you mean temperature?)"),
                   ({"prmpt": [1]}, "prmpt", "(did you mean prompt?)"), ({"prompt": [1], "modell": 1}, "modell", "(did you mean model?)"),
                   ({"prompt": [1], "a\x1b\u00e4": 1}, "a\x1b\u00e4", "there is no such field"))

    def test_the_id_of_a_wrong_line_is_told(self):
        (answer,) = ask([{"nonsense": 1, "id": "seven"}], expect=1)
        self.assertEqual(answer, {"id": "seven", "line": 1, "field": "nonsense", "error": "there is no such field"})

    def test_as_much_as_is_allowed(self):
        answer = ask_one({"prompt": [1], "n": 128, "max_tokens": 1, "logit_bias": {"5": 1e9}, "stop_token_ids": [7] * 1021,
                          "min_tokens": 1, "stop": ["a" * 1024] * 64, "seed": 2 ** 63 - 1, "priority": -2 ** 31})
        self.assertEqual(tokens(answer), [[5]] * 128)
        answer = ask_one({"prompt": [1, 2], "max_tokens": 63, "min_tokens": 63, "ignore_eos": True,
                          "logit_bias": {str(i): i / 300 for i in range(300)}, "stop_token_ids": [*range(200, 300)] * 7})
        self.assertEqual(len(tokens(answer)[0]), 63)
        self.assertLess(max(tokens(answer)[0]), 200)

    def test_what_is_not_for_requests_and_what_is_for_them_alone(self):
        request = ("--requests", "-")
        for words, part in (((*request, "--prompt", "a"), "generate needs --prompt TEXT"), ((*request, "--temperature", 1), "--temperature is not for"),
                            ((*request, "--json"), "--json is not for --requests"), (("--prompt", "a", "--output", "x"), "--output is for --requests"),
                            (("--prompt", "a", "--kv-cache-memory", "1G"), "--kv-cache-memory is for"), ((*request, "--resume"), "--output"),
                            ((*request, "--adapter", "x"), "NAME=DIR was expected"), ((*request, "--adapter", "a="), "expected NAME=DIR"),
                            ((*request, "--adapter", "=a"), "expected NAME=DIR"), ((*request, "--adapter", "a=b", "a=c"), "the name a is given twice"),
                            ((*request, "--max-batch-size", 65, "--max-batch-tokens", 64), "is less than --max-batch-size 65"),
                            ((*request, "--kv-cache-memory", "1x"), "'1x' is not a size"), ((*request, "--prefix-cache", "yes"), "none of on, off"),
                            ((*request, "--ranks", 2), "would be data parallel")):
            output, errors = run("generate", "--model", TINY, *words, expect=2)
            self.assertEqual((output, errors.count("\n")), (b"", 1), errors)
            self.assertIn(part, errors)


if __name__ == "__main__":
    unittest.main()
