"""Compare ways to make prediction sets, and to notice unusual images, on one trained model.

    python -m benchmarks.answer_methods RUN IMAGES [--others FOLDER] [--seed 0]

RUN is the folder of a finished run (`.patchline/runs/…`), and IMAGES the folder of its data. The
thresholds come from the run's validation images, and everything is measured on its test images:
sets by plain probability (as Patchline makes them; also by class), APS (arXiv 2006.02544) and RAPS
(arXiv 2009.14193); distances to the 10th neighbour, of plain features and of unit length,
Mahalanobis (arXiv 1807.03888) and energy (arXiv 2010.03759), whose share of images beyond the
threshold is printed for kinds of images that the model has never seen. `--others` names a folder of
further images of this size, such as classes that were left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pandas as pd
import torch
from scipy.special import logsumexp
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from benchmarks.measured_runs import machine
from patchline.pipeline.evaluation.metrics.classification import softmax
from patchline.pipeline.evaluation.metrics.conformal import (
    conformal_threshold,
    least_probability,
    set_members,
)
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.model_files import load_model

Array = np.ndarray[Any, Any]
_COVERAGE, _FALSE_ALARMS, _NEAREST, _MADE_UP, _BATCH = 0.9, 0.05, 10, 900, 256
_PENALTY, _FREE_RANKS = 0.05, 2
"""Of RAPS: what each further class costs, and how many are free."""
_COARSE = 4
"""Height and width that smooth noise is drawn in."""


class Outputs(NamedTuple):
    """What a model computes of images."""

    features_ND: Array
    logits_NK: Array


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--others", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(machine())
    generator = np.random.default_rng(given.seed)
    outputs = _network(given.run)
    table = pd.read_parquet(given.run / "report" / "predictions.parquet")
    held, tested = (table[table["split"] == name] for name in ("validation", "test"))
    test_images = [_pixels(given.images / path) for path in tested["path"]]
    known = outputs([_pixels(given.images / path) for path in held["path"]])
    test = outputs(test_images)
    labels_N, truth_M = held["label_index"].to_numpy(), tested["label_index"].to_numpy()
    print(f"{len(held):,} validation and {len(tested):,} test images")
    _compare_sets(softmax(known.logits_NK), labels_N, softmax(test.logits_NK), truth_M, generator)
    unusual = _unusual(test_images, generator)
    if given.others:
        files = sorted(path for path in given.others.rglob("*.*") if path.is_file())
        unusual["others"] = [_pixels(path) for path in files]
    kinds = {"test (false alarms)": test, **{name: outputs(each) for name, each in unusual.items()}}
    _compare_distances(known, kinds, generator)


def _network(run: Path) -> Callable[[Sequence[Array]], Outputs]:
    """Return what computes features and logits with the best weights of a run."""
    model, description = load_model(run / "training" / "best")
    model.eval()
    inputs: list[torch.Tensor] = []
    head: Any = model.head
    head.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))

    def outputs(images: Sequence[Array]) -> Outputs:
        features, logits = [], []
        with torch.inference_mode():
            for start in range(0, len(images), _BATCH):
                batch = torch.from_numpy(np.stack(images[start : start + _BATCH]))
                inputs.clear()
                logits.append(model(normalize(batch, description.image)).numpy())
                features.append(inputs[0].numpy())
        return Outputs(np.concatenate(features).astype(np.float64), np.concatenate(logits))

    return outputs


def _pixels(file: Path) -> Array:
    read = cv2.imread(str(file))
    if read is None:
        raise SystemExit(f"{file} cannot be read.")
    pixels: Array = cv2.cvtColor(read, cv2.COLOR_BGR2RGB)
    return pixels


def _compare_sets(
    held_NK: Array, labels_N: Array, test_MK: Array, truth_M: Array, generator: np.random.Generator
) -> None:
    """Print coverage and size of the sets of each method."""
    own = np.arange(len(labels_N)), labels_N
    least = least_probability(held_NK[own], _COVERAGE)
    by_class = [
        least_probability(held_NK[labels_N == k, k], _COVERAGE) for k in np.unique(labels_N)
    ]
    methods = {"plain probability": set_members(test_MK, least or 0.0)}
    if None not in by_class:
        methods["plain probability, by class"] = test_MK >= np.array(by_class, np.float64)
    for name, penalty, randomised in (
        ("APS, randomised", 0.0, True),
        ("APS", 0.0, False),
        ("RAPS, randomised", _PENALTY, True),
    ):
        drawn_N = generator.random(len(labels_N)) * randomised
        drawn_M = generator.random(len(truth_M)) * randomised
        threshold = conformal_threshold(_adaptive(held_NK, drawn_N, penalty)[own], _COVERAGE)
        scores_MK = _adaptive(test_MK, drawn_M, penalty)
        methods[name] = scores_MK <= (np.inf if threshold is None else threshold)
    print(
        f"sets with a promised coverage of {_COVERAGE:.0%} | coverage | classes a set | coverage "
    )
    print("of sets of one class (number) | coverage by class, lowest and highest")
    for name, members_MK in methods.items():
        inside_M, sizes_M = members_MK[np.arange(len(truth_M)), truth_M], members_MK.sum(1)
        single = inside_M[sizes_M == 1]
        alone = f"{single.mean():.0%} ({len(single)})" if len(single) else "none"
        covered = [inside_M[truth_M == k].mean() for k in np.unique(truth_M)]
        between = f"{min(covered):.0%} to {max(covered):.0%}"
        print(f"{name} | {inside_M.mean():.1%} | {sizes_M.mean():.2f} | {alone} | {between}")


def _adaptive(probabilities_NK: Array, drawn_N: Array, penalty: float) -> Array:
    """Return the score of every class: the probability of all classes down to it."""
    order_NK = np.argsort(-probabilities_NK, axis=1)
    ranked_NK = np.take_along_axis(probabilities_NK, order_NK, axis=1)
    ranks_K = np.arange(1, probabilities_NK.shape[1] + 1)
    scores_NK = ranked_NK.cumsum(1) - drawn_N[:, None] * ranked_NK
    scores_NK += penalty * np.maximum(0, ranks_K - _FREE_RANKS)
    by_class_NK: Array = np.empty_like(scores_NK)
    np.put_along_axis(by_class_NK, order_NK, scores_NK, axis=1)
    return by_class_NK


def _unusual(images: Sequence[Array], generator: np.random.Generator) -> dict[str, list[Array]]:
    """Return made-up images of the size of those given, by kind."""
    height, width = images[0].shape[:2]
    scans = load_digits().images[:_MADE_UP]
    return {
        "uniform noise": [
            generator.integers(0, 256, (height, width, 3), dtype=np.uint8) for _ in range(_MADE_UP)
        ],
        "smooth noise": [
            cv2.resize(
                generator.integers(0, 256, (_COARSE, _COARSE, 3), dtype=np.uint8),
                (width, height),
                interpolation=cv2.INTER_CUBIC,
            )
            for _ in range(_MADE_UP)
        ],
        "inverted test images": [255 - image for image in images[:_MADE_UP]],
        "handwritten digits": [
            cv2.resize(
                cv2.cvtColor((scan * 15).astype(np.uint8), cv2.COLOR_GRAY2RGB), (width, height)
            )
            for scan in scans
        ],
    }


def _compare_distances(
    known: Outputs, kinds: Mapping[str, Outputs], generator: np.random.Generator
) -> None:
    """Print the share of images of each kind that is beyond the threshold of each distance."""
    order = generator.permutation(len(known.features_ND))
    reference, calibration = order[: len(order) // 2], order[len(order) // 2 :]
    seen_RD = known.features_ND[reference]
    distances = {
        "10th neighbour": _neighbours(seen_RD),
        "the same, unit length": _neighbours(_unit_length(seen_RD), of=_unit_length),
        "Mahalanobis": LedoitWolf().fit(seen_RD).mahalanobis,
    }
    columns: dict[str, list[str]] = {}
    for name, distance in distances.items():
        columns[name] = _beyond(
            distance(known.features_ND[calibration]),
            [distance(each.features_ND) for each in kinds.values()],
        )
    energies = [-logsumexp(each.logits_NK, axis=1) for each in kinds.values()]
    columns["energy"] = _beyond(-logsumexp(known.logits_NK, axis=1), energies)
    print(f"beyond the threshold ({_FALSE_ALARMS:.0%} chosen) | {' | '.join(columns)}")
    for number, kind in enumerate(kinds):
        print(f"{kind} | {' | '.join(column[number] for column in columns.values())}")


def _neighbours(
    seen_RD: Array, of: Callable[[Array], Array] = np.asarray
) -> Callable[[Array], Array]:
    """Return the distance to the 10th neighbour, as a function of features (N, D)."""
    fitted = NearestNeighbors(n_neighbors=_NEAREST).fit(seen_RD)

    def distances_N(features_ND: Array) -> Array:  # noqa: N802 - the shape suffix
        found: Array = fitted.kneighbors(of(features_ND))[0][:, -1]
        return found

    return distances_N


def _unit_length(features_ND: Array) -> Array:
    lengths: Array = np.linalg.norm(features_ND, axis=1, keepdims=True)
    return features_ND / np.maximum(lengths, 1e-12)


def _beyond(calibration_N: Array, measured: Sequence[Array]) -> list[str]:
    """Return the share of each kind whose distance exceeds the threshold."""
    threshold = conformal_threshold(calibration_N, 1 - _FALSE_ALARMS)
    if threshold is None:
        return ["unknown"] * len(measured)
    return [f"{np.mean(each > threshold):.1%}" for each in measured]


if __name__ == "__main__":
    main()
