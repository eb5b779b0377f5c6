#!/usr/bin/env python3
"""A stand-in for a server of OpenAI's API, without a model: memory systems are tried against it before a real one.

  stand_in.py [--port 0] [--log FILE] [--say nonsense] [--failures N] [--forget WORD,...]

Chats: it "extracts" the lines of users from the prompt and answers in the form that is asked for: mem0's facts and decisions, an instance
of a JSON schema, a call of a tool. Embeddings: hashed words, 64 numbers. `--say nonsense` answers chats with no JSON; `--failures N`
refuses the first N requests with 503; of a prompt with a word of `--forget` nothing is extracted, so that it is known what a store lacks. The log has a line a request: path, parameters,
length of the prompt, names of tools, and what was answered. Prints its address.
"""

import argparse
import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DIMENSIONS = 64
# `user: ...`, with numbers and times before it as several systems write them.
SAID = re.compile(r"^(?:\[[^\]\n]*\]\s*)*(?:\d+\.)?user:\s*(.+)$", re.IGNORECASE | re.MULTILINE)


def vector(text):
    """Hashed words: texts that share words are near each other."""
    row = [0.0] * DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        row[int(hashlib.md5(word.encode()).hexdigest(), 16) % DIMENSIONS] += 1.0
    norm = sum(x * x for x in row) ** 0.5 or 1.0
    return [x / norm for x in row]


def instance(schema, text, root=None):
    """The smallest value of a JSON schema, with `text` where it wants a string."""
    root = root or schema
    if "$ref" in schema:
        at = root
        for name in schema["$ref"].lstrip("#/").split("/"):
            at = at[name]
        return instance(at, text, root)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return instance(schema[choice][0], text, root)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        wanted = schema.get("properties", {})
        return {name: instance(each, text, root) for name, each in wanted.items()}
    if kind == "array":
        return [instance(schema.get("items", {"type": "string"}), text, root)]
    return {"string": text, "integer": 0, "number": 0.5, "boolean": False, "null": None}[kind]


def mirix_calls(messages, functions, forgotten):
    """MIRIX's agents: the first hands over to the one of events, which stores what users said; after a tool's answer they are done."""
    at = max((at for at, message in enumerate(messages) if "[USER]" in str(message.get("content"))), default=0)
    if any(message["role"] == "tool" for message in messages[at:]):
        name, asked = "finish_memory_update", {}
    elif "trigger_memory_update" in functions:
        name, asked = "trigger_memory_update", {"memory_types": ["episodic"]}
    else:
        given = json.dumps(messages[at].get("content"), ensure_ascii=False)
        said = re.findall(r"\[USER\] (.*?)(?=\\n|\"|$)", given)
        said = [] if any(word in text for word in forgotten for text in said) else said
        event = {"occurred_at": "2024-01-01 00:00:00", "event_type": "user_message", "actor": "user"}
        name, asked = "episodic_memory_insert", {"items": [{**event, "summary": text, "details": text} for text in said]}
    return [{"id": f"call_{len(messages)}", "type": "function", "function": {"name": name, "arguments": json.dumps(asked)}}]


def agent_calls(messages, tool):
    """An agent that answers by searching: it calls the tool with the question, then answers with what was found."""
    if messages[-1]["role"] == "tool":
        return "I found: " + str(messages[-1]["content"])[:2000], None
    said = [message["content"] for message in messages if message["role"] == "user"][-1]
    query = said if isinstance(said, str) else " ".join(part.get("text", "") for part in said)
    return None, [{"id": f"call_{len(messages)}", "type": "function", "function": {"name": tool, "arguments": json.dumps({"query": query})}}]


def reply_to(body, forgotten=()):
    """The content, and the tool calls, of a chat's answer."""
    system = "\n".join(str(m.get("content")) for m in body["messages"] if m["role"] == "system")
    prompt = str(body["messages"][-1].get("content") or "")
    users = [m for m in body["messages"] if m["role"] == "user"]
    said = [line.strip() for line in SAID.findall(prompt)] or [str(users[-1].get("content") if users else "")[-200:]]
    # LangChain's rendering of a conversation.
    said = re.findall(r"Human Message =+\s+(.+)", prompt) or said
    # EverOS's.
    said = re.findall(r'"speaker": user,\s*"content": (.+)', prompt) or said
    said = [] if any(word in line for word in forgotten for line in said) else said
    first, last = (said[0], said[-1]) if said else ("", "")
    form = body.get("response_format") or {}
    if body.get("tools"):
        functions = {tool["function"]["name"]: tool["function"] for tool in body["tools"]}
        if "finish_memory_update" in functions:
            return None, mirix_calls(body["messages"], functions, forgotten)
        searching = {"search_memory", "memory_search"} & functions.keys()
        if searching:
            return agent_calls(body["messages"], searching.pop())
        function = functions.get("Memory") or body["tools"][0]["function"]
        calls = []
        for at, text in enumerate(said):
            call = {"name": function["name"], "arguments": json.dumps(instance(function["parameters"], text))}
            calls.append({"id": f"call_{at}", "type": "function", "function": call})
        return None, calls
    if "The new retrieved facts are mentioned" in prompt:
        facts = re.findall(r"```\s*(.*?)\s*```", prompt, re.DOTALL)[-1]
        texts = [text for pair in re.findall(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", facts) for text in pair if text]
        return json.dumps({"memory": [{"id": str(100 + at), "text": text, "event": "ADD"} for at, text in enumerate(texts)]}), None
    # LightMem numbers messages, and asks for the number with each fact.
    numbered = re.findall(r"(\d+)\.user: (.+)", prompt)
    if "source_id" in system and numbered:
        numbered = numbered if said else []
        return json.dumps({"data": [{"source_id": int(at), "fact": text} for at, text in numbered]}), None
    # MemOS's, after its examples.
    if '"memory list"' in prompt:
        said = SAID.findall(prompt.rsplit("Conversation:", 1)[-1]) if said else []
        listed = [{"key": text[:40], "memory_type": "UserMemory", "value": text, "tags": []} for text in said]
        return json.dumps({"memory list": listed, "summary": ""}), None
    # LiCoMemory's: entities and relations of a pair of turns, and entities of a question.
    if '("relationship"|' in prompt:
        chunk = json.loads(re.findall(r'^\{"text": .*\}$', prompt, re.MULTILINE)[-1])
        said = [re.sub(r'["|#()]', " ", line[6:]) for line in chunk["text"].split("\n") if line.startswith("User: ")]
        said = [] if any(word in line for word in forgotten for line in said) else said
        pairs = [f'("entity"|User|person)##("entity"|{text}|event)##("relationship"|{chunk["session_time"]}|{chunk["session_id"]}|User|{text}|said|8)##' for text in said]
        return "".join(pairs) + "##END##", None
    if '("entity"|' in prompt:
        question = re.sub(r'["|#()]', " ", prompt.rsplit("Query:\n", 1)[-1].split("\n")[0])
        return f'("entity"|{question}|event)##END##', None
    # MemoBase's: a summary in lines, profiles of topics, and what becomes of each.
    if "### Input Chats" in prompt:
        return "\n".join(f"- {text}" for text in said if SAID.search(prompt)), None
    if "#### Memo\n" in prompt:
        memos = re.findall(r"^- (.+)$", prompt.rsplit("#### Memo\n", 1)[1], re.MULTILINE)
        return "---\n" + "\n".join(f"- life::{hashlib.md5(text.encode()).hexdigest()[0]}::{text}" for text in memos), None
    if "'memo_id': 1" in prompt:
        return "---\n" + "\n".join(f"{at}. APPEND::APPEND" for at in re.findall(r"'memo_id': (\d+)", prompt)), None
    if form.get("type") == "json_schema":
        return json.dumps(instance(form["json_schema"]["schema"], last)), None
    if '"facts"' in system + prompt or "'facts'" in system + prompt:
        return json.dumps({"facts": said}), None
    if '"memory"' in system + prompt:
        return json.dumps({"memory": [{"id": str(at), "text": text, "attributed_to": "user"} for at, text in enumerate(said)]}), None
    if form.get("type") == "json_object":
        return json.dumps({"text": last}), None
    # EverOS asks for JSON in words.
    if "should_wait" in prompt:
        return json.dumps({"boundaries": [], "should_wait": False}), None
    if "atomic_fact" in prompt:
        return json.dumps({"atomic_facts": {"time": "2024", "atomic_fact": said}}), None
    if "JSON" in prompt:
        return json.dumps({"title": first[:40], "content": "\n".join(said), "summary": first}), None
    return last, None


class Server(ThreadingHTTPServer):
    """What is said of requests, and how many are still to fail."""

    daemon_threads = True

    def __init__(self, port=0, log=None, nonsense=False, failures=0, at_most=None, refusal=None, forgotten=()):
        """`at_most` texts are embedded at once; more are refused by `refusal`, a status and a message, or without one cut off."""
        super().__init__(("127.0.0.1", port), Handler)
        self.log, self.nonsense, self.failures = log, nonsense, failures
        self.at_most, self.refusal, self.forgotten = at_most, refusal, forgotten
        self.lock, self.calls = threading.Lock(), []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def start(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def stop(self):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """POST /v1/chat/completions and /v1/embeddings."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send(200, {"object": "list", "data": [{"id": "stand-in", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        row = {"path": self.path, **{key: value for key, value in body.items() if key not in ("messages", "input", "tools")}}
        row["key"] = self.headers.get("Authorization", "")
        with self.server.lock:
            failing = self.server.failures > 0
            self.server.failures -= failing
        if failing:
            reply, status = {"error": {"message": "come again", "type": "server_error"}}, 503
        elif self.path.endswith("/embeddings"):
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            rows = [{"object": "embedding", "index": at, "embedding": vector(str(text))} for at, text in enumerate(texts)]
            reply = {"object": "list", "model": body["model"], "data": rows[: self.server.at_most], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
            row["texts"], status = len(texts), 200
            if self.server.refusal and len(rows) > self.server.at_most:
                status, reply = self.server.refusal[0], {"error": {"message": self.server.refusal[1]}}
        else:
            content, calls = ("I am glad that you asked.", None) if self.server.nonsense else reply_to(body, self.server.forgotten)
            message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            reply = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice], "usage": usage}
            row["prompt"] = sum(len(str(message.get("content"))) for message in body["messages"])
            row["tools"] = [tool["function"]["name"] for tool in body.get("tools") or []]
            row["answer"], status = content or calls, 200
        with self.server.lock:
            self.server.calls.append(row)
            if self.server.log:
                print(json.dumps(row, ensure_ascii=False), file=self.server.log, flush=True)
        self.send(status, reply)

    def send(self, status, reply):
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=argparse.FileType("a"))
    parser.add_argument("--say", choices=["nonsense"])
    parser.add_argument("--failures", type=int, default=0)
    parser.add_argument("--forget", default="")
    given = parser.parse_args()
    forgotten = tuple(filter(None, given.forget.split(",")))
    server = Server(given.port, given.log, given.say == "nonsense", given.failures, forgotten=forgotten)
    print(server.url, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(130)
