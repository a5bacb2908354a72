"""A check of values against JSON schemas, as far as /openapi.json uses them. A keyword that is not known here is an
error, so no schema can promise more than is checked."""
import re

TYPES = {"null": lambda value: value is None,
         "boolean": lambda value: isinstance(value, bool),
         "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
         "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
         "string": lambda value: isinstance(value, str),
         "array": lambda value: isinstance(value, list),
         "object": lambda value: isinstance(value, dict)}
KEYWORDS = {"$ref", "description", "type", "enum", "const", "anyOf", "minimum", "maximum", "minLength", "pattern", "items", "minItems",
            "maxItems", "properties", "required", "additionalProperties", "maxProperties", "propertyNames"}


def is_equal(value, expected):
    return type(value) is type(expected) and value == expected


class Schemas:
    """The schemas of a document, which refer to each other by names."""

    def __init__(self, document):
        self.document = document

    def resolve(self, schema):
        while "$ref" in schema:
            assert set(schema) == {"$ref"}, schema
            found = self.document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        assert set(schema) <= KEYWORDS, f"keywords that are not checked: {set(schema) - KEYWORDS}"
        return schema

    def faults(self, value, schema, place="$"):
        """Sentences that say where the value breaks the schema."""
        schema = self.resolve(schema)
        types = schema.get("type", [])
        types = [types] if isinstance(types, str) else types
        if types and not any(TYPES[name](value) for name in types):
            return [f"{place}: {value!r:.80} is not {' or '.join(types)}"]
        return [*self.faults_of_choice(value, schema, place), *self.faults_of_size(value, schema, place),
                *self.faults_of_list(value, schema, place), *self.faults_of_object(value, schema, place)]

    def faults_of_choice(self, value, schema, place):
        if "enum" in schema and not any(is_equal(value, item) for item in schema["enum"]):
            yield f"{place}: {value!r:.80} is none of {schema['enum']}"
        if "const" in schema and not is_equal(value, schema["const"]):
            yield f"{place}: {value!r:.80} is not {schema['const']!r}"
        if "anyOf" in schema and all(self.faults(value, other, place) for other in schema["anyOf"]):
            yield f"{place}: {value!r:.80} is none of {schema['anyOf']}"

    def faults_of_size(self, value, schema, place):
        if TYPES["number"](value) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{place}: {value} is out of range"
        if isinstance(value, str) and len(value) < schema.get("minLength", 0):
            yield f"{place}: {value!r} is too short"
        if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
            yield f"{place}: {value!r:.80} does not match {schema['pattern']}"

    def faults_of_list(self, value, schema, place):
        if not isinstance(value, list):
            return
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{place}: {len(value)} items"
        for number, item in enumerate(value if "items" in schema else ()):
            yield from self.faults(item, schema["items"], f"{place}[{number}]")

    def faults_of_object(self, value, schema, place):
        if not isinstance(value, dict):
            return
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{place}: no {name}"
        if len(value) > schema.get("maxProperties", len(value)):
            yield f"{place}: {len(value)} members"
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, member in value.items():
            yield from self.faults(name, schema.get("propertyNames", {}), f"{place}'s {name!r:.40}")
            if name in known or isinstance(others, dict):
                yield from self.faults(member, known.get(name, others), f"{place}.{name}")
            elif not others:
                yield f"{place}: {name} is not described"


class Description(Schemas):
    """An OpenAPI document."""

    def operation(self, method, path):
        """The operation of a request, and None where the document has none."""
        path = path.removeprefix("/v1") if path.startswith("/v1/") else path
        paths = self.document["paths"]
        longer = [known for known in paths if known.endswith("{name}") and path.startswith(known.removesuffix("{name}"))]
        methods = paths.get(path) or (paths[longer[0]] if longer else {})
        return methods.get("get" if method == "HEAD" else method.lower())

    def schema(self, operation, status, media, otherwise="Error"):
        """The schema of an answer's body. An error has its form, whether the route is known or not."""
        if status != 200 or operation is None:
            name = operation["responses"]["default"]["$ref"].rpartition("/")[2] if operation else otherwise
            return self.document["components"]["responses"][name]["content"][media]["schema"]
        content = operation["responses"]["200"]["content"]
        assert media in content, f"{media} is not among {list(content)}"
        return content[media]["schema"]

    def check(self, method, path, status, media, value):
        otherwise = "MessagesError" if path.removeprefix("/v1").startswith("/messages") else "Error"
        faults = self.faults(value, self.schema(self.operation(method, path), status, media, otherwise))
        assert not faults, f"{method} {path} with {status} differs from /openapi.json: {faults[:5]}"
