"""A user's own albumentations pipeline, from the file that `albumentations.save` writes.

It is read without running code that the file names: only transforms that ship with albumentations
and that it can serialise are built.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from patchline.plugin_api import (
    Assumptions,
    AugmentationContext,
    AugmentationPlugin,
    ConfigError,
    DataTraits,
    PluginConfig,
)

_MOST_BYTES = 1_000_000
_MOST_TRANSFORMS = 1_000
_LARGE_ROTATION = 45.0
_ANGLES = {
    "Rotate": "limit",
    "SafeRotate": "limit",
    "ShiftScaleRotate": "rotate_limit",
    "Affine": "rotate",
}
"""Attributes with the smallest and the largest angle, in degrees."""
_MIRRORS = ("HorizontalFlip", "D4", "SquareSymmetry")
_HARMLESS = frozenset(
    (
        *("AdditiveNoise", "GaussNoise", "ISONoise", "MultiplicativeNoise", "SaltAndPepper"),
        *("ShotNoise", "PixelDropout", "CoarseDropout", "Erasing", "GridDropout", "XYMasking"),
        *("AdvancedBlur", "Blur", "Defocus", "GaussianBlur", "GlassBlur", "MedianBlur"),
        *("MotionBlur", "ZoomBlur", "Sharpen", "UnsharpMask", "RingingOvershoot", "Emboss"),
        *("Downscale", "ImageCompression", "Spatter", "RandomFog", "RandomRain", "RandomSnow"),
        *("RandomShadow", "RandomSunFlare", "RandomGravel", "PlasmaShadow", "Illumination"),
        *("AutoContrast", "CLAHE", "Equalize", "PlasmaBrightnessContrast", "RandomGamma"),
        *("RandomBrightnessContrast", "RandomToneCurve", "ElasticTransform", "GridDistortion"),
        *("GridElasticDeform", "OpticalDistortion", "Perspective", "PiecewiseAffine"),
        *("ThinPlateSpline", "NoOp", "Normalize", "Pad", "PadIfNeeded", "Resize", "RandomScale"),
        *("LongestMaxSize", "SmallestMaxSize", "CropAndPad", "RandomCropFromBorders"),
    )
)
"""Noise, blur, brightness, weather, small distortions and sizes; any other transform is named."""
_CLASS = "__class_fullname__"


class CustomConfig(PluginConfig):
    """The file."""

    file: str | None = None
    """YAML or JSON file with an albumentations pipeline, as albumentations.save writes it."""

    sha256: str | None = None
    """SHA-256 digest of the file, recorded when a run starts; a run that is reproduced from its
    config refuses a file that has changed since."""

    def resolved_for(self, _traits: DataTraits) -> Self:
        """Check the pipeline, and record the file's digest."""
        file = _path(self)
        _, digest = read_pipeline(file, self.sha256)
        return self.model_copy(update={"file": str(file.resolve()), "sha256": digest})


def _path(config: CustomConfig) -> Path:
    if not config.file:
        raise ConfigError(
            "The augmentation custom needs a file. Set augmentation.file to a YAML or JSON file "
            "that albumentations.save wrote."
        )
    return Path(config.file).expanduser()


def build(config: CustomConfig, _context: AugmentationContext) -> Any:
    """Build the transform from the file."""
    pipeline, _ = read_pipeline(_path(config), config.sha256)
    return pipeline


def assumptions(config: CustomConfig) -> Assumptions:
    """Return what the transforms in the file take for granted."""
    file = _path(config)
    pipeline, _ = read_pipeline(file, config.sha256)
    mirrors, changes = find_assumptions(pipeline)
    words = f"{', '.join(mirrors)} in {file.name}" if mirrors else ""
    return Assumptions(mirrors=words, changes=changes)


def read_pipeline(file: Path, expected: str | None) -> tuple[Any, str]:
    """Return the `albumentations.Compose` in a file, and the file's SHA-256 digest.

    Args:
        file: a YAML or JSON file, as `albumentations.save` writes it.
        expected: the digest that the file must have; None accepts any.

    Raises:
        ConfigError: if the file cannot be read, has changed, or is not a pipeline.
    """
    content = _content(file)
    digest = hashlib.sha256(content).hexdigest()
    if expected not in (None, digest):
        raise ConfigError(
            f"{file} has changed: its digest is {digest}, but augmentation.sha256 is {expected}. "
            "Restore the file, or omit augmentation.sha256."
        )
    return _build(file, _parse(file, content)), digest


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"The pipeline {file} cannot be read: {error.strerror}. Correct augmentation.file."
        ) from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"The pipeline {file} is larger than 1 MB. Choose another file.")
    return content


def _parse(file: Path, content: bytes) -> dict[str, Any]:
    import yaml

    try:
        text = content.decode("utf-8")
        parsed = json.loads(text) if file.suffix.lower() == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{file} is not valid YAML or JSON: {reason}. Write it with albumentations.save."
        ) from error
    transform = parsed.get("transform") if isinstance(parsed, dict) else None
    if not isinstance(transform, dict):
        raise ConfigError(
            f"{file} has no albumentations pipeline under the key transform. Write it with "
            "albumentations.save."
        )
    return transform


def _build(file: Path, transform: dict[str, Any]) -> Any:
    import albumentations
    from albumentations.core.composition import BaseCompose

    for number, one in enumerate(_transforms(transform)):
        _check_class(file, one)
        if number == _MOST_TRANSFORMS:
            raise ConfigError(f"{file} has more than 1,000 transforms. Use fewer.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # for an argument that does not exist
            warnings.filterwarnings("ignore", ".*has no 'p' parameter.*")
            built = albumentations.from_dict({"transform": transform})
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"albumentations {albumentations.__version__} cannot build the pipeline in {file}: "
            f"{reason}. Correct the file."
        ) from error
    if type(built) is albumentations.Compose:
        return built
    if isinstance(built, BaseCompose | albumentations.BasicTransform):
        return albumentations.Compose([built])
    raise ConfigError(f"{file} holds a {type(built).__name__}, not a transform. Correct the file.")


def find_assumptions(pipeline: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the transforms that mirror images, and those of which nothing tells what they keep."""
    mirrors: dict[str, None] = {}
    changes: dict[str, None] = {}
    for transform in _leaves(pipeline):
        name = type(transform).__name__
        if name in _MIRRORS:
            mirrors[name] = None
        if name not in _HARMLESS and not _turns_little(transform):
            changes[name] = None
    return tuple(mirrors), tuple(name for name in changes if name != "HorizontalFlip")


def _leaves(transform: Any) -> Iterator[Any]:
    """Yield the transforms that a pipeline may apply."""
    from albumentations.core.composition import BaseCompose

    if transform.p <= 0:
        return
    if isinstance(transform, BaseCompose):
        for each in transform.transforms:
            yield from _leaves(each)
    else:
        yield transform


def _turns_little(transform: Any) -> bool:
    """Return whether it turns images by small angles, at most."""
    angles = getattr(transform, _ANGLES.get(type(transform).__name__, ""), None)
    return angles is not None and max(abs(float(each)) for each in angles) <= _LARGE_ROTATION


def _transforms(transform: Any) -> Iterator[dict[str, Any]]:
    """Yield a serialised transform and everything nested in it."""
    if isinstance(transform, dict):
        if _CLASS in transform or "transforms" in transform:
            yield transform
        for value in transform.values():
            yield from _transforms(value)
    elif isinstance(transform, list):
        for value in transform:
            yield from _transforms(value)


def _check_class(file: Path, transform: dict[str, Any]) -> None:
    import albumentations
    from albumentations.core.serialization import SERIALIZABLE_REGISTRY, shorten_class_name

    name = transform.get(_CLASS)
    found = SERIALIZABLE_REGISTRY.get(shorten_class_name(name)) if isinstance(name, str) else None
    if found is None or not found.__module__.startswith("albumentations."):
        raise ConfigError(
            f"{file} names the transform {name}, which albumentations "
            f"{albumentations.__version__} does not have or cannot load from a file. Use another "
            "transform, or write a plugin file and pass --plugin FILE.py."
        )


plugin = AugmentationPlugin(
    summary="Your own albumentations pipeline from a YAML or JSON file",
    paper="",
    config_class=CustomConfig,
    build=build,
    assumptions=assumptions,
)
