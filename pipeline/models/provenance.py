"""What a model's weights have seen: digests of their images, and of those of their ancestors.

Two images are the same as in `patchline.pipeline.data.manifests.same_images`: their files have one
SHA-256, or their decoded pixels one digest. A near duplicate is another image, unless it is in the
same group.

A digest that two images share by accident only ever marks an unseen image as seen: with a million
images recorded, this happens to one image in 10⁸ that are looked up.

There are three states. *known*: every image used for training or model selection, by the weights or
by those that they started from, is in the record. *upstream corpus unknown*: an ancestor is
published weights whose checksum is known, and whose training images are not. *unknown*: anything
else, such as a file without a record. A descendant of unknown weights is unknown as well. What is
said about a model in reports, cards, evaluations and decisions is decided here.

The record is in the same file as the weights, so that no copy of one is without the other, and the
file's own SHA-256 covers both. A file without a record, or with one that cannot be read, is
unknown: it is never taken for weights that have seen nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ValidationError

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.workspace.files.sealed_files import read_metadata

if TYPE_CHECKING:
    import pandas as pd


Digests = np.ndarray[Any, np.dtype[np.uint64]]
Booleans = np.ndarray[Any, np.dtype[np.bool_]]

DIGEST_BYTES = 6
CONTENT = ("sha256", "pixels")
"""Columns of a manifest that identify an image."""
WITH_GROUPS = (*CONTENT, "group")
"""Images of one patient, plant or camera resemble each other, so groups count too."""


def _none() -> Digests:
    return np.zeros(0, np.uint64)


@dataclass(frozen=True, eq=False)
class SeenImages:
    """Images that weights were trained on, and those that they were selected by.

    Attributes:
        trained_N: sorted digests of the images trained on.
        selected_N: sorted digests of the images used for model selection alone.
    """

    trained_N: Digests = field(default_factory=_none)
    selected_N: Digests = field(default_factory=_none)

    @classmethod
    def of(cls, trained: pd.DataFrame, selected: pd.DataFrame) -> SeenImages:
        """Return the images in rows of manifests."""
        return cls(_of_table(trained), _of_table(selected))

    def __bool__(self) -> bool:
        return bool(len(self.trained_N) or len(self.selected_N))

    def __len__(self) -> int:
        return len(self.trained_N) + len(self.selected_N)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeenImages) and all(
            np.array_equal(mine, others)
            for mine, others in (
                (self.trained_N, other.trained_N),
                (self.selected_N, other.selected_N),
            )
        )

    def __hash__(self) -> int:
        return hash((self.trained_N.tobytes(), self.selected_N.tobytes()))

    def contain(
        self,
        images: pd.DataFrame,
        columns: Sequence[str] = WITH_GROUPS,
        *,
        trained_only: bool = False,
    ) -> Booleans:
        """Return which images (N,) were seen.

        Args:
            images: the images' rows of a manifest.
            columns: the columns that an image is recognised by.
            trained_only: leave out images that were used for model selection alone.
        """
        is_contained = np.zeros(len(images), np.bool_)
        sets = (self.trained_N,) if trained_only else (self.trained_N, self.selected_N)
        for column in columns:
            places, digests = _of_column(images, column)
            for digests_N in sets:
                is_contained[places] |= np.isin(digests, digests_N)
        return is_contained


def unite(sets: Iterable[SeenImages]) -> SeenImages:
    """Return the images that any of the sets holds."""
    every = list(sets)
    trained = [each.trained_N for each in every]
    selected = [each.selected_N for each in every]
    return SeenImages(
        np.unique(np.concatenate([_none(), *trained])),
        np.unique(np.concatenate([_none(), *selected])),
    )


def _of_table(images: pd.DataFrame) -> Digests:
    parts = [_of_column(images, column)[1] for column in WITH_GROUPS]
    return np.unique(np.concatenate([_none(), *parts]))


def _of_column(
    images: pd.DataFrame, column: str
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Digests]:
    """Return the rows that have a value in a column, and the digests of these values."""
    if column not in images:
        return np.zeros(0, np.int64), _none()
    values = images[column].astype(object).fillna("").astype(str).to_numpy(object)
    places = np.flatnonzero(values != "")
    known: dict[str, int] = {}
    for value in values[places]:
        if value not in known:
            text = f"{column}\0{value}".encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()
            known[value] = int.from_bytes(digest, "little")
    return places, np.array([known[value] for value in values[places]], np.uint64)


State = Literal["known", "upstream corpus unknown", "unknown"]
UNUSED = "not used for training or model selection"
_NOT_RECORDED = "not recorded as used for training or model selection"
_LONGEST = 300


class Published(FrozenModel):
    """Published weights, which were identified by their checksum."""

    name: str
    """The name of the weights, such as `timm:vit_tiny_patch16_224`."""
    sha256: str
    """The SHA-256 digest of the file."""
    license: str = ""
    """The license that the library that published them states; empty if it states none."""


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
                f"({few_names(self.unknown, joint='; ')})"
            )
        names = few_names((each.name for each in self.published), joint="; ")
        return f"the training images of {names}, published weights behind {subject}, are not known"

    def caveat(self, subject: str, images: str = "test images", what: str = "the metrics") -> str:
        """Return what follows from images that are not known; empty if all are.

        Args:
            subject: the weights, as in `sentence`.
            images: the images that matter, as the sentence calls them.
            what: the result that would be optimistic, as the sentence calls it.
        """
        if self.is_known:
            return ""
        are = "is" if what.startswith(("the accuracy", "its accuracy")) else "are"
        return f"{self.sentence(subject)}; if {images} are among them, {what} {are} optimistic"


NO_RECORD = "there is no record of the images that the weights have seen"
KNOWN = ProvenanceSummary(state="known")
UNKNOWN = ProvenanceSummary(state="unknown", unknown=(NO_RECORD,))


def describe_unused(*summaries: ProvenanceSummary) -> str:
    """Return what can be said about images that are not in the records of some models."""
    return UNUSED if all(summary.is_known for summary in summaries) else _NOT_RECORDED


@dataclass(frozen=True)
class Provenance:
    """The images that weights have seen, and whether these are all.

    Attributes:
        own: the images of the training itself.
        inherited: those of the weights that it started from, and of their ancestors.
        published: published weights among the ancestors.
        unknown: the reasons why there may be other images.
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
        return unite([self.own, self.inherited]) if self.inherited else self.own

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
        own=unite(part.own for part in every),
        inherited=unite(part.inherited for part in every),
        published=tuple(published[key] for key in sorted(published)),
        unknown=tuple(dict.fromkeys(reason for part in every for reason in part.unknown)),
    )


_RECORD = "patchline.seen.record"
_PARTS = tuple(
    f"patchline.seen.{part}"
    for part in ("trained", "selected", "inherited_trained", "inherited_selected")
)
_WHOLE_BYTES = 8
_MOST_DIGESTS = 11_500_000
"""The header of a safetensors file has at most 100 MB, and a digest takes 8 bytes of it."""


class _Record(FrozenModel):
    """What the metadata holds beside the digests."""

    format_version: int = 1
    published: tuple[Published, ...] = ()
    unknown: tuple[str, ...] = ()
    digests: tuple[int, ...] = (0, 0, 0, 0)
    """Number of digests in each part."""


def as_metadata(provenance: Provenance) -> dict[str, str]:
    """Return the metadata of a file with weights of this provenance."""
    own, inherited = provenance.own, provenance.inherited
    if len(own) + len(inherited) > _MOST_DIGESTS:
        too_many = f"more than {_MOST_DIGESTS:,} digests of seen images, too many to record"
        unknown = (*provenance.unknown, too_many)
        return as_metadata(Provenance(published=provenance.published, unknown=unknown))
    parts = (own.trained_N, own.selected_N, inherited.trained_N, inherited.selected_N)
    record = _Record(
        published=provenance.published,
        unknown=provenance.unknown,
        digests=tuple(len(part) for part in parts),
    )
    packed = {key: _pack(part) for key, part in zip(_PARTS, parts, strict=True)}
    return {_RECORD: record.model_dump_json(), **packed}


def from_metadata(metadata: Mapping[str, str], name: str) -> Provenance:
    """Return the provenance that metadata holds; unknown if it holds none that can be read.

    Args:
        metadata: the metadata of a safetensors file.
        name: the name of the weights, for a sentence.
    """
    if _RECORD not in metadata:
        return Provenance.without_record(
            f"{name} has no record of the images that its weights have seen"
        )
    try:
        record = _Record.model_validate_json(metadata[_RECORD])
        parts = [_unpack(metadata[key]) for key in _PARTS]
    except (ValidationError, KeyError, ValueError, binascii.Error):
        return Provenance.without_record(f"the record of seen images of {name} cannot be read")
    if tuple(len(part) for part in parts) != record.digests:
        return Provenance.without_record(f"the record of seen images of {name} is incomplete")
    own, inherited = SeenImages(*parts[:2]), SeenImages(*parts[2:])
    named = (each.model_copy(update={"name": one_line(each.name)}) for each in record.published)
    unknown = tuple(one_line(reason) for reason in record.unknown)  # the file may be a stranger's
    return Provenance(own, inherited, tuple(named), unknown)


def has_record(file: Path) -> bool:
    """Return whether Patchline has saved a file of weights, and nothing has changed it since."""
    try:
        return _RECORD in read_metadata(file)
    except DamagedFileError:
        return False


def provenance_of(file: Path, name: str) -> Provenance:
    """Return the provenance of the weights in a safetensors file.

    A file that is missing, damaged, or has no record is unknown.

    Args:
        file: the safetensors file of the weights.
        name: the name of the weights, for a sentence.
    """
    if not file.is_file():
        return Provenance.without_record(f"{name} has no file {file.name}")
    try:
        metadata = read_metadata(file)
    except DamagedFileError:
        return Provenance.without_record(
            f"{file.name} of {name} has changed since it was saved, or is damaged"
        )
    return from_metadata(metadata, name)


def _pack(digests: Digests) -> str:
    whole = np.ascontiguousarray(digests, dtype="<u8").view(np.uint8).reshape(-1, _WHOLE_BYTES)
    return base64.b64encode(whole[:, :DIGEST_BYTES].tobytes()).decode()


def _unpack(text: str) -> Digests:
    packed = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    whole = np.zeros((len(packed) // DIGEST_BYTES, _WHOLE_BYTES), np.uint8)
    whole[:, :DIGEST_BYTES] = packed.reshape(-1, DIGEST_BYTES)
    return whole.reshape(-1).view("<u8").astype(np.uint64)
