"""The level of each check of a stream, so that one false-alarm rate holds over all of them.

Every check spends a part of the rate. However the checks depend on each other (all share one
reference, and the images of two checks may be alike), the probability of any false alarm is at most
the sum of the levels (Bonferroni), on average over references. A reference is a sample, too: one
that happens to be unusual makes all checks of its version alarm more often. So half of the rate is
kept for that, and the checks share the other half: with 5% over 365 checks, each is tested at a
level of 0.025 / 365. Lan and DeMets (1983) call this spending; an equal share for each check treats
a drift on the last day like one on the first.

After the last check of a period, the next one begins, with a rate of its own.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from patchline.pipeline.errors import ConfigError

_FOR_THE_REFERENCE = 0.5
"""Part of the rate that is kept for an unusual reference."""
FALSE_ALARMS, CHECKS = 0.05, 365
"""The rate over a period, and the checks of a period: a year of daily checks."""


class Period(NamedTuple):
    """What a stream is monitored with."""

    false_alarms: float = FALSE_ALARMS
    """Probability of any false alarm in a period."""
    checks: int = CHECKS
    """Checks in a period."""

    @classmethod
    def checked(cls, false_alarms: float, checks: int) -> Self:
        """Return the period.

        Raises:
            ConfigError: if a value is not possible.
        """
        if not 0 < false_alarms < 1:
            raise ConfigError(
                f"--false-alarms is {false_alarms:g}, but must lie between 0 and 1. Choose a rate "
                "such as 0.05."
            )
        if checks < 1:
            raise ConfigError(
                f"--checks is {checks}, but must be at least 1. Choose a larger number."
            )
        return cls(false_alarms, checks)

    @property
    def level(self) -> float:
        """The level of each check."""
        return self.false_alarms * (1 - _FOR_THE_REFERENCE) / self.checks

    def spent(self, checks: int) -> float:
        """Return the part of the rate that is spent in the current period after so many checks.

        Each check also spends its share of what is kept for the reference.
        """
        return self.false_alarms * self.place(checks) / self.checks if checks else 0.0

    def place(self, check: int) -> int:
        """Return the number of a check within its period; both are counted from 1."""
        return (check - 1) % self.checks + 1

    def words(self) -> str:
        """Return what is promised, in words."""
        checks = "1 check" if self.checks == 1 else f"{self.checks:,} checks"
        return f"at most {self.false_alarms:.3g} false alarms in {checks}"
