"""The result of a search: its trials, the final fits, and what the search gained."""

from __future__ import annotations

from typing import Literal

from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import counted
from patchline.plugins.tools.sweep.study import TrialRecord

FinalKind = Literal["best", "plan"]


class FinalFit(FrozenModel):
    """One final fit: the best settings or the plan's, with a seed that no trial has used."""

    kind: FinalKind
    seed: int
    run_id: str
    validation: float
    test: float
    epochs: float


class SweepResult(FrozenModel):
    """Everything that the report of a search shows."""

    name: str
    """Of the experiment and the registered model."""
    study: str
    metric: str
    """accuracy, or mAP of sets of labels."""
    data_fingerprint: str
    images: dict[str, int]
    """By split."""
    space: dict[str, str]
    """Each dimension as it is typed."""
    outside: tuple[str, ...] = ()
    """Settings whose range does not contain the plan's value, which is then no trial."""
    rungs: tuple[int, ...]
    sampler: str
    reduction: int
    seed: int
    trials: tuple[TrialRecord, ...]
    search_seconds: float
    final_seconds: float = 0.0
    """Of the final fits and their tests."""
    best: TrialRecord
    is_plan: bool
    """Whether the best settings are the plan's own."""
    finals: tuple[FinalFit, ...]
    gain: MetricEstimate
    """Of the test metric, over the plan; all 0 if the best settings are the plan's."""
    best_test: MetricEstimate
    plan_test: MetricEstimate
    test_groups: int | None = None
    """Number of groups that the test images form; None if these are independent."""
    optimism: MetricEstimate
    """By how much the best validation metric exceeds what the same settings reach with other
    seeds, on the same validation images."""
    notes: tuple[str, ...] = ()
    registered: str = ""
    """Name and version; empty if the search gained nothing over the plan and there is a champion.
    """
    champion: str = ""
    """The champion and its test metric, in words, if nothing was registered."""

    @property
    def epochs(self) -> float:
        """Epochs that the trials have trained together."""
        return sum(each.epochs for each in self.trials)

    @property
    def whole_fits(self) -> float:
        """The same in whole fits."""
        return self.epochs / self.rungs[-1]

    def count(self, state: str) -> int:
        """Return how many trials ended so."""
        return sum(each.state == state for each in self.trials)

    def of(self, kind: FinalKind) -> list[FinalFit]:
        """Return the final fits of a kind; if the plan is the best, they are the same."""
        chosen = [each for each in self.finals if each.kind == kind]
        return chosen or list(self.finals)

    def gain_words(self) -> str:
        """Return the gain in a few words."""
        return "no gain" if self.is_plan else f"{_points(self.gain.value)} points"

    def verdict(self) -> str:
        """Return what the search gained, in one sentence."""
        seeds = len(self.of("best"))
        images = f"{self.gain.n:,} test images"
        if self.test_groups is not None:
            images += f" in {counted(self.test_groups, 'group')}"
        if self.is_plan:
            ending = self._not_registered() or "the plan's own settings are registered."
            return (
                "No trial was better than the plan on the validation images, so the search gained "
                f"nothing: {ending}"
            )
        change = f"{_points(self.gain.value)} points (95% interval {_interval(self.gain)})"
        compared = f"mean test {self.metric} of {seeds} seeds each, on the same {images}"
        if self.gain.low > 0:
            return f"The search gained {change} over the plan: {compared}."
        if self.gain.high < 0:
            return (
                f"The search lost {change} to the plan, although its best trial was better on the "
                f"validation images: {compared}.{self._ending()}"
            )
        few = ""
        if seeds == 2:  # noqa: PLR2004 - the fewest
            few = " Two seeds show large gains only; set `--sweep.seeds` to 3 or more."
        return (
            f"It is not known whether the search gained anything over the plan: {change}, which "
            f"includes 0; {compared}.{few}{self._ending()}"
        )

    def _not_registered(self) -> str:
        return f"nothing was registered; {self.champion}." if self.champion else ""

    def _ending(self) -> str:
        ending = self._not_registered()
        return f" {ending[0].upper()}{ending[1:]}" if ending else ""

    def optimism_sentence(self) -> str:
        """Return how optimistic the best validation metric was, in one sentence."""
        again = [each.validation for each in self.of("best")]
        mean = sum(again) / len(again)
        best = self.best.validation or 0.0
        trials = len(self.trials)
        first = (
            f"The best validation {self.metric} of {trials} trials was {best:.1%}; with "
            f"{len(again)} other seeds the same settings reach {mean:.1%} on the same images"
        )
        by = f"{_points(self.optimism.value)} points (95% interval {_interval(self.optimism)})"
        if self.optimism.low > 0:
            return f"{first}, so it was optimistic by {by}."
        return f"{first}: a difference of {by}, so how optimistic it was is not known."


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def _interval(estimate: MetricEstimate) -> str:
    return f"{_points(estimate.low)} to {_points(estimate.high)}"
