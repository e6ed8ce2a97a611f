"""Registered models and promotion decisions as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from patchline.pipeline.evaluation.headline import MAIN_METRICS
from patchline.pipeline.evaluation.promotion_decision import verdict
from patchline.pipeline.templates import render_markdown

if TYPE_CHECKING:
    from patchline.pipeline.registry.promotion import Promotion
    from patchline.pipeline.registry.registered_models import ModelSummary


def models_text(models: Sequence[ModelSummary], *, details: bool) -> str:
    """Return the versions of models, a line each.

    Args:
        models: the models to list.
        details: whether to add the origin of each version and the history of the aliases.
    """
    return render_markdown(
        "models.txt.j2",
        __package__,
        models=models,
        details=details,
        main_metrics=[f"test/{name}" for name in MAIN_METRICS],
        verdict=verdict,
    ).removesuffix("\n")


def decision_text(decision: Promotion) -> str:
    """Return a decision with the result of each gate."""
    return render_markdown(
        "decision.txt.j2",
        __package__,
        decision=decision,
        verdict=verdict,
    ).removesuffix("\n")
