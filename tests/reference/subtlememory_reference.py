#!/usr/bin/env python3
"""Reference values for the tables of SubtleMemory, computed by established libraries on made-up outcomes.

    python3 -m venv venv && venv/bin/pip install numpy==2.4.6 scipy==1.17.1 statsmodels==0.15.0
    venv/bin/python tests/reference/subtlememory_reference.py > tests/fixtures/subtlememory.json

For developers; never needed to use the tool.
"""

import json
import platform

import numpy as np
import scipy
import statsmodels
from scipy.stats import binomtest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.multitest import multipletests

KINDS = [  # relation, subtype, questions
    ("complementary", "multi_evidence", 42), ("complementary", "any_one", 30), ("nuanced", "temporal", 80),
    ("nuanced", "contextual", 77), ("contradictory", "contradictory", 76),
]
RELATIONS = ["complementary", "nuanced", "contradictory"]
# How often each setting is right, by kind.
RATES = {
    "model-a": {"oracle": [.8, .87, .95, .94, .69], "perfect": [.75, .83, .89, .91, .52], "default": [.61, .61, .81, .86, .46], "full": [.55, .6, .7, .72, .3]},
    "model-b": {"oracle": [.82, .79, .91, .89, .42], "perfect": [.8, .7, .85, .8, .3], "default": [.58, .59, .8, .79, .41], "full": [.6, .5, .82, .8, .4]},
}


def main():
    rng = np.random.default_rng(20260605)
    questions = [(f"set-{kind}-{i}-q1", relation, kind) for relation, kind, n in KINDS for i in range(n)]
    sizes = [n for _, _, n in KINDS]
    relation_of = np.array([relation for _, relation, _ in questions])
    kind_of = np.array([kind for _, _, kind in questions])
    right, models, tests = {}, {}, []
    for model, settings in RATES.items():
        # A question that is hard in one setting is harder in the others.
        hardness = rng.normal(size=len(questions))
        for setting, rates in settings.items():
            rate = np.repeat(rates, sizes)
            cut = np.sqrt(2) * scipy.stats.norm.ppf(rate)
            right[model, setting] = hardness + rng.normal(size=len(questions)) < cut
    for model in RATES:
        of = {setting: right[model, setting] for setting in RATES[model]}
        accuracy = {}
        for setting, flags in of.items():
            columns = [flags] + [flags[relation_of == r] for r in RELATIONS] + [flags[kind_of == k] for _, k, _ in KINDS[:4]]
            names = ["all"] + RELATIONS + [k for _, k, _ in KINDS[:4]]
            accuracy[setting] = {name: [int(c.sum()), len(c), 100 * float(c.mean())] for name, c in zip(names, columns)}
        stages = {}
        for name, mask in [("all", np.ones(len(questions), bool))] + [(r, relation_of == r) for r in RELATIONS]:
            o = of["oracle"] & mask
            p = o & of["perfect"]
            for system in ("default", "full"):
                d = p & of[system]
                stages.setdefault(system, {})[name] = {
                    "counts": [int(mask.sum()), int(o.sum()), int(p.sum()), int(d.sum()), int((of[system] & mask).sum())],
                    "preserve": float(p.sum() / o.sum()), "retrieve": float(d.sum() / p.sum()),
                }
        best = "default"  # the best memory system, of which there is one; a full history is none
        b = int((of["oracle"] & ~of[best]).sum())
        c = int((of[best] & ~of["oracle"]).sum())
        table = [[int((of["oracle"] & of[best]).sum()), b], [c, int((~of["oracle"] & ~of[best]).sum())]]
        p = float(mcnemar(table, exact=True).pvalue)
        assert abs(p - binomtest(min(b, c), b + c, 0.5).pvalue) < 1e-12
        # A stratified percentile bootstrap of accuracy and of the paired difference, by drawing counts.
        draws = 400_000
        total, difference = np.zeros(draws), np.zeros(draws)
        for relation in RELATIONS:
            mask = relation_of == relation
            n = int(mask.sum())
            total += rng.binomial(n, of["oracle"][mask].mean(), size=draws)
            pairs = [(of["oracle"] & ~of[best])[mask].mean(), (of[best] & ~of["oracle"])[mask].mean()]
            drawn = rng.multinomial(n, [*pairs, 1 - sum(pairs)], size=draws)
            difference += drawn[:, 0] - drawn[:, 1]
        n = len(questions)
        tests.append({
            "model": model, "best": best, "b": b, "c": c, "p": p, "difference": (b - c) / n,
            "difference_interval": np.quantile(difference / n, [.025, .975]).tolist(),
            "oracle_interval": np.quantile(total / n, [.025, .975]).tolist(),
        })
        models[model] = {"accuracy": accuracy, "stages": stages}
    adjusted = multipletests([test["p"] for test in tests], method="holm")[1]
    for test, p in zip(tests, adjusted):
        test["holm"] = float(p)
    labelled = rng.integers(0, 3, size=90)
    said = np.where(rng.random(90) < .7, labelled, rng.integers(0, 3, size=90))
    counts = np.zeros((3, 3), int)
    np.add.at(counts, (labelled, said), 1)
    print(json.dumps({
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__, "statsmodels": statsmodels.__version__},
        "questions": questions,
        "right": {f"{model} {setting}": "".join("1" if r else "0" for r in flags) for (model, setting), flags in right.items()},
        "models": models, "tests": tests,
        "relations": {"table": counts.tolist(), "kappa": float(cohens_kappa(counts).kappa)},
    }, indent=None, separators=(",", ":")))


if __name__ == "__main__":
    main()
