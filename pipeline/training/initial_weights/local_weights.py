"""Find published weights that are on this machine already, in milliseconds and without a network.

Only safetensors files are listed: nothing of them is read but their header, which names the tensors
and their shapes. Pickle files of the caches are mentioned, and never opened.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.registry import registered_models
from patchline.pipeline.training.initial_weights.named_weights import hub_cache
from patchline.pipeline.workspace.tracking.tracking_store import sqlite_file

VARIABLE = "PATCHLINE_WEIGHTS"
"""Environment variable: a file of weights, or a folder of them, that plans may start from."""
_FILE, _SUFFIX = "model.safetensors", ".safetensors"
_LARGEST_HEADER = 16 << 20
_MOST_FILES, _MOST_FOLDERS = 200, 2_000
"""Maximum in a folder and those below it; more are no collection of weights."""
_OF_IMAGES = re.compile(r"(?:^|\.)(?:visual|vision_model|image_encoder)\.")
"""Pattern for the names of the image encoder's tensors, in a file that has a text encoder
beside."""
_PATCHES = re.compile(r"patch|conv_proj|(?:^|\.)conv1\.weight$")
"""Pattern for the names of the kernels that embed patches, in the layouts that are read."""
_BLOCKS = re.compile(r"(?:^|\.)(?:blocks|resblocks|layers?)\.(?:encoder_layer_)?\d+\.")
_DECODER = "decoder_pred.weight"
"""A tensor of masked autoencoders as they were published."""
_KERNEL_AXES = 4
_CHECKPOINTS = ("vit_*.pth", "deit_*.pth", "dino_*.pth", "dinov2_*.pth")
_RECONSTRUCTS = re.compile(r"(?:^|[^a-z])mae(?:[^a-z]|$)")


class WeightsAtHand(FrozenModel):
    """A file of weights whose header looks like a Vision Transformer's."""

    reference: str
    """Value for `model.init`: the name of published weights, or an absolute path."""
    where: str
    """Where the file was found, in a few words."""
    parameters: int
    """Number of parameters of the image encoder."""
    tokens: int
    """Tokens of an image in the pre-training, as the position embeddings show; 0 if none do."""
    channels: int
    stamp: str
    """Text that changes with the file: its digest where the cache states it, else its size and
    time."""

    @property
    def macs(self) -> float:
        """Multiply-accumulates of an image, roughly: each weight once a token."""
        return float(self.parameters * max(1, self.tokens))


class WeightsSearch(FrozenModel):
    """What is at hand, the largest first, and what is there but not used."""

    weights: tuple[WeightsAtHand, ...] = ()
    passed: tuple[str, ...] = ()
    """Sentences that say what is not used, and why."""
    registered: tuple[str, ...] = ()
    """Versions of other registered models, as in `model.init`: encoders first."""


class _CachePlace(NamedTuple):
    file: Path
    reference: str
    where: str


def search(own_name: str) -> WeightsSearch:
    """Return the weights in `PATCHLINE_WEIGHTS`, the libraries' caches and the local registry.

    Args:
        own_name: the name of the run's own model, which is trained again only if `model.init` says
            so.
    """
    found: dict[str, WeightsAtHand] = {}
    passed: list[str] = []
    for place in (*_find_named(passed), *_of_hub()):
        shapes = _shapes(place.file)
        weights = _weights(place, shapes)
        if weights is None:
            if place.where == VARIABLE:
                why = "holds no known Vision Transformer" if shapes else "is damaged"
                passed.append(f"{place.reference}, which {VARIABLE} names, {why}")
            continue
        if _DECODER in shapes or _RECONSTRUCTS.search(place.reference.lower()):
            passed.append(
                f"{place.reference} is a masked autoencoder, which is weak unless all of its "
                "weights are trained"
            )
            continue
        found.setdefault(weights.stamp, weights)
    passed += _pickles()
    ordered = sorted(found.values(), key=lambda each: (-each.parameters, each.reference))
    return WeightsSearch(
        weights=tuple(ordered), passed=tuple(passed), registered=tuple(_list_registered(own_name))
    )


# -- places ----------------------------------------------------------------------------------------


def _find_named(passed: list[str]) -> Iterator[_CachePlace]:
    """Yield the files that the variable names."""
    named = os.environ.get(VARIABLE, "").strip()
    if not named:
        return
    path = Path(named).expanduser().absolute()
    if path.is_dir():
        files, is_whole = _files_below(path)
        if not is_whole:
            passed.append(
                f"{VARIABLE} is {named}, where only the first {_MOST_FILES:,} files in the first "
                f"{_MOST_FOLDERS:,} folders are looked at"
            )
        elif not files:
            passed.append(f"{VARIABLE} is {named}, which holds no {_SUFFIX} file")
        for file in files:
            yield _CachePlace(file, str(file), VARIABLE)
    elif path.suffix.lower() == _SUFFIX and path.is_file():
        yield _CachePlace(path, str(path), VARIABLE)
    elif path.is_file():
        passed.append(
            f"{VARIABLE} is {named}, and plans open {_SUFFIX} files only: --model.init {path} "
            "starts from it"
        )
    else:
        passed.append(f"{VARIABLE} is {named}, which does not exist")


def _files_below(folder: Path) -> tuple[list[Path], bool]:
    """Return the files of weights in a folder and all folders below it, and whether that is all.

    A folder before those below it, each in the order of the names, and none twice, however links
    lead to it.
    """
    files: list[Path] = []
    visited: set[str] = set()
    for path, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(path)
        if real in visited:
            folders.clear()
            continue
        if len(visited) == _MOST_FOLDERS:
            return files, False
        visited.add(real)
        folders.sort()
        files += [Path(path, name) for name in sorted(names) if name.endswith(_SUFFIX)]
        if len(files) > _MOST_FILES:
            return files[:_MOST_FILES], False
    return files, True


def _of_hub() -> Iterator[_CachePlace]:
    """Yield the weights in the cache of the Hugging Face hub, which timm uses too."""
    by_name = importlib.util.find_spec("huggingface_hub") is not None
    has_timm = importlib.util.find_spec("timm") is not None
    for folder in _folders(hub_cache()):
        repository = folder.name.removeprefix("models--").replace("--", "/")
        try:
            commit = (folder / "refs" / "main").read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue
        file = folder / "snapshots" / commit / _FILE
        if not file.is_file():
            continue
        owner, _, name = repository.partition("/")
        reference = f"hf:{repository}" if by_name else str(file)
        if owner == "timm" and has_timm and by_name:
            reference = f"timm:{name}"
        yield _CachePlace(file, reference, "the cache of the Hugging Face hub")


def _folders(cache: Path) -> list[Path]:
    try:
        return sorted(cache.glob("models--*--*"))
    except OSError:  # it may not be listed
        return []


def _pickles() -> Iterator[str]:
    """Yield a sentence for each ViT in the cache of torch.hub, which holds pickle files."""
    home = os.environ.get("TORCH_HOME")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = (Path(home).expanduser() if home else cache / "torch") / "hub" / "checkpoints"
    for pattern in _CHECKPOINTS:
        for file in sorted(folder.glob(pattern)):
            yield (
                f"{file.name} in the cache of torch.hub is a pickle file, which a plan does not "
                f"open by itself: --model.init {file} starts from it"
            )


def _list_registered(own_name: str) -> list[str]:
    """Return the versions of other models, in a store that is a file: no server is asked."""
    database = sqlite_file()
    if database is None or not database.exists():
        return []
    versions = [each for each in registered_models.newest_versions() if each.name != own_name]
    versions.sort(key=lambda each: (not each.is_encoder, each.name))
    return [f"{each.name}/{each.version}" for each in versions]


# -- headers ---------------------------------------------------------------------------------------


def _weights(place: _CachePlace, shapes: dict[str, tuple[int, ...]]) -> WeightsAtHand | None:
    """Return what a header says; None if it is not that of a Vision Transformer."""
    of_images = {name: shape for name, shape in shapes.items() if _OF_IMAGES.search(name)}
    shapes = of_images or shapes
    kernels = [
        shape
        for name, shape in shapes.items()
        if _PATCHES.search(name) and name.endswith("weight") and len(shape) == _KERNEL_AXES
    ]
    if not kernels or not any(_BLOCKS.search(name) for name in shapes):
        return None
    width, channels = kernels[0][0], kernels[0][1]
    positions = [
        shape[-2]
        for name, shape in shapes.items()
        if "pos" in name and len(shape) > 1 and shape[-1] == width
    ]
    return WeightsAtHand(
        reference=place.reference,
        where=place.where,
        parameters=sum(_product(shape) for shape in shapes.values()),
        tokens=max(positions, default=0),
        channels=channels,
        stamp=_stamp(place.file),
    )


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a safetensors file by the names of its tensors; none if it is damaged.

    The file begins with the length of its header, 8 bytes, and the header, which is JSON.
    """
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > _LARGEST_HEADER:
                return {}
            header: Any = json.loads(opened.read(length))
    except (OSError, ValueError):
        return {}
    if not isinstance(header, Mapping):
        return {}
    return {
        name: tuple(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__" and isinstance(entry, Mapping) and _is_shape(entry.get("shape"))
    }


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(side, int) and side >= 0 for side in value)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for side in shape:
        product *= side
    return product


def _stamp(file: Path) -> str:
    blob = file.resolve()
    if blob.parent.name == "blobs":  # named after its digest
        return blob.name
    known = blob.stat()
    return f"{blob} {known.st_size} {known.st_mtime_ns}"
