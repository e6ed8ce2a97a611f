"""What every comparison of two models on the same images says of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance.provenance import UNKNOWN, ProvenanceSummary, unused_words
from patchline.pipeline.terminal_words import counted

_SIGNIFICANCE = 0.05


class PairedValues(NamedTuple):
    """One metric of two models on the same images, and its paired test."""

    champion: float
    challenger: float
    difference: MetricEstimate
    """The challenger's minus the champion's, with its 95% interval."""
    p_value: float
    """Two-sided."""

    @property
    def meaning(self) -> str:
        """What the paired test says, in words."""
        if not self.difference.value:
            return "neither is better"
        if self.p_value < _SIGNIFICANCE:
            return "the difference is significant"
        return "the difference may be due to chance"


class ComparedImages(FrozenModel):
    """How many images are compared, and how many of these are independent."""

    images: int
    groups: int | None = None
    """Number of groups that the images form, such as patients; an image without a group is one of
    its own. None if no two images are of one group."""

    @property
    def units(self) -> int:
        """The number of independent units: groups if there are any, otherwise images."""
        return self.images if self.groups is None else self.groups

    @property
    def counted_images(self) -> str:
        """The number of images, and of the groups that they form: `200 images in 10 groups`."""
        images = counted(self.images, "image")
        return images if self.groups is None else f"{images} in {counted(self.groups, 'group')}"


class ComparedModels(ComparedImages, ABC):
    """A champion, a challenger, and the images that they are compared on."""

    METRIC: ClassVar[str] = "accuracy"
    """By which they are compared."""

    champion: str
    challenger: str
    champion_provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the champion has seen are recorded."""
    challenger_provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the challenger has seen are recorded."""
    left_out: dict[str, int]
    """Number of test images left out, by reason."""

    @property
    @abstractmethod
    def main(self) -> PairedValues:
        """The metric by which they are compared; each kind of comparison has its own."""

    @property
    def unused(self) -> str:
        """What can be said about the compared images: that neither model used them, or less."""
        return unused_words(self.champion_provenance, self.challenger_provenance)

    @property
    def caveat(self) -> str:
        """What may be wrong because it is not known what the models have seen; may be empty."""
        of_champion, of_challenger = (
            provenance.caveat(name, "these images", f"its {self.METRIC}")
            for name, provenance in (
                (f"champion {self.champion}", self.champion_provenance),
                (f"challenger {self.challenger}", self.challenger_provenance),
            )
        )
        return "; ".join(each for each in (of_champion, of_challenger) if each)

    @property
    def test_unit(self) -> str:
        """What the paired test takes as a unit, as a clause; empty if that is an image."""
        return "" if self.groups is None else ", testing whole groups"

    @property
    def sentence(self) -> str:
        """The result in one sentence, with the difference and its interval."""
        if not self.images:
            return (
                f"No test image is left for comparing challenger {self.challenger} with champion "
                f"{self.champion}."
            )
        main, change = self.main, self.main.difference
        caveat = f" Note that {self.caveat}." if self.caveat else ""
        return (
            f"On {self.counted_images} {self.unused} by either, challenger "
            f"{self.challenger} has an {self.METRIC} of {100 * main.challenger:.1f}% and champion "
            f"{self.champion} {100 * main.champion:.1f}%: {points(change.value)} points "
            f"(95% confidence interval {points(change.low)} to {points(change.high)}; "
            f"{p_value_text(main.p_value)}{self.test_unit}); {main.meaning}.{caveat}"
        )


def points(share: float) -> str:
    """Return a difference of two shares in percentage points, with its sign: `+2.4`."""
    rounded = round(100 * share, 1)
    return f"{rounded:+.1f}" if rounded else "0.0"


def p_value_text(p_value: float) -> str:
    """Return `p = 0.034`, or `p < 0.001`."""
    return f"p = {p_value:.3f}" if p_value >= 0.001 else "p < 0.001"  # noqa: PLR2004 - three digits
