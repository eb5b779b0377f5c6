"""What the adapters of hosted services share. It is no adapter: mem0_hosted.py, memos_hosted.py, everos_hosted.py and zep_hosted.py are.

Settings of all
  base_url  another address of the service; "" (default) is the client's own
  batch     messages in one request, within a session; 0 is the whole session
  interval  seconds before each request, for services that count them
  pause     1 (default): seconds before a request that was refused for a while is sent again, doubled each of five times
  wait      seconds that `finish` waits at least
  poll      10 (default): seconds between two looks at what a service still has to do
  limit     500 (default): seconds that it may take for it in one `finish`; `--memory-timeout session=SECONDS` must be more

What holds for all, and matters
- Tried against a stand-in of the service that its own client talks to (tests/adapters/hosted_stand_in.py): untried on the service.
- The key is taken from the environment: `--memory-env NAME`. What a history says goes to the service, and costs what it costs there.
- A store is a user of the service with a random name that begins with `palimpsest-`. It is never deleted there.
- A session is sent in its batches, each once, also when the session is tried again. The service works on them later: `finish` waits until it
  says that all are done, and two lists of the memories, `poll` seconds apart, are the same. All memories are events of `finish`, with the
  sources that the service keeps of each; what it wrote and changed again in between is not seen.
- A state stays at the service: `save` notes its user and a digest of its memories, and `load` refuses a store that has other ones by then
  (the history is then written anew, as another user).
- Its own language model works there: nothing of it is counted, replayed, or the same on another day.
"""

import hashlib
import json
import os
import secrets
import time
from datetime import datetime, timezone

from palimpsest_memory import BadInput, Failure, Transient, kind_of, version_of

# Times that a request is sent which was refused for a while.
TRIES = 6


def utc(text):
    """A session's time as a moment; without a zone it counts as UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def status_of(error):
    """The HTTP status of a client's exception, wherever that keeps it."""
    kept = getattr(error, "response", None), *map(lambda name: getattr(error, name, None), ("status_code", "status"))
    told = [getattr(kept[0], "status_code", None), *kept[1:], (getattr(error, "debug_info", None) or {}).get("status_code")]
    return next((each for each in told if isinstance(each, int)), None)


class Hosted:
    """A store that is a user of a service. A subclass says how it is asked: `connect`, `begin`, `send`, `done`, `find`, `look`."""

    options = {"base_url": "", "batch": 0, "interval": 0, "pause": 1, "wait": 0, "poll": 10, "limit": 500}
    provenance, scopes = "exact", 16

    @classmethod
    def prepare(cls, setup):
        cls.version, cls.config = version_of(cls.packages[0]), setup.config
        key = os.environ.get(cls.secret)
        if not key:
            raise BadInput(f"{cls.name} is a hosted service: give its key in the environment, by --memory-env {cls.secret}")
        cls.client = cls.call(cls.connect, key, setup)

    def __init__(self):
        self.user, self.sent, self.pending = None, set(), []
        # A subclass's own facts of each session that was sent, by its id; saved with the user.
        self.sessions = {}

    @classmethod
    def call(cls, ask, *arguments):
        """What the service answers. A refusal that may pass is tried again; the last one is told."""
        for tried in range(TRIES):
            time.sleep(cls.config["interval"])
            try:
                return ask(*arguments)
            except Failure:
                raise
            except Exception as error:
                status = status_of(error)
                passes = status in (408, 409, 425, 429) or status >= 500 if status else kind_of(error) == "transient" or isinstance(error, OSError)
                if not passes or tried == TRIES - 1:
                    told = f"HTTP {status}: {getattr(error, 'body', None) or error}" if status else f"{type(error).__name__}: {error}"
                    raise (Transient if passes else Failure)(f"{cls.name}: {told}"[:1000]) from error
            time.sleep(cls.config["pause"] * 2**tried)

    def begin(self):
        """A new user's name."""
        return f"palimpsest-{secrets.token_hex(8)}"

    def add(self, session):
        self.user = self.user or self.call(self.begin)
        self.sessions.setdefault(session.id, {"time": session.time})
        size = self.config["batch"] or len(session.turns)
        for start in range(0, len(session.turns), max(1, size)):
            if (session.id, start) not in self.sent:
                self.call(self.send, session, session.turns[start : start + size])
                self.sent.add((session.id, start))
        return []

    def done(self, task):
        """Has the service done this task? An error where it failed."""
        return True

    def settled(self):
        """All memories, once the service has nothing more to do."""
        until, before = time.monotonic() + self.config["limit"], None
        while True:
            self.pending = [task for task in self.pending if not self.call(self.done, task)]
            now = None if self.pending else self.dump()
            if now is not None and now == before:
                return now
            if time.monotonic() > until:
                left = f"{len(self.pending)} tasks are open" if self.pending else "its memories still change"
                raise Transient(f"{self.name} was not done after {self.config['limit']} s: {left}; raise `limit` and --memory-timeout session=")
            before = now
            time.sleep(self.config["poll"])

    def finish(self):
        time.sleep(self.config["wait"])
        rows = self.settled()
        about = [{"memory": row["id"], "text": row["text"], "sources": row["sources"]} for row in rows]
        stale = [{"op": "stale", **each} for each, row in zip(about, rows) if row.get("status") == "stale"]
        return [{"op": "add", **each} for each in about] + stale

    def search(self, query, k):
        return self.call(self.find, query, k) if self.user else []

    def dump(self):
        return sorted(self.call(self.look), key=lambda row: row["id"]) if self.user else []

    def save(self, folder):
        state = {"digest": digest(self.settled()), "user": self.user, "sessions": self.sessions}
        (folder / "user.json").write_text(json.dumps(state))

    def load(self, folder):
        state = json.loads((folder / "user.json").read_text())
        self.user, self.sessions = state["user"], state["sessions"]
        if digest(self.dump()) != state["digest"]:
            raise BadInput(f"{self.name}: the memories of {self.user} are no longer those that were saved")


def digest(rows):
    """Of memories."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
