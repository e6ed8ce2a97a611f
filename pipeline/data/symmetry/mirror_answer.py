"""The answer to whether a mirrored image still shows its class."""

from __future__ import annotations

from typing import Literal

from patchline.pipeline.frozen_model import FrozenModel

Answer = Literal["symmetric", "asymmetric", "unknown"]


class MirrorSymmetry(FrozenModel):
    """Whether a mirrored image still shows its class, and how that is known."""

    answer: Answer
    origin: Literal["set", "declared", "measured"]
    note: str = ""
    """The answer and its evidence in a sentence, if measured or against the settings."""
    why: str = ""
    """Why no image is mirrored, in a few words."""
    is_contradicted: bool = False
    """Whether settings mirror images that were measured to show other classes."""
    classes: tuple[str, ...] = ()
    """The classes that are certainly not symmetric by the measurement."""

    @property
    def is_symmetric(self) -> bool:
        """Whether images may be mirrored; what is not known is not used."""
        return self.answer == "symmetric"
