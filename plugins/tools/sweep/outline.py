"""What a search is going to do: its space, its rungs, and about how long training takes.

The time is that of training alone, from the speed that the plan measured: starting a process and
validating come on top, so short fits take longer than that.
"""

from __future__ import annotations

from collections.abc import Iterator

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import by_number, counted, duration
from patchline.plugins.tools.sweep.config import SweepConfig
from patchline.plugins.tools.sweep.ranges import Dimension, NumberRange, Value, shown
from patchline.plugins.tools.sweep.rungs import expected_epochs, rungs
from patchline.plugins.tools.sweep.space import SearchSpace, value_at
from patchline.plugins.tools.sweep.whole_fit import has_rungs


class SearchOutline(FrozenModel):
    """A search that has not begun."""

    space: dict[str, Dimension]
    """Each setting with what is searched."""
    plan: dict[str, Value]
    """The plan's values of these settings."""
    outside: tuple[str, ...] = ()
    """Settings whose range does not contain the plan's value, so the plan is no trial."""
    trials: int | None
    """None if only time ends the search."""
    time_limit: str | None
    rungs: tuple[int, ...]
    """Epochs at which trials are compared; the last is the end of a whole fit."""
    reduction: int
    seeds: int
    epochs: float | None = None
    """Expected of all trials together; None without a number of trials."""
    seconds_per_epoch: float | None = None
    """None if nothing is known about the speed."""
    notes: tuple[str, ...] = ()
    """What differs from the plan."""

    @classmethod
    def of(
        cls,
        settings: SweepConfig,
        space: SearchSpace,
        plan: RunConfig,
        seconds_per_epoch: float | None,
        notes: tuple[str, ...] = (),
    ) -> SearchOutline:
        """Return the outline of a search.

        Args:
            settings: of the search.
            space: of the search.
            plan: resolved, with the length of a whole fit in epochs.
            seconds_per_epoch: of one fit; None if it is not known.
            notes: what differs from the plan.
        """
        steps = rungs(plan.training.epochs, settings.reduction, settings.first_rung)
        if not has_rungs(plan):
            steps = steps[-1:]
        trials = settings.most_trials
        return cls(
            space=space.dimensions,
            plan={key: value_at(plan, key) for key in space.dimensions},
            outside=tuple(space.outside(plan)),
            trials=trials,
            time_limit=settings.time_limit,
            rungs=steps,
            reduction=settings.reduction,
            seeds=settings.seeds,
            epochs=expected_epochs(steps, settings.reduction, trials) if trials else None,
            seconds_per_epoch=seconds_per_epoch,
            notes=notes,
        )

    @property
    def whole_fit_seconds(self) -> float | None:
        """Of training a whole fit."""
        return self.seconds_per_epoch and self.seconds_per_epoch * self.rungs[-1]

    def lines(self) -> Iterator[str]:
        """Yield the space as a table, then how, and about how long is searched."""
        rows = [
            ("Setting", "Searched", "Scale", "Plan"),
            *(
                (key, _values(dimension), _scale(dimension), shown(self.plan[key]))
                for key, dimension in self.space.items()
            ),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows:
            cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            yield "  ".join(cells).rstrip()
        if self.outside:
            are = by_number(len(self.outside), "is", "are")
            yield (
                f"the plan's {' and '.join(self.outside)} {are} outside of the space, so the plan "
                "is no trial; the final fits compare with it all the same"
            )
        yield from (self._length(), self._stops(), self._final_fits(), self._time())

    def _length(self) -> str:
        parts = [counted(self.trials, "trial")] if self.trials else []
        parts += [f"at most {self.time_limit}"] if self.time_limit else []
        expected = f", about {counted(round(self.epochs), 'epoch')} together" if self.epochs else ""
        epochs = counted(self.rungs[-1], "epoch")
        return f"{' and '.join(parts)}, of at most {epochs} each{expected}"

    def _stops(self) -> str:
        if len(self.rungs) == 1:
            return "each trial is a whole fit"
        places = " and ".join(map(str, self.rungs[:-1]))
        word = by_number(len(self.rungs) - 1, "epoch", "epochs")
        return f"at {word} {places}, one trial in {self.reduction} continues"

    def _final_fits(self) -> str:
        return (
            f"then {2 * self.seeds} final fits of {counted(self.rungs[-1], 'epoch')}: the best "
            f"settings and the plan, with {self.seeds} new seeds each"
        )

    def _time(self) -> str:
        fit = self.whole_fit_seconds
        if fit is None or self.seconds_per_epoch is None:
            return (
                "how long it takes is not known, because no plan measured the speed; "
                "`patchline run --rehearse` with the same settings estimates a whole fit"
            )
        finals = 2 * self.seeds * fit
        search = f"up to {self.time_limit}" if self.time_limit else ""
        if self.epochs is not None:
            trained = duration(self.epochs * self.seconds_per_epoch)
            search = f"about {trained}{f', {search},' if search else ''}"
        return (
            f"training takes {search} for the trials and about {duration(finals)} for the final "
            "fits; starting a process for each and validating come on top"
        )


def _values(dimension: Dimension) -> str:
    if isinstance(dimension, NumberRange):
        return f"{dimension.low:g}..{dimension.high:g}"
    return dimension.text()


def _scale(dimension: Dimension) -> str:
    if isinstance(dimension, NumberRange):
        return "log" if dimension.log else "linear"
    return "choice"
