"""Writes tests/grammar/golden/drawn.json: rows as in schemas.json, of schemas drawn at random. A value is one that
jsonschema allows and llguidance writes in three spellings. A forbidden text is one that both refuse. So a row says
nothing where the two differ, as they do about the order of keys.

    pip install jsonschema==4.26.0 llguidance==1.9.1
    python tools/golden/constraint_vectors.py tests/grammar/golden/drawn.json
"""
import importlib.metadata
import json
import random
import sys

import jsonschema
import llguidance

ROWS, TRIES = 90, 40
TOKENIZER = llguidance.LLTokenizer("byte")
draw = random.Random(47)


def schema(depth):
    kinds = ["string", "integer", "number", "enum", "const", "date", "null"] + ["object", "map", "array", "tuple", "anyOf", "allOf", "ref"] * (depth < 3)
    kind = draw.choice(kinds)
    if kind == "object":
        properties = {name: schema(depth + 1) for name in draw.sample("abcde", draw.randint(1, 3))}
        required = draw.sample(list(properties), draw.randint(0, len(properties)))
        return {"type": "object", "properties": properties, "required": required} | draw.choice([{}, {"additionalProperties": False}])
    if kind == "map":
        return {"type": "object", "additionalProperties": schema(depth + 1)}
    if kind == "array":
        return {"type": "array", "items": schema(depth + 1)} | draw.choice([{}, {"minItems": 1}, {"maxItems": 2}, {"minItems": 2, "maxItems": 40}])
    if kind == "tuple":
        return {"type": "array", "prefixItems": [schema(depth + 1) for _ in range(2)], "items": draw.choice([False, {"type": "null"}]), "minItems": 2}
    if kind in ("anyOf", "allOf"):
        return {kind: [schema(depth + 1) for _ in range(2)]}
    if kind == "ref":
        return {"$defs": {"d": schema(3)}, "type": "array", "items": {"anyOf": [{"type": "array", "items": {"type": "boolean"}}, schema(3)]}}
    return {"string": {"type": "string"} | draw.choice([{"maxLength": 2}, {"pattern": "^[a-c]+$"}, {"minLength": 1, "maxLength": 30}, {"pattern": "b"}, {}]),
            "integer": {"type": "integer", "minimum": draw.randint(-30, 3), "maximum": draw.randint(4, 1200)},
            "number": {"type": "number", "exclusiveMaximum": draw.randint(-5, 100)}, "const": {"const": draw.choice([{"a": [1]}, "x\"y", 12, None])},
            "enum": {"enum": draw.sample(["a", "bc", 1, None, True, [], {"a": 1}], 3)}, "null": {"type": ["null", "boolean"]},
            "date": {"type": "string", "format": "date"}}[kind]


def near(one):
    """A value that the schema may allow, its keys in the schema's order."""
    for key in "anyOf", "allOf":
        if key in one:
            return near(draw.choice(one[key]))
    if "const" in one or "enum" in one:
        return one["const"] if "const" in one else draw.choice(one["enum"])
    if one["type"] == "object":
        inner = one["properties"] if "properties" in one else {name: one["additionalProperties"] for name in draw.sample(["x", "y z", "é"], 2)}
        return {name: near(of) for name, of in inner.items() if name in one.get("required", ()) or draw.random() < 0.6}
    if one["type"] == "array":
        return [near(item) for item in one.get("prefixItems", [one["items"] or {}] * draw.choice([0, 1, 2, 3]))]
    return {"string": draw.choice(["ab", "b", "", "2024-02-29", "2023-02-29", "éb\"\\", "abcabc"]), "number": draw.choice([-7.5, 3, 120, 0.25]),
            "integer": draw.choice([one.get("minimum"), one.get("maximum"), one.get("maximum", 0) + 1, 7])}.get(str(one["type"]), draw.choice([True, None]))


def spellings(value):
    return [json.dumps(value, ensure_ascii=False, **form) for form in ({}, {"separators": (",", ":")}, {"indent": 2})]


def writes(grammar, text):
    matcher = llguidance.LLMatcher(TOKENIZER, grammar, log_level=0)
    return all(map(matcher.consume_token, TOKENIZER.tokenize_str(text))) and matcher.is_accepting()


def row():
    one = schema(0)
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(one))
    if llguidance.LLMatcher(TOKENIZER, grammar, log_level=0).is_error():
        return None
    values, forbidden = [], []
    for value in (near(one) if draw.random() < 0.8 else near(schema(2)) for _ in range(TRIES)):
        is_valid, written = jsonschema.Draft202012Validator(one, format_checker=jsonschema.FormatChecker()).is_valid(value), [writes(grammar, text) for text in spellings(value)]
        if is_valid and all(written) and value not in values:
            values.append(value)
        if not is_valid and not any(written) and spellings(value)[1] not in forbidden:
            forbidden.append(spellings(value)[1])
    return {"about": "drawn", "schema": one, "values": values[:6], "forbidden": forbidden[:6]} if values and forbidden else None


def main():
    rows = []
    while len(rows) < ROWS:
        made = row()
        rows += [made] if made and len(json.dumps(made)) < 900 else []
    rows[0]["about"] = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jsonschema", "llguidance"))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(made, ensure_ascii=False) for made in rows) + "\n]\n")


if __name__ == "__main__":
    main()
