#!/usr/bin/env python3
"""adapters/mcp.py and `embed` against servers as others write them: noise, pages, words in the place of results, refused batches. And the
servers that adapters start themselves (adapters/servers.py).

`python3 tests/adapters/test_servers.py`. The threads named beside inputs are public reports of the same fault in other programs.
"""

import json
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

from test_adapters import HERE, Case, Redirected, Scripted, module
from stand_in import Server, vector

import palimpsest_memory as helper
import servers

SAID = "I live in Oslo"
SESSION = {"id": "session[0]", "time": None, "turns": [{"id": 0, "role": "user", "content": SAID}]}
MAPPING = {
    "name": "odd",
    "command": ["{python}", str(HERE / "odd_mcp.py"), "script.json"],
    "unit": "turn",
    "seconds": 20,
    "add": {"tool": "add", "arguments": {"text": "{content}"}},
    "search": {"tool": "search", "arguments": {"query": "{query}"}, "split": "\n\n"},
}


class Mapped(Case):
    def server(self, script, mapping=None):
        """An adapter of the scripted server, whose script lies beside the mapping."""
        (self.folder / "script.json").write_text(json.dumps(script))
        file = self.folder / "mapping.json"
        merged = {key: {**MAPPING[key], **value} if key in ("add", "search") else value for key, value in (mapping or {}).items()}
        file.write_text(json.dumps({**MAPPING, **merged}))
        system = type("Mcp", (module("mcp").Mcp,), {})
        system.configure(file)
        return self.adapter(system)

    def found(self, script, mapping=None):
        """The reply to a search for a word of the one note."""
        adapter = self.server(script, mapping)
        reply = self.ask(adapter, "ingest", session=SESSION)
        return self.ask(adapter, "search", query="Oslo", k=5, as_of=None) if reply["ok"] else reply

    def quietly(self, does):
        with open(os.devnull, "w") as nothing, Redirected(nothing):
            return does()


class E02Lines(Mapped):
    def test_e02_lines_that_are_no_messages_are_passed_over(self):
        lines = [
            "100", "null", '"ready"', "true", "1.5", "NaN", "[]", "[1, 2]", "", "{", "[" * 200_000, [0xFF, 0xFE, 0], "9" * 5000,
            '{"level": "info", "msg": "ready"}', '{"id": 1}', '{"id": 4, "level": "info"}', '{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}',
            '{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "Parse error"}}',
        ]
        for line in lines:
            with self.subTest(str(line)[:60]):
                reply = self.quietly(lambda: self.found({"noise": [line]}))
                self.assertEqual([m["text"] for m in reply.get("memories", [])], [SAID], reply)
        reply = self.quietly(lambda: self.found({"noise": lines}))
        self.assertEqual([m["text"] for m in reply["memories"]], [SAID])

    def test_replies_that_are_messages_are_read_however_they_are_written(self):
        self.assertEqual(self.found({"ids": "text"})["memories"][0]["text"], SAID)
        result = {"content": [{"type": "text", "text": "a note"}]}
        self.assertEqual(self.found({"message": {"result": result, "error": None}})["memories"][0]["text"], "a note")
        for message, said in [
            ({"error": "database is locked"}, "database is locked"),
            ({"error": {"code": -32603, "message": "locked"}}, "locked"),
            ({"error": {"code": -32603}}, "None"),
            ({"result": None}, "no object"),
            ({"result": "stored"}, "no object"),
        ]:
            reply = self.found({"message": message})
            self.assertEqual(reply.get("error", {}).get("kind"), "fatal", reply)
            self.assertIn(said, reply["error"]["message"])

    def test_tools_are_listed_page_by_page(self):
        for pages in [
            [[["add"], "2"], [["search"], None]],
            [[["add"], "a"], [[], "b"], [["other"], "c"], [["search"], ""]],
            [[["other"], 1], [["add", "search"], None]],
            # DeusData/codebase-memory-mcp 1247: the cursor names the same page without end.
            [[["add", "search"], "again"]],
        ]:
            self.assertEqual(self.found({"pages": pages})["memories"][0]["text"], SAID, pages)
        reply = self.found({"pages": [[["search"], "2"], [["other"], None]]})
        self.assertEqual(reply["error"]["kind"], "input")
        self.assertIn("other, search", reply["error"]["message"])


class E03Words(Mapped):
    NOTHING = "No memories found for this query."

    def test_e03_words_that_say_that_nothing_was_found_are_no_memory(self):
        structured = lambda value: {"content": [{"type": "text", "text": self.NOTHING}], "structuredContent": value}
        for search, mapping in [
            (self.NOTHING, {"none": "No memories found"}),
            (self.NOTHING, {"none": "^No .* found"}),
            (f"\n  {self.NOTHING}\n\nTry other words.", {"none": "No memories found"}),
            ("未找到相关记忆。", {"none": "未找到"}),
            (json.dumps(self.NOTHING), {"none": "No memories"}),
            (structured({"result": self.NOTHING}), {"none": "No memories", "memories": "result"}),
            (structured({"result": self.NOTHING}), {"none": "No memories", "memories": "result.results", "text": "content"}),
            ({"structuredContent": {"result": self.NOTHING}}, {"none": "No memories", "memories": "result.results"}),
            (json.dumps([{"text": "Nothing stored yet"}]), {"none": "Nothing stored", "text": "text"}),
            # An empty result needs no pattern.
            ("", {}), (" \n", {}), ("[]", {}), ("null", {}), ('{"results": []}', {"memories": "results"}), ("{}", {"memories": "results"}), ({"content": []}, {}),
            ({"content": None}, {}),
        ]:
            with self.subTest(search=search, mapping=mapping):
                reply = self.found({"search": search}, {"search": mapping})
                self.assertEqual(reply.get("memories"), [], reply)
        self.assertEqual(self.found({"search": self.NOTHING})["memories"][0]["text"], self.NOTHING, "the mapping does not say")

    def test_memories_that_hold_such_words_stay_memories(self):
        quoted = "He read: No memories found."
        for search, texts in [
            (quoted, [quoted]),
            (f"{SAID}\n\nNo memories found, it said", [SAID, "No memories found, it said"]),
            (json.dumps([SAID, "No memories found"]), [SAID, "No memories found"]),
            ("42", ["42"]), ("true", ["true"]),
            ({"content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}, ["1", "2"]),
        ]:
            reply = self.found({"search": search}, {"search": {"none": "No memories found"}})
            self.assertEqual([m["text"] for m in reply["memories"]], texts)
        one = self.found({"search": json.dumps({"content": SAID, "id": 7})}, {"search": {"text": "content", "id": "id"}})
        self.assertEqual([(m["id"], m["text"]) for m in one["memories"]], [("7", SAID)])

    def test_e03_words_that_tell_a_failure_are_an_error(self):
        for add, failed in [
            ("Error: database is locked", "^Error"),
            ("Error: database is locked", "is locked"),
            ('{"status": "error", "reason": "no space left"}', '"status": "error"'),
            ({"structuredContent": {"status": "error"}}, '"error"'),
            ("Failed to embed: 429 Too Many Requests", "(?i)failed"),
            ("Memory was not stored.", "not stored"),
        ]:
            for verbatim in (False, True):
                adapter = self.server({"add": add}, {"add": {"failed": failed}, "verbatim": verbatim})
                error = self.ask(adapter, "ingest", session=SESSION).get("error", {})
                self.assertEqual(error.get("kind"), "fatal", add)
                self.assertIn("add: ", error["message"])
        self.assertEqual(self.found({}, {"add": {"failed": "^Error"}})["memories"][0]["text"], SAID)
        search = self.found({"search": "Error: no index"}, {"search": {"failed": "^Error", "none": "E"}})
        self.assertEqual(search["error"]["message"], "search: Error: no index")

    def test_words_in_the_place_of_a_list_are_neither_memories_nor_nothing(self):
        for search, path in [
            ("# Search failed - the index is missing", "results"),
            ({"structuredContent": {"result": "the index is missing"}}, "result.results"),
            ({"structuredContent": {"result": {"page": "the index is missing"}}}, "result.page[].text"),
        ]:
            reply = self.found({"search": search}, {"search": {"memories": path, "text": "text"}})
            self.assertEqual(reply.get("error", {}).get("kind"), "fatal", reply)
            for part in ("the index is missing", path, "`none` of search"):
                self.assertIn(part, reply["error"]["message"])

    def test_patterns_that_cannot_hold_are_refused_by_name(self):
        for mapping, said in [
            ({"search": {"none": "("}}, "search.none"), ({"add": {"failed": 3}}, "add.failed"), ({"add": {"none": "nothing"}}, "`failed`"),
            ({"finish": {"tool": "add", "none": "x"}}, "finish"),
        ]:
            with self.assertRaises(SystemExit) as refused:
                self.server({}, mapping)
            self.assertIn(said, str(refused.exception))


class UntoldParts(Case):
    def test_e10_a_part_that_does_not_say_leaves_the_whole_untold(self):
        for told, events in [([["a"], ["b"]], 2), ([["a"], None], None), ([None, ["b"]], None), ([[], []], 0), ([None, None], None), ([[], None], None), ([], 0)]:
            left = list(told)
            system = type("Turns", (Scripted,), {"unit": "turn", "add": lambda self, session: left.pop(0)})
            turns = [{"id": at, "role": "user", "content": str(at)} for at in range(len(told))]
            reply = self.ask(self.adapter(system), "ingest", session={**SESSION, "turns": turns})
            self.assertEqual(reply["events"] if events is None else len(reply["events"]), events, told)


class E14Batches(Case):
    TEXTS = [f"text number {at}" for at in range(11)]
    # Refusals as endpoints word them.
    REFUSALS = [
        (400, "batch size is invalid, it should not be larger than 10.: input.contents"),
        (413, "input batch size 83 > maximum allowed batch size 64"),  # apecloud/ApeRAG 716, OpenSPG/KAG 232
        (413, "Request Entity Too Large"),
        (422, "batch size 64 > maximum allowed batch size 32"),
        (400, "'$.input' is invalid. Array is too long."),
        (400, "The max allowed tokens per submitted batch is 120000. Your batch has 121138 tokens after truncation."),  # sigoden/aichat 825
        (400, "Unable to submit request because it included too many instances."),  # topoteretes/cognee 4856
        (400, "2048 instance(s) is allowed per prediction. Actual: 4777"),
        (400, "invalid request: total number of texts must be at most 96 - received 97"),
        (400, "Requested 320000 tokens, max 300000 tokens per request"),
    ]

    def embedder(self, **does):
        server = Server(**does).start()
        self.addCleanup(server.stop)
        return server, helper.Address(server.url, "key", "m")

    def test_e14_a_batch_that_is_refused_is_sent_in_halves_from_then_on(self):
        for refusal in self.REFUSALS:
            server, address = self.embedder(at_most=10, refusal=refusal)
            self.assertEqual(helper.embed(address, self.TEXTS), [vector(text) for text in self.TEXTS], refusal)
            self.assertEqual(len(helper.embed(address, self.TEXTS[:7])), 7)
            self.assertEqual([call["texts"] for call in server.calls], [11, 5, 5, 1, 5, 2], refusal)

    def test_an_embedder_that_takes_one_text_or_sixty_four_is_sent_as_many(self):
        server, address = self.embedder(at_most=1, refusal=self.REFUSALS[0])
        self.assertEqual(helper.embed(address, self.TEXTS[:4]), [vector(text) for text in self.TEXTS[:4]])
        self.assertEqual([call["texts"] for call in server.calls], [4, 2, 1, 1, 1, 1])
        server, address = self.embedder()
        self.assertEqual(len(helper.embed(address, self.TEXTS * 6)), 66)
        self.assertEqual([call["texts"] for call in server.calls], [64, 2])
        self.assertEqual(helper.embed(address, []), [])

    def test_other_refusals_are_errors_at_once(self):
        for status, said in [(400, "there is no model m"), (401, "batch"), (404, "no batch here"), (422, "input must be text")]:
            server, address = self.embedder(at_most=10, refusal=(status, said))
            with self.assertRaises(helper.Failure) as refused:
                helper.embed(address, self.TEXTS)
            self.assertEqual((helper.kind_of(refused.exception), len(server.calls)), ("fatal", 1))
            self.assertIn(said, str(refused.exception))
        server, address = self.embedder(at_most=0, refusal=(400, "this text is too long"))
        with self.assertRaises(helper.Failure):
            helper.embed(address, self.TEXTS[:2])
        self.assertEqual([call["texts"] for call in server.calls], [2, 1], "one text has no halves")

    def test_fewer_vectors_than_texts_are_an_error(self):
        _, address = self.embedder(at_most=10)
        with self.assertRaises(helper.Failure) as refused:
            helper.embed(address, self.TEXTS)
        self.assertIn("10 vectors of 11 texts", str(refused.exception))


def alive(pid):
    """Is there this process, and is it no zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z" if os.path.isdir("/proc") else os.kill(pid, 0) is None
    except OSError:
        return False


class ServersOfAdapters(Case):
    def test_a_server_that_answers_is_held_and_one_that_ends_is_an_error(self):
        port = servers.free_port()
        ready = lambda: servers.ask_json(f"http://127.0.0.1:{port}/v1/models")
        started = servers.Server([sys.executable, HERE / "stand_in.py", "--port", port], ready)
        self.assertIsNone(started.process.poll())
        started.close()
        self.assertIsNotNone(started.process.poll())
        with self.assertRaises(helper.Failure) as refused:
            servers.Server([sys.executable, "-c", "raise SystemExit(3)"], ready)
        self.assertIn("did not start: 3", str(refused.exception))

    def test_a_server_ends_with_an_adapter_that_is_killed(self):
        holds = "import servers, sys; print(servers.Server([sys.executable, '-c', 'import time; time.sleep(300)'], lambda: None).process.pid, flush=True); input()"
        environment = {**os.environ, "PYTHONPATH": os.path.dirname(servers.__file__)}
        adapter = subprocess.Popen([sys.executable, "-c", holds], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pid = int(adapter.stdout.readline())
        self.assertIsNone(os.kill(pid, 0))
        adapter.kill(), adapter.communicate()
        until = time.monotonic() + 30
        while alive(pid) and time.monotonic() < until:
            time.sleep(0.05)
        self.assertFalse(alive(pid))

    def test_refusals_are_errors_of_their_kinds_with_what_was_said(self):
        for status, kind in [(422, "fatal"), (429, "transient")]:
            server = Server(at_most=0, refusal=(status, "come again")).start()
            self.addCleanup(server.stop)
            with self.assertRaises(helper.Failure) as refused:
                servers.ask_json(server.url + "/embeddings", {"model": "e", "input": ["goats"]})
            self.assertEqual(refused.exception.kind, kind)
            self.assertIn("come again", str(refused.exception))

    def test_a_child_counts_four_bytes_as_a_token(self):
        (self.folder / "tiktoken.py").write_text("get_encoding = encoding_for_model = None\n")
        path = os.pathsep.join([servers.path_of_quarters(self.folder), str(self.folder)])
        counts = "import tiktoken; e = tiktoken.get_encoding('x'); print(len(e.encode('Γιώργος')), e.decode(e.encode('Γιώργος')) == 'Γιώργος')"
        environment = {**{key: value for key, value in os.environ.items() if key != "TIKTOKEN_CACHE_DIR"}, "PYTHONPATH": path, "PYTHONUTF8": "1"}
        told = subprocess.run([sys.executable, "-c", counts], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(told.stdout, "4 True\n")


if __name__ == "__main__":
    unittest.main()
