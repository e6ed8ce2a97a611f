"""The features of images, and what a model predicts for them: of a package, or of weights at hand.

Shapes: N images, B images of a batch, D features, K classes; H, W and C of an image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector, Thumbnails
from patchline.pipeline.data.reading.decoding import UndecodableImageError, decode_image
from patchline.pipeline.data.reading.image_file import image_bytes
from patchline.pipeline.data.reading.resizing import resize_image
from patchline.pipeline.labelling.answer import Suggestion
from patchline.pipeline.labelling.pool import PoolImage

if TYPE_CHECKING:
    from patchline.pipeline.initial_weights.at_hand import WeightsAtHand
    from patchline.pipeline.packaging.packaged_model import PackagedModel

Array = np.ndarray[Any, Any]
_BATCH, _CHUNK = 32, 64


class Described(NamedTuple):
    """What is known of some images."""

    keys: list[str]
    features_ND: Array
    """Each of length 1."""
    thumbnails: Thumbnails
    sides_N: Array
    """The shorter side of each image in pixels."""
    suggestions: dict[str, Suggestion]
    classes: tuple[str, ...]
    """Of the model; empty if it predicts none."""
    images: int
    """Number of images, those that cannot be read included."""

    @classmethod
    def joined(cls, parts: Sequence[Described]) -> Described:
        """Return what is known of all images, without the suggestions."""
        return cls(
            [key for part in parts for key in part.keys],
            np.concatenate([part.features_ND for part in parts]),
            Thumbnails(
                np.concatenate([part.thumbnails.luma_NHW for part in parts]),
                np.concatenate([part.thumbnails.chroma_NHWC for part in parts]),
            ),
            np.concatenate([part.sides_N for part in parts]),
            {},
            parts[0].classes,
            sum(part.images for part in parts),
        )


class FeatureSource(Protocol):
    """A network whose features order the images.

    Attributes:
        name: in a few words.
    """

    name: str

    def described(self, images: Sequence[PoolImage]) -> Iterator[Described]:
        """Yield what is known of all images that can be read, in parts."""


class _Pixels:
    """Decoded images of a part."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.pixels: list[Array] = []
        self.sides: list[int] = []
        self._collector = ThumbnailCollector()

    def add(self, key: str, decoded_HWC: Array, resized_HWC: Array) -> None:
        """Add an image as it was decoded, and as the network takes it."""
        self.keys.append(key)
        self.pixels.append(resized_HWC)
        self.sides.append(min(decoded_HWC.shape[:2]))
        color_HWC = decoded_HWC if decoded_HWC.shape[2] == 3 else decoded_HWC.repeat(3, 2)  # noqa: PLR2004 - RGB
        self._collector.add(key, b"", color_HWC)

    def described(
        self,
        features_ND: Array,
        suggestions: Sequence[Suggestion],
        classes: Sequence[str],
        images: int,
    ) -> Described:
        """Return what is known of these images."""
        lengths_N1 = np.linalg.norm(features_ND, axis=1, keepdims=True)
        return Described(
            self.keys,
            (features_ND / np.maximum(lengths_N1, 1e-12)).astype(np.float32),
            self._collector.of(pd.Series(self.keys, dtype=str)),
            np.array(self.sides),
            dict(zip(self.keys, suggestions, strict=False)),
            tuple(classes),
            images,
        )


class PackageFeatures:
    """The features and the predictions of a registered model.

    Args:
        package: the model.
        name: of its version.
    """

    def __init__(self, package: PackagedModel, name: str) -> None:
        self._package, self.name = package, name
        self._outputs = [package.output_names[0], *(["features"] if self._has_features else [])]

    @property
    def _has_features(self) -> bool:
        return "features" in self._package.output_names

    def described(self, images: Sequence[PoolImage]) -> Iterator[Described]:
        """Yield what is known of all images that can be read; features, or else probabilities."""
        for start in range(0, len(images), _BATCH):
            batch = images[start : start + _BATCH]
            part = _Pixels()
            for image in batch:
                try:
                    resized_HWC = np.asarray(self._package.pixels(image.file))
                    with image_bytes(image.file) as data:
                        part.add(image.key, decode_image(data, 3), resized_HWC)
                except UndecodableImageError:
                    continue
            if not part.keys:
                continue
            outputs = self._package.named_outputs(np.stack(part.pixels), self._outputs)
            yield part.described(
                outputs[-1],
                [self._suggestion(each) for each in outputs[0]],
                self._package.classes,
                len(batch),
            )

    def _suggestion(self, probabilities_K: Array) -> Suggestion:
        package = self._package
        if package.thresholds_K is None:
            best = int(probabilities_K.argmax())
            return Suggestion((package.classes[best],), float(probabilities_K[best]))
        given = np.flatnonzero(probabilities_K >= package.thresholds_K)
        least = probabilities_K[given].min() if len(given) else 1 - probabilities_K.max()
        labels = tuple(sorted(package.classes[each] for each in given))
        return Suggestion(labels, float(least))


class WeightFeatures:
    """The features of weights that are on this machine already.

    Args:
        weights: the file.
        workspace: keeps the features.
    """

    def __init__(self, weights: WeightsAtHand, workspace: Path) -> None:
        self._weights, self._workspace = weights, workspace
        self.name = Path(weights.reference).name

    def described(self, images: Sequence[PoolImage]) -> Iterator[Described]:
        """Yield what is known of all images that can be read."""
        from patchline.pipeline.labelling.server.frozen_network import FrozenNetwork

        network = FrozenNetwork.of(self._weights.reference, self._workspace)
        for start in range(0, len(images), _CHUNK):
            chunk = images[start : start + _CHUNK]
            part = _Pixels()
            digest = hashlib.sha256()
            for image in chunk:
                try:
                    with image_bytes(image.file) as data:
                        decoded_HWC = decode_image(data, network.image.channels)
                        digest.update(hashlib.sha256(data).digest())
                except UndecodableImageError:
                    continue
                side = network.image.height, network.image.width
                part.add(image.key, decoded_HWC, resize_image(decoded_HWC, *side, "crop"))
            if part.keys:
                features_ND = network.features(np.stack(part.pixels), digest.hexdigest())
                yield part.described(features_ND, (), (), len(chunk))
