"""Make the new version of an encoder the challenger: no gate compares encoders."""

from __future__ import annotations

from patchline.pipeline.registry import promotion
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.promote import Promote, Promoted, PromoteInputs
from patchline.pipeline.workspace.tracking import tracked_run


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
