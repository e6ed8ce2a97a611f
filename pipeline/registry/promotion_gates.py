"""The gates of a promotion, each one check: of the version alone, and against the champion.

The comparison is McNemar's exact test of the accuracy (`evaluation.metrics.paired_test`), or with
sets of labels a paired bootstrap of mAP (`evaluation.metrics.multi_label.label_set_metrics`). Where
images form groups, such as patients, both test whole groups, and least numbers of images are
numbers of groups.
"""

from __future__ import annotations

from collections.abc import Mapping

from patchline.pipeline.evaluation.comparison import (
    NOT_RANDOM,
    ComparedModels,
    p_value_text,
)
from patchline.pipeline.evaluation.metrics import paired_test
from patchline.pipeline.evaluation.metrics.names import ALL_METRICS
from patchline.pipeline.evaluation.promotion_decision import GateResult
from patchline.pipeline.models.provenance import ProvenanceSummary
from patchline.pipeline.packaging.clean_process_check import PackageCheck
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.templates import render_markdown

PROVENANCE = "provenance"
"""The gate that no setting turns off: it is overruled only with a reason."""
_CLASS_IMAGES = 20
"""Minimum number of compared images of a class, or of their groups, for its loss to be checked."""


def provenance_gate(name: str, provenance: ProvenanceSummary) -> GateResult:
    """Check whether it is known which images a version has seen.

    It fails for a package without a record, and for one that started from a file or a model whose
    images are unknown. Published weights that were identified by their checksum pass, although
    their training images are not known either.

    Its value is the number of files and models among the ancestors whose images are unknown.

    Args:
        name: the version's name, for the sentence.
        provenance: the provenance recorded in its package.
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
        metrics: metrics of the version's own test report, by name without the prefix `test/`.
        caveat: why they may be wrong; empty if nothing is known against them.
    """
    limits = [
        *((name, value, f"minimum_{name}") for name, value in config.minimum.items()),
        *((name, value, f"maximum_{name}") for name, value in config.maximum.items()),
    ]
    gates = [_limit(key, name, metrics.get(name), limit) for name, limit, key in limits]
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
    if config.significance < 1:
        gates.append(_better_than_champion(config, comparison))
    if config.max_class_drop is not None:
        gates.append(_no_class_worse(config, config.max_class_drop, comparison))
    return gates


def _better_than_champion(config: PromotionConfig, comparison: ComparedModels) -> GateResult:
    """Run the paired test: a higher metric on the common images, and significantly so."""
    has_enough, main = comparison.units >= config.min_images, comparison.main
    return GateResult(
        name="better_than_champion",
        passed=has_enough and paired_test.is_better(main, config.significance),
        value=main.difference.value if has_enough else None,
        threshold=0.0,
        sentence=_sentence("better_than_champion", config, comparison),
    )


def _no_class_worse(
    config: PromotionConfig, max_drop: float, comparison: ComparedModels
) -> GateResult:
    """Check the largest loss among the classes with enough images; without any, say so."""
    changes = comparison.changes
    enough = [each for each in changes if each.units >= _CLASS_IMAGES]
    checked = [each for each in enough if each.champion is not None]
    worst = min(checked, key=lambda change: change.gain, default=None)
    drop = None
    if worst is not None and comparison.units >= config.min_images:
        drop = max(0.0, -worst.gain)
    return GateResult(
        name="no_class_worse",
        passed=None if drop is None else drop <= max_drop + 1e-12,
        value=drop,
        threshold=max_drop,
        sentence=_sentence(
            "no_class_worse",
            config,
            comparison,
            checked=checked,
            everywhere=[each for each in enough if each.champion is None],
            small=[each for each in changes if each.units < _CLASS_IMAGES],
            worst=worst,
        ),
    )


def _sentence(
    gate: str, config: PromotionConfig, comparison: ComparedModels, **values: object
) -> str:
    """Return what a gate that compares with the champion found, in one sentence."""
    return render_markdown(
        "gate.txt.j2",
        __package__,
        gate=gate,
        config=config,
        comparison=comparison,
        **values,
        class_images=_CLASS_IMAGES,
        not_random=NOT_RANDOM,
        p_value_text=p_value_text,
    )
