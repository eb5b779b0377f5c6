#!/usr/bin/env python3
"""Reference values for the statistics of palimpsest, computed by established libraries.

    python3 -m venv venv && venv/bin/pip install scipy==1.17.1 statsmodels==0.15.0 scikit-learn==1.9.1
    venv/bin/python scripts/statistics_reference.py > tests/fixtures/statistics.json

For developers; never needed to use the tool.
"""

import json
import platform

import numpy as np
import scipy
import sklearn
import statsmodels
from scipy import stats
from sklearn.metrics import cohen_kappa_score, f1_score, precision_score, recall_score
from statsmodels.stats.proportion import proportion_confint

WILSON = [(0, 1), (1, 1), (0, 20), (20, 20), (3, 20), (1, 200), (71, 200), (184, 200), (110, 1200), (599, 1200)]
QUANTILES = [0.0, 0.025, 0.1, 0.5, 0.777, 0.975, 1.0]
COUNTS = [(99, 2, 8, 131), (51, 1, 0, 28), (13, 1, 1, 65), (35, 0, 7, 38), (1, 9, 30, 2), (5, 5, 5, 5)]


def wilson():
    for successes, trials in WILSON:
        for level in (0.90, 0.95):
            low, high = proportion_confint(successes, trials, alpha=1 - level, method="wilson")
            yield {"successes": successes, "trials": trials, "level": level, "low": low, "high": high}


def quantiles(rng):
    values = sorted(rng.normal(size=23).round(6).tolist())
    return {"sorted": values, "q": QUANTILES, "expected": np.quantile(values, QUANTILES).tolist()}


def band(rng):
    curves = np.exp(rng.normal(size=(40, 5)) + np.arange(5) / 3).round(6)
    interval = stats.bootstrap(
        (curves,), np.mean, n_resamples=200_000, batch=2_000, axis=0, vectorized=True,
        confidence_level=0.95, method="percentile", rng=np.random.default_rng(7),
    ).confidence_interval
    return {"values": curves.tolist(), "low": interval.low.tolist(), "high": interval.high.tolist()}


def ratio_band(rng):
    old = np.exp(rng.normal(size=(40, 5))).round(6)
    new = (old * np.exp(rng.normal(size=(40, 5)) / 2 + np.arange(5) / 3)).round(6)
    interval = stats.bootstrap(
        (new, old), lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis), n_resamples=200_000, batch=2_000, axis=0,
        vectorized=True, paired=True, confidence_level=0.95, method="percentile", rng=np.random.default_rng(7),
    ).confidence_interval
    return {
        "numerator": new.tolist(), "denominator": old.tolist(),
        "low": interval.low.tolist(), "high": interval.high.tolist(),
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


def main():
    rng = np.random.default_rng(20260101)
    print(json.dumps({
        "made_by": "scripts/statistics_reference.py",
        "versions": {
            "python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__,
            "statsmodels": statsmodels.__version__, "scikit-learn": sklearn.__version__,
        },
        "wilson": list(wilson()),
        "quantile": quantiles(rng),
        "bootstrap_mean": band(rng),
        "bootstrap_ratio": ratio_band(np.random.default_rng(20260102)),
        "agreement": list(agreement()),
    }, indent=1))


if __name__ == "__main__":
    main()
