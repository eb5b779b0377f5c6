#!/usr/bin/env python3
"""MemOS's cloud, by the client in its package: SubtleMemory's row of MemOS.

  python3 -m venv memos && memos/bin/pip install MemoryOS==2.0.33
  --memory memos='memos/bin/python adapters/memos_hosted.py' --memory-env MEMOS_API_KEY

Package: MemoryOS 2.0.33 (Apache-2.0), Python 3.11. Untried on the service. hosted.py has the settings and what holds for every hosted service.
Settings, with SubtleMemory's public ones as defaults
  batch        10: messages in one `add`
  interval     0.1
  wait         180
  preferences  true: preferences are asked for beside memories, k of each

What is known to differ, and to matter:
- k counts memories. Preferences follow where fewer than k were found, and all of them stand in `parts`, after the memories.
- Sources are the conversation of a memory, which is the session: exact to the session.
- The time of a session is the `chat_time` of its messages.
- The client tries a request three times at once before this adapter does, also an `add`, and gives up after 30 s.
- It is not said how many memories a search can give; public users of the service speak of 25.
"""

import os

from hosted import Hosted
from palimpsest_memory import Failure, serve, text_id

# Memories in a page of the list; the service refuses more.
PAGE = 50


class MemOsHosted(Hosted):
    """A user of MemOS's cloud."""

    name, secret, packages = "memos-hosted", "MEMOS_API_KEY", ("MemoryOS",)
    options = {**Hosted.options, "batch": 10, "interval": 0.1, "wait": 180, "preferences": True}

    @classmethod
    def connect(cls, key, setup):
        # Read when it is imported: its files of logs go there.
        os.environ["MEMOS_BASE_PATH"] = str(setup.folder)
        from memos.api.client import MemOSClient

        return MemOSClient(api_key=key, base_url=setup.config["base_url"] or None)

    def told(self, reply):
        """The data of a reply, which tells failures by its code."""
        if reply.code != 0:
            raise Failure(f"memos-hosted: {reply.code}: {reply.message}")
        return reply.data

    def send(self, session, turns):
        dated = {"chat_time": session.time} if session.time else {}
        messages = [{"role": turn.role, "content": turn.content, **dated} for turn in turns]
        self.pending.append(self.told(self.client.add_message(messages, user_id=self.user, conversation_id=session.id)).task_id)

    def done(self, task):
        status = self.told(self.client.get_task_status(task)).status
        if status in ("failed", "cancelled"):
            raise Failure(f"memos-hosted: the task {task} is {status}")
        return status == "completed"

    def rows(self, data):
        """Memories of a reply, then its preferences. Both are as the service sends them: the client's types name no field."""
        rows = []
        for items, field in ((data.memory_detail_list, "memory_value"), (data.preference_detail_list, "preference")):
            for item in (each.model_dump() for each in items or []):
                session = item.get("conversation_id")
                row = {"id": item.get("id") or text_id(item[field]), "text": item[field], "score": item.get("relativity")}
                row["status"] = "active" if item.get("status") in (None, "activated") else "stale"
                row["sources"] = [{"session": session}] if session in self.sessions else None
                rows.append({**row, "time": self.sessions.get(session, {}).get("time")})
        return rows

    def find(self, query, k):
        wanted = {"include_preference": self.config["preferences"], "preference_limit_number": k}
        rows = self.rows(self.told(self.client.search_memory(query, user_id=self.user, memory_limit_number=k, **wanted)))
        return {"memories": rows[:k], "parts": [{"text": f"{row['text']}\n", "memory": row["id"]} for row in rows]}

    def look(self):
        rows, page, asked = [], 1, {"include_preference": self.config["preferences"], "include_tool_memory": False, "size": PAGE}
        while True:
            data = self.told(self.client.get_memory(user_id=self.user, page=page, **asked))
            got = self.rows(data)
            rows += got
            if not got or page >= (data.pages or (page + 1 if len(got) >= PAGE else page)):
                return rows
            page += 1


if __name__ == "__main__":
    serve(MemOsHosted)
