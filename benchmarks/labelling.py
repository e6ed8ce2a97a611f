"""How many labels are needed: the order of `patchline label` against a random one.

python -m benchmarks.labelling digits [--rare 0.1]
python -m benchmarks.labelling FOLDER WEIGHTS [--pool 2000] [--tests 500] [--side 112] [--rare 0.1]

`digits` are the 1,797 scanned digits that ship with scikit-learn, a third of them for the test; the
features are their pixels. FOLDER holds `train` and `test` with a folder for each class, such as
CIFAR-10; WEIGHTS is a file of a ViT's weights, whose features are those of the images enlarged to
`--side` pixels. `--rare` keeps only this share of the first class's pool images.

The pool's labels are hidden; an order asks for them, 20 at a time, two of them at random. The
learner is a linear head on frozen features, with the same features for the order. Printed is the
number of labels from which the accuracy on the test images is at least 90 % of that of all labels
for three batches, over draws of the order; with a rare class, the accuracy is averaged over the
classes. Features and finished draws are kept in `--keep`, so an interrupted command continues.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.frozen_networks import chosen_images, features, network_of
from benchmarks.measured_runs import machine
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.labelling import ranking as ranked_by
from patchline.pipeline.labelling.ranking import fitted_head, ranking
from patchline.pipeline.metrics.intervals import mean_of_repeats

Array = np.ndarray[Any, Any]
_BATCH = 20
_SHARE = 0.9
_RANDOM_EVERY = 10
_SHOWN = (40, 100, 200, 300, 400, 600)
_FIRST_DRAW = 100
"""Lower numbers are for trying other orders: what is reported has not been used for choosing."""


class Images(NamedTuple):
    """Features of length 1, and classes."""

    features_ND: Array
    labels_N: Array


def main() -> None:
    """Print the number of labels that each order needs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="digits, or a folder")
    parser.add_argument("weights", type=Path, nargs="?")
    parser.add_argument("--pool", type=int, default=2000)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--side", type=int, default=112)
    parser.add_argument("--most", type=int, default=600, help="labels that are asked for")
    parser.add_argument("--rare", type=float, default=1.0)
    parser.add_argument("--keep", type=Path, default=Path("labelling-features"))
    given = parser.parse_args()
    pool, tests = _digits() if str(given.data) == "digits" else _of_folder(given)
    pool = _with_rare_class(pool, given.rare)
    full = _accuracy(pool, tests)
    print(machine())
    print(
        f"accuracy with all {len(pool.labels_N)} labels: {full:.1%} (n = {len(tests.labels_N)}), "
        f"of which 90 % are {_SHARE * full:.1%}"
    )
    curves: dict[str, list[dict[int, float]]] = {"random": [], "patchline": []}
    for draw in range(_FIRST_DRAW, _FIRST_DRAW + given.draws):
        for order, of_order in curves.items():
            of_order.append(_kept_curve(order, draw, pool, tests, given))
    for order, of_order in curves.items():
        means = {count: [curve[count] for curve in of_order if count in curve] for count in _SHOWN}
        shown = [f"{count}: {statistics.mean(each):.1%}" for count, each in means.items() if each]
        needed = [_reached(curve, _SHARE * full) for curve in of_order]
        print(f"{order}: {_with_interval(needed)} labels for 90 %; " + ", ".join(shown))
    pairs = zip(curves["random"], curves["patchline"], strict=True)
    less = [_reached(a, _SHARE * full) - _reached(b, _SHARE * full) for a, b in pairs]
    print(f"fewer than random: {_with_interval(less)} labels")


def _with_interval(values: list[float]) -> str:
    estimate = mean_of_repeats(values, (-float("inf"), float("inf")))
    if estimate is None or len(set(values)) < 2:  # noqa: PLR2004 - no interval
        return f"{statistics.mean(values):.0f}"
    return f"{estimate.value:.0f} ({estimate.low:.0f} to {estimate.high:.0f})"


# -- the images --


def _digits() -> tuple[Images, Images]:
    digits = load_digits()
    rows = np.random.default_rng(0).permutation(len(digits.target))
    centred_ND = digits.data - digits.data.mean(0)
    images = Images(_normalized(centred_ND[rows]), digits.target[rows])
    third = len(rows) // 3
    return (
        Images(images.features_ND[third:], images.labels_N[third:]),
        Images(images.features_ND[:third], images.labels_N[:third]),
    )


def _of_folder(given: argparse.Namespace) -> tuple[Images, Images]:
    """Return features and labels of the pool and of the test images, computed once."""
    if given.weights is None:
        raise SystemExit("A folder needs a file of WEIGHTS behind it.")
    classes = sorted(each.name for each in (given.data / "train").iterdir() if each.is_dir())
    network = network_of(
        given.weights, len(classes), given.keep, {"data": {"image_size": given.side}}
    )
    parts: list[Images] = []
    for split, images in (("train", given.pool), ("test", given.tests)):
        counts = [images // len(classes)] * len(classes)
        drawn = chosen_images(given.data / split, classes, counts, seed=0)
        place = given.keep / f"{split}-{given.side}"
        computed_ND = np.asarray(features(network, drawn, len(classes), place))
        parts.append(Images(_normalized(computed_ND), drawn.labels_N))
    return parts[0], parts[1]


def _normalized(features_ND: Array) -> Array:
    lengths_N1 = np.linalg.norm(features_ND, axis=1, keepdims=True)
    normalized_ND: Array = features_ND / np.maximum(lengths_N1, 1e-12)
    return normalized_ND


def _with_rare_class(pool: Images, share: float) -> Images:
    first = np.flatnonzero(pool.labels_N == 0)
    left_out = first[round(len(first) * share) :]
    return Images(np.delete(pool.features_ND, left_out, 0), np.delete(pool.labels_N, left_out))


# -- the orders --


def _kept_curve(
    order: str, draw: int, pool: Images, tests: Images, given: argparse.Namespace
) -> dict[int, float]:
    """Return the accuracy for each number of labels, computed once."""
    digest = hashlib.sha256(inspect.getsource(ranked_by).encode())
    for images in (pool, tests):
        digest.update(images.features_ND.tobytes() + images.labels_N.tobytes())
    name = f"{order}-{draw}-{_BATCH}-{given.most}-{digest.hexdigest()[:12]}.json"
    file = given.keep / "curves" / name
    if not file.is_file():
        began = time.monotonic()
        curve = _curve(order, draw, pool, tests, given.most)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(curve))
        print(f"draw {draw} {order}: {time.monotonic() - began:.0f} s", flush=True)
    return {int(count): float(each) for count, each in json.loads(file.read_text()).items()}


def _curve(order: str, draw: int, pool: Images, tests: Images, most: int) -> dict[int, float]:
    """Return the accuracy for each number of labels."""
    shuffled = np.random.default_rng(draw).permutation(len(pool.labels_N)).tolist()
    sample, others = shuffled[::_RANDOM_EVERY], set(shuffled) - set(shuffled[::_RANDOM_EVERY])
    chosen: list[int] = []
    curve = {}
    while len(chosen) + _BATCH <= min(most, len(shuffled)):
        if order == "random":
            chosen = shuffled[: len(chosen) + _BATCH]
        else:
            names = [(str(pool.labels_N[row]),) for row in chosen]
            left = sorted(others - set(chosen))
            drawn = [row for row in sample if row not in chosen][: _BATCH // _RANDOM_EVERY]
            count = _BATCH - len(drawn)
            seed = draw + len(chosen)
            rows = ranking(pool.features_ND, left, chosen, names, count, seed).rows
            chosen = [*chosen, *rows, *drawn]
        part = Images(pool.features_ND[chosen], pool.labels_N[chosen])
        curve[len(chosen)] = _accuracy(part, tests)
    return curve


def _accuracy(train: Images, tests: Images) -> float:
    """Return the accuracy, averaged over the classes."""
    if len(set(train.labels_N.tolist())) < 2:  # noqa: PLR2004 - nothing to learn
        predicted_N = np.full(len(tests.labels_N), train.labels_N[0])
    else:
        predicted_N = fitted_head(train.features_ND, train.labels_N).predict(tests.features_ND)
    right_N = predicted_N == tests.labels_N
    classes = np.unique(tests.labels_N)
    return float(np.mean([right_N[tests.labels_N == each].mean() for each in classes]))


def _reached(curve: dict[int, float], goal: float) -> float:
    """Return the number of labels from which the accuracy stays at a goal for three batches.

    An order that does not reach it counts as if one batch more would have done.
    """
    counts = sorted(curve)
    for place, count in enumerate(counts):
        if all(curve[each] >= goal for each in counts[place : place + 3]):
            return float(count)
    return float(counts[-1] + _BATCH)


if __name__ == "__main__":
    main()
