#!/usr/bin/env python3
"""Writes the texts that transformers renders of the templates in tests/fixtures/jinja.json.

    pip install transformers==5.24.0 jinja2==3.1.6 && python tests/reference/jinja_reference.py
"""

import json
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

FILE = Path(__file__).parent.parent / "fixtures/jinja.json"
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "does é \u2028 \U0001f916 \"q\" \\ \x7f\t\x01",
        "parameters": {
            "type": "object",
            "properties": {
                "n": {"type": "string"},
                "b": {
                    "type": ["integer", "null"], "default": 1.0, "minimum": -5, "big": 1e20, "small": 1e-7, "e16": 1e16,
                    "e15": 123456789012345.0, "flag": True, "none": None, "empty": {}, "list": [],
                },
            },
            "required": ["n"],
        },
    },
}
BEFORE = (
    "{%- set t = (tools or [{}])[0] %}{%- set m = {'b': 2, 'a': 1, 'c': [3, 1, 2]} %}{%- set p = {'name': 'n'} %}"
    "{%- set l = [3, 1, 2, 3] %}{%- set s = 'a,b' %}{%- set w = '  The quick brown fox  ' %}{%- set z = none %}"
    "{%- set nested = [{'k': 'x', 'v': 2}, {'k': 'y', 'v': 1}, {'k': 'x', 'v': 3}] %}"
    "{%- if tools %}"
)
AFTER = "{%- endif %}"


def text(line):
    """The text of a template, or null where transformers cannot render it."""
    try:
        [[text], _] = render_jinja_template([[{"role": "user", "content": "x"}]], [TOOL], chat_template=BEFORE + line + AFTER)
        return text
    except Exception:
        return None


rows = [json.dumps([line, text(line)], ensure_ascii=False) for line, _ in json.loads(FILE.read_text())["rows"]]
parts = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in [("before", BEFORE), ("after", AFTER), ("tool", TOOL)]]
FILE.write_text("{\n" + ",\n".join(parts) + ',\n"rows": [\n' + ",\n".join(rows) + "\n]}\n")
