"""What the files beside a weight file say, such as `config.json`.

Libraries keep there what the tensors do not show: attention heads, activation, pixel statistics.
This module does not import torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from patchline.pipeline.errors import ConfigError

if TYPE_CHECKING:
    from patchline.pipeline.models.layers.activations import ActivationName

CONFIG_FILE, PREPROCESSOR_FILE = "config.json", "preprocessor_config.json"
OPEN_CLIP_FILE = "open_clip_config.json"
COMPANION_FILES = (CONFIG_FILE, PREPROCESSOR_FILE, OPEN_CLIP_FILE)
_ACTIVATIONS: dict[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "quickgelu": "quick_gelu",
}
_GENERATED_CLASS = re.compile(r"LABEL_\d+")
_TIMM_FAMILIES = ("vit_", "deit", "flexivit")


class PixelStatistics(NamedTuple):
    """Mean and standard deviation of each channel, in units of the largest pixel value."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class CompanionFacts:
    """Facts about the weights; None where nothing is said."""

    num_heads: int | None = None
    activation: ActivationName | None = None
    norm_epsilon: float | None = None
    image_size: tuple[int, int] | None = None
    """Height and width in pixels."""
    pixels: PixelStatistics | None = None
    classes: tuple[str, ...] | None = None
    """Names of the outputs of the head."""
    averages: bool = False
    """Whether the patches are averaged although there may be a class token."""
    notes: tuple[str, ...] = ()


def facts_beside(file: Path, embed_dim: int) -> CompanionFacts:
    """Return what the files in the folder of a weight file say about it.

    A `config.json` for another embedding dimension is ignored, with a note.

    Raises:
        ConfigError: if one of the files is damaged, or names a model or an activation that ours
            lack.
    """
    source = file.parent / CONFIG_FILE
    config = _json(source)
    vision = _section(config, "vision_config") or config
    named_dim = vision.get("hidden_size", config.get("num_features"))
    if named_dim not in (None, embed_dim):
        note = (
            f"{CONFIG_FILE} beside the file was ignored: it is for dimension {named_dim}, the "
            f"weights have {embed_dim}."
        )
        return _with_pixels(CompanionFacts(notes=(note,)), file.parent)
    facts = CompanionFacts()
    if "architecture" in config:
        facts = _from_timm(config, source)
    elif config:
        facts = _from_transformers(vision, config, source)
    return _with_pixels(facts, file.parent)


def _from_transformers(
    vision: Mapping[str, Any], config: Mapping[str, Any], source: Path
) -> CompanionFacts:
    return CompanionFacts(
        num_heads=_whole(vision.get("num_attention_heads")),
        activation=_activation(vision.get("hidden_act"), source),
        norm_epsilon=_positive(vision.get("layer_norm_eps")),
        image_size=_size(vision.get("image_size")),
        classes=_classes(config.get("id2label")),
    )


def _from_timm(config: Mapping[str, Any], source: Path) -> CompanionFacts:
    architecture = str(config["architecture"])
    if not architecture.startswith(_TIMM_FAMILIES) or "rope" in architecture:
        raise ConfigError(
            f"{source} says that the weights belong to timm's '{architecture}', which Patchline's "
            "vit cannot represent. Choose a plain ViT, whose name begins with vit_, or use the "
            "model plugin timm."
        )
    arguments = _section(config, "model_args")
    pretrained = _section(config, "pretrained_cfg")
    activation = arguments.get("act_layer")
    if activation is None:
        activation = "quick_gelu" if "quickgelu" in architecture else "gelu"
    size = arguments.get("img_size", pretrained.get("input_size"))
    names = config.get("label_names")
    pooled = arguments.get("global_pool", config.get("global_pool"))
    return CompanionFacts(
        num_heads=_whole(arguments.get("num_heads")),
        activation=_activation(activation, source),
        image_size=_size(size),
        pixels=_statistics(pretrained.get("mean"), pretrained.get("std")),
        classes=tuple(map(str, names)) if isinstance(names, list) and names else None,
        averages=pooled in ("avg", "avgmax", "max"),
    )


def _with_pixels(facts: CompanionFacts, folder: Path) -> CompanionFacts:
    """Add the pixel statistics of the preprocessor's file, and OpenCLIP's settings."""
    processor = _json(folder / PREPROCESSOR_FILE)
    pixels = _statistics(processor.get("image_mean"), processor.get("image_std"))
    if processor.get("do_normalize") is False:
        pixels = PixelStatistics((0.0,), (1.0,))
    if pixels:
        facts = replace(facts, pixels=pixels)
    open_clip = _json(folder / OPEN_CLIP_FILE)
    if open_clip and facts.activation is None:
        quick = bool(_section(open_clip, "model_cfg").get("quick_gelu"))
        processing = _section(open_clip, "preprocess_cfg")
        facts = replace(
            facts,
            activation="quick_gelu" if quick else "gelu",
            pixels=facts.pixels or _statistics(processing.get("mean"), processing.get("std")),
        )
    return facts


def _json(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file} beside the weights is not valid JSON. Repair or remove it."
        ) from error
    return contents if isinstance(contents, dict) else {}


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _activation(name: object, source: Path) -> ActivationName | None:
    if name is None:
        return None
    if name not in _ACTIVATIONS:
        raise ConfigError(
            f"{source} names the activation '{name}', which Patchline's vit does not have. Choose "
            f"weights with one of {', '.join(_ACTIVATIONS)}."
        )
    return _ACTIVATIONS[str(name)]


def _size(size: object) -> tuple[int, int] | None:
    """Return height and width; timm puts the channels before them."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, list) and len(size) >= 2 and _whole(size[-2]) and _whole(size[-1]):  # noqa: PLR2004
        return size[-2], size[-1]
    return None


def _statistics(mean: object, std: object) -> PixelStatistics | None:
    if isinstance(mean, list) and isinstance(std, list) and mean and std:
        return PixelStatistics(tuple(map(float, mean)), tuple(map(float, std)))
    return None


def _classes(names: object) -> tuple[str, ...] | None:
    """Return the class names in order, unless they were generated."""
    if not isinstance(names, dict) or not all(str(index).isdigit() for index in names):
        return None
    ordered = tuple(str(names[index]) for index in sorted(names, key=int))
    if not ordered or all(_GENERATED_CLASS.fullmatch(name) for name in ordered):
        return None
    return ordered
