"""/openapi.json says what each listener takes. Other tests of the server hold every answer against it (serve_support);
here its bodies are held against the server."""
import json
import pathlib
import tempfile
import unittest

from model_support import TINY
from schema_support import Description
from serve_support import Server, description, write_prompt

SAMPLES = (True, False, 0, 1, -1, 1.0, 0.5, -1.5, 1e12, "a", "", [], [0], [1.5], [""], ["a"], ["a"] * 5, ["a"] * 65, [True], {}, {"0": 1},
           {"0": "a"}, {"0": 1e12}, {"type": "text"}, {"type": "json_object"}, {"include_usage": True}, {"include_usage": 1},
           "none", "auto", "required", [{"type": "function", "function": {"name": "a"}}], [{"type": "function"}])
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "seed": 1}
COMPLETION = {"prompt": "a", "max_tokens": 1, "seed": 1}
# A constraint in its proper form may be refused for what it says.
CONTENTS = (": $", ": line ", "it allows no text")
# A value that its schema allows may be refused for another field's value, and these refusals say so.
TOGETHER = ("only together with", "only for a stream", "more than n is", "more than the max_tokens", "the last message is not",
            "not together with", "maximum context length", "the request has no tools", "there is no model", "there is no adapter",
            *CONTENTS)


def without_duplicates(pairs):
    assert len(pairs) == len(dict(pairs)), [name for name, _ in pairs]
    return dict(pairs)


def read(server, listener="data", **more):
    answer = server.ask("GET", "/openapi.json", listener=listener, **more)
    assert answer.status == 200, answer.body
    return json.loads(answer.body, object_pairs_hook=without_duplicates)


def routes(document):
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


def references(value):
    if isinstance(value, dict):
        found = {value["$ref"]} if "$ref" in value else set()
        return found.union(*(references(member) for member in value.values()))
    return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()


class Document(unittest.TestCase):
    def test_each_listener_describes_its_routes(self):
        with Server() as server:
            data, control = read(server), read(server, "control")
            self.assertLess(routes(data), routes(control))
            self.assertEqual({path for _, path in routes(control) - routes(data)},
                             {"/metrics", "/adapters", "/adapters/{name}", "/drain", "/load_lora_adapter", "/unload_lora_adapter"})
            for method, path in sorted(routes(control)):
                for listener in ("data", "control"):
                    is_there = (method, path) in routes(data if listener == "data" else control)
                    code = self.code(server, method, path, listener)
                    self.assertEqual(code not in ("route_not_found", "method_not_allowed"), is_there, (method, path, listener))
            self.assertEqual(data["openapi"], "3.1.0")
            self.assertEqual([server["url"] for server in data["servers"]], ["/", "/v1"])

    def code(self, server, method, path, listener):
        """The code of the error when the route's body is a list, which none takes."""
        answer = server.ask(method, path.replace("{name}", "x"), [] if method in ("POST", "PUT") else None, listener=listener)
        return answer.code if answer.status >= 400 else None

    def test_tuning_has_routes_where_it_is_on(self):
        with tempfile.TemporaryDirectory() as root, Server("--tuning-root", root) as server, Server() as other:
            more = routes(read(server)) - routes(read(other))
            tinker = {path for _, path in more if path.startswith("/api/v1/")}
            self.assertEqual(len(tinker), 24)
            self.assertEqual({path for _, path in more} - tinker,
                             {"/files", "/files/{name}", "/fine_tuning/jobs", "/fine_tuning/jobs/{name}", "/models/{name}"})
            for method, path in sorted(more):
                self.assertEqual(self.code(other, method, path, "data"), "method_not_allowed" if "models" in path else "route_not_found")
                self.assertNotIn(self.code(server, method, path, "data"), ("route_not_found", "method_not_allowed"), (method, path))

    def test_options_change_it(self):
        with tempfile.TemporaryDirectory() as directory:
            keys = pathlib.Path(directory) / "keys"
            keys.write_text("alice sk-a\n")
            with Server("--api-key-file", keys, "--metrics-on-data") as server:
                self.assertEqual(server.ask("GET", "/openapi.json").status, 401)
                data, control = read(server, key="sk-a"), read(server, "control")
        self.assertIn("/metrics", data["paths"])
        free = {path for path, methods in data["paths"].items() for way in methods.values() if not way["security"]}
        self.assertEqual(free, {"/", "/health", "/ready"})
        self.assertEqual([way["security"] for methods in control["paths"].values() for way in methods.values() if way["security"]], [])

    def test_names_of_schemas_are_used_and_there(self):
        document = description().document
        schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
        self.assertEqual(references(document) - {f"#/components/responses/{name}" for name in document["components"]["responses"]}, schemas)
        for name, schema in document["components"]["schemas"].items():
            self.assertIsInstance(description().faults({}, schema), list, name)


class Check(unittest.TestCase):
    """The check that all tests of the server share finds what differs."""

    def test_faults_are_found(self):
        version = {"version": "1"}
        description().check("GET", "/v1/version", 200, "application/json", version)
        for method, path, status, value in (("GET", "/version", 200, {}), ("GET", "/version", 200, {"version": 1}),
                                            ("GET", "/version", 200, version | {"more": 1}), ("GET", "/version", 404, version),
                                            ("GET", "/models/org/x", 200, version), ("GET", "/models", 200, {"object": "list", "data": []})):
            with self.assertRaises(AssertionError, msg=(path, status, value)):
                description().check(method, path, status, "application/json", value)

    def test_each_keyword_is_checked(self):
        schemas = Description({"components": {}})
        for schema, right, wrong in (({"type": "integer"}, 1, True), ({"type": ["number", "null"]}, None, "1"), ({"enum": [1, None]}, 1, True),
                                     ({"const": "a"}, "a", "b"), ({"anyOf": [{"const": 1}, {"const": 2}]}, 2, 3), ({"minimum": 1}, 1, 0),
                                     ({"maximum": 1}, 1, 2), ({"minLength": 1}, "a", ""), ({"pattern": "^a$"}, "a", "ab"),
                                     ({"items": {"const": 1}}, [1], [1, 2]),
                                     ({"minItems": 1}, [1], []), ({"maxItems": 1}, [1], [1, 2]), ({"maxProperties": 0}, {}, {"a": 1}),
                                     ({"properties": {"a": {"const": 1}}}, {"a": 1}, {"a": 2}), ({"required": ["a"]}, {"a": 1}, {}),
                                     ({"additionalProperties": False}, {}, {"a": 1}), ({"propertyNames": {"const": "a"}}, {"a": 1}, {"b": 1}),
                                     ({"additionalProperties": {"const": 1}}, {"a": 1}, {"a": 2})):
            self.assertEqual(schemas.faults(right, schema), [], schema)
            self.assertNotEqual(schemas.faults(wrong, schema), [], schema)
        with self.assertRaises(AssertionError):
            schemas.faults("a", {"format": "b"})


class Bodies(unittest.TestCase):
    """A value that the schema of a field forbids is refused with the field's name, and one that it allows is not."""

    @classmethod
    def setUpClass(cls):
        root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        write_prompt(root / "soft", 1, 16)
        cls.server = Server("--chat-template", "plain", "--adapter-root", root, model=TINY)
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def samples(self, schema):
        schema = description().resolve(schema)
        bounds = [schema[name] + step for name in ("minimum", "maximum") if name in schema for step in (-1, 0, 1)]
        return [*SAMPLES, *(value for value in bounds if abs(value) < 2**63)]

    def probe(self, method, path, base, listener="data", is_tried=lambda value: True):
        operation = description().operation(method, path)
        body = description().resolve(operation["requestBody"]["content"]["application/json"]["schema"])
        self.assertEqual(description().faults(base, body), [])
        tried = 0
        for name, schema in body["properties"].items():
            for value in self.samples(schema):
                if not is_tried(value):
                    continue
                is_right = not description().faults(base | {name: value}, body)
                answer = self.server.ask(method, path, base | {name: value}, listener=listener)
                refusal = self.refusal(answer, name)
                is_expected = not refusal or any(part in refusal for part in TOGETHER) if is_right else refusal
                self.assertTrue(is_expected, (path, name, value, answer.status, answer.body[:300]))
                tried += 1
        for name in body.get("required", ()):
            answer = self.server.ask(method, path, {key: base[key] for key in base if key != name}, listener=listener)
            self.assertEqual((answer.status, self.param(answer.json["error"])), (400, name))
        return tried

    def refusal(self, answer, name):
        """The message of an answer that refuses the value of this field; None: the value was read."""
        error = answer.json["error"] if answer.status == 400 else {"param": None}
        return error["message"] if self.param(error) == name else None

    def param(self, error):
        """The field of an error; Anthropic's form has it only in the message."""
        return error["param"] if "param" in error else error["message"].partition(":")[0]

    def test_of_completions(self):
        self.assertGreater(self.probe("POST", "/v1/completions", COMPLETION), 500)

    def test_of_chats(self):
        self.assertGreater(self.probe("POST", "/v1/chat/completions", CHAT), 500)

    def test_of_responses(self):
        self.assertGreater(self.probe("POST", "/v1/responses", {"input": "a", "max_output_tokens": 1, "seed": 1}), 500)

    def test_of_messages(self):
        self.assertGreater(self.probe("POST", "/v1/messages", CHAT), 500)
        self.assertGreater(self.probe("POST", "/v1/messages/count_tokens", CHAT), 500)

    def test_of_texts_and_ids(self):
        self.probe("POST", "/tokenize", {"prompt": "a"})
        self.probe("POST", "/detokenize", {"tokens": [1]})

    def test_of_control(self):
        self.probe("POST", "/adapters", {"name": "soft"}, "control")
        self.probe("PUT", "/adapters/soft", {}, "control")
        self.probe("POST", "/load_lora_adapter", {"lora_name": "soft", "lora_path": "soft"}, "control")
        self.probe("POST", "/unload_lora_adapter", {"lora_name": "none"}, "control")
        self.assertEqual(self.server.ask("PUT", "/adapters/none", listener="control").code, "adapter_not_found")  # without a body

    def test_of_a_drain(self):
        with Server() as self.server:  # a short delay would end it
            self.probe("POST", "/drain", {"delay_s": 500, "timeout_s": 500}, "control",
                       lambda value: type(value) not in (int, float) or not 0 <= value < 500)


if __name__ == "__main__":
    unittest.main()
