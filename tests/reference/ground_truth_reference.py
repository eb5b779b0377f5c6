#!/usr/bin/env python3
"""Agreement of scores with exact effects, by SciPy and scikit-learn, as `palimpsest ground-truth` has to tell it.

    python3 -m venv venv && venv/bin/pip install scipy==1.17.1 scikit-learn==1.9.1
    venv/bin/python tests/reference/ground_truth_reference.py make tests/fixtures/ground-truth
    venv/bin/python tests/reference/ground_truth_reference.py check OUT              # a folder of `ground-truth RUN --out OUT`
    venv/bin/python tests/reference/ground_truth_reference.py check OUT --run RUN    # effects from RUN/causes.jsonl, not from OUT

`make` draws effects and scores, with ties, equal scores and missing sessions, and writes them with what follows from them. `check` reads
effects.jsonl and scores.jsonl of OUT, computes every measure anew, and compares it with OUT/ground-truth.csv (of a table without --by)
within 1e-9. Intervals are those of statistics_reference.py and not computed here. For developers; never needed to use the tool.
"""

import argparse
import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import stats
from sklearn.metrics import average_precision_score

MEASURES = ["spearman", "lds", "map", "top_drop", "found"]
TOP = 3
LENGTHS = [(8192, "below 8K"), (32768, "8K to 32K"), (131072, "32K to 128K"), (float("inf"), "128K and more")]
DISTANCES = [(1024, "below 1K"), (8192, "1K to 8K"), (32768, "8K to 32K"), (float("inf"), "32K and more")]


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]


def key(row):
    return row["case"], row["probe"], row.get("condition", "")


def spearman(a, b):
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(stats.spearmanr(a, b).statistic)


def decisive(answer):
    """The largest effect above 0 and above its control."""
    beats = [(s["effect"], -at) for at, s in enumerate(answer["sessions"]) if s["effect"] > max(s.get("control") or 0.0, 0.0)]
    return -max(beats)[1] if beats else None


def top_drop(scores, effects):
    """Expected over orders of ties: each score's sessions share the places from `above` to `above + equal`."""
    total = 0.0
    for score, effect in zip(scores, effects):
        above, equal = np.sum(scores > score), np.sum(scores == score)
        total += effect * min(max(TOP - above, 0), equal) / equal
    return float(total)


def measures(answer, scores, fitted=None):
    effects = np.array([s["effect"] for s in answer["sessions"]])
    low, high = np.quantile(effects, [0.25, 0.75])
    outliers = effects > high + 1.5 * (high - low)
    first = decisive(answer)
    spans = [s["span"] for s in answer["sessions"]]
    ablation, seed, number = fitted or (None, None, 0)
    unseen = [s for s in answer.get("subsets", []) if (s["ablation"], s["seed"]) != (ablation, seed) or s["subset"] >= number]
    held = np.array([[span in subset["sessions"] for span in spans] for subset in unseen])
    logits = [subset["logit"] for subset in unseen]
    return [
        spearman(scores, effects),
        spearman(held @ scores, logits) if len(logits) else None,
        float(average_precision_score(outliers, scores)) if outliers.any() else None,
        top_drop(scores, effects),
        None if first is None else float(scores[first] == scores.max()) / int(np.sum(scores == scores.max())),
    ]


def within(bins, tokens):
    return next(name for end, name in bins if tokens < end)


def group(answer, by):
    end = max(s["tokens"][1] for s in answer["sessions"])
    if by is None:
        return ""
    if by == "length":
        return within(LENGTHS, end)
    first = decisive(answer)
    if first is None:
        return "no decisive session"
    session = answer["sessions"][first]
    return session.get("role") or "others" if by == "role" else within(DISTANCES, end - session["tokens"][1])


def agreement(effects, scored, by=None):
    """Rows by run, group and method: counts, and each measure's mean over units."""
    rows = defaultdict(lambda: [0, 0, [0] * len(MEASURES), [defaultdict(list) for _ in MEASURES]])
    index = {(row.get("run"), *key(row), row["method"]): (row["scores"], row.get("fitted")) for row in scored}
    methods = ["exact", *dict.fromkeys(row["method"] for row in scored), "chance"]
    for answer in effects:
        own = {s["span"]: s["effect"] for s in answer["sessions"]}
        for method in methods:
            row = rows[answer["run"], group(answer, by), method]
            given, fitted = {"exact": own, "chance": dict.fromkeys(own, 0.0)}.get(method), None
            if given is None:
                named, any_run = (answer["run"], *key(answer), method), (None, *key(answer), method)
                given, fitted = index.get(named, index.get(any_run, ({}, None)))
            if any(span not in given for span in own):
                row[1] += 1
                continue
            row[0] += 1
            for at, value in enumerate(measures(answer, np.array([given[span] for span in own]), fitted)):
                if value is None:
                    row[2][at] += 1
                else:
                    row[3][at][answer["unit"]].append(value)
    for (run, part, method), (answers, left_out, undefined, units) in rows.items():
        for at, measure in enumerate(MEASURES):
            means = [np.mean(values) for values in units[at].values()]
            yield {
                "run": run, "group": part, "method": method, "measure": measure, "answers": answers, "left_out": left_out,
                "undefined": undefined[at], "n": len(means), "value": float(np.mean(means)) if means else None,
            }


def of_run(folder, name):
    """Exact effects and controls from the rows of `palimpsest causes` at all layers."""
    rows = [row for row in lines(folder / "causes.jsonl") if "layers" not in row]
    own = [row for row in rows if "kind" not in row]
    seed = own[-1]["seed"]
    own = [row for row in own if row["seed"] == seed]
    pools, found = defaultdict(list), {}
    for row in rows:
        if row.get("kind") == "control" and row["seed"] == seed:
            pools[key(row)].append((row["tokens"], row["effect"]["log_p_drop"]))
    for row in own:
        (start, end), apart = row["tokens"], []
        for (low, high), effect in pools[key(row)]:
            if high <= start or low >= end:
                apart.append((abs(np.log(high - low) - np.log(end - start)), effect))
        nearest = [effect for _, effect in sorted(apart, key=lambda one: one[0])[:5]]
        answer = found.setdefault(key(row), {"run": name, "case": row["case"], "probe": row["probe"], "unit": row["case"], "sessions": []})
        answer["condition"] = row.get("condition", "")
        answer["sessions"].append({
            "span": row["span"], "role": row.get("role"), "tokens": row["tokens"], "effect": row["effect"]["log_p_drop"],
            "control": float(np.median(nearest)) if nearest else None,
        })
    return found


def check(out, run):
    effects, scored = lines(out / "effects.jsonl"), lines(out / "scores.jsonl")
    if run is not None:
        own = of_run(run, effects[0]["run"])
        for answer in effects:
            answer["sessions"] = own[key(answer)]["sessions"]
    expected = {(r["run"], r["group"], r["method"], r["measure"]): r for r in agreement(effects, scored)}
    wrong, compared = 0, 0
    for row in csv.DictReader((out / "ground-truth.csv").open()):
        other = expected[row["run"], row["group"], row["method"], row["measure"]]
        value = float(row["value"]) if row["value"] else None
        counts = all(int(row[name]) == other[name] for name in ("answers", "left_out", "undefined", "n"))
        near = value == other["value"] or None not in (value, other["value"]) and abs(value - other["value"]) < 1e-9
        compared += 1
        if not (counts and near):
            wrong += 1
            print(f"{row}\n  here {other}")
    print(f"{compared} numbers compared, {wrong} differ")
    return wrong > 0


def make(folder):
    rng = np.random.default_rng(52)
    effects, scored = [], []
    for at in range(8):
        for probe in ["A", "B"]:
            answer = {"run": "drawn", "model": "none", "data": "drawn", "effects": "hidden", "case": f"case-{at}", "probe": probe, "unit": f"case-{at}"}
            n, place, sessions = 6 + at % 3, 10, []
            scale = 0.0 if (at, probe) == (7, "B") else 0.1
            for nth in range(n):
                length = int(rng.integers(100, 400)) * (1, 9, 60, 1)[at % 4]
                effect = round(float(rng.normal(0, scale)), 6)
                if scale and nth == (at * 2 + len(probe)) % n and at != 5:
                    effect += 1.5
                if scale and at == 5:
                    effect = -abs(effect)
                session = {"span": f"session[{nth}]", "tokens": [place, place + length], "effect": effect}
                if nth in (1, n - 2):
                    session["role"] = "old" if nth == 1 else "new"
                if at % 2 == 0:
                    session["control"] = round(float(rng.normal(0, 0.05)), 6)
                sessions.append(session)
                place += length
            answer["sessions"] = sessions
            own = np.array([s["effect"] for s in sessions])
            if at < 6:
                answer["subsets"] = []
                for nth in range(12):
                    held = rng.integers(0, 2, n) == 1
                    logit = round(float(own[held].sum() + rng.normal(0, 0.2)), 6)
                    answer["subsets"].append({
                        "ablation": "blocked", "seed": 0, "subset": nth, "sessions": [s["span"] for s, is_in in zip(sessions, held) if is_in],
                        "logit": logit,
                    })
            effects.append(answer)
            methods = {
                "near": own + rng.normal(0, 0.1, n), "far": rng.normal(0, 1, n), "coarse": np.round(own * 2) / 2, "equal": np.ones(n),
                "zeros": np.where(rng.integers(0, 2, n) == 1, 0.0, -0.0),
            }
            for method, values in methods.items():
                scores = {s["span"]: round(float(value), 4) for s, value in zip(sessions, values)}
                if (method, at, probe) == ("far", 2, "A"):
                    del scores["session[3]"]
                if (method, at) == ("near", 3):
                    continue
                line = {"case": answer["case"], "probe": probe, "method": method, "scores": scores}
                more = {"near": {"readings": 2}, "coarse": {"fitted": ["blocked", 0, 5]}}
                scored.append({**line, **more.get(method, {})})
    folder.mkdir(parents=True, exist_ok=True)
    write = lambda name, rows: (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write("effects.jsonl", effects)
    write("scores.jsonl", scored)
    write("expected.jsonl", [{"by": by, **row} for by in (None, "role", "distance", "length") for row in agreement(effects, scored, by)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "check"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", type=Path)
    args = parser.parse_args()
    sys.exit(make(args.folder) if args.what == "make" else check(args.folder, args.run))


if __name__ == "__main__":
    main()
