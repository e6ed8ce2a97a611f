"""Assign the aliases of a new version: challenger, and champion if the gates allow it."""

from __future__ import annotations

from dataclasses import dataclass

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.registry import promotion
from patchline.pipeline.registry.promotion import Promotion
from patchline.pipeline.registry.registration import Registered
from patchline.pipeline.stages.stage import Context, Stage
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class PromoteInputs:
    """The version, and the run whose folder receives the comparison with the champion."""

    registered: Registered
    run: TrackedRun


class Promoted(FrozenModel):
    """What was decided about the version."""

    promotion: Promotion | None
    """None if the run made none: `patchline promote` compares the version with the champion."""
    requests_approval: bool = False
    """Whether a person is to be asked."""


class Promote(Stage[PromoteInputs, Promoted]):
    """Leaves the decision; the registry's history keeps it."""

    name = "promote"
    task = "Assign the version's aliases"
    reads = PromoteInputs
    output = Promoted

    def title(self, context: Context, inputs: PromoteInputs) -> str:
        """Return what is done."""
        return "Assigning the aliases"

    def task_run(self, context: Context, inputs: PromoteInputs) -> str:
        """Return the version."""
        registered = inputs.registered
        return f"Assign aliases of {registered.name}, version {registered.version}"

    def compute(self, context: Context, inputs: PromoteInputs) -> Promoted:
        """Evaluate the gates, and assign the aliases."""
        tracked_run.check_owner(inputs.run)
        folder, note = inputs.run.folder / "promotion", context.reporting.note
        reference, config = inputs.registered.reference, context.config.promotion
        decision = promotion.assign_aliases(reference, config, folder, note)
        promoted = decision is not None and decision.promoted
        return Promoted(promotion=decision, requests_approval=config.approval and not promoted)


PROMOTE = Promote()


class Challenge(Promote):
    """Leaves no decision: nothing compares encoders."""

    task = "Assign the version's alias"

    def title(self, context: Context, inputs: PromoteInputs) -> str:
        """Return what is done."""
        return "Assigning the alias"

    def compute(self, context: Context, inputs: PromoteInputs) -> Promoted:
        """Assign the alias."""
        tracked_run.check_owner(inputs.run)
        registered = inputs.registered
        promotion.make_challenger(registered.name, registered.version, context.reporting.note)
        return Promoted(promotion=None)


CHALLENGE = Challenge()
