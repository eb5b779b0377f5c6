#!/usr/bin/env python3
"""Writes docs/serve-reference.md from the server's schema (crates/serve/src/api/openapi.json).

    python3 scripts/api_reference.py            # write the page
    python3 scripts/api_reference.py --check    # exit 1 where the page is not what the schema gives
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/serve-reference.md"
OPENING = """\
# Reference of the server's API

For those who write a client of `palimpsest serve`. It lists every path and every field with its type and bounds; \
[serve.md](serve.md) explains them with examples. `GET /openapi.json` of a running server has the same with the names and limits of its model.

This page is made by `python3 scripts/api_reference.py`. A field that is `null` counts as absent, and a field that is not listed is refused. \
An asterisk marks fields that are always there, or must be given.
"""


def kind(schema, own):
    """A schema's type in a few words; `own` collects the schemas it refers to."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        own.append(name)
        return f"[{name}](#{name.lower()})"
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(kind(one, own) for one in schema[key] if one != {"type": "null"}))
    if "allOf" in schema:
        return kind(schema["allOf"][0], own)
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        values = [value for value in schema["enum"] if value is not None]
        return ", ".join(f"`{value}`" for value in values) if values else "name"
    types = schema.get("type", "object" if "properties" in schema else "any")
    types = [one for one in (types if isinstance(types, list) else [types]) if one != "null"]
    said = []
    for one in types:
        if one == "array":
            said.append("list of " + (kind(schema["items"], own) if schema.get("items") else "values"))
        elif one == "object" and "properties" in schema:
            said.append("{" + ", ".join(schema["properties"]) + "}")
        else:
            said.append(one)
    return " or ".join(said) or "any"


def bounds(schema):
    """Numbers and sizes that are allowed, and the default."""
    said = []
    for low, high, unit in (("minimum", "maximum", ""), ("minItems", "maxItems", " items"), ("minLength", "maxLength", " bytes")):
        if low in schema and high in schema and schema[high] >= schema[low] and schema[high] > 0:
            said.append(f"{schema[low]} to {schema[high]}{unit}" if schema[low] != schema[high] else f"{schema[low]}{unit}")
        elif low in schema and schema[low] not in (0,):
            said.append(f"at least {schema[low]}{unit}")
        elif high in schema and schema[high] > 0:
            said.append(f"at most {schema[high]}{unit}")
    if "default" in schema:
        said.append(f"default {json.dumps(schema['default'])}")
    return "; ".join(said)


def cell(text):
    return " ".join(text.split()).replace("|", "\\|")


def table(schema, own):
    required = set(schema.get("required", []))
    lines = ["| field | type | |", "| --- | --- | --- |"]
    for name, field in schema["properties"].items():
        mark = "*" if name in required else ""
        about = "; ".join(filter(None, [bounds(field), field.get("description", "").rstrip(".")]))
        lines.append(f"| `{name}`{mark} | {cell(kind(field, own))} | {cell(about)} |")
    return lines


def page(api):
    schemas = api["components"]["schemas"]
    lines = [OPENING, "## Paths", "", "| method | path | | body | reply |", "| --- | --- | --- | --- | --- |"]
    own = []
    for path, methods in api["paths"].items():
        for method, call in methods.items():
            body = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            replies = {code: reply for code, reply in call["responses"].items() if code.startswith("2")}
            reply = next(iter(replies.values()), {}).get("content", {})
            said = [kind(one["schema"], own) for name, one in reply.items() if name == "application/json" and "schema" in one]
            said = said or [name for name in reply][:1]
            cells = [method.upper(), f"`{path}`", cell(call["summary"]), kind(body, own) if body else "", ", ".join(said)]
            lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    own += schemas
    seen = set()
    while own:
        name = own.pop(0)
        if name in seen or name not in schemas:
            continue
        seen.add(name)
        schema = schemas[name]
        lines += [f"## {name}", ""]
        if schema.get("description"):
            lines += [schema["description"], ""]
        if schema.get("properties"):
            lines += [*table(schema, own), ""]
        else:
            lines += [f"{kind(schema, own)}" + (f" ({bounds(schema)})" if bounds(schema) else ""), ""]
    return "\n".join(lines).rstrip() + "\n"


def main():
    text = page(json.loads((ROOT / "crates/serve/src/api/openapi.json").read_text()))
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit(f"{PAGE.relative_to(ROOT)} is not what the schema gives; run python3 scripts/api_reference.py")
        return
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
