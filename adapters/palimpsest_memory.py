"""Makes an adapter of palimpsest's memory protocol out of a class with `add` and `search`.

Copy this file beside an adapter; it needs Python 3.9 or later and nothing else. An adapter, whole:

    from palimpsest_memory import serve

    class Notes:
        def __init__(self):
            self.notes = []

        def add(self, session):
            texts = [turn.content for turn in session.turns]
            self.notes += texts
            return texts

        def search(self, query, k):
            wanted = set(query.lower().split())
            return sorted(self.notes, key=lambda note: -len(wanted & set(note.lower().split())))[:k]

    serve(Notes)

`serve` reads JSON lines from stdin and answers on stdout, which belongs to the protocol alone: all else that is printed, also by
libraries in C and by child processes, goes to stderr. (Import libraries that print in `prepare`, which `serve` calls.) A scope, which is
one history, has an instance of its own. docs/memory.md has the wire format.

Methods (`setup` and `as_of` are passed where the signature has them)
    __init__(self, setup)     a new, empty store; `setup` is a Setup, whose `folder` is the scope's own
    add(self, session)        writes a Session. With unit "turn" or "pair" it is called once for each, with the turns of that unit alone.
                              Returns None (does not say), or a list of what changed: texts, or dictionaries with `op`, `memory` (an id),
                              `text`, `previous`, `sources`, `looked_at`, `reason`; `changes` makes them of the dumps before and after
    search(self, query, k, as_of)   the best k, best first: texts, or dictionaries with `id`, `text`, `score`, `sources`, `time`, `status`,
                              `metadata`; or {"memories": [...], "parts": [{"text", "memory"}]} with its own rendering of a context
    finish(self)              the end of a history: flush buffers, update, index. Returns events as `add` does
    dump(self)                all memories, as `search` gives them
    readback(self, sessions)  the memories that were written from these session ids
    fingerprint(self)         a digest of the state; made from `dump` where there is none
    answer(self, query, as_of)      a text, or (text, memories)
    save(self, folder), load(self, folder), close(self)
    prepare(cls, setup)       a class method, called once at the start: set the environment, import libraries, read `setup.config`

Attributes of the class
    name, version             default: the class's name, and ""
    unit                      "session" (default), "pair" or "turn"
    provenance                "exact", "derived" (default) or "none": how it knows the sources of its memories
    options                   {name: default} of `setup.config`; a setting that is not in it is refused
    packages, files           distributions whose versions, and further files and folders whose contents are part of the identity
    scopes                    instances held at once (default 1); the one not used for longest is closed for another
    state_in_folder           True: all of its state lies in `setup.folder`, so that `save` and `load` copy the folder
    looks                     True: its events have `looked_at`
    loggers                   names of loggers; warnings logged during `add` become events that say so, so that no failure is silent

Sources, where a memory has no `sources` of its own: `metadata` with `session` (and `turns`); else the events of `add` that named its id,
united over updates; else None, which means unknown. An event without the key `sources` comes from the session, or the turns, that `add`
was given; `"sources": None` says that they are not known.

`random`, and the ids that `uuid.uuid4` makes, are seeded anew by seed, scope and session before each `add` (and `finish`), so that a rerun
makes the same ids, and the same requests where these hold such ids, also when it resumes.

Exceptions become error kinds: `Unsupported`, `BadInput`, `Transient` (also lost connections, time-outs, and HTTP 408, 429 and 5xx); all
others are "fatal". The trace goes to stderr.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import logging
import math
import os
import random
import re
import shutil
import socket
import sys
import traceback
import urllib.error
import urllib.request
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, Optional

PROTOCOL = 1
OPS = ("add", "update", "delete", "stale", "unknown", "weak", "none")
UNITS = ("session", "pair", "turn")
EVENT_KEYS = ("op", "memory", "text", "previous", "sources", "looked_at", "reason")
MEMORY_KEYS = ("id", "text", "score", "sources", "time", "status", "metadata")
# Texts sent to an embedder in one request; fewer to one that refused as many, by its address and model.
EMBEDDING_BATCH = 64
_at_once: Dict[Any, int] = {}
# Words of refusals of a batch that has too many texts, or too many tokens.
_OF_BATCH = re.compile(r"batch|instance|too many|too large|too long|at most|per request|number of (texts|inputs)", re.IGNORECASE)


class Failure(Exception):
    """An error with a kind of the protocol's."""

    kind = "fatal"


class Unsupported(Failure):
    """The system has no such operation."""

    kind = "unsupported"


class BadInput(Failure):
    """It cannot use what it was sent."""

    kind = "input"


class Transient(Failure):
    """It may go well another time."""

    kind = "transient"


@dataclasses.dataclass
class Address:
    """An address that speaks OpenAI's API, of a language model or an embedder."""

    base_url: str
    key: str
    model: str
    dimensions: Optional[int] = None


@dataclasses.dataclass
class Setup:
    """What a store is made with. `folder` is its own; in `prepare` it is the adapter's, and `scope` is empty."""

    llm: Optional[Address]
    embedder: Optional[Address]
    folder: Path
    seed: int
    config: Dict[str, Any]
    scope: str = ""

    def need_llm(self) -> Address:
        """The language model, or an error that says how to give one."""
        if self.llm is None:
            raise BadInput("it needs a language model and was given none: --memory-model URL#MODEL")
        return self.llm

    def need_embedder(self) -> Address:
        """The embedder, or an error that says so."""
        if self.embedder is None:
            raise BadInput("it needs an embedder and was given none: `palimpsest serve` serves one beside its model")
        return self.embedder


@dataclasses.dataclass
class Turn:
    """A turn: its place in the session from 0, who speaks, and what is said."""

    id: int
    role: str
    content: str


@dataclasses.dataclass
class Session:
    """A session, or the turns of a unit of it: its id, its time (`2024-05-01T10:00:00`) where the data says so, and turns."""

    id: str
    time: Optional[str]
    turns: List[Turn]

    def messages(self) -> List[Dict[str, str]]:
        """OpenAI's messages."""
        return [{"role": turn.role, "content": turn.content} for turn in self.turns]

    def source(self) -> Dict[str, Any]:
        """These turns as a source."""
        return {"session": self.id, "turns": [turn.id for turn in self.turns]}

    def split(self, unit: str) -> List["Session"]:
        """By unit. A pair is what one side says and the other's reply: it ends with an assistant's turn, or before a user's."""
        if unit == "session":
            return [self]
        groups: List[List[Turn]] = []
        for turn in self.turns:
            joins = groups and unit == "pair" and turn.role == "assistant" and groups[-1][-1].role != "assistant"
            if joins:
                groups[-1].append(turn)
            else:
                groups.append([turn])
        return [dataclasses.replace(self, turns=turns) for turns in groups]

    def exchanges(self) -> List[Dict[str, str]]:
        """By pair, what the user and what the assistant said; "" where one said nothing."""
        side = lambda turn: "assistant" if turn.role == "assistant" else "user"
        return [{"user": "", "assistant": "", **{side(turn): turn.content for turn in pair.turns}} for pair in self.split("pair")]


def embed(address: Address, texts: List[str]) -> List[List[float]]:
    """Vectors of texts, by /v1/embeddings. An endpoint that refuses a batch is sent half of it, here and from then on."""
    vectors, url = [], address.base_url.rstrip("/") + "/embeddings"
    while len(vectors) < len(texts):
        batch = texts[len(vectors) :][: _at_once.get((url, address.model), EMBEDDING_BATCH)]
        body = json.dumps({"model": address.model, "input": batch}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {address.key}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=300) as reply:
                data = json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            said = error.read().decode("utf-8", "replace")
            if len(batch) > 1 and (error.code == 413 or error.code in (400, 422) and _OF_BATCH.search(said)):
                _at_once[url, address.model] = len(batch) // 2
                continue
            raise (Transient if may_pass(error.code) else Failure)(f"embedder: HTTP {error.code}: {said[:500]}") from error
        if len(data) != len(batch):
            raise Failure(f"embedder: {len(data)} vectors of {len(batch)} texts; EMBEDDING_BATCH in {__file__} is how many are sent at once")
        vectors += [row["embedding"] for row in sorted(data, key=lambda row: row["index"])]
    return vectors


def _clear(folder: Path):
    """Removes a folder with all that is in it. What cannot be removed is an error: it would be read as the new store's."""
    if folder.exists():
        shutil.rmtree(folder)


def dimensions_of(address: Address) -> int:
    """The length of an embedder's vectors, asked for where it is not told."""
    return address.dimensions or len(embed(address, ["."])[0])


def text_id(text: str) -> str:
    """An id for a memory that has none of its own."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def changes(before: List[Dict[str, Any]], after: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Events that lead from one dump to another."""
    was, events = {row["id"]: row for row in before}, []
    for row in after:
        old, about = was.pop(row["id"], {}), {"memory": row["id"], **{key: row[key] for key in ("text", "sources") if key in row}}
        if any(old.get(key) != row.get(key) for key in ("text", "sources")):
            events.append({"op": "update" if old else "add", **about})
        if row.get("status") == "stale" and old.get("status") != "stale":
            events.append({"op": "stale", **about})
    return events + [{"op": "delete", "memory": key} for key in was]


def digest_of(paths) -> str:
    """SHA-256 over the names and contents of files and, in folders, of their .py, .json and .toml files."""
    sha = hashlib.sha256()
    for path in map(Path, paths):
        inside = [each for each in sorted(path.rglob("*")) if each.suffix in (".py", ".json", ".toml")]
        for each in inside if path.is_dir() else [path]:
            if each.is_file() and "__pycache__" not in each.parts:
                sha.update(each.name.encode() + b"\0" + each.read_bytes() + b"\0")
    return sha.hexdigest()


def version_of(distribution: str) -> str:
    """The version that is installed, or "absent": a package that is not there can change what a system does."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


def may_pass(status) -> bool:
    """May a request go well another time that was refused with this HTTP status?"""
    return status in (408, 409, 425, 429) or (isinstance(status, int) and 500 <= status < 600)


# Of openai's, httpx's, requests's and aiohttp's clients, which are not imported here.
_PASSING = {
    "APIConnectionError", "APITimeoutError", "RateLimitError", "InternalServerError", "ServiceUnavailableError",
    "ConnectError", "ConnectTimeout", "ReadTimeout", "ReadError", "RemoteProtocolError", "PoolTimeout", "ServerDisconnectedError",
}


def kind_of(error: BaseException) -> str:
    """The protocol's kind of an exception, by it and by what caused it."""
    if isinstance(error, NotImplementedError):
        return "unsupported"
    seen = set()
    each: Optional[BaseException] = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, Failure):
            return each.kind
        status = getattr(each, "status_code", getattr(each, "code", None))
        if isinstance(status, int):
            return "transient" if may_pass(status) else "fatal"
        passing = any(base.__name__ in _PASSING for base in type(each).__mro__)
        if passing or isinstance(each, (ConnectionError, TimeoutError, socket.timeout, urllib.error.URLError)):
            return "transient"
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return "fatal"


def _accepted(function, offered: Dict[str, Any]) -> Dict[str, Any]:
    """Of the named arguments those that a function takes."""
    taken = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return offered
    return {name: value for name, value in offered.items() if name in taken}


def _unite(first, second):
    """Sources of both, by session in the order of their coming. Sources that are not known make the whole unknown."""
    if first is None or second is None:
        return None
    turns: Dict[str, set] = {}
    whole = set()
    for source in list(first) + list(second):
        turns.setdefault(source["session"], set()).update(source.get("turns") or [])
        if not source.get("turns"):
            whole.add(source["session"])
    return [{"session": s} if s in whole else {"session": s, "turns": sorted(t)} for s, t in turns.items()]


def _sources(value, where: str):
    """Checked sources."""
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise Failure(f"{where}: sources are {value!r}; give a list of {{'session', 'turns'}}, or None where they are not known")
    checked = []
    for source in value:
        if isinstance(source, str):
            source = {"session": source}
        if not isinstance(source, dict) or not isinstance(source.get("session"), str) or set(source) - {"session", "turns"}:
            raise Failure(f"{where}: the source {source!r} is no {{'session': 'session[3]', 'turns': [0, 2]}}")
        turns = [int(turn) for turn in source.get("turns") or []]
        checked.append({"session": source["session"], **({"turns": turns} if turns else {})})
    return checked


def _known_keys(value: dict, known, where: str):
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise Failure(f"{where} has the key {unknown[0]!r}; the keys are {', '.join(known)}")


class Ledger:
    """What events said of memories: their texts and sources. Kept outside the system, whose updates may replace its metadata."""

    def __init__(self):
        self.rows: Dict[str, Dict[str, Any]] = {}

    def take(self, events, given, where: str) -> List[Dict[str, Any]]:
        """Events in the protocol's form, with their texts and sources completed. `given`: sources of those that name none."""
        taken = []
        for at, event in enumerate(events):
            at_where = f"{where}: event {at}"
            if isinstance(event, str):
                event = {"op": "add", "memory": text_id(event), "text": event}
            if not isinstance(event, dict) or event.get("op") not in OPS:
                raise Failure(f"{at_where} is {event!r}; give a text, or a dictionary whose 'op' is one of {', '.join(OPS)}")
            _known_keys(event, EVENT_KEYS, at_where)
            event = {key: value for key, value in event.items() if value is not None or key == "sources"}
            if "memory" in event:
                event["memory"] = str(event["memory"])
            row = self.rows.get(event.get("memory"))
            if row is not None and event["op"] != "add":
                event.setdefault("previous", row["text"])
            if event["op"] in ("add", "update"):
                sources = _sources(event["sources"] if "sources" in event else given, at_where)
                if row is not None:
                    # Of a memory that is added again, too: the same text from two sessions.
                    sources = _unite(row["sources"], sources)
                event["sources"] = sources
                if "memory" in event:
                    text = event.get("text", row["text"] if row else None)
                    self.rows[event["memory"]] = {"text": text, "sources": sources}
            elif "sources" in event:
                event["sources"] = _sources(event["sources"], at_where)
            elif row is not None:
                event["sources"] = row["sources"]
            if event["op"] == "delete":
                self.rows.pop(event.get("memory"), None)
            # An event without the key says the same as one with null.
            taken.append({key: value for key, value in event.items() if value is not None})
        return taken

    def memory(self, value, where: str) -> Dict[str, Any]:
        """A memory in the protocol's form, with the sources that are known of it."""
        if isinstance(value, str):
            value = {"text": value}
        if not isinstance(value, dict) or not isinstance(value.get("text"), str):
            raise Failure(f"{where} is {value!r}; give a text, or a dictionary with 'text'")
        _known_keys(value, MEMORY_KEYS, where)
        memory = {"id": str(value.get("id") or text_id(value["text"])), "text": value["text"]}
        if value.get("score") is not None:
            memory["score"] = float(value["score"])
            if not math.isfinite(memory["score"]):
                raise Failure(f"{where} has the score {value['score']}; scores are finite, or absent")
        about = value.get("metadata") or {}
        if "sources" in value:
            memory["sources"] = _sources(value["sources"], where)
        elif isinstance(about.get("session"), str):
            memory["sources"] = _sources([{"session": about["session"], "turns": about.get("turns")}], where)
        else:
            memory["sources"] = self.rows.get(memory["id"], {}).get("sources")
        if value.get("time") is not None:
            memory["time"] = str(value["time"])
        memory["status"] = value.get("status") or "active"
        if memory["status"] not in ("active", "stale"):
            raise Failure(f"{where} has the status {memory['status']!r}; it is 'active' or 'stale'")
        return memory

    def memories(self, values, where: str) -> List[Dict[str, Any]]:
        """Memories in the protocol's form."""
        return [self.memory(value, f"{where}: memory {at}") for at, value in enumerate(values)]


class _Warnings(logging.Handler):
    """Keeps what a library logs at WARNING and above while it writes."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said: List[str] = []

    def emit(self, record):
        self.said.append(f"{record.name}: {record.getMessage()}"[:500])


class SteadyIds:
    """Random numbers and random ids that depend on what is done, and not on when: the same in every run."""

    def __init__(self):
        self.numbers = random.Random(0)

    def install(self):
        """In the place of `uuid.uuid4`; modules that are imported later take this one, too."""
        uuid.uuid4 = lambda: uuid.UUID(int=self.numbers.getrandbits(128), version=4)

    def begin(self, *about):
        """Before a piece of work."""
        name = "\0".join(map(str, about))
        self.numbers.seed(name)
        random.seed(name)


class Adapter:
    """The protocol's operations, done by instances of a class. `handle` takes a request and gives its reply."""

    def __init__(self, system):
        self.system = system
        self.setup: Optional[Setup] = None
        self.stores: Dict[str, Any] = {}
        self.ledgers: Dict[str, Ledger] = {}
        self.warnings = _Warnings()
        self.ids = SteadyIds()

    def attribute(self, name: str, default=None):
        """An attribute of the class, by the time that `prepare` has run."""
        return getattr(self.system, name, default)

    def offers(self, name: str) -> bool:
        """Has the class this method?"""
        return callable(self.attribute(name))

    def handle(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The reply to a request; never an exception."""
        number = request.get("id") if isinstance(request, dict) else None
        try:
            if not isinstance(request, dict) or not isinstance(request.get("op"), str):
                raise BadInput("a request is an object with 'id' and 'op'")
            operation = getattr(self, "op_" + request["op"], None)
            if operation is None:
                raise Unsupported(f"there is no operation {request['op']!r}")
            if self.setup is None and request["op"] not in ("hello", "close"):
                raise BadInput(f"{request['op']} before hello")
            return {"id": number, "ok": True, **operation(request)}
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit of a library, too: only the protocol ends an adapter.
            named = isinstance(error, Failure)
            if not named:
                traceback.print_exc(file=sys.stderr)
            message = str(error) if named else f"{type(error).__name__}: {error}"
            return {"id": number, "ok": False, "error": {"kind": kind_of(error), "message": message[:2000]}}

    def op_hello(self, request):
        if request.get("protocol") != PROTOCOL:
            raise BadInput(f"protocol {request.get('protocol')!r}; this adapter speaks {PROTOCOL}")
        self.close_all()
        config, options = request.get("config") or {}, self.attribute("options", {})
        unknown = sorted(set(config) - set(options))
        if unknown:
            known = ", ".join(f"{name} ({default!r})" for name, default in options.items()) or "none"
            raise BadInput(f"there is no setting {unknown[0]!r}; the settings, with their defaults: {known}")
        address = lambda value: Address(**{key: value.get(key) for key in ("base_url", "key", "model", "dimensions")}) if value else None
        folder = Path(request["folder"]).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        llm, embedder = address(request.get("llm")), address(request.get("embedder"))
        setup = Setup(llm, embedder, folder, int(request.get("seed") or 0), {**options, **config})
        self.ids.begin(setup.seed)
        if self.offers("prepare"):
            self.system.prepare(setup)
        if self.attribute("unit", "session") not in UNITS:
            raise Failure(f"the unit is {self.attribute('unit')!r}; it is one of {', '.join(UNITS)}")
        for name in self.attribute("loggers", ()):
            if self.warnings not in logging.getLogger(name).handlers:
                logging.getLogger(name).addHandler(self.warnings)
        self.setup = setup
        can = [name for name in ("dump", "readback", "answer") if self.offers(name)]
        can += ["fingerprint"] if self.offers("fingerprint") or self.offers("dump") else []
        can += ["save"] if self.attribute("state_in_folder") or (self.offers("save") and self.offers("load")) else []
        can += ["looked_at"] if self.attribute("looks") else []
        classes = [each for each in self.system.__mro__ if each.__module__ != "builtins"]
        files = [*dict.fromkeys(map(inspect.getsourcefile, classes)), __file__, *self.attribute("files", ())]
        return {
            "name": self.attribute("name", self.system.__name__),
            "version": str(self.attribute("version", "")),
            "digest": digest_of(files),
            "packages": {name: version_of(name) for name in self.attribute("packages", ())},
            "unit": self.attribute("unit", "session"),
            "provenance": self.attribute("provenance", "derived"),
            "can": can,
            "scopes": self.attribute("scopes", 1),
        }

    def folder_of(self, scope: str) -> Path:
        """A scope's folder; scopes may have any name."""
        return self.setup.folder / (re.sub(r"[^A-Za-z0-9._-]+", "_", scope)[:40] + "-" + text_id(scope)[:8])

    def open_store(self, scope: str):
        """An instance for a scope, over the scope's folder as it is."""
        while len(self.stores) >= max(1, self.attribute("scopes", 1)):
            self.close_store(next(iter(self.stores)))
        folder = self.folder_of(scope)
        folder.mkdir(parents=True, exist_ok=True)
        setup = dataclasses.replace(self.setup, folder=folder, scope=scope)
        takes = _accepted(self.system.__init__, {"setup": setup}) if self.system.__init__ is not object.__init__ else {}
        self.stores[scope] = self.system(**takes)

    def close_store(self, scope: str):
        """Ends an instance."""
        store = self.stores.pop(scope, None)
        self.ledgers.pop(scope, None)
        if store is not None and hasattr(store, "close"):
            store.close()

    def close_all(self):
        """Ends all instances; one that fails keeps no other open."""
        for scope in list(self.stores):
            try:
                self.close_store(scope)
            except Exception:
                traceback.print_exc(file=sys.stderr)

    def store(self, request):
        """The instance and the ledger of a request's scope; it is then the one used last."""
        scope = request.get("scope")
        if scope not in self.stores:
            raise BadInput(f"the scope {scope!r} is not held: reset it, or load it")
        self.stores[scope] = self.stores.pop(scope)
        return self.stores[scope], self.ledgers[scope]

    def scope_of(self, request) -> str:
        if not isinstance(request.get("scope"), str):
            raise BadInput(f"{request['op']} without a scope")
        return request["scope"]

    def op_reset(self, request):
        scope = self.scope_of(request)
        self.close_store(scope)
        _clear(self.folder_of(scope))
        self.open_store(scope)
        self.ledgers[scope] = Ledger()
        return {}

    def written(self, store, ledger, write, given, where):
        """Events of a call that writes, with the warnings that were logged meanwhile; None where the system does not say."""
        self.warnings.said.clear()
        events = write()
        if events is None:
            return None
        if isinstance(events, (str, dict)):
            raise Failure(f"{where} gave {type(events).__name__}; it gives None or a list of events")
        logged = [{"op": "none", "reason": f"logged by {said}"} for said in self.warnings.said]
        return ledger.take(list(events) + logged, given, where)

    def op_ingest(self, request):
        store, ledger = self.store(request)
        sent = request["session"]
        session = Session(sent["id"], sent.get("time"), [Turn(turn["id"], turn["role"], turn["content"]) for turn in sent["turns"]])
        unit, told = self.attribute("unit", "session"), []
        for piece in session.split(unit):
            # Of a memory made from a whole session it is not known which turns it is from.
            given = [{"session": session.id}] if unit == "session" else [piece.source()]
            self.ids.begin(self.setup.seed, request["scope"], session.id, [turn.id for turn in piece.turns])
            told.append(self.written(store, ledger, lambda: store.add(piece), given, "add"))
        # One part that does not say leaves the session untold.
        return {"events": None if None in told else [event for events in told for event in events]}

    def op_finish(self, request):
        store, ledger = self.store(request)
        self.ids.begin(self.setup.seed, request["scope"], "finish")
        if self.offers("finish"):
            return {"events": self.written(store, ledger, store.finish, None, "finish")}
        # Nothing is called, so that nothing changes; a dump is compared all the same, for what a system does by itself.
        return {"events": None if self.offers("dump") else []}

    def op_search(self, request):
        store, ledger = self.store(request)
        k = int(request["k"])
        found = store.search(request["query"], k, **_accepted(store.search, {"as_of": request.get("as_of")}))
        parts = None
        if isinstance(found, dict):
            _known_keys(found, ("memories", "parts"), "search's result")
            found, parts = found["memories"], found.get("parts")
        reply = {"memories": ledger.memories(list(found)[:k], "search")}
        if parts is not None:
            reply["parts"] = [{"text": str(part["text"]), "memory": part.get("memory")} for part in parts]
        return reply

    def op_readback(self, request):
        self.need("readback")
        store, ledger = self.store(request)
        return {"memories": ledger.memories(store.readback(list(request["sessions"])), "readback")}

    def op_dump(self, request):
        self.need("dump")
        store, ledger = self.store(request)
        return {"memories": ledger.memories(store.dump(), "dump")}

    def op_fingerprint(self, request):
        store, ledger = self.store(request)
        if self.offers("fingerprint"):
            return {"fingerprint": str(store.fingerprint())}
        self.need("dump")
        rows = sorted(json.dumps(row, sort_keys=True) for row in ledger.memories(store.dump(), "dump"))
        return {"fingerprint": hashlib.sha256("\n".join(rows).encode()).hexdigest()}

    def op_answer(self, request):
        self.need("answer")
        store, ledger = self.store(request)
        said = store.answer(request["query"], **_accepted(store.answer, {"as_of": request.get("as_of")}))
        text, memories = (said, []) if isinstance(said, str) else said
        return {"text": text, "memories": ledger.memories(memories, "answer")}

    def need(self, name: str):
        """Refuses an operation that the class does not have."""
        if not self.offers(name):
            raise Unsupported(f"{self.system.__name__} has no {name}")

    def op_save(self, request):
        scope, into = self.scope_of(request), Path(request["folder"])
        store, ledger = self.store(request)
        # A state has a folder of its own, and `current` names the one that is whole: killed at any time, an older one can be loaded.
        current = into / "current"
        into.mkdir(parents=True, exist_ok=True)
        before = current.read_text() if current.exists() else ""
        state = into / ("b" if before == "a" else "a")
        _clear(state)
        state.mkdir()
        if self.attribute("state_in_folder"):
            # Closed first, so that what it buffers is written, and no file is half of one state.
            self.close_store(scope)
            shutil.copytree(self.folder_of(scope), state / "system")
            self.open_store(scope)
            self.ledgers[scope] = ledger
        else:
            self.need("save")
            (state / "system").mkdir()
            store.save(state / "system")
        (state / "ledger.json").write_text(json.dumps(ledger.rows), encoding="utf-8")
        (into / "current.new").write_text(state.name)
        os.replace(into / "current.new", current)
        if before:
            _clear(into / before)
        return {}

    def op_load(self, request):
        scope, source = self.scope_of(request), Path(request["folder"])
        if not (source / "current").exists():
            raise BadInput(f"{source} holds no saved state")
        state = source / (source / "current").read_text()
        self.close_store(scope)
        _clear(self.folder_of(scope))
        if self.attribute("state_in_folder"):
            shutil.copytree(state / "system", self.folder_of(scope))
        else:
            self.need("load")
        self.open_store(scope)
        self.ledgers[scope] = Ledger()
        self.ledgers[scope].rows = json.loads((state / "ledger.json").read_text(encoding="utf-8"))
        if not self.attribute("state_in_folder"):
            self.stores[scope].load(state / "system")
        return {}

    def op_close(self, request):
        if isinstance(request.get("scope"), str):
            self.close_store(request["scope"])
        else:
            self.close_all()
        return {}


def _line(reply: Dict[str, Any]) -> bytes:
    # Lone surrogates, which JSON can hold and UTF-8 cannot, become question marks.
    return json.dumps(reply, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def serve(system) -> None:
    """Answers requests from stdin on stdout until `close`, or the end of stdin."""
    # Adapters are named as the packages that they drive: `import langmem` must not find adapters/langmem.py.
    here = Path(__file__).resolve().parent
    sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != here]
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8", errors="replace", newline="\n")
    replies = os.fdopen(os.dup(1), "wb")
    # Children inherit 0 and 1: they must not read the protocol's requests, nor write among its replies.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdin, sys.stdout = open(os.devnull, encoding="utf-8"), sys.stderr
    adapter = Adapter(system)
    adapter.ids.install()
    try:
        for text in filter(str.strip, requests):
            try:
                request = json.loads(text)
                reply = adapter.handle(request)
            except (ValueError, RecursionError) as error:
                request, reply = None, {"id": None, "ok": False, "error": {"kind": "input", "message": f"no JSON: {error}"}}
            replies.write(_line(reply))
            replies.flush()
            if isinstance(request, dict) and request.get("op") == "close" and request.get("scope") is None:
                return
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        adapter.close_all()
