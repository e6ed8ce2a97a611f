"""What orchestration adds to a run: events, a request for an approval, how to resume it."""

from __future__ import annotations

from typing import Any

from prefect.runtime import flow_run

from patchline.flows.notifications import event_kinds, events
from patchline.flows.progress.progress_display import display
from patchline.flows.training import outcome_pages
from patchline.pipeline.errors import TakenOverError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.registry.registration import Registered
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.promote import Promoted
from patchline.pipeline.stages.read import data_name
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


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
        reached = outcome_pages.accuracy(context)
        metrics = {} if reached is None else {"accuracy": reached}
        emit(event_kinds.MODEL_REGISTERED, f"model.{result.name}", **made, **metrics)
    elif isinstance(result, Promoted):
        return _decided(context, result)
    return ""


def tell_failure(context: Context, error: BaseException, command: str) -> None:
    """Emit that a run failed or was killed, and say how it can be resumed.

    Args:
        context: of the run.
        error: that ended it.
        command: that resumes runs of its kind, such as `patchline run`.
    """
    if isinstance(error, TakenOverError):
        return  # the run continues in another process
    failed = isinstance(error, Exception)
    run = context.find(TrackedRun)
    run_id = run.run_id if run else ""
    emit(
        event_kinds.RUN_FAILED if failed else event_kinds.RUN_KILLED,
        f"run.{run_id or flow_run.id}",
        name=context.config.name or data_name(context.config),
        run_id=run_id,
        reason=str(error) if failed else "it was stopped by a signal",
    )
    if run_id:
        display().note(f"resume it with: {command} --resume {run_id[:8]}")
    elif not failed:
        display().note("it was stopped before training started, so there is nothing to resume")


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
