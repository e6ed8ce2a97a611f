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
    is_ignored: bool = False
    """Whether settings mirror images although it is not known whether they show the same classes.
    """
    classes: tuple[str, ...] = ()
    """The classes that are certainly not symmetric by the measurement."""

    @property
    def said(self) -> str:
        """What a run says of it: the evidence is for whoever looks at the data.

        Empty where nothing was left out because of it, or the data has declared it.
        """
        if self.is_contradicted or self.is_ignored:
            return self.note
        if not self.note or self.is_symmetric:
            return ""
        if self.answer == "unknown":
            return (
                "images are not mirrored, as it is not known whether they show the same classes "
                "then; set data.mirror_symmetric if you know"
            )
        return "images are not mirrored: they do not show the same classes then"

    @property
    def is_symmetric(self) -> bool:
        """Whether images may be mirrored; what is not known is not used."""
        return self.answer == "symmetric"
