#!/usr/bin/env python3
"""A stand-in for hosted memory services, without a model: mem0's platform, MemOS's cloud, EverOS Cloud and Zep, for their own clients.

  hosted_stand_in.py [--port 0] [--key KEY] [--slow N]

Routes are those that the clients ask for, and fields those that their types want: what a real service does besides is not known. What users
say becomes memories: of a mem0 or MemOS message, of an EverOS session since its last flush, a Zep fact of each message. They are there once
the store has been asked for `--slow` times (default 2). A Zep fact "I moved ..." ends the facts of sessions before. Prints its address.
"""

import argparse
import json
import re
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from stand_in import vector

# Items in a page, unless fewer are asked for: small, so that there is a second page.
PAGE = 2
WHEN = "2024-01-01T00:00:00+00:00"


class Services(ThreadingHTTPServer):
    """What the services hold: memories by user, and what is still to become one."""

    daemon_threads = True

    def __init__(self, port=0, key="key", slow=2):
        super().__init__(("127.0.0.1", port), Handler)
        self.key, self.slow, self.failures, self.lock = key, slow, [], threading.Lock()
        self.memories, self.tasks, self.waiting, self.threads, self.messages, self.calls = {}, {}, {}, {}, {}, []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def stop(self):
        self.shutdown()
        self.server_close()

    def write(self, user, rows):
        """A task that is done, with its memories there, once it or the store has been asked for often enough."""
        task = str(uuid.uuid4())
        self.tasks[task] = {"left": self.slow, "user": user, "rows": rows}
        return task

    def asked(self, user=None, task=None):
        """Time goes on for a task, or all tasks of a user."""
        for name, each in self.tasks.items():
            if task in (None, name) and user in (None, each["user"]) and each["rows"]:
                each["left"] -= 1
                if each["left"] <= 0:
                    self.memories.setdefault(each["user"], []).extend(each["rows"])
                    each["rows"] = []

    def status(self, task):
        self.asked(task=task)
        return not self.tasks[task]["rows"]

    def ranked(self, user, query, text, k):
        """The memories of a user by cosine of hashed words, with it."""
        asked = vector(query)
        score = lambda row: round(sum(x * y for x, y in zip(asked, vector(row[text]))), 6)
        rows = sorted(((score(row), row) for row in self.memories.get(user, [])), key=lambda pair: -pair[0])
        return rows[:k]

    def listed(self, user):
        self.asked(user=user)
        return self.memories.get(user, [])


# Each takes the server, the body, what the path holds and the query; it gives the reply, or a status and a reply.


def mem0_ping(server, body, parts, query):
    return {"org_id": "org", "project_id": "project", "user_email": None}


def mem0_add(server, body, parts, query):
    said = [message["content"] for message in body["messages"] if message["role"] == "user"]
    rows = [{"id": str(uuid.uuid4()), "memory": text, "user_id": body["user_id"], "metadata": body["metadata"], "created_at": WHEN} for text in said]
    return {"message": "queued", "status": "PENDING", "event_id": server.write(body["user_id"], rows)}


def mem0_event(server, body, parts, query):
    return {"id": parts[0], "status": "SUCCEEDED" if server.status(parts[0]) else "RUNNING"}


def mem0_list(server, body, parts, query):
    page, rows = int(query["page"]), server.listed(body["filters"]["user_id"])
    more = "next" if page * PAGE < len(rows) else None
    return {"count": len(rows), "next": more, "previous": None, "results": rows[(page - 1) * PAGE : page * PAGE]}


def mem0_search(server, body, parts, query):
    found = server.ranked(body["filters"]["user_id"], body["query"], "memory", body["top_k"])
    return {"results": [{**row, "score": score} for score, row in found]}


def memos(data):
    return {"code": 0, "message": "ok", "data": data}


def memos_add(server, body, parts, query):
    said, about = [message["content"] for message in body["messages"] if message["role"] == "user"], {"conversation_id": body["conversation_id"]}
    made = lambda text: {"id": str(uuid.uuid4()), "memory_key": text[:20], "memory_value": text, "status": "activated", **about}
    return memos({"success": True, "task_id": server.write(body["user_id"], [made(text) for text in said]), "status": "running"})


def memos_status(server, body, parts, query):
    return memos([{"status": "completed" if server.status(body["task_id"]) else "running"}])


def memos_preference(row):
    return {"id": "p" + row["id"], "preference": f"Likes: {row['memory_value']}", "reasoning": "said so", "conversation_id": row["conversation_id"]}


def memos_list(server, body, parts, query):
    rows, start = server.listed(body["user_id"]), (body["page"] - 1) * PAGE
    shown = rows[start : start + PAGE]
    preferences = [memos_preference(row) for row in shown] if body["include_preference"] else None
    about = {"total": len(rows), "size": PAGE, "current": body["page"], "pages": -(-len(rows) // PAGE)}
    return memos({"memory_detail_list": shown, "preference_detail_list": preferences, **about})


def memos_search(server, body, parts, query):
    found = server.ranked(body["user_id"], body["query"], "memory_value", body["memory_limit_number"])
    preferences = [memos_preference(row) for _, row in found[: body["preference_limit_number"]]] if body["include_preference"] else None
    shown = [{**row, "relativity": score} for score, row in found]
    return memos({"memory_detail_list": shown, "preference_detail_list": preferences, "preference_note": ""})


def everos(data):
    return {"request_id": "r", "data": data}


def everos_add(server, body, parts, query):
    server.waiting.setdefault(body["session_id"], []).extend(body["messages"])
    return everos({"message_count": len(body["messages"]), "status": "accumulated"})


def everos_flush(server, body, parts, query):
    session = body["session_id"]
    messages = server.waiting.pop(session, [])
    said = [message for message in messages if message["role"] == "user"]
    text = " ".join(message["content"] for message in said)
    about = {"app_id": "default", "project_id": "default", "session_id": session, "timestamp": WHEN, "type": "Conversation"}
    if said:
        row = {"id": str(uuid.uuid4()), "user_id": said[0]["sender_id"], "summary": text[:40], "subject": text[:20], "episode": text, **about}
        server.write(said[0]["sender_id"], [row])
    return everos({"status": "extracted" if said else "no_extraction"})


def everos_get(server, body, parts, query):
    rows, size = server.listed(body["user_id"]), body["page_size"]
    shown = rows[(body["page"] - 1) * size : body["page"] * size]
    return everos({"episodes": shown, "total_count": len(rows), "count": len(shown)})


def everos_search(server, body, parts, query):
    found = server.ranked(body["user_id"], body["query"], "episode", body["top_k"])
    return everos({"episodes": [{**row, "score": score} for score, row in found]})


def zep_user(server, body, parts, query):
    return 201, {"uuid": str(uuid.uuid4()), "user_id": body["user_id"]}


def zep_thread(server, body, parts, query):
    thread = str(uuid.uuid4())
    server.threads[thread] = body["user_uuid"]
    return 201, {"uuid": thread, "user_uuid": body["user_uuid"]}


def zep_add(server, body, parts, query):
    user, rows = server.threads[parts[0]], []
    for message in body["messages"]:
        told = {**message, "uuid": str(uuid.uuid4()), "thread_uuid": parts[0]}
        server.messages.setdefault(user, []).append(told)
        if message["role"] == "user":
            if message["content"].startswith("I moved"):
                for row in [*server.memories.get(user, []), *(row for task in server.tasks.values() for row in task["rows"])]:
                    row.setdefault("invalid_at", message.get("reference_time"))
            since = {"valid_at": message["reference_time"]} if "reference_time" in message else {}
            rows.append({"uuid": str(uuid.uuid4()), "name": "SAID", "fact": message["content"], "episode_uuids": [told["uuid"]], **since})
    task = {"uuid": server.write(user, rows), "status": "pending"}
    return 202, {"messages": server.messages[user][-len(body["messages"]) :], "task": task}


def zep_task(server, body, parts, query):
    return {"uuid": parts[0], "status": "succeeded" if server.status(parts[0]) else "processing"}


def zep_page(rows, query):
    start = int(query.get("cursor", 0))
    more = {"next_cursor": str(start + PAGE)} if start + PAGE < len(rows) else {}
    return {"items": rows[start : start + PAGE], **more}


def zep_edges(server, body, parts, query):
    return zep_page(server.listed(parts[0]), query)


def zep_episodes(server, body, parts, query):
    return zep_page(server.messages.get(parts[0], []), query)


def zep_search(server, body, parts, query):
    found = server.ranked(parts[0], body["query"], "fact", int(query["page_size"]))
    return {"items": [{**row, "score": score} for score, row in found], "next_cursor": "more"}


def zep_context(server, body, parts, query):
    return {"context": "FACTS\n" + "\n".join(row["fact"] for _, row in server.ranked(parts[0], body["query"], "fact", 5))}


ROUTES = [
    ("GET", "/v1/ping/", mem0_ping), ("POST", "/v3/memories/add/", mem0_add), ("GET", "/v1/event/([^/]+)/", mem0_event),
    ("POST", "/v3/memories/", mem0_list), ("POST", "/v3/memories/search/", mem0_search),
    ("POST", "/add/message", memos_add), ("POST", "/get/status", memos_status), ("POST", "/get/memory", memos_list),
    ("POST", "/search/memory", memos_search),
    ("POST", "/api/v2/memory/add", everos_add), ("POST", "/api/v2/memory/flush", everos_flush), ("POST", "/api/v2/memory/get", everos_get),
    ("POST", "/api/v2/memory/search", everos_search),
    ("POST", "/users", zep_user), ("POST", "/threads", zep_thread), ("POST", "/threads/([^/]+)/messages", zep_add),
    ("GET", "/tasks/([^/]+)", zep_task), ("POST", "/graphs/([^/]+)/edges/list", zep_edges),
    ("POST", "/graphs/([^/]+)/episodes/list", zep_episodes), ("POST", "/graphs/([^/]+)/search/edges", zep_search),
    ("POST", "/graphs/([^/]+)/context", zep_context),
]


class Handler(BaseHTTPRequestHandler):
    """The routes, with the key that each service wants before it."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer("GET", {})

    def do_POST(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer("POST", json.loads(data) if data else {})

    def answer(self, method, body):
        url, server = urlsplit(self.path), self.server
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        with server.lock:
            server.calls.append((url.path, body))
            match = next(((does, found) for verb, path, does in ROUTES if verb == method and (found := re.fullmatch(path, url.path))), None)
            if self.headers.get("Authorization", "").split(" ")[-1] != server.key:
                reply = 401, {"detail": "no such key"}
            elif server.failures and re.search(server.failures[0][0], url.path):
                reply = server.failures.pop(0)[1], {"detail": "come again"}
            elif match is None:
                reply = 404, {"detail": f"no route {method} {url.path}"}
            else:
                reply = match[0](server, body, match[1].groups(), query)
        status, told = reply if isinstance(reply, tuple) else (200, reply)
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", default="key")
    parser.add_argument("--slow", type=int, default=2)
    given = parser.parse_args()
    services = Services(given.port, given.key, given.slow)
    print(services.url, flush=True)
    try:
        services.serve_forever()
    except KeyboardInterrupt:
        sys.exit(130)
