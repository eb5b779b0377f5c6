#!/usr/bin/env python3
"""Adapters of hosted services against a stand-in: `python3 tests/adapters/test_hosted.py`. A client that is not installed is left out."""

import importlib.util
import json
import logging
import os
import sys
import unittest

from test_adapters import ADAPTERS, Case, Redirected, module
from drive import SESSIONS
from hosted_stand_in import Services

from hosted import TRIES, Hosted, digest, status_of

# Adapters are named as the packages that they drive: `import memos` must not find adapters/memos.py.
sys.path.remove(str(ADAPTERS))
# MemOS's package logs into a test's folder, also when that is gone.
logging.raiseExceptions = False
FAST = {"interval": 0, "pause": 0.01, "wait": 0, "poll": 0.01, "limit": 5}


class Refused(Exception):
    def __init__(self, status_code):
        super().__init__(f"refused by {status_code}")
        self.status_code = status_code


class Service:
    """A service in this process: its tasks are done after `slow` looks; `refusals` are statuses by the first turn of a batch."""

    def __init__(self, slow=2, refusals=None):
        self.slow, self.refusals, self.batches = slow, refusals or {}, []


class Fake(Hosted):
    name, secret, packages = "fake-hosted", "FAKE_KEY", ("a-package-that-is-absent",)
    options = {**Hosted.options, **FAST, "batch": 2}

    @classmethod
    def connect(cls, key, setup):
        return cls.service

    def send(self, session, turns):
        if self.client.refusals.get(turns[0].id):
            raise Refused(self.client.refusals[turns[0].id].pop(0))
        self.client.batches.append((self.user, session.id, [turn.id for turn in turns]))
        self.pending.append(len(self.client.batches))

    def done(self, task):
        self.client.slow -= 1
        return self.client.slow < 0

    def find(self, query, k):
        return self.look()[:k]

    def look(self):
        mine = [(session, turns) for user, session, turns in self.client.batches if user == self.user]
        return [{"id": f"{session}{turns}", "text": f"{turns}", "sources": [{"session": session}]} for session, turns in mine]


class WhatTheyShare(Case):
    def hosted(self, key="a secret", **service):
        os.environ.pop("FAKE_KEY", None)
        if key:
            os.environ["FAKE_KEY"] = key
        return type("Fake", (Fake,), {"service": Service(**service)})

    def ask(self, adapter, op, **fields):
        with open(os.devnull, "w") as nothing, Redirected(nothing):
            return super().ask(adapter, op, **fields)

    def test_a_key_that_is_not_there_is_asked_for_by_its_name(self):
        with self.assertRaises(AssertionError) as refused:
            self.adapter(self.hosted(key=""))
        self.assertIn("--memory-env FAKE_KEY", str(refused.exception))
        self.assertIn("'kind': 'input'", str(refused.exception))

    def test_a_batch_is_sent_once_although_its_session_is_tried_again(self):
        system = self.hosted(refusals={0: [503, 429], 2: [500] * TRIES})
        adapter = self.adapter(system)
        self.assertEqual(self.ask(adapter, "ingest", session=SESSIONS[0])["error"]["kind"], "transient")
        self.assertEqual([turns for _, _, turns in system.service.batches], [[0, 1]])
        self.assertEqual(self.ask(adapter, "ingest", session=SESSIONS[0])["events"], [])
        self.assertEqual([turns for _, _, turns in system.service.batches], [[0, 1], [2, 3]])

    def test_a_refusal_that_will_not_pass_is_told_at_once(self):
        for status in (400, 401, 404, 422):
            system = self.hosted(refusals={0: [status, status]})
            reply = self.ask(self.adapter(system), "ingest", session=SESSIONS[0])
            self.assertEqual(reply["error"]["kind"], "fatal")
            self.assertIn(f"HTTP {status}", reply["error"]["message"])
            self.assertNotIn("a secret", json.dumps(reply))
            self.assertEqual(len(system.service.refusals[0]), 1, "it was asked once")

    def test_the_end_waits_until_all_tasks_are_done_and_tells_all_memories(self):
        adapter = self.adapter(self.hosted(slow=7))
        for session in SESSIONS:
            self.ask(adapter, "ingest", session=session)
        events = self.ask(adapter, "finish")["events"]
        self.assertEqual(adapter.stores["a"].pending, [])
        self.assertEqual([event["sources"][0]["session"] for event in events], ["session[0]", "session[0]", "session[1]", "session[2]"])
        adapter = self.adapter(self.hosted(slow=10**9), config={"limit": 0.05})
        self.ask(adapter, "ingest", session=SESSIONS[0])
        error = self.ask(adapter, "finish")["error"]
        self.assertEqual(error["kind"], "transient")
        self.assertIn("2 tasks are open", error["message"])

    def test_a_state_is_a_user_whose_memories_are_the_same(self):
        system = self.hosted()
        adapter = self.adapter(system)
        self.ask(adapter, "ingest", session=SESSIONS[0])
        self.assertTrue(self.ask(adapter, "save", folder=str(self.folder / "saved"))["ok"])
        again = self.adapter(system)
        self.assertEqual(self.ask(again, "dump")["memories"], [], "a new user")
        self.assertTrue(self.ask(again, "load", folder=str(self.folder / "saved"))["ok"])
        self.assertEqual(len(self.ask(again, "dump")["memories"]), 2)
        self.ask(adapter, "ingest", session=SESSIONS[1])
        error = self.ask(again, "load", folder=str(self.folder / "saved"))["error"]
        self.assertEqual(error["kind"], "input")
        self.assertIn("no longer those that were saved", error["message"])

    def test_statuses_are_found_wherever_a_client_keeps_them(self):
        held = type("Reply", (), {"status_code": 429, "__bool__": lambda self: False})()
        for about in ({"status_code": 429}, {"status": 429}, {"response": held}, {"debug_info": {"status_code": 429}}):
            error = Exception("no")
            error.__dict__.update(about)
            self.assertEqual(status_of(error), 429, about)
        self.assertIsNone(status_of(ConnectionError("no")))
        self.assertNotEqual(digest([{"id": "a"}]), digest([{"id": "b"}]))


# Each: the package to import, the adapter, its class, the path that takes messages, and how a request's messages are counted.
CLIENTS = {
    "mem0": ("mem0", "mem0_hosted", "Mem0Hosted", "/v3/memories/add/", [4, 2, 2]),
    "memos": ("memos", "memos_hosted", "MemOsHosted", "/add/message", [4, 2, 2]),
    "everos": ("everos_cloud", "everos_hosted", "EverOsHosted", "/api/v2/memory/add", [1] * 8),
    "zep": ("zep_cloud", "zep_hosted", "ZepHosted", "/messages", [4, 2, 2]),
}


class Clients(Case):
    def services(self, name, key="key", config=None, **does):
        """The adapter of a client that is installed, and the stand-in that it talks to; None where it is not."""
        package, file, of, path, batches = CLIENTS[name]
        if importlib.util.find_spec(package) is None:
            self.skipTest(f"{package} is not installed")
        server = Services(**does).start()
        self.addCleanup(server.stop)
        system = getattr(module(file), of)
        os.environ[system.secret] = key
        adapter = self.adapter(system, config={**FAST, "base_url": server.url, **(config or {})})
        sent = lambda: [body["messages"] for where, body in server.calls if where.endswith(path)]
        return adapter, server, sent

    def written(self, name, **more):
        adapter, server, sent = self.services(name, **more)
        for session in SESSIONS:
            self.assertEqual(self.ask(adapter, "ingest", session=session)["events"], [])
        return adapter, server, sent, self.ask(adapter, "finish")["events"]

    def test_all_is_sent_once_and_comes_back_with_its_session(self):
        for name, (*_, batches) in CLIENTS.items():
            with self.subTest(name):
                adapter, server, sent, events = self.written(name)
                self.assertEqual([len(messages) for messages in sent()], batches)
                said = [turn["content"] for session in SESSIONS for turn in session["turns"]]
                self.assertEqual([message["content"] for messages in sent() for message in messages], said)
                texts = {(event["text"], event["sources"][0]["session"]) for event in events if event["op"] == "add"}
                of = lambda word: {session for text, session in texts if word in text}
                self.assertEqual((of("Γιώργος 🐐"), of("lentil"), of("Oslo")), ({"session[0]"}, {"session[1]"}, {"session[2]"}))
                found = self.ask(adapter, "search", query="goats in Oslo", k=2, as_of=None)["memories"]
                self.assertEqual(len(found), 2)
                self.assertIn("Oslo", found[0]["text"])
                self.assertEqual(found[0]["sources"][0]["session"], "session[2]")
                dumped = self.ask(adapter, "dump")["memories"]
                self.assertEqual({m["id"] for m in dumped}, {event["memory"] for event in events})

    def test_refusals_that_pass_write_nothing_twice(self):
        for name, (*_, path, batches) in CLIENTS.items():
            with self.subTest(name):
                adapter, server, sent = self.services(name)
                server.failures = [(path, 429), (path, 503)]
                for session in SESSIONS:
                    self.assertTrue(self.ask(adapter, "ingest", session=session)["ok"])
                events = self.ask(adapter, "finish")["events"]
                texts = [event["text"] for event in events if event["op"] == "add"]
                self.assertEqual(len(texts), len(set(texts)))
                self.assertEqual(len(sent()), len(batches) + 2)

    def test_a_wrong_key_is_an_error_that_is_told(self):
        for name in CLIENTS:
            with self.subTest(name):
                try:
                    adapter, *_ = self.services(name, key="wrong")
                    reply = self.ask(adapter, "ingest", session=SESSIONS[0])
                except AssertionError as refused:
                    # mem0's client asks whether the key is right when it is made.
                    reply = {"error": {"kind": "fatal" if "'kind': 'fatal'" in str(refused) else "?", "message": str(refused)}}
                self.assertEqual(reply["error"]["kind"], "fatal", reply)
                self.assertRegex(reply["error"]["message"], "401|no such key")

    def test_times_are_those_of_the_sessions(self):
        first = 1709371800  # 2024-03-02T09:30:00 UTC
        for name in CLIENTS:
            with self.subTest(name):
                _, server, sent, _ = self.written(name)
                told = [
                    body.get("timestamp") or body["messages"][0].get("chat_time") or body["messages"][0].get("timestamp") or body["messages"][0].get("reference_time")
                    for where, body in server.calls if where.endswith(CLIENTS[name][3])
                ]
                dates = {"mem0": first, "memos": "2024-03-02T09:30:00", "everos": (first + 1) * 1000, "zep": "2024-03-02T09:30:00+00:00"}
                self.assertEqual(told[0], dates[name])
                if name == "everos":
                    # The second session has no time: an hour after the first.
                    self.assertEqual(told[4], (first + 3600 + 1) * 1000)

    def test_memos_preferences_stand_behind_its_memories(self):
        adapter, server, _, events = self.written("memos")
        self.assertEqual(len(events), 8)
        reply = self.ask(adapter, "search", query="goats", k=2, as_of=None)
        self.assertEqual([m["text"].startswith("Likes") for m in reply["memories"]], [False, False])
        self.assertEqual([part["text"].startswith("Likes") for part in reply["parts"]], [False, False, True, True])
        adapter, server, _, events = self.written("memos", config={"preferences": False})
        self.assertEqual(len(events), 4)

    def test_zep_tells_turns_stale_facts_and_its_own_context(self):
        adapter, server, _, events = self.written("zep")
        sources = {event["text"][:3]: event["sources"] for event in events}
        self.assertEqual(sources["Pim"], [{"session": "session[0]", "turns": [2]}])
        self.assertEqual({event["text"][:3] for event in events if event["op"] == "stale"}, {"My ", "Pim", "Whi"})
        reply = self.ask(adapter, "search", query="Oslo", k=5, as_of=None)
        self.assertEqual({m["text"][:3]: m["status"] for m in reply["memories"]}["I m"], "active")
        self.assertTrue(reply["parts"][0]["text"].startswith("FACTS\n"))
        # A message without its metadata is known by its thread.
        store = adapter.stores["a"]
        store.origins.clear()
        for message in server.messages[store.user]:
            message.pop("metadata")
        dumped = {m["text"][:3]: m["sources"] for m in self.ask(adapter, "dump")["memories"]}
        self.assertEqual(dumped["Pim"], [{"session": "session[0]"}])


if __name__ == "__main__":
    unittest.main()
