"""Registered models and promotion decisions as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from patchline.pipeline.evaluation.headline import MAIN_METRICS
from patchline.pipeline.evaluation.promotion_decision import verdict
from patchline.pipeline.registry.aliases import CHAMPION, AliasChange
from patchline.pipeline.registry.promotion import Promotion
from patchline.pipeline.registry.registered_models import ModelSummary, VersionSummary
from patchline.pipeline.terminal_words import short_path


def models_text(models: Sequence[ModelSummary], *, details: bool) -> str:
    """Return the versions of models, a line each.

    Args:
        models: what to list.
        details: whether to add the origin of each version and the history of the aliases.
    """
    if not models:
        return "No models are registered yet. `patchline run` trains and registers one."
    lines = []
    for model in models:
        lines += [model.name, *(_version_line(version) for version in model.versions)]
    for model in models if details else ():
        lines += ["", "Origin"]
        for version in model.versions:
            lines += _origin_lines(model.name, version)
        lines += ["", "Alias history", *(_change_line(entry) for entry in model.history)]
    return "\n".join(lines)


def decision_text(decision: Promotion) -> str:
    """Return a decision with the result of each gate."""
    if decision.champion == decision.version:
        return f"{decision.name}, {decision.reason}"
    before = f"version {decision.champion}" if decision.champion else "none"
    decided = verdict(promoted=decision.promoted, forced=decision.forced)
    lines = [
        f"{decision.name}, version {decision.version}: {decided}",
        f"  champion before: {before}",
    ]
    width = max((len(gate.name) for gate in decision.gates), default=0)
    lines += [
        f"  {'FAILED' if gate.failed else gate.verdict:<11}  {gate.name:<{width}}  {gate.sentence}"
        for gate in decision.gates
    ]
    if decision.forced or not decision.gates:
        lines.append(f"  reason: {decision.reason}")
    if decision.report:
        lines.append(f"  report: {short_path(decision.report)}")
    return "\n".join(lines)


def _version_line(version: VersionSummary) -> str:
    metrics = version.metrics
    main = next((name for name in MAIN_METRICS if f"test/{name}" in metrics), None)
    shown = "no metrics" if main is None else f"test {main} {metrics[f'test/{main}']:.1%}"
    if main is None and "test/loss" in metrics:
        shown = f"encoder, test loss {metrics['test/loss']:.4g}"
    if main is None and "test/exact_match" in metrics:
        shown = "test mAP unknown"
    if f"test/{main}_low" in metrics:
        low, high = metrics[f"test/{main}_low"], metrics[f"test/{main}_high"]
        shown += f" ({low:.1%} to {high:.1%})"
    aliases = ", ".join(version.aliases)
    return (
        f"  version {version.version:<4} {shown:<40} {aliases:<24} run {version.run_id[:8]}  "
        f"data {version.data_fingerprint[:8]}{_unknown_images(version)}"
    )


def _unknown_images(version: VersionSummary) -> str:
    """Return whether the images that a version has seen are unknown; nothing if they are known."""
    return "" if version.provenance == "known" else f"  images seen: {version.provenance}"


def _origin_lines(name: str, version: VersionSummary) -> list[str]:
    """Return where a version comes from, what was decided, and whether it needs an answer."""
    commit = version.commit[:8] or "unknown"
    if "changes" in version.commit:
        commit += " with changes"
    flow = version.flow_run_id[:8] or "unknown"
    tested = f"  test images {version.test_images[:8]}" if version.test_images else ""
    tested += f"  images seen: {version.provenance}"
    run = f"commit {commit}  Prefect flow run {flow}{tested}"
    lines = [f"  version {version.version:<4} {version.created_at}  {run}"]
    if version.taught_by:
        lines.append(f"    taught by {version.taught_by}")
    is_champion = CHAMPION in version.aliases
    if decision := version.decision:
        promoted, forced = bool(decision.get("promoted")), bool(decision.get("forced"))
        was = "was " if promoted and not is_champion else ""
        decided = verdict(promoted=promoted, forced=forced)
        lines.append(f"    {was}{decided}: {decision.get('reason', '')}")
    if (version.approval or {}).get("state") == "asked" and not is_champion:
        reference = f"{name}/{version.version}"
        lines.append(
            f"    pending approval: run `patchline approve {reference}` or `patchline reject "
            f"{reference}`"
        )
    return lines


def _change_line(entry: AliasChange) -> str:
    before, after = entry.from_version or "none", entry.to_version or "none"
    begun = " (started, not confirmed)" if entry.state == "intended" else ""
    action = entry.action.upper() if entry.action == "forced" else entry.action
    return (
        f"  {entry.sequence:>3}  {entry.at}  {entry.alias:<10} {before} -> {after:<4} "
        f"{action}{begun}: {entry.reason}"
    )
