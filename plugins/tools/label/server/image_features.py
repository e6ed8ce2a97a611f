"""The features of images, and what a model predicts for them: of a package, or of weights at hand.

A folder belongs to one network. Each file in it, `NAME.npz`, holds the results of some images, so
that images which are added, renamed or moved do not make those of the others worthless.

Shapes: N images, B images of a batch, D features, K classes; H, W and C of an image.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import cv2
import numpy as np
import pandas as pd
import torch
from torch import nn

from patchline.pipeline import config_files
from patchline.pipeline.data.labels.answers.answer import Suggestion
from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector, Thumbnails
from patchline.pipeline.data.reading.decoding import UndecodableImageError, decode_image
from patchline.pipeline.data.reading.image_file import image_bytes
from patchline.pipeline.data.reading.resizing import resize_image
from patchline.pipeline.errors import DataError, PipelineError
from patchline.pipeline.models.inference import logits_of_batch
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.probing.linear_head import linear_head, use_evaluation_mode
from patchline.pipeline.plugin_system.plugin_settings import resolve_settings
from patchline.pipeline.training.initial_weights.loading import load_into
from patchline.pipeline.training.initial_weights.record import InitialWeights, weights_folder
from patchline.pipeline.training.initial_weights.starting_point import find_starting_point
from patchline.pipeline.workspace.files.atomic_files import open_replacing
from patchline.plugin_api import DataTraits, ImageSpec
from patchline.plugins.tools.label.pool import PoolImage

if TYPE_CHECKING:
    from patchline.pipeline.packaging.packaged_model import PackagedModel
    from patchline.pipeline.training.initial_weights.local_weights import WeightsAtHand


Array = np.ndarray[Any, Any]
_CLASSES = 2
"""Of a head that nobody uses."""


class FrozenNetwork(NamedTuple):
    """A network, and what its images are like."""

    model: nn.Module
    image: ImageSpec
    digest: str
    """A digest of the weights and of the size of the images."""

    @classmethod
    def of(cls, reference: str, workspace: Path) -> FrozenNetwork:
        """Build the network that a run with this `model.init` starts from.

        Raises:
            DataError: if the weights do not say what their images are like.
        """
        config = config_files.build_config(
            None, preset_name="none", flags={"model": {"init": reference}}
        )
        start = find_starting_point(config, "labelling", workspace.resolve())
        weights, data = start.weights, start.config.data
        if not isinstance(weights, InitialWeights) or not data.image_size:
            raise DataError(f"{reference} does not say what its images are like.")
        channels = data.channels or 3
        traits = DataTraits(
            channels, data.image_size, data.image_size, _CLASSES, mirror_symmetric=True
        )
        choice = resolve_settings(start.config, traits).model
        image = ImageSpec(
            channels=channels,
            height=data.image_size,
            width=data.image_size,
            mean=data.mean or (),
            std=data.std or (),
            resize="crop",
        )
        model = build_model(choice, image, _CLASSES)
        load_into(model, weights, weights_folder(workspace.resolve(), weights.sha256), ())
        return cls(model.eval(), image, f"{weights.sha256[:32]}-{data.image_size}")

    def features(self, pixels_NHWC: Array) -> Array:
        """Return the features (N, D) of decoded images: what the network's head gets."""
        given: list[torch.Tensor] = []
        head = linear_head(self.model, _CLASSES)
        hook = head.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
        try:
            with use_evaluation_mode(self.model):
                logits_of_batch(self.model, torch.from_numpy(pixels_NHWC), self.image, "float32")
        finally:
            hook.remove()
        return given[0].float().numpy()


logger = logging.getLogger(__name__)
_DIGESTS = "digests"


class KeptFeatures:
    """The results of one network.

    Args:
        folder: the folder for the network's results; made with the first one.
        names: names of the results of an image, such as `features`.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, tuple(names)
        self._results: dict[str, tuple[Array, ...]] = {}
        for file in sorted(folder.glob("*.npz")):
            self._read(file)

    def __contains__(self, digest: str) -> bool:
        """Return whether there are results for a file of this digest."""
        return digest in self._results

    def of(self, digests: Sequence[str]) -> list[Array]:
        """Return each result for some images (B, …), all of which have results."""
        rows = [self._results[digest] for digest in digests]
        return [np.stack([row[place] for row in rows]) for place in range(len(self._names))]

    def add(self, digests: Sequence[str], results: Sequence[Array]) -> None:
        """Keep results; if the disk is full or read-only, only as long as this process runs.

        Args:
            digests: digests of the images' files (B).
            results: one array (B, …) for each name.
        """
        self._results.update(zip(digests, zip(*results, strict=True), strict=True))
        file = self._folder / f"{hashlib.sha256(''.join(digests).encode()).hexdigest()[:32]}.npz"
        arrays: dict[str, Any] = {_DIGESTS: np.array(digests)}
        arrays.update(zip(self._names, results, strict=True))
        try:
            with open_replacing(file) as opened:
                np.savez(opened, **arrays)
        except (OSError, PipelineError) as error:
            logger.warning("Features are not kept for the next start: %s", error)

    def _read(self, file: Path) -> None:
        try:
            with np.load(file, allow_pickle=False) as stored:
                digests = [str(each) for each in stored[_DIGESTS]]
                rows = zip(*(stored[name] for name in self._names), strict=True)
                self._results.update(zip(digests, rows, strict=True))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            logger.warning("%s is damaged; its features are computed again.", file.name)


_BATCH = 32
_FOLDER = "labelling"
"""In the workspace."""
_UNREADABLE = UndecodableImageError, cv2.error, MemoryError


class Described(NamedTuple):
    """What is known of some images."""

    keys: list[str]
    features_ND: Array
    """Features of the images (N, D), each row of length 1."""
    thumbnails: Thumbnails
    sides_N: Array
    """The shorter side of each image in pixels."""
    suggestions: dict[str, Suggestion]
    classes: tuple[str, ...]
    """The model's classes; empty if it predicts none."""
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
        name: the network's name, in a few words.
    """

    name: str

    def described(self, images: Sequence[PoolImage]) -> Iterator[Described]:
        """Yield what is known of all images that can be read, in parts."""


class _DecodedPart:
    """Decoded images of a part.

    Args:
        images: number of images, those that cannot be read included.
    """

    def __init__(self, images: int) -> None:
        self.keys: list[str] = []
        self.digests: list[str] = []
        self._images = images
        self._sides: list[int] = []
        self._collector = ThumbnailCollector()

    def add(self, key: str, digest: str, decoded_HWC: Array) -> None:
        """Add an image as it was decoded."""
        self.keys.append(key)
        self.digests.append(digest)
        self._sides.append(min(decoded_HWC.shape[:2]))
        self._collector.add(key, b"", decoded_HWC)

    def described(
        self,
        features_ND: Array,
        suggestions: Sequence[Suggestion] = (),
        classes: Sequence[str] = (),
    ) -> Described:
        """Return what is known of these images."""
        lengths_N1 = np.linalg.norm(features_ND, axis=1, keepdims=True)
        return Described(
            self.keys,
            (features_ND / np.maximum(lengths_N1, 1e-12)).astype(np.float32),
            self._collector.of(pd.Series(self.keys, dtype=str)),
            np.array(self._sides),
            dict(zip(self.keys, suggestions, strict=False)),
            tuple(classes),
            self._images,
        )


def _compute_parts(
    images: Sequence[PoolImage],
    kept: KeptFeatures,
    channels: int,
    pixels: Callable[[bytes, Array], Array],
    compute: Callable[[Array], Sequence[Array]],
) -> Iterator[tuple[_DecodedPart, list[Array]]]:
    """Yield the images that can be read, in parts, each with its results.

    Args:
        images: the images.
        kept: the results of earlier images, to which those of new ones are added.
        channels: channels of a decoded image.
        pixels: returns an image as the network takes it, given its file and the decoded image.
        compute: returns the results of new images (B, H, W, C).
    """
    for start in range(0, len(images), _BATCH):
        batch = images[start : start + _BATCH]
        part, new = _DecodedPart(len(batch)), dict[str, Array]()
        for image in batch:
            with contextlib.suppress(*_UNREADABLE), image_bytes(image.file) as data:
                digest, decoded_HWC = _sha256(data), decode_image(data, channels)
                if digest not in kept:
                    new[digest] = pixels(data, decoded_HWC)
                part.add(image.key, digest, decoded_HWC)
        if part.keys:
            if new:
                kept.add(list(new), compute(np.stack(list(new.values()))))
            yield part, kept.of(part.digests)


class PackageFeatures:
    """The features and the predictions of a registered model.

    Args:
        package: the model.
        name: the name of the model's version.
        workspace: the folder in which what was computed is kept.
    """

    def __init__(self, package: PackagedModel, name: str, workspace: Path) -> None:
        self._package, self.name, self._workspace = package, name, workspace
        last = "features" if "features" in package.output_names else package.output_names[0]
        self._outputs = [package.output_names[0], last]

    def described(self, images: Sequence[PoolImage]) -> Iterator[Described]:
        """Yield what is known of all images that can be read; features, or else probabilities."""
        package = self._package
        own = "".join(_sha256(file.read_bytes()) for file in package.files)
        folder = self._workspace / _FOLDER / _sha256(own.encode())[:32]
        kept = KeptFeatures(folder, ("probabilities", "features"))
        parts = _compute_parts(
            images,
            kept,
            3,
            lambda data, _: np.asarray(package.pixels(data)),
            lambda pixels_BHWC: package.named_outputs(pixels_BHWC, self._outputs),
        )
        for part, (probabilities_BK, features_BD) in parts:
            suggested = [self._suggestion(each) for each in probabilities_BK]
            yield part.described(features_BD, suggested, package.classes)

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
        workspace: the folder in which what was computed is kept.
    """

    def __init__(self, weights: WeightsAtHand, workspace: Path) -> None:
        self._weights, self._workspace = weights, workspace
        self.name = Path(weights.reference).name

    def described(self, images: Sequence[PoolImage]) -> Iterator[Described]:
        """Yield what is known of all images that can be read."""
        network = self._network
        image = network.image
        kept = KeptFeatures(self._workspace / _FOLDER / network.digest, ("features",))
        parts = _compute_parts(
            images,
            kept,
            image.channels,
            lambda _, decoded: resize_image(decoded, image.height, image.width, "crop"),
            lambda pixels_BHWC: [network.features(pixels_BHWC)],
        )
        for part, [features_BD] in parts:
            yield part.described(features_BD)

    @functools.cached_property
    def _network(self) -> FrozenNetwork:
        return FrozenNetwork.of(self._weights.reference, self._workspace)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
