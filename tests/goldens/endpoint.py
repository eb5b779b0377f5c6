"""An OpenAI-compatible endpoint for goldens: each reply depends on the request alone. Standard library only.

    python3 endpoint.py LOG     prints its port and writes each request's digest to LOG

A request with a JSON schema gets an instance of it; another one gets the JSON that a judge's prompt asks for, or a sentence.
"""

import hashlib
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Draws:
    def __init__(self, seed):
        self.seed, self.drawn = seed, 0

    def below(self, n):
        self.drawn += 1
        return int(hashlib.sha256(f"{self.drawn}\n{self.seed}".encode()).hexdigest(), 16) % n


def instance(schema, draws, text):
    """An instance of the schema, and of its words where it asks for text."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][draws.below(len(schema["enum"]))]
    for either in ("anyOf", "oneOf"):
        if either in schema:
            return instance(schema[either][draws.below(len(schema[either]))], draws, text)
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        kind = kind[draws.below(len(kind))]
    if kind == "object":
        return {key: instance(value, draws, text) for key, value in schema.get("properties", {}).items()}
    if kind == "array":
        return [instance(schema["items"], draws, text) for _ in range(1 + draws.below(2))]
    if kind == "boolean":
        return draws.below(2) == 0
    if kind == "integer":
        return schema.get("minimum", 0) + draws.below(schema.get("maximum", 5) - schema.get("minimum", 0) + 1)
    if kind == "number":
        return draws.below(101) / 100
    if kind == "null":
        return None
    ids = re.findall(r"\b(?:item|span|cand|s|c|p)-?\d+(?:-\d+)?\b", text)
    words = re.findall(r"\w+", text)
    return ids[draws.below(len(ids))] if ids and draws.below(2) else " ".join(words[draws.below(len(words)):][:6])


def judged(prompt, draws):
    if '"label" ("CORRECT" or "WRONG")' in prompt:
        return {"label": ["CORRECT", "WRONG"][draws.below(2)], "reason": "made up"}
    keys = re.search(r"Its keys? (?:is|are) (.*?); ", prompt)
    scale = re.search(r'"(score|choice)" \(([^)]*)\)', prompt)
    # Scores are numbers, choices are quoted; without either a verdict is true or false.
    name, values = (scale.group(1), re.findall(r"\w+", scale.group(2).replace(" or ", " "))) if scale else ("correct", None)
    values = [int(value) if value.isdigit() else value for value in values] if values else [True, False]
    verdict = lambda: {name: values[draws.below(len(values))], "reason": "made up"}
    return {key: verdict() for key in re.findall(r'"([^"]+)"', keys.group(1))} if keys else None


class Endpoint(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[1], "a", encoding="utf-8") as log:
            log.write(hashlib.sha256(body).hexdigest() + "\n")
        asked = json.loads(body)
        prompt = "\n".join(message["content"] for message in asked["messages"])
        draws = Draws(prompt)
        form = asked.get("response_format") or {}
        if form.get("type") == "json_schema":
            said = json.dumps(instance(form["json_schema"]["schema"], draws, prompt))
        else:
            verdict = judged(prompt, draws)
            said = json.dumps(verdict) if verdict else " ".join(prompt.split()[-8:])
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(said.split())}
        self.answer({"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"],
                     "choices": [choice], "usage": usage})

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
print(server.server_port, flush=True)
server.serve_forever()
