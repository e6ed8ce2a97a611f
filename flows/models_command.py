"""The command `patchline models`."""

from __future__ import annotations

import json

from pipeline import tracking
from pipeline.registry.registered_models import ModelSummary, summaries


def print_models(name: str | None, *, as_json: bool) -> None:
    """Print the registered models, newest version first."""
    tracking.close_abandoned()
    found = summaries(name)
    if as_json:
        print(json.dumps({"models": [model.model_dump(mode="json") for model in found]}, indent=2))
    elif not found:
        print("No models are registered yet. `patchline run` trains and registers one.")
    else:
        print("\n".join(line for model in found for line in _lines(model)))


def _lines(model: ModelSummary) -> list[str]:
    lines = [model.name]
    for version in model.versions:
        metrics = version.metrics
        accuracy = metrics.get("test/accuracy")
        shown = "no figures" if accuracy is None else f"test accuracy {accuracy:.1%}"
        if "test/accuracy_low" in metrics:
            low, high = metrics["test/accuracy_low"], metrics["test/accuracy_high"]
            shown += f" ({low:.1%} to {high:.1%})"
        aliases = ", ".join(version.aliases)
        lines.append(
            f"  version {version.version:<4} {shown:<40} {aliases:<24} run {version.run_id[:8]}  "
            f"data {version.data_fingerprint[:8]}"
        )
    return lines
