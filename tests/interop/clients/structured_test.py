"""Constraints against llguidance and jsonschema, and a loop of tools with a trained model. `cambium grammar` answers for
JSON-Schema-Test-Suite and for random schemas: it never accepts what jsonschema forbids, and accepts what it allows in the
order of the schema. CAMBIUM_INTEROP_CHAT_MODEL is a directory of a model that follows instructions."""
import importlib.util
import itertools
import json
import os
import pathlib
import random
import subprocess
import tarfile
import tempfile
import unittest

from model_support import CAMBIUM, write_byte_tokenizer
from serve_support import Server

SEED = int(os.environ.get("CAMBIUM_INTEROP_SEED", "1"))
SUITE = sorted(pathlib.Path(os.environ.get("CAMBIUM_INTEROP_CLIENTS", ".")).glob("suite/jsonschema-*.tar.gz"))
CHAT_MODEL = os.environ.get("CAMBIUM_INTEROP_CHAT_MODEL")


def needs(*packages):
    missing = [package for package in packages if not importlib.util.find_spec(package)]
    return unittest.skipIf(missing, f"{missing} not installed: PyPI did not give it")


def spellings(value):
    return [json.dumps(value, ensure_ascii=False, **form) for form in ({}, {"separators": (",", ":")}, {"indent": 2})]


class Checked(unittest.TestCase):
    def check(self, cases):
        """For each case (schema, values): None where the schema is refused, else for each value whether its three spellings
        are accepted."""
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="cambium-interop-")))
        write_byte_tokenizer(root)
        lines = [json.dumps({"id": i, "json_schema": schema, "texts": [text for value in values for text in spellings(value)]})
                 for i, (schema, values) in enumerate(cases)]
        (root / "in.jsonl").write_text("".join(line + "\n" for line in lines))
        subprocess.run([CAMBIUM, "grammar", "--tokenizer", root, "--input", root / "in.jsonl", "--output", root / "out.jsonl"],
                       check=True, timeout=600)
        answers = map(json.loads, (root / "out.jsonl").read_text().splitlines())
        for answer, (_, values) in zip(answers, cases, strict=True):
            texts = [text["accepted"] and text["complete"] for text in answer["texts"]]
            yield None if answer["error"] else [tuple(texts[3 * i:3 * i + 3]) for i in range(len(values))]


@needs("jsonschema", "llguidance")
@unittest.skipUnless(SUITE, "PyPI did not give the source of jsonschema, which has the suite")
class Suite(Checked):
    def groups(self):
        with tarfile.open(SUITE[-1]) as package:
            for name in sorted(package.getnames()):
                if "/json/tests/draft2020-12/" in name and name.endswith(".json") and "/optional/" not in name:
                    yield from json.load(package.extractfile(name))

    def theirs(self, schema, values):
        """The same from llguidance, on bytes."""
        import llguidance
        tokenizer = llguidance.LLTokenizer("byte")
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        if llguidance.LLMatcher(tokenizer, grammar, log_level=0).is_error():
            return None
        def accepts(text):
            matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
            return all(map(matcher.consume_token, tokenizer.tokenize_str(text))) and matcher.is_accepting()
        return [tuple(map(accepts, spellings(value))) for value in values]

    def test_no_group_accepts_what_it_forbids_and_more_are_whole_than_llguidances(self):
        groups = list(self.groups())
        cases = [(group["schema"], [test["data"] for test in group["tests"]]) for group in groups]
        whole = [0, 0]
        for group, case, ours in zip(groups, cases, self.check(cases), strict=True):
            valid = [test["valid"] for test in group["tests"]]
            for accepted, test in zip(ours or [], group["tests"]):
                self.assertFalse(any(accepted) and not test["valid"], (group["description"], group["schema"], test))
            for i, found in enumerate((ours, self.theirs(*case))):
                whole[i] += found is not None and all(accepted == (is_valid,) * 3 for accepted, is_valid in zip(found, valid))
        print(f"JSON-Schema-Test-Suite: {whole[0]} of {len(groups)} groups whole, llguidance {whole[1]}")
        self.assertGreaterEqual(whole[0], whole[1] + 20)


@needs("jsonschema")
class Random(Checked):
    """Schemas and values of a small language, with values near the borders of what is allowed."""

    def schema(self, depth):
        draw = self.random
        kinds = ["string", "integer", "number", "enum", "null"] + ["object", "array", "anyOf", "allOf"] * (depth < 3)
        kind = draw.choice(kinds)
        if kind == "object":
            properties = {name: self.schema(depth + 1) for name in draw.sample("abcde", draw.randint(0, 3))}
            made = {"type": "object", "properties": properties, "required": draw.sample(list(properties), draw.randint(0, len(properties)))}
            return made | draw.choice([{}, {"additionalProperties": False}, {"additionalProperties": self.schema(3)}, {"maxProperties": 2}])
        if kind == "array":
            return {"type": "array", "items": self.schema(depth + 1)} | draw.choice([{}, {"minItems": 1}, {"maxItems": 2}])
        if kind in ("anyOf", "allOf"):
            return {kind: [self.schema(depth + 1) for _ in range(2)]}
        return {"string": {"type": "string"} | draw.choice([{"maxLength": 2}, {"pattern": "^[a-c]+$"}, {"minLength": 1}, {}]),
                "integer": {"type": "integer", "minimum": draw.randint(-3, 3), "maximum": draw.randint(4, 120)},
                "number": {"type": "number", "exclusiveMaximum": draw.randint(-5, 100)},
                "enum": {"enum": draw.sample(["a", "bc", 1, None, True, [], {"a": 1}], 3)}, "null": {"type": ["null", "boolean"]}}[kind]

    def value(self, depth=0):
        draw = self.random
        kind = draw.randrange(9 if depth < 3 else 6)
        if kind >= 6:
            size = draw.randint(0, 3)
            return ({name: self.value(depth + 1) for name in draw.sample("abcdef", size)} if kind > 6
                    else [self.value(depth + 1) for _ in range(size)])
        return draw.choice([[draw.randint(-5, 130)], ["", "a", "abc", "é\"\\", "d"], [None, True], [1.5, -0.25], [{}], [[]]][kind])

    def near(self, schema, depth=0):
        """A value that the schema may allow, its keys in the schema's order."""
        draw = self.random
        for key in "anyOf", "allOf":
            if key in schema:
                return self.near(draw.choice(schema[key]), depth)
        if "enum" in schema:
            return draw.choice(schema["enum"])
        if schema["type"] == "object":
            return {name: self.near(inner, depth + 1) for name, inner in schema["properties"].items()
                    if name in schema["required"] or draw.random() < 0.5}
        if schema["type"] == "array":
            return [self.near(schema["items"], depth + 1) for _ in range(draw.randint(0, 2))]
        return {"string": "ab", "integer": schema.get("maximum"), "number": -7.5}.get(str(schema["type"]), True)

    def ordered(self, schema, value):
        """The keys of the schema's objects come first and in its order. Nothing is said where schemas meet."""
        if isinstance(value, list):
            return all(self.ordered(schema.get("items", {}), item) for item in value)
        if not isinstance(value, dict) or "properties" not in schema:
            return not isinstance(value, dict) or len(value) < 2 and not schema.keys() & {"anyOf", "allOf"}
        declared = list(schema["properties"])
        places = [declared.index(name) if name in declared else len(declared) for name in value]
        return places == sorted(places) and all(self.ordered(schema["properties"].get(name, {}), inner) for name, inner in value.items())

    def test_it_accepts_what_jsonschema_allows(self):
        import jsonschema
        self.random = random.Random(SEED)
        cases, refused, seen = [], 0, [0, 0]
        for _ in range(600):
            schema = self.schema(0)
            cases.append((schema, [self.value() for _ in range(8)] + [self.near(schema) for _ in range(8)]))
        for (schema, values), accepted in zip(cases, self.check(cases), strict=True):
            refused += accepted is None  # most of these allow no value
            for value, found in zip(values, accepted or []):
                is_valid = jsonschema.Draft202012Validator(schema).is_valid(value)
                seen[is_valid] += 1
                self.assertFalse(any(found) and not is_valid, (schema, value))
                if is_valid and self.ordered(schema, value):
                    self.assertTrue(all(found), (schema, value))
        print(f"random schemas: {refused} of {len(cases)} refused, {seen[True]} valid values, {seen[False]} invalid ones")
        self.assertLess(refused, len(cases) // 5)
        self.assertGreater(min(seen), 500)


@unittest.skipUnless(CHAT_MODEL, "no model: tools/interop --chat-model DIR names one")
@needs("openai", "jsonschema")
class Loop(unittest.TestCase):
    """A model that follows instructions calls a tool, and its arguments fit the tool whatever it draws."""
    PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
                  "required": ["city", "unit"], "additionalProperties": False}
    ASKED = "What is the weather in Rome, in celsius?"

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--model-name", "chat", "--precision", "bf16", model=pathlib.Path(CHAT_MODEL)))
        import openai
        cls.client = openai.OpenAI(base_url=f"http://{cls.server.addresses['data']}/v1", api_key="none", max_retries=0)

    def fits(self, text):
        import jsonschema
        jsonschema.validate(json.loads(text), self.PARAMETERS)

    def test_a_chat(self):
        function = {"name": "get_weather", "description": "The weather of a city.", "parameters": self.PARAMETERS, "strict": True}
        messages = [{"role": "user", "content": self.ASKED}]
        for seed, choice in itertools.product(range(3), ("required", {"type": "function", "function": {"name": "get_weather"}})):
            answer = self.client.chat.completions.create(model="chat", messages=messages, tool_choice=choice, seed=seed, max_tokens=200,
                                                         tools=[{"type": "function", "function": function}], parallel_tool_calls=False)
            message = answer.choices[0].message
            self.assertEqual((answer.choices[0].finish_reason, [call.function.name for call in message.tool_calls]), ("tool_calls", ["get_weather"]))
            self.fits(message.tool_calls[0].function.arguments)
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": '{"degrees": 21, "sky": "clear"}'}
        answer = self.client.chat.completions.create(model="chat", messages=[*messages, message, result], max_tokens=60)
        self.assertTrue(answer.choices[0].message.content)

    def test_a_response(self):
        tool = {"type": "function", "name": "get_weather", "description": "The weather.", "parameters": self.PARAMETERS, "strict": True}
        items = [{"role": "user", "content": self.ASKED}]
        response = self.client.responses.create(model="chat", input=items, tools=[tool], tool_choice="required",
                                                parallel_tool_calls=False, max_output_tokens=200)
        (call,) = [item for item in response.output if item.type == "function_call"]
        self.fits(call.arguments)
        items += [item.model_dump(exclude_none=True) for item in response.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"})
        self.assertTrue(self.client.responses.create(model="chat", input=items, max_output_tokens=60).output_text)

    @needs("instructor")
    def test_instructor(self):
        import instructor
        import pydantic
        class Weather(pydantic.BaseModel):
            city: str = pydantic.Field(max_length=20)
            degrees: int = pydantic.Field(ge=-60, le=60)
        for mode in instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA:
            client = instructor.from_openai(self.client, mode=mode)
            found = client.chat.completions.create(model="chat", response_model=Weather, max_retries=0, max_tokens=200,
                                                   messages=[{"role": "user", "content": "In Rome it is 21 degrees."}])
            self.assertIsInstance(found, Weather)


if __name__ == "__main__":
    unittest.main()
