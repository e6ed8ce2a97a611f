"""What every comparison of two models on the same images says of them."""

from __future__ import annotations

from typing import ClassVar

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.provenance.provenance import UNKNOWN, ProvenanceSummary, unused_words


class ComparedModels(FrozenModel):
    """A champion, a challenger, and the images that they are compared on."""

    METRIC: ClassVar[str] = "its accuracy"
    """What may be optimistic if it is not known which images a model has seen."""

    champion: str
    challenger: str
    champion_provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the champion has seen are recorded."""
    challenger_provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the challenger has seen are recorded."""
    images: int
    left_out: dict[str, int]
    """Number of test images left out, by reason."""

    @property
    def unused(self) -> str:
        """What can be said about the compared images: that neither model used them, or less."""
        return unused_words(self.champion_provenance, self.challenger_provenance)

    @property
    def caveat(self) -> str:
        """What may be wrong because it is not known what the models have seen; may be empty."""
        of_champion, of_challenger = (
            provenance.caveat(name, "these images", self.METRIC)
            for name, provenance in (
                (f"champion {self.champion}", self.champion_provenance),
                (f"challenger {self.challenger}", self.challenger_provenance),
            )
        )
        return "; ".join(each for each in (of_champion, of_challenger) if each)
