"""The rule that finds likely label errors, beside cleanlab's rules on the same probabilities.

    python -m benchmarks.label_rules [--share 0.03] [--seeds 3]

A share of the labels of the digits is replaced at random. Logistic regression predicts every image
in five folds. cleanlab is no dependency: `pip install cleanlab`.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from benchmarks.measured_runs import machine
from pipeline.inspection.label_errors import likely_labels

Array = np.ndarray[Any, Any]
Rule = Callable[[Array, Array], Array]
_RULES = (
    "prune_by_class",
    "prune_by_noise_rate",
    "both",
    "confident_learning",
    "low_self_confidence",
)


def main() -> None:
    """Print what each rule reports of the wrong labels, as means over the seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=0.03)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    print(machine(), flush=True)
    found: dict[str, list[Array]] = defaultdict(list)
    for seed in range(asked.seeds):
        wrong, labels, probabilities = _predicted(asked.share, seed)
        for name, rule in _rules():
            began = time.perf_counter()
            reported = rule(labels, probabilities)
            took = time.perf_counter() - began
            right = (reported & wrong).sum()
            measured = [reported.sum(), right / wrong.sum(), right / max(1, reported.sum()), took]
            found[name].append(np.array(measured))
    print(f"{asked.share:.0%} of {len(wrong):,} labels are wrong, {asked.seeds} seeds")
    for name, values in found.items():
        reported, recall, precision, took = np.mean(values, axis=0)
        print(
            f"{name:30} {reported:6.1f} reported; {recall:.1%} of the wrong ones, "
            f"{precision:.1%} right; {took * 1e3:.1f} ms"
        )


def _predicted(share: float, seed: int) -> tuple[Array, Array, Array]:
    """Return which labels are wrong (N,), the labels (N,), and the probabilities (N, 10)."""
    pixels, true = load_digits(return_X_y=True)
    generator = np.random.default_rng(seed)
    wrong = generator.random(len(true)) < share
    labels = np.where(wrong, (true + generator.integers(1, 10, len(true))) % 10, true)
    model = LogisticRegression(C=0.01, max_iter=300)
    said = cross_val_predict(model, pixels / 16, labels, cv=5, method="predict_proba")
    return wrong, labels, said


def _rules() -> Iterator[tuple[str, Rule]]:
    def own(labels: Array, probabilities: Array) -> Array:
        likely, _ = likely_labels(labels, probabilities, np.zeros(len(labels), np.bool_))
        changed: Array = likely != labels
        return changed

    yield "Patchline", own
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        print("cleanlab is not installed; only Patchline's rule is measured")
        return
    for name in _RULES:
        yield f"cleanlab, {name}", partial(find_label_issues, filter_by=name, n_jobs=1)


if __name__ == "__main__":
    main()
