"""What orchestration adds to a registered version: events, and a request for an approval."""

from __future__ import annotations

from typing import Any

from patchline.flows.notifications import events
from patchline.flows.training import outcome_pages
from patchline.pipeline.automation import event_kinds
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.registry.registration import Registered
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.promote import Promoted
from patchline.pipeline.tracking.tracked_run import TrackedRun


def announce(context: Context, result: FrozenModel) -> str:
    """Emit that a version was registered, or what was decided about it.

    Args:
        context: of the run that registers it.
        result: of a stage; that of any other says nothing.

    Returns:
        The approval that was requested; empty without one.
    """
    if isinstance(result, Registered):
        run = context.get(TrackedRun)
        made = {"name": result.name, "version": result.version, "run_id": run.run_id}
        accuracy = outcome_pages.accuracy(context)
        metrics = {} if accuracy is None else {"accuracy": accuracy}
        emit(event_kinds.MODEL_REGISTERED, f"model.{result.name}", **made, **metrics)
    elif isinstance(result, Promoted):
        return _decided(context, result)
    return ""


def emit(event: str, resource: str, **payload: Any) -> None:
    """Send an event about a resource of Patchline."""
    events.emit(event, f"patchline.{resource}", payload)


def _decided(context: Context, promoted: Promoted) -> str:
    """Emit the decision, and request an approval where the config asks for one."""
    if promoted.promotion:
        events.emit_decision(promoted.promotion)
    if not promoted.requests_approval:
        return ""
    from patchline.flows.approval import opening  # imports what no other run needs

    reference = context.get(Registered).reference
    return opening.request_approval(reference, context.config.promotion) or ""
