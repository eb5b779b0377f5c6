#!/usr/bin/env python3
"""Reference values for the statistics of palimpsest, computed by established libraries.

    python3 -m venv venv && venv/bin/pip install scipy==1.17.1 statsmodels==0.15.0 scikit-learn==1.9.1
    venv/bin/python tests/reference/statistics_reference.py > tests/fixtures/statistics.json

For developers; never needed to use the tool.
"""

import json
import platform

import numpy as np
import scipy
import sklearn
import statsmodels
from scipy import stats
from sklearn.linear_model import Lasso, Ridge
from sklearn.metrics import cohen_kappa_score, f1_score, precision_score, recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from statsmodels.stats.contingency_tables import mcnemar as mcnemar_test
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import DescrStatsW

WILSON = [(0, 1), (1, 1), (0, 20), (20, 20), (3, 20), (1, 200), (71, 200), (184, 200), (110, 1200), (599, 1200)]
QUANTILES = [0.0, 0.025, 0.1, 0.5, 0.777, 0.975, 1.0]
COUNTS = [(99, 2, 8, 131), (51, 1, 0, 28), (13, 1, 1, 65), (35, 0, 7, 38), (1, 9, 30, 2), (5, 5, 5, 5)]
DISCORDANT = [(0, 0), (1, 9), (9, 1), (0, 5), (10, 2), (5, 5), (1, 0), (12, 13), (3, 40), (215, 0), (300, 450), (900, 871)]
FAMILIES = [
    [0.01, 0.04], [0.03, 0.04], [0.5], [0.04, 0.01, 0.03, 0.04, 0.2, 0.001], [0.9, 0.8, 0.7], [0.02, 0.02, 0.02], [],
]
RATED = [
    [[99, 8], [2, 131]],
    [[20, 5], [10, 15]],
    [[11, 3, 1], [2, 9, 4], [0, 3, 17]],
    [[30, 4, 1, 0, 0, 0], [3, 22, 5, 1, 0, 0], [0, 6, 18, 4, 1, 0], [1, 0, 5, 20, 6, 1], [0, 0, 2, 5, 25, 7], [0, 0, 0, 1, 4, 40]],
]
NUMBERS = [[10, 5, 0, 0, 0], [30, 35, 40, 50, 50], [0.1, 0.1], [41.0], [1e6 + 1, 1e6 + 2, 1e6 + 4]]


def wilson():
    for successes, trials in WILSON:
        for level in (0.90, 0.95):
            low, high = proportion_confint(successes, trials, alpha=1 - level, method="wilson")
            yield {"successes": successes, "trials": trials, "level": level, "low": low, "high": high}


def quantiles(rng):
    values = sorted(rng.normal(size=23).round(6).tolist())
    return {"sorted": values, "q": QUANTILES, "expected": np.quantile(values, QUANTILES).tolist()}


def reach(error, freedom):
    return stats.t.ppf(0.975, freedom) * error * np.sqrt(1 + 4 * error**2)


def ends(low, high):
    return {"low": np.asarray(low).tolist(), "high": np.asarray(high).tolist()}


def masses(rng):
    values = np.exp(rng.normal(size=(40, 5)) + np.arange(5) / 3).round(6)
    mean = values.mean(axis=0)
    factor = np.exp(reach(stats.sem(values, axis=0) / mean, len(values) - 1))
    return {"values": values.tolist(), **ends(mean / factor, mean * factor)}


def signed(rng):
    values = (rng.gamma(2, size=(12, 4)) * [1, -1, 1, -1] + [0, 0.5, -3, 1]).round(6)
    mean, error, n = values.mean(axis=0), stats.sem(values, axis=0), len(values)
    plain = stats.t.ppf(0.975, n - 1) * error
    skewness = stats.skew(values, axis=0, bias=False)
    relative = np.abs(skewness) / 3
    long = values.std(axis=0, ddof=1) / relative * np.expm1(reach(relative / np.sqrt(n), n - 1))
    right = skewness > 0
    return {"values": values.tolist(), **ends(mean - np.where(right, plain, long), mean + np.where(right, long, plain))}


def ratio(rng):
    old = np.exp(rng.normal(size=(40, 5))).round(6)
    new = (old * np.exp(rng.normal(size=(40, 5)) / 2 + np.arange(5) / 3)).round(6)
    value = new.mean(axis=0) / old.mean(axis=0)
    factor = np.exp(reach(stats.sem(new / new.mean(axis=0) - old / old.mean(axis=0), axis=0), len(old) - 1))
    return {"numerator": new.tolist(), "denominator": old.tolist(), **ends(value / factor, value * factor)}


def adjusted(rng):
    for units, bounds in [
        ([1, 1, 1, 1], (0, 1)), ([0, 0], (0, 1)), ([0, 0.5, 1, 1, 0.25, 0.75], (0, 1)), ([0] * 20, (-1, 1)),
        ([1] * 12 + [-1] * 2 + [0] * 36, (-1, 1)), (rng.uniform(-1, 1, size=9).round(4).tolist(), (-1, 1)),
    ]:
        low, high = DescrStatsW(np.array([*units, *bounds])).tconfint_mean(0.05)
        yield {
            "units": [float(x) for x in units], "lowest": bounds[0], "highest": bounds[1],
            "low": max(low, bounds[0]), "high": min(high, bounds[1]),
        }


def agreement():
    for tp, fp, fn, tn in COUNTS:
        reference = [1] * tp + [0] * fp + [1] * fn + [0] * tn
        other = [1] * tp + [1] * fp + [0] * fn + [0] * tn
        yield {
            "counts": [tp, fp, fn, tn],
            "kappa": cohen_kappa_score(reference, other),
            "precision": precision_score(reference, other),
            "recall": recall_score(reference, other),
            "f1": f1_score(reference, other),
        }


def mcnemar():
    for b, c in DISCORDANT:
        # statsmodels wants at least one discordant pair.
        p = mcnemar_test([[3, b], [c, 7]], exact=True).pvalue if b + c else 1.0
        yield {"b": b, "c": c, "p": min(1.0, p), "binomtest": stats.binomtest(b, b + c).pvalue if b + c else 1.0}


def holm():
    for p in FAMILIES:
        yield {"p": p, "adjusted": multipletests(p, method="holm")[1].tolist() if p else []}


def kappa():
    for table in RATED:
        first = [i for i, row in enumerate(table) for count in row for _ in range(count)]
        second = [j for row in table for j, count in enumerate(row) for _ in range(count)]
        quadratic = cohens_kappa(np.array(table), wt="quadratic", return_results=True).kappa
        assert abs(quadratic - cohen_kappa_score(first, second, weights="quadratic")) < 1e-12
        yield {"table": table, "plain": cohens_kappa(np.array(table)).kappa, "quadratic": quadratic}


def spread():
    for numbers in NUMBERS:
        sd = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
        yield {"numbers": numbers, "mean": float(np.mean(numbers)), "sd": sd}


def spearman(rng):
    drawn = rng.normal(size=(2, 30)).round(3)
    for first, second in [
        (drawn[0], drawn[1]), (drawn[0], drawn[0] ** 3), (drawn[0].round(), (drawn[0] + drawn[1]).round()),
        (np.array([1.0, 2.0, 3.0]), np.array([3.0, 3.0, 1.0])),
    ]:
        result = stats.spearmanr(first, second)
        yield {"first": first.tolist(), "second": second.tolist(), "rho": float(result.statistic)}


def ridge(rng):
    for things, features in [(40, 6), (8, 20)]:
        x = (rng.normal(size=(things, features)) + 2).round(4)
        y = (x[:, 0] - 2 * x[:, 1] + rng.normal(size=things)).round(4)
        for penalty in (0.1, 10.0):
            fitted = Ridge(alpha=penalty, solver="svd").fit(x, y)
            yield {
                "x": x.tolist(), "y": y.tolist(), "penalty": penalty,
                "weights": fitted.coef_.tolist(), "intercept": float(fitted.intercept_),
            }


def lasso(rng):
    # The solver of ContextCite's authors: standardised columns, then a LASSO; weights of the columns as they are.
    for rows, columns, alpha in [(64, 16, 0.01), (32, 50, 0.01), (12, 5, 0.3), (20, 8, 5.0)]:
        x = rng.integers(0, 2, size=(rows, columns)).astype(float)
        x[:, columns - 1] = 1.0
        y = (x @ np.where(np.arange(columns) % 3 == 0, rng.normal(size=columns), 0) + rng.normal(0, 0.1, size=rows)).round(6)
        pipeline = make_pipeline(StandardScaler(), Lasso(alpha=alpha, tol=1e-14, max_iter=1_000_000)).fit(x, y)
        scaler, fitted = pipeline[0], pipeline[1]
        weights = fitted.coef_ / scaler.scale_
        yield {
            "x": ["".join(map(str, row)) for row in x.astype(int).tolist()], "y": y.tolist(), "alpha": alpha, "weights": weights.tolist(),
            "intercept": float(fitted.intercept_ - scaler.mean_ @ weights), "r2": pipeline.score(x, y),
        }


def main():
    rng = np.random.default_rng(20260101)
    print(json.dumps({
        "made_by": "tests/reference/statistics_reference.py",
        "versions": {
            "python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__,
            "statsmodels": statsmodels.__version__, "scikit-learn": sklearn.__version__,
        },
        "wilson": list(wilson()),
        "quantile": quantiles(rng),
        "masses": masses(rng),
        "signed": signed(np.random.default_rng(20260103)),
        "ratio": ratio(np.random.default_rng(20260102)),
        "adjusted": list(adjusted(np.random.default_rng(20260107))),
        "agreement": list(agreement()),
        "mcnemar": list(mcnemar()),
        "holm": list(holm()),
        "kappa": list(kappa()),
        "spread": list(spread()),
        "spearman": list(spearman(np.random.default_rng(20260104))),
        "ridge": list(ridge(np.random.default_rng(20260105))),
        "lasso": list(lasso(np.random.default_rng(20260106))),
    }, indent=1))


if __name__ == "__main__":
    main()
