"""A packaged model: decode and resize images, run the ONNX network, name the classes.

Inlined into every package together with the image decoder, so it needs only numpy, onnxruntime and
OpenCV: no torch, no plugin.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from patchline.pipeline.data.pixel_values.pixel_mapping import (
    FileValues,
    PixelMapping,
    ValueFit,
    with_channels,
)
from patchline.pipeline.data.reading.decoding import (
    UndecodableImageError,
    pillow_pixels,
    reserve_and_decode,
)
from patchline.pipeline.data.reading.image_file import MAX_FILE_BYTES, image_bytes, too_large
from patchline.pipeline.data.reading.image_formats import (
    HEAD_BYTES,
    find_refused_format,
    format_of,
)
from patchline.pipeline.data.reading.pillow_decoding import map_pixels
from patchline.pipeline.data.reading.resizing import resize_image
from patchline.pipeline.data.value_ranges.value_fit import RangeFits
from patchline.pipeline.models.onnx_session import open_session
from patchline.pipeline.packaging.answer_json import AnswerWriter, attention_map
from patchline.pipeline.packaging.answer_judge import (
    SETS_ARE_FOR_ONE_LABEL,
    AnswerJudge,
    SizedPixels,
    thresholds_of,
)
from patchline.pipeline.packaging.package_digests import check_digests

REFERENCE_FILE = "reference_features.npz"
"""Beside `model.json`: features of images that the model has seen, for the warning `far`."""
_LONGEST_PATH = 4096
_SHOWN = 300
_LINE_ENDS = {ord("\n"): None, ord("\r"): None}
"""Most programs wrap the lines of base64."""
_FIRST_LINE = 72
"""Characters of base64 that hold the start of a file and no line end; a multiple of four."""
_QUOTED = 60
_LEAST_SIDE = 2


class PackagedModel:
    """An image classifier, or an encoder without classes: an ONNX model and its description.

    Args:
        onnx_file: the package's `model.onnx`.
        description_file: the package's `model.json`.
        threads: number of threads for one batch; 0 for one per core.

    Raises:
        ChangedPackageError: if a file is not what was packaged.
    """

    def __init__(self, onnx_file: Path, description_file: Path, threads: int = 0) -> None:
        self.is_verified = check_digests(description_file.parent)
        """Whether its files are those that were packaged; a package of before cannot tell."""
        description = json.loads(description_file.read_text(encoding="utf-8"))
        self.classes: list[str] = description["classes"]
        self.image: dict[str, Any] = description["image"]
        self.mapping = PixelMapping.of(self.image.get("pixel_values", {}))
        self.fits = RangeFits(self.mapping)
        self.temperature: float = description.get("temperature", 1.0)
        self.calibration: dict[str, Any] | None = description.get("calibration")
        self.files = onnx_file, description_file
        reference = description_file.with_name(REFERENCE_FILE)
        self.thresholds_K = thresholds_of(description)
        self.thresholds: dict[str, Any] | None = description.get("thresholds")
        self.label_calibration: dict[str, Any] | None = description.get("label_calibration")
        no_sets = SETS_ARE_FOR_ONE_LABEL if self.is_multi_label else ""
        self.judge = AnswerJudge(description.get("answers"), reference, self.classes, no_sets)
        self.writer = AnswerWriter(self.classes, self.thresholds_K, self.judge)
        self.keeps_outputs = False
        """Whether an answer has `outputs`: its probabilities (K), and features (D) or None."""
        self._session = open_session(onnx_file, threads)
        self.output_names = tuple(output.name for output in self._session.get_outputs())

    @property
    def is_multi_label(self) -> bool:
        """Whether an image gets a set of labels, each with a probability of its own."""
        return self.thresholds_K is not None

    def with_threads(self, threads: int) -> PackagedModel:
        """Return the same model with another number of threads."""
        other = PackagedModel(*self.files, threads)
        other.fits = self.fits
        return other

    def pixels(self, image: object, *, paths: bool = True) -> np.ndarray[Any, Any]:
        """Decode and resize an image for the network: uint8 (H, W, C).

        Args:
            image: encoded bytes, what `bytes_of_base64` takes, a path, or one of `images_of`.
            paths: whether text may be a path; a server must not read files for its clients.

        Raises:
            UndecodableImageError: with the reason, if it is no image or too large.
        """
        spec = self.image
        try:
            if isinstance(image, np.ndarray) and image.ndim == 1:
                [image] = images_of(image)
            if isinstance(image, np.ndarray):
                return self._resized(self._of_array(image))
            with (
                _read_encoded(image, paths=paths) as data,
                reserve_and_decode(
                    data, spec["channels"], mapping=self.mapping, on_fit=self.fits.note
                ) as pixels,
            ):
                return self._resized(pixels)
        except (cv2.error, MemoryError) as error:
            raise UndecodableImageError("the image is too large, or too narrow") from error

    def opened_pixels(self, image: Image.Image) -> np.ndarray[Any, Any]:
        """Resize an image that Pillow has opened for the network: uint8 (H, W, C).

        Raises:
            UndecodableImageError: with the reason, if its file is incomplete or too large.
        """
        pixels_HWC = pillow_pixels(image, self.image["channels"], self.mapping, self.fits.note)
        try:
            return self._resized(pixels_HWC)
        except (cv2.error, MemoryError) as error:
            raise UndecodableImageError("the image is too large, or too narrow") from error

    def _of_array(self, image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return an array's image of 8 bits (H, W, C), with the range of training if it has others.

        Raises:
            UndecodableImageError: if it is no image.
        """
        channels, has_bands = self.image["channels"], bool(self.mapping.bands)
        has_range = not self.mapping.is_plain and image.dtype.kind in "iuf"
        if image.dtype != np.uint8 and not has_range:
            raise UndecodableImageError(
                f"an array of {image.dtype} is not an image; pass uint8, from 0 to 255"
            )
        _check_shape(image.shape, channels, has_bands=has_bands)
        if image.dtype == np.uint8 and not has_bands:
            self.fits.note(ValueFit())
            return with_channels(image, channels)
        colors = 3 if image.shape[2] == 3 else 1  # noqa: PLR2004 - RGB
        return map_pixels(FileValues(image, colors), channels, self.mapping, self.fits.note)

    def _resized(self, pixels_HWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        spec = self.image
        resized_HWC = resize_image(pixels_HWC, spec["height"], spec["width"], spec["resize"])
        return SizedPixels.of(resized_HWC, pixels_HWC.shape)

    def probabilities(self, pixels_BHWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return calibrated probabilities (B, K) of a classifier."""
        return self.outputs(pixels_BHWC)

    def outputs(self, pixels_BHWC: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return calibrated probabilities (B, K), or the features (B, D) of an encoder."""
        return self.named_outputs(pixels_BHWC, self.output_names[:1])[0]

    def probabilities_and_distances(
        self, pixels_BHWC: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
        """Return probabilities (B, K), and distances (B) to the images seen, if they are known."""
        if not self.measures_distances:
            return self.probabilities(pixels_BHWC), None
        names = (self.output_names[0], "features")
        probabilities_BK, features_BD = self.named_outputs(pixels_BHWC, names)
        return probabilities_BK, self.judge.distances(features_BD)

    @property
    def measures_distances(self) -> bool:
        """Whether the distance of an image to those seen is known."""
        return self.judge.needs_features and "features" in self.output_names

    def named_outputs(
        self, pixels_BHWC: np.ndarray[Any, Any], names: Sequence[str]
    ) -> list[np.ndarray[Any, Any]]:
        """Return some of the network's outputs; `output_names` lists them.

        Beside `probabilities`, a classifier may have `features` (B, D), the input of its head;
        `attention` (B, blocks, rows, columns), that of the class token to the patches; and
        `readings` (B, blocks, K), the probabilities that the head reads after each block.
        """
        name = self._session.get_inputs()[0].name
        pixels = np.asarray(pixels_BHWC)
        return [np.asarray(each) for each in self._session.run(list(names), {name: pixels})]

    def answers(
        self,
        images: list[object],
        top_k: int = 5,
        *,
        paths: bool = True,
        coverage: float | None = None,
        with_map: bool = False,
    ) -> list[dict[str, Any]]:
        """Return one answer for each image, in order; `answer_json.py` says what it holds.

        An image that cannot be read gets an error; the other images are still predicted.
        """
        decoded: list[np.ndarray[Any, Any] | str] = []
        for image in images:
            try:
                decoded.append(self.pixels(image, paths=paths))
            except UndecodableImageError as error:
                decoded.append(str(error))
        return self.answers_to(decoded, top_k, coverage=coverage, with_map=with_map)

    def answers_to(
        self,
        decoded: Sequence[np.ndarray[Any, Any] | str],
        top_k: int = 5,
        *,
        coverage: float | None = None,
        with_map: bool = False,
    ) -> list[dict[str, Any]]:
        """Return one answer for each image, in order, as `answers` does.

        Args:
            decoded: what `pixels` returns for each image, or the reason why it cannot be read.
            top_k: number of classes in each answer.
            coverage: probability that a set holds the true class; by default the package's own. It
                gets the next one that the package has a threshold for.
            with_map: whether to add where the model looked, `map`: shares of the patches.
        """
        readable = [each for each in decoded if not isinstance(each, str)]
        if not self.classes:
            features = iter(self.outputs(np.stack(readable)) if readable else ())
            return [
                {"features": None, "error": each}
                if isinstance(each, str)
                else {"features": next(features).tolist(), "error": None}
                for each in decoded
            ]
        answers = iter(
            self._answers_to_pixels(readable, top_k, coverage, with_map=with_map)
            if readable
            else ()
        )
        return [
            {**self.writer.unreadable(each, coverage, with_map=with_map)}
            if isinstance(each, str)
            else next(answers)
            for each in decoded
        ]

    def _answers_to_pixels(
        self,
        pixels: Sequence[np.ndarray[Any, Any]],
        top_k: int,
        coverage: float | None,
        *,
        with_map: bool,
    ) -> Iterator[dict[str, Any]]:
        names = [self.output_names[0]]
        if self.measures_distances or (self.keeps_outputs and "features" in self.output_names):
            names.append("features")
        if with_map and "attention" in self.output_names:
            names.append("attention")
        outputs = dict(zip(names, self.named_outputs(np.stack(pixels), names), strict=True))
        probabilities_BK, maps_BLhw = outputs[names[0]], outputs.get("attention")
        features_BD = outputs.get("features")
        judged = self.judge.judge(list(pixels), probabilities_BK, features_BD, coverage)
        for image, (row_K, said) in enumerate(zip(probabilities_BK, judged, strict=True)):
            answer: dict[str, Any] = {
                **self.writer.verdict(row_K, top_k),
                **self.writer.reliability(said),
            }
            if with_map:
                answer["map"] = None if maps_BLhw is None else attention_map(maps_BLhw[image])
            if self.keeps_outputs:
                answer["outputs"] = row_K, None if features_BD is None else features_BD[image]
            yield {**answer, "error": None}


def images_of(tensor: np.ndarray[Any, Any]) -> list[bytes | np.ndarray[Any, Any]]:
    """Return the images in a tensor, by its shape alone.

    Of uint8, one axis is the bytes of a file, and (N, bytes) are N files, or rows that are none;
    (H, W, C) is one image, and (N, H, W, C) are N of them.
    """
    if tensor.ndim < 3 and tensor.dtype == np.uint8:  # noqa: PLR2004 - H, W, C
        rows = np.atleast_2d(tensor)
        return [row if _is_no_file(row) else row.tobytes() for row in rows]
    return list(tensor) if tensor.ndim > 3 else [tensor]  # noqa: PLR2004 - H, W, C


def _is_no_file(row: np.ndarray[Any, Any]) -> bool:
    head = row[:HEAD_BYTES].tobytes()
    return format_of(head) is None and find_refused_format(head) is None


def _check_shape(shape: tuple[int, ...], channels: int, *, has_bands: bool) -> None:
    """Check that an array is an image (H, W, C).

    Raises:
        UndecodableImageError: if it is not.
    """
    is_image = len(shape) == 3 and min(shape[:2]) >= _LEAST_SIDE  # noqa: PLR2004 - H, W, C
    known = range(1, min(shape[:2]) + 1) if is_image and has_bands else (1, 3, channels)
    if not is_image or shape[2] not in known:
        raise UndecodableImageError(
            f"an array of shape {shape} is not an image; pass (height, width, channels), with 1 or "
            "3 channels, which are the last axis, and at least 2 x 2 pixels, or the bytes of a file"
        )


@contextmanager
def _read_encoded(image: object, *, paths: bool) -> Iterator[bytes]:
    """Yield the bytes of an image file from a path, bytes or base64 text."""
    file = _find_named_file(image) if paths else None
    if file is not None:
        with image_bytes(file) as data:
            yield data
        return
    data = _read_given_bytes(image, paths=paths)
    if len(data) > MAX_FILE_BYTES:
        raise UndecodableImageError(too_large(len(data)))
    _check_decoded(data)
    yield data


def _find_named_file(image: object) -> Path | None:
    if isinstance(image, Path):
        return image
    if isinstance(image, str) and len(image) <= _LONGEST_PATH and _exists(Path(image)):
        return Path(image)
    return None


def _exists(file: Path) -> bool:
    try:
        return file.exists() and not file.is_dir()
    except (OSError, ValueError):  # too long for a name, a zero byte in it
        return False


def bytes_of_base64(given: object) -> bytes:
    """Return what a text encodes in base64, in one line or in several.

    The text may be a `data:` address, or the value of an object {"b64": TEXT}.

    Raises:
        ValueError: with the reason, if it is anything else.
    """
    text = given["b64"] if isinstance(given, dict) and set(given) == {"b64"} else given
    if not isinstance(text, str):
        raise ValueError(f"a {type(text).__name__} is not base64 text")  # noqa: TRY004 - as of text
    head, _, encoded = text.partition(",")
    if not (head.startswith("data:") and head.endswith(";base64")):
        encoded = text
    try:
        if encoded.isascii():  # known at once; each character would be looked up otherwise
            return base64.b64decode(encoded.translate(_LINE_ENDS), validate=True)
    except ValueError:
        pass
    raise ValueError(f"{text[:_QUOTED]!r} is not base64")


def _check_decoded(data: bytes) -> None:
    """Refuse base64 in the place of a file.

    Raises:
        UndecodableImageError: if the bytes are the base64 of an image.
    """
    try:
        start = base64.b64decode(data[:_FIRST_LINE], validate=True)
    except ValueError:
        return
    if format_of(start) is not None:
        raise UndecodableImageError(
            "it is base64 of an image in the place of the image; encode the file exactly once, or "
            "not at all in a raw body"
        )


def _read_given_bytes(image: object, *, paths: bool) -> bytes:
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image)
    if not isinstance(image, str | dict):
        raise UndecodableImageError(f"a {type(image).__name__} is not an image")
    try:
        return bytes_of_base64(image)
    except ValueError as error:
        reason = str(error)
        if paths and isinstance(image, str) and len(image) <= _LONGEST_PATH:
            reason = f"{image[:_SHOWN]!r} is neither base64 nor the path of a file"
        raise UndecodableImageError(reason) from None
