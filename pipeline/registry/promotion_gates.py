"""The gates of a promotion, each one check: of the version alone, and against the champion.

The comparison is McNemar's exact test of the accuracy (`evaluation.metrics.paired_test`), or with
sets of labels a paired bootstrap of mAP, of macro F1, or of both
(`evaluation.metrics.multi_label.label_set_metrics`). Where images form groups, such as patients,
both test whole groups, and least numbers of images are numbers of groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from patchline.pipeline.evaluation.comparison import (
    NOT_RANDOM,
    ChangedMetric,
    ComparedModels,
    p_value_text,
)
from patchline.pipeline.evaluation.metrics import paired_test
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import PAIRED
from patchline.pipeline.evaluation.metrics.names import ALL_METRICS
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


def champion_gates(config: PromotionConfig, comparison: ComparedModels) -> list[GateResult]:
    """Check the comparison with the champion: the paired test, and the loss of each class."""
    gates = []
    if config.better_than_champion:
        gates.append(_better_than_champion(config, comparison))
    if config.max_class_drop is not None:
        gates.append(_no_class_worse(config, config.max_class_drop, comparison))
    return gates


def _better_than_champion(config: PromotionConfig, comparison: ComparedModels) -> GateResult:
    """Run the paired tests: higher metrics on the common images, and significantly so."""
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
    named = PAIRED if config.label_set_metric == BOTH else (config.label_set_metric,)
    pairs, titles = comparison.pairs, [ALL_METRICS[each].title for each in named]
    deciding = {title: pairs[title] for title in titles if title in pairs} or pairs
    compared = " and ".join(
        f"{comparison.said(title)}: {_change(pair.difference, pair.p_value)}"
        for title, pair in deciding.items()
    )
    beside = ", ".join(
        f"{title} {100 * pair.difference.value:+.1f} points"
        for title, pair in pairs.items()
        if title not in deciding
    )
    caveat = f"; note that {comparison.caveat}" if comparison.caveat else ""
    return GateResult(
        name="better_than_champion",
        passed=all(paired_test.is_better(each, config.significance) for each in deciding.values()),
        value=min(each.difference.value for each in deciding.values()),
        threshold=0.0,
        sentence=f"{comparison.ON} {comparison.counted_images} {comparison.unused} by either "
        f"model, {compared}{comparison.test_unit}; required: a gain, with p at most "
        f"{config.significance:g}{beside and f' ({beside})'}{caveat}",
    )


def _too_few(config: PromotionConfig, comparison: ComparedModels) -> str:
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


def _change(difference: MetricEstimate, p_value: float) -> str:
    low, high = 100 * difference.low, 100 * difference.high
    return (
        f"{100 * difference.value:+.1f} points (95% interval {low:+.1f} to {high:+.1f}), "
        f"{p_value_text(p_value)}"
    )


def _no_class_worse(
    config: PromotionConfig, max_drop: float, comparison: ComparedModels
) -> GateResult:
    """Check the largest loss among the classes with enough images; without any, say so."""
    noun, metric, changes = comparison.WORDS.one, comparison.LOSES, comparison.changes
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


def _names(changes: Sequence[ChangedMetric]) -> str:
    return few_names(f"'{change.name}' ({_size(change)})" for change in changes)


def _size(change: ChangedMetric) -> str:
    return f"{change.images}" if change.groups is None else change.counted_images
