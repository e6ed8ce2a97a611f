"""What the time of a run is spent on: training gets what everything before and after it leaves.

The time is what a person waits: from the first line of a command to the report. It is
`training.time_limit`, or else the minutes that a preset aims at.
"""

from __future__ import annotations

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import duration

PLANNING_SHARE = 0.1
"""Largest share of the time for choosing initial weights and measuring speeds."""
LEAST_TRAINING = 0.1
"""Smallest share for the training; where the rest takes more, the run takes longer."""


def training_share(limit: float, others: float) -> float:
    """Return which part of a limit is left for the training beside everything else."""
    return max(LEAST_TRAINING, 1 - others / limit)


class TimeShares(FrozenModel):
    """The division of the time, in seconds; what is not over yet is estimated."""

    limit: float
    """From the first line to the report."""
    before: float
    """Until the training begins: reading and decoding the images, planning."""
    features: float = 0.0
    """Features of frozen weights and tokens of their last blocks."""
    evaluation: float
    packaging: float
    """Packaging and registering the model."""

    @property
    def after(self) -> float:
        """What follows the training."""
        return self.evaluation + self.packaging

    @property
    def others(self) -> float:
        """Everything but the training; features and tokens are part of the training stage."""
        return self.before + self.after

    @property
    def training(self) -> float:
        """What is left for the training stage."""
        return self.limit * training_share(self.limit, self.others)

    def sentence(self) -> str:
        """Return the division in words, without a full stop."""
        parts = {
            "reading and planning": self.before,
            "features": self.features,
            "training": max(0.0, self.training - self.features),
            "evaluation": self.evaluation,
            "packaging": self.packaging,
        }
        shares = ", ".join(f"{name} {duration(each)}" for name, each in parts.items() if each)
        needed = self.others + max(self.features, LEAST_TRAINING * self.limit)
        longer = f"; that is about {duration(needed)} at least" * (needed > self.limit)
        return f"time: {duration(self.limit)} from start to report ({shares}){longer}"
