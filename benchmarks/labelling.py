"""How many labels are needed: the order of `patchline label` against a random one.

python -m benchmarks.labelling FOLDER WEIGHTS [--pool 2000] [--tests 500] [--draws 5] [--side 112]
                                              [--keep DIR]

FOLDER holds `train` and `test` with a folder for each class, such as CIFAR-10; WEIGHTS is a file of
a ViT's weights. The pool is drawn from `train`, with its labels hidden; an order asks for them ten
at a time. The learner is a linear head on frozen features, with the same features for the order. A
row of the answer is the number of labels from which the accuracy on the test images is at least
90 % of that of all labels for three batches, averaged over draws of the pool's order.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.frozen_networks import chosen_images, features, network_of
from benchmarks.measured_runs import machine
from patchline.pipeline.labelling.ranking import fitted_head, ranking
from patchline.pipeline.metrics.intervals import mean_of_repeats

Array = np.ndarray[Any, Any]
_BATCH = 10
_SHARE = 0.9
_MOST = 600
_RANDOM_EVERY = 10


def main() -> None:
    """Print the number of labels that each order needs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--pool", type=int, default=2000)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--side", type=int, default=112)
    parser.add_argument("--keep", type=Path, default=Path("labelling-features"))
    given = parser.parse_args()
    pool_ND, labels_N, tests_ND, test_labels_N = _data(given)
    full = _accuracy(pool_ND, labels_N, tests_ND, test_labels_N)
    print(machine())
    print(f"accuracy with all {len(labels_N)} labels: {full:.1%} (n = {len(test_labels_N)})")
    needed: dict[str, list[float]] = {}
    for draw in range(given.draws):
        for order in ("random", "patchline"):
            curve = _curve(order, draw, (pool_ND, labels_N), (tests_ND, test_labels_N))
            needed.setdefault(order, []).append(_reached(curve, _SHARE * full))
            print(f"draw {draw} {order}: {needed[order][-1]:.0f} labels", flush=True)
            shown = [count for count in (10, 20, 50, 100, 200, 400) if count in curve]
            print("   " + ", ".join(f"{count}: {curve[count]:.1%}" for count in shown), flush=True)
    for order, counts in needed.items():
        print(f"{order}: {_with_interval(counts)} labels for 90 % of the accuracy")
    less = [a - b for a, b in zip(needed["random"], needed["patchline"], strict=True)]
    print(f"fewer than random: {_with_interval(less)} labels")


def _with_interval(values: list[float]) -> str:
    estimate = mean_of_repeats(values, (-float("inf"), float("inf")))
    if estimate is None or len(values) < 2:  # noqa: PLR2004 - no interval
        return f"{statistics.mean(values):.0f}"
    return f"{estimate.value:.0f} ({estimate.low:.0f} to {estimate.high:.0f})"


def _data(given: argparse.Namespace) -> tuple[Array, Array, Array, Array]:
    """Return features and labels of the pool and of the test images, computed once."""
    classes = sorted(each.name for each in (given.folder / "train").iterdir() if each.is_dir())
    network = network_of(
        given.weights, len(classes), given.keep, {"data": {"image_size": given.side}}
    )
    parts: list[Array] = []
    for split, images in (("train", given.pool), ("test", given.tests)):
        counts = [images // len(classes)] * len(classes)
        drawn = chosen_images(given.folder / split, classes, counts, seed=0)
        computed_ND = features(network, drawn, len(classes), given.keep / split)
        parts += [_normalized(np.asarray(computed_ND)), drawn.labels_N]
    return parts[0], parts[1], parts[2], parts[3]


def _normalized(features_ND: Array) -> Array:
    lengths_N1 = np.linalg.norm(features_ND, axis=1, keepdims=True)
    normalized_ND: Array = features_ND / np.maximum(lengths_N1, 1e-12)
    return normalized_ND


def _accuracy(train_ND: Array, labels_N: Array, tests_ND: Array, test_labels_N: Array) -> float:
    if len(set(labels_N.tolist())) < 2:  # noqa: PLR2004 - nothing to learn
        return float((test_labels_N == labels_N[0]).mean())
    head: LogisticRegression = fitted_head(train_ND, labels_N)
    return float((head.predict(tests_ND) == test_labels_N).mean())


def _curve(
    order: str, draw: int, pool: tuple[Array, Array], tests: tuple[Array, Array]
) -> dict[int, float]:
    """Return the accuracy for each number of labels."""
    pool_ND, labels_N = pool
    random = np.random.default_rng(draw)
    shuffled = random.permutation(len(labels_N)).tolist()
    chosen: list[int] = []
    curve = {}
    while len(chosen) < min(_MOST, len(labels_N)):
        left = [row for row in shuffled if row not in set(chosen)]
        if order == "random":
            batch = left[:_BATCH]
        else:
            sample, candidates = left[: len(left) // _RANDOM_EVERY], left
            known = [(str(labels_N[row]),) for row in chosen]
            ranked = ranking(pool_ND, candidates, chosen, known, _BATCH, seed=draw).rows
            batch = [*ranked[: _BATCH - 1], *[row for row in sample if row not in ranked][:1]]
        chosen += batch
        curve[len(chosen)] = _accuracy(pool_ND[chosen], labels_N[chosen], *tests)
    return curve


def _reached(curve: dict[int, float], goal: float) -> float:
    """Return the number of labels from which the accuracy stays at a goal for three batches."""
    counts = sorted(curve)
    for place, count in enumerate(counts):
        if all(curve[each] >= goal for each in counts[place : place + 3]):
            return float(count)
    return float(counts[-1])


if __name__ == "__main__":
    main()
