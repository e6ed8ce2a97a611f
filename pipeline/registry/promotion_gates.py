"""The gates of a promotion about the version alone, each one check with its finding in a sentence.

Those that compare it with the champion are in `champion_gates.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from patchline.pipeline.evaluation.metrics.multi_label.names import ALL_METRICS
from patchline.pipeline.evaluation.promotion_decision import GateResult
from patchline.pipeline.models.provenance.provenance import ProvenanceSummary
from patchline.pipeline.packaging.clean_process_check import PackageCheck
from patchline.pipeline.registry.config import PromotionConfig

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
