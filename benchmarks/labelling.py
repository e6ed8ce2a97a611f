"""How many labels are needed: the order of `patchline label` against a random one.

python -m benchmarks.labelling digits [--rare 0.1]
python -m benchmarks.labelling digits --reported [--draws 20]
python -m benchmarks.labelling FOLDER WEIGHTS [--pool 2000] [--tests 500] [--side 112] [--rare 0.1]

`digits` are the 1,797 scanned digits that ship with scikit-learn, a third of them for the test; the
features are their pixels. FOLDER holds `train` and `test` with a folder for each class, such as
CIFAR-10; WEIGHTS is a file of a ViT's weights, whose features are those of the images enlarged to
`--side` pixels. `--rare` keeps only this share of the first class's pool images.

The pool's labels are hidden; an order asks for them, 20 at a time, seven of them at random. The
learner is a linear head on frozen features, with the same features for the order. Printed is the
number of labels from which the accuracy on the test images is at least 90 % of that of all labels
for three batches, over draws of the order; with a rare class, the accuracy is averaged over the
classes. Features and finished draws are kept in `--keep`, so an interrupted command continues.

`--reported` compares the test accuracy that a run on the table reports with that on the test images
of the benchmark: after 200 labels in this order, and after 160 of images that each have a near
duplicate, labelled with it. The splits are those of a run, with and without the column of the table
that says which images were drawn at random, or which belong together.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from benchmarks.frozen_networks import choose_images, features, network_of
from benchmarks.measured_runs import machine
from patchline.pipeline.data.config import OWN_COLUMN
from patchline.pipeline.data.labels.answer_columns import ANSWER_SOURCE, RANDOM
from patchline.pipeline.data.splits.split import assign
from patchline.pipeline.evaluation.metrics.intervals import mean_of_repeats, share
from patchline.pipeline.evaluation.predictions import image_groups
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.plugins.tools.label import ranking as ranked_by
from patchline.plugins.tools.label.ranking import EVERY, fit_head, ranking

Array = np.ndarray[Any, Any]
_BATCH = 20
_SHARE = 0.9
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
    parser.add_argument("--reported", action="store_true", help="compare test and true accuracy")
    parser.add_argument("--keep", type=Path, default=Path("labelling-features"))
    given = parser.parse_args()
    pool, tests = _digits() if str(given.data) == "digits" else _of_folder(given)
    pool = _with_rare_class(pool, given.rare)
    if given.reported:
        _print_reported(pool, tests, given.draws)
        return
    full = _accuracy(pool, tests)
    print(machine())
    print(
        f"accuracy with all {len(pool.labels_N)} labels: {full:.1%} (n = {len(tests.labels_N)}), "
        f"of which 90 % are {_SHARE * full:.1%}"
    )
    curves: dict[str, list[dict[int, float]]] = {"random": [], "patchline": []}
    for draw in range(_FIRST_DRAW, _FIRST_DRAW + given.draws):
        for order, of_order in curves.items():
            of_order.append(_compute_kept_curve(order, draw, pool, tests, given))
    for order, of_order in curves.items():
        means = {count: [curve[count] for curve in of_order if count in curve] for count in _SHOWN}
        shown = [f"{count}: {statistics.mean(each):.1%}" for count, each in means.items() if each]
        needed = [_find_reached(curve, _SHARE * full) for curve in of_order]
        print(f"{order}: {_with_interval(needed)} labels for 90 %; " + ", ".join(shown))
    pairs = zip(curves["random"], curves["patchline"], strict=True)
    less = [_find_reached(a, _SHARE * full) - _find_reached(b, _SHARE * full) for a, b in pairs]
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
    images = Images(_normalize(centred_ND[rows]), digits.target[rows])
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
        drawn = choose_images(given.data / split, classes, counts, seed=0)
        place = given.keep / f"{split}-{given.side}"
        computed_ND = np.asarray(features(network, drawn, len(classes), place))
        parts.append(Images(_normalize(computed_ND), drawn.labels_N))
    return parts[0], parts[1]


def _normalize(features_ND: Array) -> Array:
    lengths_N1 = np.linalg.norm(features_ND, axis=1, keepdims=True)
    normalized_ND: Array = features_ND / np.maximum(lengths_N1, 1e-12)
    return normalized_ND


def _with_rare_class(pool: Images, share: float) -> Images:
    first = np.flatnonzero(pool.labels_N == 0)
    left_out = first[round(len(first) * share) :]
    return Images(np.delete(pool.features_ND, left_out, 0), np.delete(pool.labels_N, left_out))


# -- the orders --


def _compute_kept_curve(
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
    curve = {}
    for asked in _ask(order, draw, pool, most):
        part = Images(pool.features_ND[list(asked)], pool.labels_N[list(asked)])
        curve[len(asked)] = _accuracy(part, tests)
    return curve


def _ask(order: str, draw: int, pool: Images, most: int) -> Iterator[dict[int, str]]:
    """Yield the images that were asked about, and why, after each batch."""
    shuffled = np.random.default_rng(draw).permutation(len(pool.labels_N)).tolist()
    sample, others = shuffled[::EVERY], set(shuffled) - set(shuffled[::EVERY])
    asked: dict[int, str] = {}
    while len(asked) + _BATCH <= min(most, len(shuffled)):
        if order == "random":
            asked = dict.fromkeys(shuffled[: len(asked) + _BATCH], RANDOM)
        else:
            known = [row for row, reason in asked.items() if reason != RANDOM]
            names = [(str(pool.labels_N[row]),) for row in known]
            left = sorted(others - set(asked))
            drawn = [row for row in sample if row not in asked][: round(_BATCH / EVERY)]
            seed = draw + len(asked)
            found = ranking(pool.features_ND, left, known, names, _BATCH - len(drawn), seed)
            asked |= dict.fromkeys(found.rows, found.source) | dict.fromkeys(drawn, RANDOM)
        yield asked


# -- what a run reports --


def _print_reported(pool: Images, tests: Images, draws: int) -> None:
    print(machine())
    for name, doubled, column in (
        ("images that help most", False, f"{OWN_COLUMN}{ANSWER_SOURCE}"),
        ("near duplicates", True, "group"),
    ):
        found = [_report((pool, tests), draw, column, doubled=doubled) for draw in range(draws)]
        for rule, pairs in (("without the column", 0), ("with it", 1)):
            reported, true, covered = zip(*(each[pairs] for each in found), strict=True)
            errors = [100 * (one - other) for one, other in zip(reported, true, strict=True)]
            print(
                f"{name}, {rule}: test accuracy {statistics.mean(reported):.1%}, true "
                f"{statistics.mean(true):.1%}, error {_with_interval(errors)} points; "
                f"{sum(covered)} of {draws} intervals contain the true accuracy"
            )


def _report(
    images: tuple[Images, Images], draw: int, column: str, *, doubled: bool
) -> list[tuple[float, float, bool]]:
    """Return the reported and the true accuracy, and whether the interval of the former holds it.

    Args:
        images: those to label, and those that tell the true accuracy.
        draw: of the order, and of the split.
        column: what the first of the two results does not have.
        doubled: whether each image has a near duplicate, all are drawn at random, and fewer.
    """
    pool, tests = images
    *_, asked = _ask("random" if doubled else "patchline", draw, pool, 160 if doubled else 200)
    rows = np.repeat(list(asked), 1 + doubled)
    noise_ND = 0.02 * np.random.default_rng(draw).normal(size=pool.features_ND[rows].shape)
    given = Images(_normalize(pool.features_ND[rows] + doubled * noise_ND), pool.labels_N[rows])
    names = [f"{row} {place % 2 if doubled else 0}" for place, row in enumerate(rows)]
    manifest = pd.DataFrame(
        {
            "path": names,
            "label": given.labels_N.astype(str),
            "split": "",
            "group": [f"near {row}" for row in rows] if doubled else "",
            "sha256": [hashlib.sha256(name.encode()).hexdigest() for name in names],
            "status": "ok",
            f"{OWN_COLUMN}{ANSWER_SOURCE}": [asked[row] for row in rows],
        }
    )
    results = []
    for table in (manifest.drop(columns=column), manifest):
        assigned, _ = assign(table, validation_fraction=0.15, test_fraction=0.15, seed=draw)
        is_test = (assigned["split"] == "test").to_numpy()
        is_train = (assigned["split"] == "train").to_numpy()
        head = fit_head(given.features_ND[is_train], given.labels_N[is_train])
        right_N = head.predict(given.features_ND[is_test]) == given.labels_N[is_test]
        true = float(np.mean(head.predict(tests.features_ND) == tests.labels_N))
        estimate = share(right_N, image_groups(assigned[is_test]))
        results.append((estimate.value, true, estimate.low <= true <= estimate.high))
    return results


def _accuracy(train: Images, tests: Images) -> float:
    """Return the accuracy, averaged over the classes."""
    if len(set(train.labels_N.tolist())) < 2:  # noqa: PLR2004 - nothing to learn
        predicted_N = np.full(len(tests.labels_N), train.labels_N[0])
    else:
        predicted_N = fit_head(train.features_ND, train.labels_N).predict(tests.features_ND)
    right_N = predicted_N == tests.labels_N
    classes = np.unique(tests.labels_N)
    return float(np.mean([right_N[tests.labels_N == each].mean() for each in classes]))


def _find_reached(curve: dict[int, float], goal: float) -> float:
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
