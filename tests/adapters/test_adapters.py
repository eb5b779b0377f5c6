#!/usr/bin/env python3
"""adapters/palimpsest_memory.py, plain.py and mcp.py, without any package: `python3 tests/adapters/test_adapters.py`."""

import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import unittest
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
ADAPTERS = HERE.parent.parent / "adapters"
sys.path.insert(0, str(ADAPTERS))
sys.path.insert(0, str(HERE))

import palimpsest_memory as helper  # noqa: E402
from drive import OTHER, SESSIONS, Child, address  # noqa: E402
from stand_in import Server, vector  # noqa: E402

HELLO = {"protocol": 1, "llm": None, "embedder": None, "seed": 0, "config": {}}
MCP = {
    "name": "fake",
    "command": ["{python}", str(HERE / "fake_mcp.py")],
    "unit": "turn",
    "add": {"tool": "remember", "arguments": {"text": "{text}", "when": "{time}"}, "id": "id"},
    "search": {"tool": "recall", "arguments": {"query": "{query}", "limit": "{k}"}, "memories": "results", "text": "note.text", "id": "id", "score": "score"},
    "dump": {"tool": "list_notes", "memories": "results", "text": "note.text", "id": "id"},
}


def module(name):
    """An adapter's module, whose name may be a package's."""
    spec = importlib.util.spec_from_file_location(f"adapter_{name}", ADAPTERS / f"{name}.py")
    loaded = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Case(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def adapter(self, system, **hello):
        """An adapter in this process, greeted, with the scope `a`."""
        adapter = helper.Adapter(system)
        self.addCleanup(adapter.close_all)
        reply = adapter.handle({"id": 0, "op": "hello", **HELLO, "folder": str(self.folder / "store"), **hello})
        self.assertTrue(reply["ok"], reply)
        self.assertTrue(adapter.handle({"id": 1, "op": "reset", "scope": "a"})["ok"])
        adapter.said = reply
        return adapter

    def ask(self, adapter, op, **fields):
        return adapter.handle({"id": 7, "op": op, "scope": "a", **fields})

    def child(self, *command):
        child = Child([sys.executable, *map(str, command)], seconds=60, stderr=subprocess.DEVNULL)
        self.addCleanup(child.kill)
        return child


class Scripted:
    """A system that says what a test tells it to."""

    events = []
    found = []

    def add(self, session):
        return self.events

    def search(self, query, k):
        return self.found


class TheHelper(Case):
    def scripted(self, events=None, found=None, **attributes):
        return type("Scripted", (Scripted,), {"events": events, "found": found, **attributes})

    def test_texts_that_add_returns_are_events_and_give_search_its_sources(self):
        adapter = self.adapter(self.scripted(["goats"], ["goats", "unheard of"]))
        events = self.ask(adapter, "ingest", session=SESSIONS[0])["events"]
        self.assertEqual([(e["op"], e["text"], e["sources"]) for e in events], [("add", "goats", [{"session": "session[0]"}])])
        memories = self.ask(adapter, "search", query="?", k=5, as_of=None)["memories"]
        self.assertEqual([m["sources"] for m in memories], [[{"session": "session[0]"}], None])
        self.assertEqual(memories[0]["id"], events[0]["memory"])

    def test_sources_are_united_over_updates_and_previous_texts_are_told(self):
        system = self.scripted([{"op": "add", "memory": 3, "text": "lives in Bergen"}], [{"id": 3, "text": "lives in Oslo"}], unit="turn")
        adapter = self.adapter(system)
        self.ask(adapter, "ingest", session={**SESSIONS[0], "turns": SESSIONS[0]["turns"][:1]})
        system.events = [{"op": "update", "memory": 3, "text": "lives in Oslo"}]
        events = self.ask(adapter, "ingest", session={**SESSIONS[2], "turns": SESSIONS[2]["turns"][:1]})["events"]
        both = [{"session": "session[0]", "turns": [0]}, {"session": "session[2]", "turns": [0]}]
        self.assertEqual(events, [{"op": "update", "memory": "3", "text": "lives in Oslo", "previous": "lives in Bergen", "sources": both}])
        self.assertEqual(self.ask(adapter, "search", query="?", k=1)["memories"][0]["sources"], both)
        system.events = [{"op": "delete", "memory": 3}]
        deleted = self.ask(adapter, "ingest", session={**SESSIONS[1], "turns": SESSIONS[1]["turns"][:1]})["events"]
        self.assertEqual(deleted, [{"op": "delete", "memory": "3", "previous": "lives in Oslo", "sources": both}])

    def test_unknown_sources_stay_unknown_and_are_not_none(self):
        system = self.scripted([{"op": "add", "memory": "m", "text": "t", "sources": None}], [{"id": "m", "text": "t"}, {"id": "n", "text": "u", "sources": []}])
        adapter = self.adapter(system)
        self.assertNotIn("sources", self.ask(adapter, "ingest", session=SESSIONS[0])["events"][0])
        self.assertEqual([m["sources"] for m in self.ask(adapter, "search", query="?", k=2)["memories"]], [None, []])

    def test_metadata_gives_sources(self):
        found = [{"id": "m", "text": "t", "metadata": {"session": "session[4]", "turns": [1], "else": 2}}]
        memories = self.ask(self.adapter(self.scripted(None, found)), "search", query="?", k=1)["memories"]
        self.assertEqual(memories, [{"id": "m", "text": "t", "sources": [{"session": "session[4]", "turns": [1]}], "status": "active"}])

    def test_k_is_kept_and_nothing_found_is_no_error(self):
        adapter = self.adapter(self.scripted(None, ["a", "b", "c"]))
        self.assertEqual(len(self.ask(adapter, "search", query="?", k=2)["memories"]), 2)
        self.assertIsNone(self.ask(adapter, "ingest", session=SESSIONS[0])["events"])
        self.assertEqual(self.ask(self.adapter(self.scripted(None, [])), "search", query="?", k=2)["memories"], [])

    def test_an_end_at_which_nothing_is_called_changed_nothing(self):
        self.assertEqual(self.ask(self.adapter(self.scripted()), "finish")["events"], [])
        told = lambda **more: self.ask(self.adapter(self.scripted(**more)), "finish")["events"]
        self.assertIsNone(told(dump=lambda self: []), "the dump is compared")
        self.assertIsNone(told(finish=lambda self: None), "it does not say")

    def test_a_rendering_of_the_systems_own_is_passed_on(self):
        found = {"memories": ["goats"], "parts": [{"text": "# Facts\n"}, {"text": "- goats", "memory": helper.text_id("goats")}]}
        reply = self.ask(self.adapter(self.scripted(None, found)), "search", query="?", k=3)
        self.assertEqual([part["memory"] for part in reply["parts"]], [None, reply["memories"][0]["id"]])

    def test_units_split_a_session(self):
        turns = [helper.Turn(at, role, str(at)) for at, role in enumerate(["assistant", "user", "assistant", "assistant", "user", "user", "assistant"])]
        session = helper.Session("session[0]", None, turns)
        ids = lambda unit: [[turn.id for turn in piece.turns] for piece in session.split(unit)]
        self.assertEqual(ids("session"), [list(range(7))])
        self.assertEqual(ids("pair"), [[0], [1, 2], [3], [4], [5, 6]])
        self.assertEqual(ids("turn"), [[at] for at in range(7)])

    def test_exchanges_have_both_sides_of_each_pair(self):
        turns = [helper.Turn(at, role, str(at)) for at, role in enumerate(["assistant", "user", "assistant", "system"])]
        said = helper.Session("session[0]", None, turns).exchanges()
        self.assertEqual(said, [{"user": "", "assistant": "0"}, {"user": "1", "assistant": "2"}, {"user": "3", "assistant": ""}])

    def test_what_changed_between_two_dumps(self):
        one, other = {"id": "a", "text": "goats"}, {"id": "b", "text": "Oslo", "sources": [{"session": "session[0]"}], "status": "active"}
        self.assertEqual(helper.changes([], [one]), [{"op": "add", "memory": "a", "text": "goats"}])
        self.assertEqual(helper.changes([one, other], [one, other]), [])
        self.assertEqual(helper.changes([one], [{"id": "a", "text": "no goats"}]), [{"op": "update", "memory": "a", "text": "no goats"}])
        self.assertEqual(helper.changes([one], []), [{"op": "delete", "memory": "a"}])
        about, again = {"memory": "b", "text": "Oslo"}, [{"session": "session[0]"}, {"session": "session[2]"}]
        self.assertEqual(helper.changes([other], [{**other, "sources": again}]), [{"op": "update", **about, "sources": again}])
        self.assertEqual(helper.changes([other], [{**other, "status": "stale"}]), [{"op": "stale", **about, "sources": other["sources"]}])

    def test_exceptions_become_kinds(self):
        class Refused(Exception):
            status_code = 400

        class Busy(Exception):
            status_code = 503

        class APIConnectionError(Exception):
            pass

        def caused():
            try:
                raise ConnectionResetError("gone")
            except ConnectionResetError as error:
                raise ValueError("could not add") from error

        def quits():
            raise SystemExit(3)

        def raising(error):
            def raises():
                raise error

            return raises

        cases = [
            (raising(helper.BadInput("no")), "input"), (raising(helper.Transient("no")), "transient"), (raising(NotImplementedError()), "unsupported"),
            (raising(Refused()), "fatal"), (raising(Busy()), "transient"), (raising(APIConnectionError()), "transient"),
            (raising(TimeoutError()), "transient"), (raising(KeyError("x")), "fatal"), (caused, "transient"), (quits, "fatal"),
        ]
        for does, kind in cases:
            system = self.scripted()
            system.add = lambda self, session, does=does: does()
            adapter = self.adapter(system)
            with open(os.devnull, "w") as nothing, Redirected(nothing):
                reply = self.ask(adapter, "ingest", session=SESSIONS[0])
            self.assertEqual((reply["ok"], reply["id"], reply["error"]["kind"]), (False, 7, kind), reply)

    def test_wrong_results_are_refused_by_name(self):
        for events, found, said in [
            ([{"memory": "m"}], None, "op"), (["t"], [{"id": "m"}], "text"), (["t"], [{"text": "t", "source": []}], "'source'"),
            (["t"], [{"text": "t", "score": float("nan")}], "score"), ([{"op": "add", "sources": [{"turn": 1}]}], None, "source"),
            ("a text", None, "list"), (["t"], [{"text": "t", "status": "old"}], "status"),
        ]:
            adapter = self.adapter(self.scripted(events, found))
            replies = [self.ask(adapter, "ingest", session=SESSIONS[0]), self.ask(adapter, "search", query="?", k=3) if found else {}]
            errors = [reply["error"]["message"] for reply in replies if not reply.get("ok", True)]
            self.assertEqual(len(errors), 1, (events, found))
            self.assertIn(said, errors[0])

    def test_operations_that_the_class_lacks_are_not_offered_and_refused(self):
        adapter = self.adapter(self.scripted())
        self.assertEqual(adapter.said["can"], [])
        for op, fields in [("dump", {}), ("readback", {"sessions": []}), ("fingerprint", {}), ("answer", {"query": "?"}), ("save", {"folder": str(self.folder / "s")}), ("levitate", {})]:
            self.assertEqual(self.ask(adapter, op, **fields)["error"]["kind"], "unsupported", op)
        self.assertEqual(adapter.handle({"id": 2, "op": "search", "scope": "b", "query": "?", "k": 1})["error"]["kind"], "input")
        self.assertEqual(helper.Adapter(Scripted).handle({"id": 1, "op": "reset", "scope": "a"})["error"]["kind"], "input")
        self.assertEqual(adapter.handle([1])["error"]["kind"], "input")

    def test_settings_have_defaults_and_unknown_ones_are_refused(self):
        system = self.scripted(options={"batch": 0})
        self.assertEqual(self.adapter(system, config={"batch": 5}).setup.config, {"batch": 5})
        reply = helper.Adapter(system).handle({"id": 0, "op": "hello", **HELLO, "folder": str(self.folder), "config": {"bacth": 1}})
        self.assertEqual(reply["error"]["kind"], "input")
        self.assertIn("batch (0)", reply["error"]["message"])

    def test_warnings_logged_while_writing_are_events(self):
        class Chatty(Scripted):
            loggers = ("a.library",)

            def add(self, session):
                logging.getLogger("a.library.parser").error("Invalid JSON: %s", "{")
                logging.getLogger("another").error("not ours")
                return []

        adapter = self.adapter(Chatty)
        events = self.ask(adapter, "ingest", session=SESSIONS[0])["events"]
        self.assertEqual(events, [{"op": "none", "reason": "logged by a.library.parser: Invalid JSON: {"}])

    def test_the_scope_used_least_is_closed_for_another(self):
        closed = []
        system = self.scripted([], [], scopes=2, __init__=lambda self, setup: setattr(self, "scope", setup.scope), close=lambda self: closed.append(self.scope))
        adapter = self.adapter(system)
        adapter.handle({"id": 1, "op": "reset", "scope": "b"})
        self.ask(adapter, "search", query="?", k=1)
        adapter.handle({"id": 1, "op": "reset", "scope": "c"})
        self.assertEqual((closed, sorted(adapter.stores)), (["b"], ["a", "c"]))

    def test_ids_are_the_same_in_every_run_and_differ_between_sessions(self):
        system = self.scripted()
        system.add = lambda self, session: [{"op": "add", "memory": str(uuid.uuid4()), "text": "t"}]
        drawn, before = [], uuid.uuid4
        try:
            for _ in range(2):
                adapter = self.adapter(system)
                adapter.ids.install()
                drawn.append([self.ask(adapter, "ingest", session=session)["events"][0]["memory"] for session in SESSIONS])
        finally:
            uuid.uuid4 = before
        self.assertEqual(drawn[0], drawn[1])
        self.assertEqual(len(set(drawn[0])), 3)

    def test_a_digest_follows_the_source_and_further_files(self):
        file = self.folder / "mapping.json"
        digests = []
        for text in ("{}", "{ }"):
            file.write_text(text)
            digests.append(self.adapter(self.scripted(files=(file,))).said["digest"])
        self.assertNotEqual(*digests)

    def test_state_in_the_folder_is_saved_and_loaded_with_its_sources(self):
        class Filed(Scripted):
            state_in_folder = True

            def __init__(self, setup):
                self.file = setup.folder / "notes.txt"

            def add(self, session):
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(session.turns[0].content + "\n")
                return [session.turns[0].content]

            def search(self, query, k):
                return self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []

            dump = lambda self: self.search("", 0)

        adapter = self.adapter(Filed)
        state = []
        for session in SESSIONS:
            self.ask(adapter, "ingest", session=session)
            self.assertTrue(self.ask(adapter, "save", folder=str(self.folder / "saved"))["ok"])
            state.append(self.ask(adapter, "dump")["memories"])
        fingerprint = self.ask(adapter, "fingerprint")["fingerprint"]
        again = self.adapter(Filed)
        self.assertEqual(self.ask(again, "dump")["memories"], [])
        self.assertTrue(self.ask(again, "load", folder=str(self.folder / "saved"))["ok"])
        self.assertEqual(self.ask(again, "dump")["memories"], state[-1])
        self.assertEqual(self.ask(again, "fingerprint")["fingerprint"], fingerprint)
        self.assertEqual(self.ask(again, "load", folder=str(self.folder / "nowhere"))["error"]["kind"], "input")

    def test_a_save_that_is_cut_off_leaves_the_one_before(self):
        class Cut(Scripted):
            text = "first"

            def save(self, folder):
                (folder / "text").write_text(self.text)
                if self.text == "second":
                    raise OSError("no space left")

            def load(self, folder):
                self.text = (folder / "text").read_text()

            dump = lambda self: [self.text]

        adapter = self.adapter(Cut)
        self.assertTrue(self.ask(adapter, "save", folder=str(self.folder / "saved"))["ok"])
        adapter.stores["a"].text = "second"
        with open(os.devnull, "w") as nothing, Redirected(nothing):
            self.assertFalse(self.ask(adapter, "save", folder=str(self.folder / "saved"))["ok"])
        self.assertTrue(self.ask(adapter, "load", folder=str(self.folder / "saved"))["ok"])
        self.assertEqual(self.ask(adapter, "dump")["memories"][0]["text"], "first")


class Redirected:
    """stderr to a file, for tests whose traces nobody wants to read."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        self.before, sys.stderr = sys.stderr, self.file

    def __exit__(self, *_):
        sys.stderr = self.before


class TheWire(Case):
    NOISY = """
import os, subprocess, sys
sys.path.insert(0, {adapters!r})
from palimpsest_memory import serve

class Noisy:
    def add(self, session):
        print("to stdout")
        os.write(1, b"from C\\n")
        subprocess.run([sys.executable, "-c", "import sys; print('a child', sys.stdin.read())"])
        return [turn.content for turn in session.turns]

    def search(self, query, k):
        return [query, "a lone \\ud800 surrogate"]

serve(Noisy)
"""

    def test_the_protocol_has_stdout_and_stdin_to_itself(self):
        script = self.folder / "noisy.py"
        script.write_text(self.NOISY.format(adapters=str(ADAPTERS)))
        child = self.child(script)
        child.must("hello", **HELLO, folder=str(self.folder / "store"))
        child.must("reset", scope="a")
        events = child.must("ingest", scope="a", session=SESSIONS[0])["events"]
        self.assertIn("Γιώργος 🐐", events[2]["text"])
        found = child.must("search", scope="a", query="Γιώργος\n\u2028🐐", k=5, as_of=None)["memories"]
        self.assertEqual([m["text"] for m in found], ["Γιώργος\n\u2028🐐", "a lone ? surrogate"])
        self.assertEqual(json.loads(child.send("no JSON"))["error"]["kind"], "input")
        self.assertEqual(json.loads(child.send("[]"))["error"]["kind"], "input")
        child.must("close")
        self.assertEqual(child.process.wait(timeout=30), 0)

    def test_the_end_of_stdin_ends_it(self):
        child = self.child(ADAPTERS / "plain.py")
        child.process.stdin.close()
        self.assertEqual(child.process.wait(timeout=30), 0)
        child.process.stdin = open(os.devnull, "wb")

    def drive(self, command, hello, readback):
        """A history, a kill, a restart, and what was saved; returns what was found."""
        query = {"scope": "a", "query": "the goats of Ilse", "k": 20, "as_of": None}
        child = self.child(*command)
        said = child.must("hello", **hello)
        child.must("reset", scope="a")
        self.assertEqual(child.must("search", **query)["memories"], [])
        for session in SESSIONS:
            child.must("ingest", scope="a", session=session)
        child.must("finish", scope="a")
        found = child.must("search", **query)["memories"]
        self.assertTrue(found and all(m["sources"] for m in found), found)
        if readback:
            read = child.must("readback", scope="a", sessions=["session[2]"])["memories"]
            self.assertTrue(read and all(m["sources"][0]["session"] == "session[2]" for m in read), read)
        fingerprint = child.must("fingerprint", scope="a")["fingerprint"]
        child.must("save", scope="a", folder=str(self.folder / "saved"))
        child.must("reset", scope="b")
        child.must("ingest", scope="b", session=OTHER)
        self.assertNotIn("goats", json.dumps(child.must("search", **{**query, "scope": "b"})))
        self.assertEqual(child.must("search", **query)["memories"], found)
        child.kill()
        child = self.child(*command)
        self.assertEqual(child.must("hello", **hello), said | {"id": 1})
        child.must("load", scope="a", folder=str(self.folder / "saved"))
        self.assertEqual(child.must("search", **query)["memories"], found)
        self.assertEqual(child.must("fingerprint", scope="a")["fingerprint"], fingerprint)
        child.must("reset", scope="a")
        self.assertEqual(child.must("search", **query)["memories"], [])
        return found

    def test_plain_retrieval_by_words(self):
        found = self.drive([ADAPTERS / "plain.py"], {**HELLO, "folder": str(self.folder / "store")}, True)
        self.assertEqual({m["id"] for m in found}, {"session[0].0", "session[0].1", "session[0].3", "session[2].0"})
        self.assertEqual(found[0]["sources"], [{"session": "session[0]", "turns": [0]}])
        self.assertEqual(found[0]["time"], "2024-03-02T09:30:00")

    def test_words_of_plain_retrieval_are_those_of_the_program(self):
        plain = module("plain")
        vectors = json.loads((HERE.parent / "fixtures" / "words.json").read_text(encoding="utf-8"))
        self.assertGreater(len(vectors), 50)
        for vector in vectors:
            self.assertEqual(plain.words(vector["text"]), vector["words"], vector["text"])

    def test_e04_plain_retrieval_of_a_language_without_spaces(self):
        adapter = self.adapter(module("plain").Plain)
        for at, text in enumerate(["我喜欢喝咖啡。", "我上个月搬到了上海浦东。", "今天天气很好。"]):
            turns = [{"id": 0, "role": "user", "content": text}]
            session = {**SESSIONS[0], "id": f"session[{at}]", "turns": turns}
            self.assertTrue(self.ask(adapter, "ingest", session=session)["ok"])
        found = self.ask(adapter, "search", query="我搬到哪里了？", k=1, as_of=None)["memories"]
        self.assertEqual([m["id"] for m in found], ["session[1].0"])

    def test_plain_retrieval_by_vectors(self):
        server = Server().start()
        self.addCleanup(server.stop)
        hello = {**HELLO, "folder": str(self.folder / "store"), "embedder": address(server.url + "#m"), "config": {"unit": "session"}}
        found = self.drive([ADAPTERS / "plain.py"], hello, True)
        self.assertEqual(sorted(m["id"] for m in found), ["session[0]", "session[1]", "session[2]"])
        dot = sum(x * y for x, y in zip(vector("the goats of Ilse"), vector(found[0]["text"])))
        self.assertAlmostEqual(found[0]["score"], dot, places=6)
        self.assertEqual({call["key"] for call in server.calls}, {"Bearer run-1.case-0"})

    def test_the_adapter_of_the_page_keeps_the_protocol(self):
        page = (HERE.parent.parent / "docs" / "memory.md").read_text(encoding="utf-8")
        for name in ("notes.py", "palimpsest_memory.py"):
            text = page.split("```python\n")[1].split("```")[0] if name == "notes.py" else (ADAPTERS / name).read_text(encoding="utf-8")
            (self.folder / name).write_text(text, encoding="utf-8")
        child = self.child(self.folder / "notes.py")
        said = child.must("hello", **HELLO, folder=str(self.folder / "store"))
        self.assertEqual((said["name"], said["can"]), ("Notes", []))
        child.must("reset", scope="a")
        for session in SESSIONS:
            child.must("ingest", scope="a", session=session)
        found = child.must("search", scope="a", query="goats", k=1, as_of=None)["memories"]
        self.assertEqual([m["sources"] for m in found], [[{"session": "session[0]"}]])

    def test_an_embedder_that_is_busy_is_a_transient_error(self):
        server = Server(failures=1).start()
        self.addCleanup(server.stop)
        adapter = self.adapter(module("plain").Plain, embedder=address(server.url + "#m"))
        self.assertEqual(self.ask(adapter, "ingest", session=SESSIONS[0])["error"]["kind"], "transient")
        self.assertTrue(self.ask(adapter, "ingest", session=SESSIONS[1])["ok"])

    def test_an_mcp_server_by_a_mapping(self):
        mapping = self.folder / "mapping.json"
        mapping.write_text(json.dumps({**MCP, "state_in_folder": True}))
        found = self.drive([ADAPTERS / "mcp.py", mapping], {**HELLO, "folder": str(self.folder / "store")}, False)
        self.assertEqual(found[0]["sources"], [{"session": "session[2]", "turns": [0]}])

    def test_an_mcp_server_that_gives_texts(self):
        mapping = self.folder / "mapping.json"
        search = {"tool": "recall_text", "arguments": {"query": "{query}", "limit": "{k}"}, "split": "\n\n"}
        mapping.write_text(json.dumps({**MCP, "search": search, "verbatim": True, "add": {"tool": "remember", "arguments": {"text": "{content}"}}}))
        child = self.child(ADAPTERS / "mcp.py", mapping)
        child.must("hello", **HELLO, folder=str(self.folder / "store"))
        child.must("reset", scope="a")
        child.must("ingest", scope="a", session=SESSIONS[0])
        found = child.must("search", scope="a", query="goats", k=9, as_of=None)["memories"]
        self.assertEqual([(m["text"][:5], m["sources"]) for m in found], [("My na", [{"session": "session[0]", "turns": [0]}])])

    def test_mcp_servers_that_fail_are_told_by_name(self):
        mapping = self.folder / "mapping.json"
        for change, op, kind, said in [
            ({"command": ["no-such-server"]}, "reset", "fatal", "no-such-server"),
            ({"add": {"tool": "memorise"}}, "ingest", "input", "remember"),
            ({"add": {"tool": "remember", "arguments": {}}}, "ingest", "fatal", "text"),
            ({"add": {"tool": "remember", "arguments": {"text": "die"}}}, "ingest", "transient", "ended"),
        ]:
            mapping.write_text(json.dumps({**MCP, **change}))
            child = self.child(ADAPTERS / "mcp.py", mapping)
            child.must("hello", **HELLO, folder=str(self.folder / "store"))
            reply = child.ask("reset", scope="a")
            reply = reply if op == "reset" else child.ask("ingest", scope="a", session=SESSIONS[0])
            self.assertEqual(reply.get("error", {}).get("kind"), kind, reply)
            self.assertIn(said, reply["error"]["message"])

    def test_a_mapping_with_a_misspelt_key_is_refused(self):
        mapping = self.folder / "mapping.json"
        mapping.write_text(json.dumps({**MCP, "serach": {}}))
        run = subprocess.run([sys.executable, ADAPTERS / "mcp.py", mapping], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("serach", run.stderr)

    def test_paths_and_templates(self):
        mapping = module("mcp_mapping")
        value = {"a": [{"b": {"c": 1}}, {"b": {}}], "t": "x"}
        self.assertEqual(mapping.at_path(value, "a[].b.c"), [1, None])
        self.assertEqual(mapping.at_path(value, ""), value)
        self.assertEqual(mapping.at_path(value, "t.x"), None)
        given = {"k": 5, "time": None, "query": "q"}
        self.assertEqual(mapping.filled({"n": "{k}", "at": "{time}", "s": "{query} at {time}{other}"}, given), {"n": 5, "s": "q at {other}"})


if __name__ == "__main__":
    unittest.main()
