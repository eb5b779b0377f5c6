"""Servers that adapters start on this machine for themselves, and what these count as tokens. It uses palimpsest_memory.py, which knows none."""

import inspect
import json
import os
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
