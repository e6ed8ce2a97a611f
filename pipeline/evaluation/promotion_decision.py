"""The answer to "may this version become champion?": every gate with its figures, and a reason."""

from __future__ import annotations

from pipeline.section import Section


class GateResult(Section):
    """What one gate found."""

    name: str
    """Such as `better_than_champion`."""
    passed: bool
    value: float | None
    """The figure that was judged; none where it could not be had."""
    threshold: float | None
    """What the figure was held against; none where the gate has no number."""
    sentence: str
    """The finding in words, with its figures."""


class Decision(Section):
    """Whether a version becomes champion, and why."""

    name: str
    """Of the registered model."""
    version: str
    champion: str | None
    """The champion that it was held against; none if there was none."""
    promoted: bool
    forced: bool = False
    """Whether a person overruled gates that refused."""
    reason: str
    """In one sentence."""
    gates: tuple[GateResult, ...]
    decided_at: str
    """ISO 8601, UTC."""

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the gates that refused."""
        return tuple(gate.name for gate in self.gates if not gate.passed)
