"""The decision about a promotion: the result of every gate, and the reason.

These are the values only. The gates that decide, the paired test against the champion among them,
are in `pipeline/registry/promotion_gates.py`.
"""

from __future__ import annotations

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance import UNKNOWN, ProvenanceSummary


class GateResult(FrozenModel):
    """The result of one gate."""

    name: str
    """Name of the gate, such as `better_than_champion`."""
    passed: bool | None
    """Whether the gate is passed; None if there was nothing to check: it is not known, and prevents
    no promotion."""
    value: float | None
    """The value that was checked; None if it is not available."""
    threshold: float | None
    """The threshold for the value; None for a gate without one."""
    sentence: str
    """The result in words, with its values."""

    @property
    def verdict(self) -> str:
        """Whether it passed, in words."""
        return {True: "passed", False: "failed", None: "not checked"}[self.passed]

    @property
    def failed(self) -> bool:
        """Whether it was checked and did not pass."""
        return self.passed is False


class PromotionDecision(FrozenModel):
    """Whether a version becomes champion, and why."""

    name: str
    """Name of the registered model."""
    version: str
    champion: str | None
    """The champion it was compared with; None if there was none."""
    promoted: bool
    forced: bool = False
    """Whether failed gates were overruled."""
    reason: str
    """The reason in one sentence."""
    gates: tuple[GateResult, ...]
    provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the version has seen are recorded."""
    decided_at: str
    """Time of the decision in ISO 8601, UTC."""

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the failed gates."""
        return tuple(gate.name for gate in self.gates if gate.failed)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """The names of the gates that had nothing to check."""
        return tuple(gate.name for gate in self.gates if gate.passed is None)


def verdict(*, promoted: bool, forced: bool) -> str:
    """Return what was decided, in words."""
    if forced:
        return "promoted by force"
    return "promoted" if promoted else "not promoted"
