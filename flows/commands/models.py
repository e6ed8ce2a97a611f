"""The command `patchline models`."""

from __future__ import annotations

import json

from flows.closing.close_runs import tell_closed
from flows.commands.switches import Json
from pipeline.registry.history import CHAMPION, AliasChange
from pipeline.registry.registered_models import ModelSummary, VersionSummary, summaries


def models(name: str | None = None, /, *, as_json: Json = False) -> None:
    """Show the registered models: versions, aliases, figures.

    Parameters
    ----------
    name
        One model only.
    """
    tell_closed()
    found = summaries(name)
    if as_json:
        print(json.dumps({"models": [model.model_dump(mode="json") for model in found]}, indent=2))
    elif not found:
        print("No models are registered yet. `patchline run` trains and registers one.")
    else:
        lines = [line for model in found for line in _lines(model)]
        if name is not None:
            lines += _details(found[0]) + _history(found[0])
        print("\n".join(lines))


def _lines(model: ModelSummary) -> list[str]:
    return [model.name, *(_version_line(version) for version in model.versions)]


def _version_line(version: VersionSummary) -> str:
    metrics = version.metrics
    accuracy = metrics.get("test/accuracy")
    shown = "no figures" if accuracy is None else f"test accuracy {accuracy:.1%}"
    if "test/accuracy_low" in metrics:
        low, high = metrics["test/accuracy_low"], metrics["test/accuracy_high"]
        shown += f" ({low:.1%} to {high:.1%})"
    aliases = ", ".join(version.aliases)
    return (
        f"  version {version.version:<4} {shown:<40} {aliases:<24} run {version.run_id[:8]}  "
        f"data {version.data_fingerprint[:8]}"
    )


def _details(model: ModelSummary) -> list[str]:
    """Return where each version comes from, and what was decided about it."""
    lines = ["", "Where they come from"]
    for version in model.versions:
        commit = version.commit[:8] or "not known"
        if "changes" in version.commit:
            commit += " with changes"
        flow = version.flow_run_id[:8] or "not known"
        lines.append(
            f"  version {version.version:<4} {version.created_at}  commit {commit}  "
            f"Prefect flow run {flow}"
        )
        if version.decision:
            verdict = "promoted" if version.decision.get("promoted") else "refused"
            if version.decision.get("forced"):
                verdict = "promoted by force"
            if version.decision.get("promoted") and CHAMPION not in version.aliases:
                verdict = f"was {verdict}"
            lines.append(f"    {verdict}: {version.decision.get('reason', '')}")
        if (version.approval or {}).get("state") == "asked" and CHAMPION not in version.aliases:
            lines.append(
                f"    waits for a person's answer: `patchline approve {model.name}/"
                f"{version.version}` or `reject`"
            )
    return lines


def _history(model: ModelSummary) -> list[str]:
    """Return every change of an alias, oldest first."""
    return ["", "History of the aliases", *(_change(entry) for entry in model.history)]


def _change(entry: AliasChange) -> str:
    before, after = entry.from_version or "none", entry.to_version or "none"
    begun = " (begun, not known to be done)" if entry.state == "intended" else ""
    action = entry.action.upper() if entry.action == "forced" else entry.action
    return (
        f"  {entry.sequence:>3}  {entry.at}  {entry.alias:<10} {before} -> {after:<4} "
        f"{action}{begun}: {entry.reason}"
    )
