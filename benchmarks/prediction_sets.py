"""Measure how far prediction sets keep their promise where validation images chose the model.

    python -m benchmarks.prediction_sets [--draws 300]
    python -m benchmarks.prediction_sets --folds [--draws 50]

Split conformal prediction wants images that played no part in the model. Here they choose one of 20
checkpoints by their accuracy, fit its temperature, and then give the threshold, as in a run. Truth
is known: labels are drawn from a distribution that each checkpoint sees with noise of its own, and
the coverage of each draw's sets is measured on 20,000 new images.

With `--folds`, logistic regressions are fitted on five folds, and thresholds come from their
predictions of the images that they were not fitted on: for one regression fitted on all images, and
for the average of the five. CV+ (Romano, Sesia and Candès, arXiv 2006.02544) is beside them.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from patchline.pipeline.evaluation.metrics.classification import softmax
from patchline.pipeline.evaluation.metrics.conformal import conformal_threshold, set_members
from patchline.pipeline.evaluation.metrics.temperature import fit_temperature

Array = np.ndarray[Any, Any]
_CHECKPOINTS, _CLASSES, _NEW = 20, 10, 20_000
_FOLDS, _FEW_CLASSES, _FEATURES, _NEW_OF_FOLDS = 5, 5, 20, 2000
_SIZES, _COVERAGES = (50, 100, 300, 1000), (0.9, 0.95, 0.99)


def main() -> None:
    """Print the mean coverage for several numbers of validation images."""
    parser = argparse.ArgumentParser(description="Coverage of prediction sets with known truth.")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--folds", action="store_true", help="models of folds instead")
    arguments = parser.parse_args()
    draws = arguments.draws
    if arguments.folds:
        _folds(draws)
        return
    generator = np.random.default_rng(0)
    new = _images(_NEW, generator)
    print("images | " + " | ".join(f"{each:.0%} promised" for each in _COVERAGES))
    for size in _SIZES:
        chosen = np.zeros((draws, len(_COVERAGES)))
        fixed = np.zeros_like(chosen)
        for draw in range(draws):
            held = _images(size, generator)
            best = int(np.argmax([(each.argmax(1) == held[1]).mean() for each in held[0]]))
            temperature = fit_temperature(held[0][best].astype(np.float32), held[1]).temperature
            chosen[draw] = _coverages(held, new, best, temperature)
            fixed[draw] = _coverages(held, new, 0, 1.0)
        for words, measured in (("chosen", chosen), ("fixed", fixed)):
            means = measured.mean(0)
            errors = measured.std(0) / np.sqrt(draws)
            cells = [f"{m:.2%} ± {2 * e:.2%}" for m, e in zip(means, errors, strict=True)]
            print(f"{size} {words} | " + " | ".join(cells))


def _folds(draws: int) -> None:
    """Print the coverage and the mean size of sets after folds, for several numbers of images."""
    print("images, noise, C | refit | ensemble | CV+ (coverage, mean size)")
    for size in (60, 250, 1000):
        for noise, weak in ((1.5, 1.0), (3.0, 1.0), (3.0, 1000.0)):
            generator = np.random.default_rng(0)
            measured = np.array([_of_folds(size, noise, weak, generator) for _ in range(draws)])
            means, errors = measured.mean(0), measured.std(0) / np.sqrt(draws)
            cells = [
                f"{m:.1%} ± {2 * e:.1%}, {of:.2f}"
                for m, e, of in zip(means[:, 0], errors[:, 0], means[:, 1], strict=True)
            ]
            print(f"{size}, {noise:g}, {weak:g} | " + " | ".join(cells))


def _of_folds(
    size: int, noise: float, weak: float, generator: np.random.Generator
) -> list[list[float]]:
    """Return coverage and mean size of the sets of each method, for one draw of everything.

    Args:
        size: of the images that folds are made of.
        noise: of the features around the mean of their class.
        weak: inverse strength of the regularization.
        generator: draws them.
    """
    from sklearn.linear_model import LogisticRegression

    means_KD = 0.8 * generator.standard_normal((_FEW_CLASSES, _FEATURES))
    labels = generator.integers(0, _FEW_CLASSES, size + _NEW_OF_FOLDS)
    features = means_KD[labels] + noise * generator.standard_normal((len(labels), _FEATURES))
    fold_N = generator.permutation(size) % _FOLDS

    def logits(fitted: Array, of: Array) -> Array:
        model = LogisticRegression(C=weak, max_iter=200).fit(features[fitted], labels[fitted])
        logits_NK = np.full((len(of), _FEW_CLASSES), -30.0, np.float32)
        logits_NK[:, model.classes_] = model.decision_function(features[of])
        return logits_NK

    new, held = np.arange(size, len(labels)), np.arange(size)
    own_N, members, votes = np.zeros(size), [], np.zeros((_NEW_OF_FOLDS, _FEW_CLASSES))
    logits_NK = np.zeros((size, _FEW_CLASSES), np.float32)
    for fold in range(_FOLDS):
        of = held[fold_N == fold]
        logits_NK[of] = logits(held[fold_N != fold], of)
        temperature = fit_temperature(logits_NK[of], labels[of]).temperature
        own_N[of] = softmax(logits_NK[of], temperature)[np.arange(len(of)), labels[of]]
        members.append(softmax(logits(held[fold_N != fold], new), temperature))
        votes += np.searchsorted(np.sort(1 - own_N[of]), 1 - members[-1], side="left")
    temperature = fit_temperature(logits_NK, labels[:size]).temperature
    refit_own_N = softmax(logits_NK, temperature)[held, labels[:size]]
    refit_NK = softmax(logits(held, new), temperature)
    level, average_NK = _COVERAGES[0], np.mean(members, axis=0)
    inside = [
        set_members(refit_NK, _least(refit_own_N, level)),
        set_members(average_NK, _least(own_N, level)),
        votes < level * (size + 1),
    ]
    inside[-1][np.arange(_NEW_OF_FOLDS), average_NK.argmax(1)] = True
    truth = labels[size:]
    return [
        [float(each[np.arange(_NEW_OF_FOLDS), truth].mean()), float(each.sum(1).mean())]
        for each in inside
    ]


def _least(own_N: Array, coverage: float) -> float:
    threshold = conformal_threshold(1 - own_N, coverage)
    return 0.0 if threshold is None else 1 - threshold


def _images(count: int, generator: np.random.Generator) -> tuple[list[Array], Array]:
    """Return the logits (N, K) of each checkpoint, and the labels (N)."""
    truth_NK = 2 * generator.standard_normal((count, _CLASSES))
    drawn_NK = truth_NK + generator.gumbel(size=truth_NK.shape)
    shared_NK = generator.standard_normal(truth_NK.shape)
    logits = [
        2 * (truth_NK + 0.7 * shared_NK + 0.7 * generator.standard_normal(truth_NK.shape))
        for _ in range(_CHECKPOINTS)
    ]
    return logits, drawn_NK.argmax(1)


def _coverages(
    held: tuple[list[Array], Array],
    new: tuple[list[Array], Array],
    checkpoint: int,
    temperature: float,
) -> list[float]:
    """Return how often sets of a checkpoint hold the true class of new images, by coverage."""
    own_N = _probabilities(held, checkpoint, temperature)[np.arange(len(held[1])), held[1]]
    new_NK = _probabilities(new, checkpoint, temperature)
    measured = []
    for coverage in _COVERAGES:
        inside_NK = set_members(new_NK, _least(own_N, coverage))
        measured.append(float(inside_NK[np.arange(_NEW), new[1]].mean()))
    return measured


def _probabilities(images: tuple[list[Array], Array], checkpoint: int, temperature: float) -> Array:
    return softmax(images[0][checkpoint], temperature)


if __name__ == "__main__":
    main()
