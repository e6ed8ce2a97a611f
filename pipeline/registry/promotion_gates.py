"""The gates of a promotion, each one check with its finding in a sentence.

The paired test against the champion is `_better_than_champion`; it uses McNemar's exact test of
`patchline.pipeline.metrics.paired`.
"""

from __future__ import annotations

from collections.abc import Mapping

from patchline.pipeline.evaluation.comparison import ClassChange, Comparison, p_value_text
from patchline.pipeline.evaluation.promotion_decision import GateResult
from patchline.pipeline.metrics.multi_label.names import ALL_METRICS
from patchline.pipeline.metrics.paired_test import is_better
from patchline.pipeline.packaging.clean_process_check import PackageCheck
from patchline.pipeline.provenance.provenance import ProvenanceSummary
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.terminal_words import counted

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


def absolute_gates(config: PromotionConfig, metrics: Mapping[str, float]) -> list[GateResult]:
    """Check the version's own test metrics against the limits in the config.

    Args:
        config: holds the limits.
        metrics: from the version's own test report, without the prefix `test/`.
    """
    limits = [
        *((name, value, f"minimum_{name}") for name, value in config.minimum.items()),
        *((name, value, f"maximum_{name}") for name, value in config.maximum.items()),
    ]
    gates = [_limit(key, name, metrics.get(name), limit) for name, limit, key in limits]
    if config.max_calibration_error is not None:
        gates.append(_limit("calibration", "ece", metrics.get("ece"), config.max_calibration_error))
    return gates


def comparison_gates(config: PromotionConfig, comparison: Comparison) -> list[GateResult]:
    """Check the comparison with the champion: the paired test, and recall per class."""
    gates = []
    if config.better_than_champion:
        gates.append(_better_than_champion(config, comparison))
    if config.max_class_drop is not None and comparison.images >= config.min_images:
        gates.append(_no_class_worse(config, config.max_class_drop, comparison))
    return gates


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


def _better_than_champion(config: PromotionConfig, comparison: Comparison) -> GateResult:
    """Run the paired test: correct on more of the common images, and significantly so."""
    pair = comparison.paired
    enough = comparison.images >= config.min_images
    if not enough:
        sentence = (
            f"only {counted(comparison.images, 'image was', 'images were')} {comparison.unused} "
            "by either model, fewer "
            f"than promotion.min_images {config.min_images}, so the versions cannot be compared; "
            "add test images"
        )
    else:
        caveat = f"; note that {comparison.caveat}" if comparison.caveat else ""
        sentence = (
            f"of {comparison.images:,} images {comparison.unused} by either model, "
            f"{pair.only_b_right} are correct only now and {pair.only_a_right} were "
            f"correct only before: {100 * pair.difference.value:+.1f} points (95% interval "
            f"{100 * pair.difference.low:+.1f} to {100 * pair.difference.high:+.1f}), "
            f"{p_value_text(pair.p_value)}; maximum {config.significance:g}{caveat}"
        )
    return GateResult(
        name="better_than_champion",
        passed=enough and is_better(pair, config.significance),
        value=pair.difference.value if enough else None,
        threshold=0.0,
        sentence=sentence,
    )


def _no_class_worse(config: PromotionConfig, max_drop: float, comparison: Comparison) -> GateResult:
    checked = [c for c in comparison.by_class if c.images >= config.class_min_images]
    small = [c for c in comparison.by_class if 0 < c.images < config.class_min_images]
    beside = f"; too small to check: {_names(small)}" if small else ""
    if not checked:
        return GateResult(
            name="no_class_worse",
            passed=True,
            value=None,
            threshold=max_drop,
            sentence=f"no class has {config.class_min_images} comparable images; none checked",
        )
    worst = min(checked, key=lambda change: change.difference.value)
    drop = max(0.0, -worst.difference.value)
    lost = (
        f"'{worst.name}' has the largest loss: recall {worst.champion.value:.1%} before, "
        f"{worst.challenger.value:.1%} now, on {worst.images:,} images"
        if drop > 0
        else "no class loses recall"
    )
    return GateResult(
        name="no_class_worse",
        passed=drop <= max_drop + 1e-12,
        value=drop,
        threshold=max_drop,
        sentence=f"{lost}; maximum loss {max_drop:g}{beside}",
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


def _names(changes: list[ClassChange]) -> str:
    shown = [f"'{change.name}' ({change.images})" for change in changes[:5]]
    more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""  # noqa: PLR2004 - shown above
    return ", ".join(shown) + more
