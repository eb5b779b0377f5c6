"""Mapping files of adapters/mcp.py, whose docstring has their keys: reading one, filling in its templates, following its paths."""

import json
import re
from pathlib import Path

TOOL_KEYS = {"tool", "arguments", "id", "memories", "text", "score", "time", "session", "split", "none", "failed"}
KEYS = {"name", "version", "packages", "command", "environment", "unit", "options", "state_in_folder", "verbatim", "seconds", "settle"}
TOOLS = {"add", "search", "finish", "dump", "clear"}
PLACEHOLDER = re.compile(r"\{([A-Za-z_.]+)\}")


def read(path):
    """A mapping file; one that cannot hold is refused by name."""
    mapping = json.loads(Path(path).read_text(encoding="utf-8"))
    unknown = sorted(set(mapping) - KEYS - TOOLS - {"about"})
    unknown += [f"{name}.{key}" for name in sorted(TOOLS & set(mapping)) for key in sorted(set(mapping[name]) - TOOL_KEYS)]
    if unknown:
        raise SystemExit(f"{path}: there is no {unknown[0]!r}; the keys: {', '.join(sorted(KEYS | TOOLS))}; of a tool: {', '.join(sorted(TOOL_KEYS))}")
    for name in ("name", "command", "add", "search"):
        if name not in mapping:
            raise SystemExit(f"{path}: {name!r} is missing; `python3 adapters/mcp.py --help` has the keys")
    for name, key in ((name, key) for name in sorted(TOOLS & set(mapping)) for key in ("none", "failed") if key in mapping[name]):
        if key == "none" and name not in ("search", "dump"):
            raise SystemExit(f"{path}: {name} has `none`, which is of search and dump; a call of {name} that failed is described by `failed`")
        try:
            re.compile(mapping[name][key])
        except (re.error, TypeError) as error:
            raise SystemExit(f"{path}: {name}.{key} {mapping[name][key]!r} is no regular expression: {error}") from error
    # The server runs in its scope's folder, where a file beside the mapping has no relative name.
    beside = lambda word: Path(path).resolve().parent / word
    words = [mapping["command"]] if isinstance(mapping["command"], str) else mapping["command"]
    mapping["command"] = [str(beside(word)) if re.search(r"[./]", word) and beside(word).is_file() else word for word in words]
    return mapping


def filled(template, values):
    """A template with its placeholders filled in; None where it is a placeholder alone and there is no value."""
    if isinstance(template, dict):
        pairs = ((key, filled(value, values)) for key, value in template.items())
        return {key: value for key, value in pairs if value is not None}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    if not isinstance(template, str):
        return template
    alone = PLACEHOLDER.fullmatch(template)
    if alone and alone[1] in values:
        return values[alone[1]]
    put = lambda found: str("" if values[found[1]] is None else values[found[1]]) if found[1] in values else found[0]
    return PLACEHOLDER.sub(put, template)


def at_path(value, path):
    """What a path leads to; None where there is nothing. After `[]` a list of what is found in each element."""
    for name in filter(None, re.split(r"\.|(\[\])", path)):
        if name == "[]":
            rest = path.split("[]", 1)[1].lstrip(".")
            return [at_path(each, rest) for each in value] if isinstance(value, list) else None
        value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            return None
    return value


def words_at(value, path):
    """The text that stands in the way of a path, before its end."""
    for name in filter(None, re.split(r"\.|\[\]", path)):
        if isinstance(value, str):
            return value
        value = value.get(name) if isinstance(value, dict) else None
    return None
