"""The gates of a promotion, each one check: of the version alone, and against the champion.

The comparison is McNemar's exact test of the accuracy
(`patchline.pipeline.evaluation.metrics.paired_test`), or with sets of labels a paired bootstrap of
mAP, of macro F1, or of both (`patchline.pipeline.evaluation.metrics.multi_label.paired_bootstrap`).
Where images form groups, such as patients, both test whole groups, and least numbers of images are
numbers of groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from patchline.pipeline.evaluation.comparison import (
    NOT_RANDOM,
    ClassChange,
    Comparison,
    p_value_text,
)
from patchline.pipeline.evaluation.metrics import paired_test
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.multi_label import paired_bootstrap
from patchline.pipeline.evaluation.metrics.multi_label.paired_bootstrap import PAIRED
from patchline.pipeline.evaluation.metrics.names import ALL_METRICS, MULTI_LABEL_METRICS
from patchline.pipeline.evaluation.multi_label.label_set_page import (
    LabelChange,
    LabelSetComparison,
)
from patchline.pipeline.evaluation.promotion_decision import GateResult
from patchline.pipeline.models.provenance import ProvenanceSummary
from patchline.pipeline.packaging.clean_process_check import PackageCheck
from patchline.pipeline.registry.config import BOTH, PromotionConfig
from patchline.pipeline.terminal_words import counted, few_names

PROVENANCE = "provenance"
"""The gate that no setting turns off: it is overruled only with a reason."""


def provenance_gate(name: str, provenance: ProvenanceSummary) -> GateResult:
    """Check whether it is known which images a version has seen.

    It fails for a package without a record, and for one that started from a file or a model whose
    images are unknown. Published weights that were identified by their checksum pass, although
    their training images are not known either.

    Its value is the number of files and models among the ancestors whose images are unknown.

    Args:
        name: of the version, for the sentence.
        provenance: of its package.
    """
    return GateResult(
        name=PROVENANCE,
        passed=not provenance.unknown,
        value=len(provenance.unknown),
        threshold=0,
        sentence=provenance.caveat(name) or provenance.sentence(name),
    )


def absolute_gates(
    config: PromotionConfig, metrics: Mapping[str, float], caveat: str = ""
) -> list[GateResult]:
    """Check the version's own test metrics against the limits in the config.

    Args:
        config: holds the limits.
        metrics: from the version's own test report, without the prefix `test/`.
        caveat: why they may be wrong; empty if nothing is known against them.
    """
    limits = [
        *((name, value, f"minimum_{name}") for name, value in config.minimum.items()),
        *((name, value, f"maximum_{name}") for name, value in config.maximum.items()),
    ]
    gates = [_limit(key, name, metrics.get(name), limit) for name, limit, key in limits]
    if config.max_calibration_error is not None:
        gates.append(_limit("calibration", "ece", metrics.get("ece"), config.max_calibration_error))
    note = f"; note that {caveat}" if caveat else ""
    return [gate.model_copy(update={"sentence": f"{gate.sentence}{note}"}) for gate in gates]


def package_gates(config: PromotionConfig, check: PackageCheck) -> list[GateResult]:
    """Check the package in a clean process: whether it works, and its latency."""
    gates = []
    if config.package_check:
        gates.append(
            GateResult(
                name="package",
                passed=check.passed,
                value=check.largest_difference,
                threshold=1e-4,
                sentence=f"the package: {check.finding}",
            )
        )
    if config.max_latency_ms is not None:
        gates.append(_latency(config.max_latency_ms, check))
    return gates


def _limit(key: str, name: str, value: float | None, limit: float) -> GateResult:
    title = ALL_METRICS[name].title
    at_least = ALL_METRICS[name].higher_is_better
    rule = f"{'minimum' if at_least else 'maximum'} {limit:g}"
    if value is None:
        return GateResult(
            name=key,
            passed=False,
            value=None,
            threshold=limit,
            sentence=f"{title} is not in the version's own test report; {rule}",
        )
    return GateResult(
        name=key,
        passed=value >= limit if at_least else value <= limit,
        value=value,
        threshold=limit,
        sentence=f"{title} is {value:.4g} on the version's own test images; {rule}",
    )


def _latency(limit: float, check: PackageCheck) -> GateResult:
    value = check.milliseconds
    measured = "was not measured" if value is None else f"takes {value:.1f} ms"
    return GateResult(
        name="latency",
        passed=value is not None and value <= limit,
        value=value,
        threshold=limit,
        sentence=f"one image {measured} on this machine; maximum {limit:g} ms",
    )


class _Verdict(NamedTuple):
    """What the paired test says."""

    is_better: bool
    gain: float
    """Of the metric that decides; the smaller one of two."""
    words: str


def champion_gates(
    config: PromotionConfig, comparison: Comparison | LabelSetComparison
) -> list[GateResult]:
    """Check the comparison with the champion: the paired test, and the loss of each class."""
    gates = []
    if config.better_than_champion:
        gates.append(_better_than_champion(config, comparison))
    if config.max_class_drop is not None:
        gates.append(_no_class_worse(config, config.max_class_drop, comparison))
    return gates


def _better_than_champion(
    config: PromotionConfig, comparison: Comparison | LabelSetComparison
) -> GateResult:
    """Run the paired test: a higher metric on the common images, and significantly so."""
    if comparison.units < config.min_images:
        more = "test images" if comparison.groups is None else "test images of other groups"
        chosen = comparison.left_out.get(NOT_RANDOM)
        others = f"; {chosen:,} more were {NOT_RANDOM}" if chosen else ""
        remedy = f"add {more}, or lower promotion.min_images"
        return GateResult(
            name="better_than_champion",
            passed=False,
            value=None,
            threshold=0.0,
            sentence=f"{_too_few(config, comparison)}{others}; {remedy}",
        )
    verdict = (
        _by_label_sets(config, comparison)
        if isinstance(comparison, LabelSetComparison)
        else _by_accuracy(config, comparison)
    )
    caveat = f"; note that {comparison.caveat}" if comparison.caveat else ""
    return GateResult(
        name="better_than_champion",
        passed=verdict.is_better,
        value=verdict.gain,
        threshold=0.0,
        sentence=f"{verdict.words}{caveat}",
    )


def _too_few(config: PromotionConfig, comparison: Comparison | LabelSetComparison) -> str:
    compared = counted(comparison.images, "image was", "images were")
    limit = f"promotion.min_images {config.min_images}"
    if comparison.groups is not None:
        groups = counted(comparison.groups, "group")
        compared = f"{groups} of images ({counted(comparison.images, 'image')}) were"
        limit = f"{limit}, for which a group counts once"
    return (
        f"only {compared} {comparison.unused} by either model, fewer than {limit}, so the versions "
        "cannot be compared"
    )


def _by_accuracy(config: PromotionConfig, comparison: Comparison) -> _Verdict:
    pair = comparison.paired
    return _Verdict(
        paired_test.is_better(pair, config.significance),
        pair.difference.value,
        f"of {comparison.counted_images} {comparison.unused} by either model, "
        f"{pair.only_b_right} are correct only now and {pair.only_a_right} were correct only "
        f"before: {_change(pair.difference, pair.p_value)}{comparison.test_unit}; {_rule(config)}",
    )


def _by_label_sets(config: PromotionConfig, comparison: LabelSetComparison) -> _Verdict:
    """Test the metrics that the config names: with two, each of them has to be better."""
    deciding = PAIRED if config.label_set_metric == BOTH else (config.label_set_metric,)
    pairs = comparison.paired
    compared = " and ".join(
        f"{MULTI_LABEL_METRICS[key].title} is {pairs[key].b:.1%} now and was {pairs[key].a:.1%} "
        f"before: {_change(pairs[key].difference, pairs[key].p_value)}"
        for key in deciding
    )
    beside = [
        f"{MULTI_LABEL_METRICS[key].title} {100 * pairs[key].difference.value:+.1f} points"
        for key in PAIRED
        if key not in deciding
    ]
    return _Verdict(
        all(paired_bootstrap.is_better(pairs[key], config.significance) for key in deciding),
        min(pairs[key].difference.value for key in deciding),
        f"on {comparison.counted_images} {comparison.unused} by either model, {compared}"
        f"{comparison.test_unit}; {_rule(config)}" + (f" ({', '.join(beside)})" if beside else ""),
    )


def _rule(config: PromotionConfig) -> str:
    return f"required: a gain, with p at most {config.significance:g}"


def _change(difference: MetricEstimate, p_value: float) -> str:
    low, high = 100 * difference.low, 100 * difference.high
    return (
        f"{100 * difference.value:+.1f} points (95% interval {low:+.1f} to {high:+.1f}), "
        f"{p_value_text(p_value)}"
    )


def _no_class_worse(
    config: PromotionConfig, max_drop: float, comparison: Comparison | LabelSetComparison
) -> GateResult:
    """Check the largest loss among the classes with enough images; without any, say so."""
    changes: Sequence[ClassChange | LabelChange]
    if isinstance(comparison, LabelSetComparison):
        noun, metric, changes = "label", "average precision", comparison.by_label
    else:
        noun, metric, changes = "class", "recall", comparison.by_class
    enough = [each for each in changes if each.units >= config.class_min_images]
    checked = [each for each in enough if each.champion is not None]
    everywhere = [each for each in enough if each.champion is None]
    small = [each for each in changes if each.units < config.class_min_images]
    if comparison.units < config.min_images:
        return _unchecked(max_drop, _too_few(config, comparison))
    if enough and not checked:
        return _unchecked(
            max_drop,
            f"whether a {noun} loses {metric} is not known: every {noun} with enough images is "
            "on all images",
        )
    if not checked:
        unit = "comparable image" if comparison.groups is None else "group of comparable images"
        units = "" if comparison.groups is None else "groups of comparable images"
        least = counted(config.class_min_images, unit, units)
        return _unchecked(
            max_drop,
            f"whether a {noun} loses {metric} is not known: no {noun} has {least} "
            f"(promotion.class_min_images)",
        )
    worst = min(checked, key=lambda change: change.gain)
    drop = max(0.0, -worst.gain)
    lost = f"no {noun} loses {metric}"
    if drop > 0 and worst.champion is not None and worst.challenger is not None:
        lost = (
            f"'{worst.name}' has the largest loss: {metric} {worst.champion.value:.1%} before, "
            f"{worst.challenger.value:.1%} now, on {worst.counted_images}"
        )
    beside = f"; too few images to check: {_names(small)}" if small else ""
    beside += f"; on all images, so not known: {_names(everywhere)}" if everywhere else ""
    return GateResult(
        name="no_class_worse",
        passed=drop <= max_drop + 1e-12,
        value=drop,
        threshold=max_drop,
        sentence=f"{lost}; maximum loss {max_drop:g}{beside}",
    )


def _unchecked(max_drop: float, sentence: str) -> GateResult:
    return GateResult(
        name="no_class_worse", passed=None, value=None, threshold=max_drop, sentence=sentence
    )


def _names(changes: Sequence[ClassChange | LabelChange]) -> str:
    return few_names(f"'{change.name}' ({_size(change)})" for change in changes)


def _size(change: ClassChange | LabelChange) -> str:
    return f"{change.images}" if change.groups is None else change.counted_images
