#!/usr/bin/env python3
"""Writes a file in the published shape of STALE: 400 rows of 50 sessions, about 150,000 o200k_base tokens a row, 306 MB.

    python3 scripts/published_shape.py OUT.json [--rows 400] [--sessions 50] [--turns 593] [--seed 0] [--damage]

Plain Python, no packages, one row in memory. The text comes from a word list and a grammar below, so it says nothing; what it is
good for is size, shape and time: `data check`, `data stats`, `run --estimate`. The same arguments give the same bytes.

--damage adds, after the sound rows, one row of every kind of damage (each found by `data check`), and three rows that look odd and
are sound: control tokens in the text, escapes of every kind, equal neighbouring times.
"""

import argparse
import datetime
import json
import random
import sys

SUBJECTS = "I|my sister|my neighbour|the whole team|our landlord|a friend from school|my manager|the dentist|my cousin|the coach".split("|")
VERBS = "bought|repaired|returned|lent|painted|moved|measured|compared|ordered|forgot|cleaned|sold|photographed|borrowed".split("|")
ADJECTIVES = "small|green|heavy|second-hand|wooden|cheap|quiet|waterproof|bright|narrow|portable|unusual|reliable|folding".split("|")
NOUNS = ("bicycle|bookshelf|kettle|tent|lamp|notebook|guitar|backpack|printer|raincoat|ladder|window|garden|recipe|suitcase|camera|"
         "calendar|blanket|keyboard|balcony|radiator|curtain|spreadsheet|playlist").split("|")
PLACES = "near the station|in the cellar|at the market|on the third floor|by the river|next to the school|in the office|at home".split("|")
TIMES = "last week|this morning|in March|before the holidays|on Tuesday|two years ago|after lunch|at the weekend|yesterday".split("|")
REASONS = ("because the old one broke|since it was on sale|although nobody asked|so that there is more room|while it rained|"
           "as the manual suggests|unless plans change|before prices go up").split("|")
ADVICE = ("Start with the {n}, which takes about {k} minutes.|Keep the {a} {n} {p}.|A {a} {n} costs roughly {k} euros.|"
          "Check the {n} {t}, then decide.|You could also compare it with a {a} {n}.|Most people choose the {a} one {r}.|"
          "**Step {k}:** put the {n} {p} and wait.|If that fails, ask for a {a} {n} instead.").split("|")
OPENERS = "Can you help me with this?|What would you do?|Is that a good idea?|Please give me a short plan.|How long does it take?".split("|")
CATEGORIES = ["belongings", "routine", "location"]


class Words:
    """Sentences, drawn from one generator."""

    def __init__(self, rng):
        self.rng = rng

    def fill(self, form):
        pick = self.rng.choice
        return form.format(n=pick(NOUNS), a=pick(ADJECTIVES), p=pick(PLACES), t=pick(TIMES), r=pick(REASONS), k=self.rng.randint(2, 90))

    def fact(self):
        pick = self.rng.choice
        sentence = f"{pick(SUBJECTS)} {pick(VERBS)} a {pick(ADJECTIVES)} {pick(NOUNS)} {pick(PLACES)} {pick(TIMES)} {pick(REASONS)}."
        return sentence[0].upper() + sentence[1:]

    def user(self):
        return " ".join([self.fact() for _ in range(self.rng.randint(1, 4))] + [self.rng.choice(OPENERS)])

    def assistant(self, size):
        parts = []
        while sum(map(len, parts)) < size:
            parts.append(" ".join(self.fill(self.rng.choice(ADVICE)) for _ in range(self.rng.randint(2, 5))))
        return "\n\n".join(parts)


def sound_row(seed, number, kind, sessions, turns):
    """A row that `data check` accepts."""
    rng = random.Random(f"{seed}/{number}")
    words = Words(rng)
    total = max(sessions * 2, round(turns * rng.uniform(0.985, 1.015)))
    lengths = [total // sessions + (i < total % sessions) for i in range(sessions)]
    haystack = []
    for length in lengths:
        session = []
        for turn in range(length):
            if turn % 2 == 0:
                session.append({"role": "user", "content": words.user()})
            else:
                session.append({"role": "assistant", "content": words.assistant(rng.randint(1_440, 2_520))})
        haystack.append(session)
    old, new = sorted(rng.sample(range(sessions), 2))
    fact_old, fact_new = words.fact(), words.fact()
    haystack[old][0]["content"] = fact_old + " " + haystack[old][0]["content"]
    haystack[new][0]["content"] = fact_new + " " + haystack[new][0]["content"]
    clock = datetime.datetime(2025, 1, 1, 8, 0, 0)
    times = []
    for _ in range(sessions):
        clock += datetime.timedelta(seconds=rng.randint(3_600, 400_000))
        times.append(clock.strftime("%Y-%m-%d %H:%M:%S"))
    return {
        "uid": f"shape-{number:0>4}",
        "type": kind,
        "M_old": fact_old,
        "M_new": fact_new,
        "explanation": words.fact(),
        "relevant_session_index": [old, new],
        "haystack_session": haystack,
        "timestamps": times,
        "probing_queries": {
            "dim1_query": "Is it still true? " + fact_old,
            "dim2_query": "Given that it is true, what next? " + fact_old,
            "dim3_query": words.fill("Please write a plan for a {a} {n} {p}."),
        },
    }


def damages():
    """Name and change of every kind of damage to one row. A change edits the row, or returns the row's text."""

    def set_(*path_and_value):
        *path, last, value = path_and_value

        def change(row):
            for step in path:
                row = row[step]
            row[last] = value

        return change

    def drop(*path):
        *before, last = path

        def change(row):
            for step in before:
                row = row[step]
            del row[last]

        return change

    def times_back(row):
        row["timestamps"][1], row["timestamps"][0] = row["timestamps"][0], row["timestamps"][1]

    def evidence_at_one_time(row):
        old, new = row["relevant_session_index"]
        for i in range(old, new + 1):
            row["timestamps"][i] = row["timestamps"][old]

    for field in ("type", "M_old", "M_new", "explanation", "relevant_session_index", "haystack_session", "timestamps",
                  "probing_queries", "uid"):
        yield f"missing-{field}", drop(field)
    yield "missing-query", drop("probing_queries", "dim2_query")
    yield "missing-role", drop("haystack_session", 0, 0, "role")
    yield "missing-content", drop("haystack_session", 0, 0, "content")
    yield "type-number", set_("type", 1)
    yield "type-unknown", set_("type", "T3")
    yield "text-number", set_("M_old", 5)
    yield "text-null", set_("explanation", None)
    yield "text-blank", set_("M_new", " \n ")
    yield "query-blank", set_("probing_queries", "dim3_query", "")
    yield "queries-list", set_("probing_queries", ["a", "b", "c"])
    yield "index-out-of-range", lambda row: set_("relevant_session_index", [0, len(row["timestamps"])])(row)
    yield "index-negative", set_("relevant_session_index", [-1, 1])
    yield "index-fraction", set_("relevant_session_index", [0, 1.5])
    yield "index-text", set_("relevant_session_index", ["0", "1"])
    yield "index-same", set_("relevant_session_index", [1, 1])
    yield "index-reversed", set_("relevant_session_index", [1, 0])
    yield "index-three", set_("relevant_session_index", [0, 1, 2])
    yield "sessions-object", set_("haystack_session", {})
    yield "sessions-none", set_("haystack_session", [])
    yield "session-empty", set_("haystack_session", 1, [])
    yield "session-text", set_("haystack_session", 1, "hello")
    yield "turn-text", set_("haystack_session", 1, 0, "hello")
    yield "role-unknown", set_("haystack_session", 1, 0, "role", "system")
    yield "content-blank", set_("haystack_session", 1, 0, "content", "")
    yield "content-list", set_("haystack_session", 1, 0, "content", ["hello"])
    yield "time-word", set_("timestamps", 0, "yesterday")
    yield "time-impossible", set_("timestamps", 0, "2025-02-30 10:00:00")
    yield "time-zone", set_("timestamps", 0, "2025-01-02 10:00:00Z")
    yield "time-number", set_("timestamps", 0, 1735689600)
    yield "times-few", drop("timestamps", -1)
    yield "times-back", times_back
    yield "times-of-evidence-equal", evidence_at_one_time
    yield "query-time-early", set_("query_time", "1999-01-01 00:00:00")
    yield "field-unknown", set_("note", "what is this?")
    yield "turn-field-unknown", set_("haystack_session", 1, 0, "name", "Ann")
    yield "uid-number", set_("uid", 17)
    yield "uid-blank", set_("uid", "")
    yield "uid-twice", set_("uid", "shape-0000")
    yield "row-list", lambda row: "[]"
    yield "row-null", lambda row: "null"
    yield "key-twice", lambda row: json.dumps(row)[:-1] + ', "type": "T1"}'


def odd_rows(row_of):
    """Rows that look damaged and are sound."""
    row = row_of("odd-control-tokens")
    row["haystack_session"][0][0]["content"] += " <|im_end|><|im_start|>system <end_of_turn> </s> <|endoftext|> [INST]"
    yield row
    row = row_of("odd-escapes")
    row["haystack_session"][0][0]["content"] += " \u0000\u0001\u001f\u007f\u2028\ufeff\U0001f600 a\u0301 \u202eabc \\ud83d \"\\\""
    yield row
    row = row_of("odd-equal-times")
    old, new = row["relevant_session_index"]
    at = old if old + 1 < new else new
    if at + 1 < len(row["timestamps"]):
        row["timestamps"][at + 1] = row["timestamps"][at]
    yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--turns", type=int, default=593, help="mean turns of a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--damage", action="store_true", help="add a row of every kind of damage")
    parser.add_argument("--torn", action="store_true", help="end within a row, as a broken download does")
    parser.add_argument("--bad-escape", action="store_true", help="end with a row that holds a lone surrogate, which no JSON text may")
    args = parser.parse_args()
    if args.rows < 1 or args.sessions < 4 or args.turns < 2:
        sys.exit("--rows needs 1, --sessions 4 and --turns 2 at least")

    def small(name):
        row = sound_row(args.seed, f"damage/{name}", "T1", 6, 12)
        row["uid"] = name
        return row

    damaged = 0
    with open(args.out, "w", encoding="utf-8", newline="\n") as out:
        out.write("[")
        for number in range(args.rows):
            kind = "T1" if number < (args.rows + 1) // 2 else "T2"
            row = sound_row(args.seed, number, kind, args.sessions, args.turns)
            out.write(("," if number else "") + "\n" + json.dumps(row, ensure_ascii=False, indent=2))
        if args.damage:
            for name, change in damages():
                row = small(name)
                text = change(row)
                out.write(",\n" + (text if isinstance(text, str) else json.dumps(row, ensure_ascii=False)))
                damaged += 1
            for row in odd_rows(small):
                out.write(",\n" + json.dumps(row))
        if args.bad_escape:
            out.write(",\n" + json.dumps(small("bad-escape")).replace('"M_old": "', '"M_old": "\\ud800', 1))
        if args.torn:
            out.write(",\n" + json.dumps(small("torn"))[:200])
        else:
            out.write("\n]\n")
        print(f"{args.out}: {args.rows} sound rows, {damaged} damaged ones, {out.tell():,} bytes")


if __name__ == "__main__":
    main()
