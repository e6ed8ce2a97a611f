"""Assign the aliases of a new version: challenger, and champion if the gates allow it."""

from __future__ import annotations

from dataclasses import dataclass

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.registry import promotion
from patchline.pipeline.registry.promotion import Promotion
from patchline.pipeline.registry.registration import Registered
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


class Promoted(FrozenModel):
    """What was decided about the version."""

    promotion: Promotion | None
    """The promotion; None if the run made none: `patchline promote` compares the version with the
    champion."""
    requests_approval: bool = False
    """Whether a person is to be asked."""


@dataclass(frozen=True)
class Promote(Stage[Promoted]):
    """Leaves the decision; the registry's history keeps it."""

    name = "promote"
    task = "Assign the version's aliases"
    output = Promoted

    registered: Registered
    run: TrackedRun

    def title(self) -> str:
        """Return what is done."""
        return "Assigning the aliases"

    def task_run(self) -> str:
        """Return the version."""
        registered = self.registered
        return f"Assign aliases of {registered.name}, version {registered.version}"

    def compute(self) -> Promoted:
        """Evaluate the gates, and assign the aliases."""
        tracked_run.check_owner(self.run)
        folder, note = self.run.folder / "promotion", self.context.reporting.note
        reference, config = self.registered.reference, self.config.promotion
        decision = promotion.assign_aliases(reference, config, folder, note)
        promoted = decision is not None and decision.promoted
        return Promoted(promotion=decision, requests_approval=config.approval and not promoted)


class Challenge(Promote):
    """Leaves no decision: nothing compares encoders."""

    task = "Assign the version's alias"

    def title(self) -> str:
        """Return what is done."""
        return "Assigning the alias"

    def compute(self) -> Promoted:
        """Assign the alias."""
        tracked_run.check_owner(self.run)
        registered = self.registered
        promotion.make_challenger(registered.name, registered.version, self.context.reporting.note)
        return Promoted(promotion=None)
