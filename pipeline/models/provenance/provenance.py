"""What is known about the images that a model's weights have seen: everything, or not everything.

There are three states. *known*: every image used for training or model selection, by the weights or
by those that they started from, is in the record. *upstream corpus unknown*: an ancestor is
published weights whose checksum is known, and whose training images are not. *unknown*: anything
else, such as a file without a record. A descendant of unknown weights is unknown as well. What is
said about a model in reports, cards, evaluations and decisions is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance.seen_images import SeenImages, united

State = Literal["known", "upstream corpus unknown", "unknown"]
UNUSED = "not used for training or model selection"
_NOT_RECORDED = "not recorded as used for training or model selection"
_SHOWN = 5
_LONGEST = 300


class Published(FrozenModel):
    """Published weights, which were identified by their checksum."""

    name: str
    """Such as `timm:vit_tiny_patch16_224`."""
    sha256: str
    """Of the file."""
    license: str = ""
    """As the library that published them states it; empty if it does not."""


class ProvenanceSummary(FrozenModel):
    """What is known about the images that weights have seen, without the images themselves."""

    state: State
    """known, upstream corpus unknown, or unknown."""
    published: tuple[Published, ...] = ()
    """Published weights among the ancestors, whose training images are not known."""
    unknown: tuple[str, ...] = ()
    """Why it is not known which images were seen; empty unless the state is unknown."""

    @property
    def is_known(self) -> bool:
        """Whether every image that was seen is recorded."""
        return self.state == "known"

    def sentence(self, subject: str) -> str:
        """Return what is known about the images, as a clause.

        Args:
            subject: the weights, such as `version 3`.
        """
        if self.state == "known":
            return f"all images used to train or select {subject} are recorded"
        if self.state == "unknown":
            return (
                f"it is not known which images were used to train or select {subject} "
                f"({_join_texts(self.unknown)})"
            )
        names = _join_texts(each.name for each in self.published)
        return f"the training images of {names}, published weights behind {subject}, are not known"

    def caveat(self, subject: str, images: str = "test images", what: str = "the metrics") -> str:
        """Return what follows from images that are not known; empty if all are.

        Args:
            subject: the weights, as in `sentence`.
            images: which images matter.
            what: what would be optimistic.
        """
        if self.is_known:
            return ""
        are = "is" if what.startswith(("the accuracy", "its accuracy")) else "are"
        return f"{self.sentence(subject)}; if {images} are among them, {what} {are} optimistic"


NO_RECORD = "there is no record of the images that the weights have seen"
KNOWN = ProvenanceSummary(state="known")
UNKNOWN = ProvenanceSummary(state="unknown", unknown=(NO_RECORD,))


def unused_words(*summaries: ProvenanceSummary) -> str:
    """Return what can be said about images that are not in the records of some models."""
    return UNUSED if all(summary.is_known for summary in summaries) else _NOT_RECORDED


@dataclass(frozen=True)
class Provenance:
    """The images that weights have seen, and whether these are all.

    Attributes:
        own: the images of the training itself.
        inherited: those of the weights that it started from, and of their ancestors.
        published: published weights among the ancestors.
        unknown: why there may be other images.
    """

    own: SeenImages = field(default_factory=SeenImages)
    inherited: SeenImages = field(default_factory=SeenImages)
    published: tuple[Published, ...] = ()
    unknown: tuple[str, ...] = ()

    @classmethod
    def without_record(cls, reason: str = NO_RECORD) -> Provenance:
        """Return the provenance of weights about which nothing is known."""
        return cls(unknown=(one_line(reason),))

    @property
    def images(self) -> SeenImages:
        """All images that are recorded."""
        return united([self.own, self.inherited]) if self.inherited else self.own

    def from_initial(self, initial: Provenance) -> Provenance:
        """Return the provenance of a training run that started from weights."""
        return Provenance(self.own, initial.images, initial.published, initial.unknown)

    @property
    def summary(self) -> ProvenanceSummary:
        """What is known, without the images."""
        state: State = "upstream corpus unknown" if self.published else "known"
        return ProvenanceSummary(
            state="unknown" if self.unknown else state,
            published=self.published,
            unknown=self.unknown,
        )

    @property
    def licenses(self) -> str:
        """The licenses of the published weights, as their libraries state them."""
        return ", ".join(dict.fromkeys(each.license for each in self.published if each.license))


def one_line(text: str) -> str:
    """Return a text for sentences: on one line, without control characters, not too long."""
    shown = text.encode("utf-8", "backslashreplace").decode()
    return "".join(sign if sign.isprintable() else " " for sign in shown)[:_LONGEST]


def together(parts: Iterable[Provenance]) -> Provenance:
    """Return the provenance of weights that were made from all of these."""
    every = list(parts)
    published = {each.sha256: each for part in every for each in part.published}
    return Provenance(
        own=united(part.own for part in every),
        inherited=united(part.inherited for part in every),
        published=tuple(published[key] for key in sorted(published)),
        unknown=tuple(dict.fromkeys(reason for part in every for reason in part.unknown)),
    )


def _join_texts(texts: Iterable[str]) -> str:
    every = list(texts)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return "; ".join(every[:_SHOWN]) + more
