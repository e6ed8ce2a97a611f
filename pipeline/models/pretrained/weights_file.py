"""Read the tensors of a weight file: safetensors, a PyTorch checkpoint, or NumPy's `.npz`.

Nothing in a file is executed: pickles are restricted to tensors and plain values.
"""

from __future__ import annotations

import argparse
import pickle
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from patchline.pipeline.errors import ConfigError, first_line

_WRAPPERS = ("model", "state_dict", "model_state_dict", "teacher", "model_ema")
_PREFIXES = ("module.", "_orig_mod.", "backbone.")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_ZIP_ERRORS = (
    OSError,
    EOFError,
    KeyError,
    AttributeError,
    RuntimeError,  # encrypted, or a kind of compression that is not supported
    zipfile.BadZipFile,
    zlib.error,
)
_GIT_LFS = b"version https://git-lfs"


class FileTensors(NamedTuple):
    """What a weight file holds."""

    weights: dict[str, torch.Tensor]
    """The floating-point tensors by name, without wrappers such as `module.`."""
    others: dict[str, str]
    """Every other tensor, or part with tensors, and why it is not among the weights."""
    notes: tuple[str, ...] = ()
    """Sentences about what had to be chosen."""


def read_tensors(file: Path) -> FileTensors:
    """Return the tensors of a weight file, and what else is in it.

    Raises:
        ConfigError: if the file is missing, damaged, of an unknown kind, without tensors, or holds
            code.
    """
    try:
        reader = _reader(file)
    except OSError as error:
        raise _make_damage_error(file, _reason(error)) from error
    contents = reader(file)
    tensors, others, notes = _unwrap(contents)
    weights = {}
    for name, tensor in _without_prefixes(tensors).items():
        if tensor.is_floating_point():
            weights[name] = tensor
        else:
            others[name] = f"not floating-point ({str(tensor.dtype).removeprefix('torch.')})"
    if not weights:
        raise ConfigError(
            f"'{file}' holds no floating-point tensors. Name a file with a model's weights."
        )
    return FileTensors(weights, others, notes)


def _reader(file: Path) -> Callable[[Path], Mapping[Any, Any]]:
    """Choose how to read a file, by its suffix."""
    if file.is_dir():
        raise ConfigError(
            f"'{file}' is a folder, not a weight file. Name the file in it, such as "
            "model.safetensors."
        )
    if not file.is_file():
        raise ConfigError(f"There is no weight file '{file}'. Correct the path.")
    if file.name.endswith(".index.json") or _SHARD.search(file.stem):
        raise ConfigError(
            f"'{file}' belongs to weights that are split into several files, which are not read. "
            "Save them as one safetensors file."
        )
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise ConfigError(
            f"'{file}' has the suffix '{file.suffix}'; weights are read from "
            f"{', '.join(_READERS)}. Convert the file to safetensors."
        )
    with file.open("rb") as stream:
        if stream.read(len(_GIT_LFS)) == _GIT_LFS:
            raise ConfigError(
                f"'{file}' is a Git LFS pointer, not the weights. Fetch them with `git lfs pull`."
            )
    return reader


def _read_safetensors(file: Path) -> Mapping[str, torch.Tensor]:
    try:
        tensors: dict[str, torch.Tensor] = load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise _make_damage_error(file, _reason(error)) from error
    return tensors


def _read_pickle(file: Path) -> Mapping[Any, Any]:
    whole = zipfile.is_zipfile(file)
    if whole and _is_torchscript(file):
        raise ConfigError(
            f"'{file}' is a TorchScript program: the file contains code, which Patchline does not "
            "run. Convert its state_dict to safetensors."
        )
    try:
        # Checkpoints of DeiT, DINO and timm keep their command line; a Namespace is plain values.
        with torch.serialization.safe_globals([argparse.Namespace]):
            contents = torch.load(file, map_location="cpu", weights_only=True, mmap=whole)
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error) and "add_safe_globals" not in str(error):
            raise _make_damage_error(file, "not a torch.save checkpoint") from error
        raise ConfigError(
            f"'{file}': the file contains code, which Patchline does not run. Convert it to "
            "safetensors."
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, AttributeError) as error:
        raise _make_damage_error(file, _reason(error)) from error
    if isinstance(contents, torch.nn.Module) or not isinstance(contents, Mapping):
        raise ConfigError(
            f"'{file}' holds a {type(contents).__name__}, not tensors by name. Save the model's "
            "state_dict."
        )
    return contents


def _is_torchscript(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith("constants.pkl") for name in archive.namelist())
    except (*_ZIP_ERRORS, ValueError) as error:
        raise _make_damage_error(file, _reason(error)) from error


def _read_npz(file: Path) -> Mapping[str, torch.Tensor]:
    if not zipfile.is_zipfile(file):
        raise _make_damage_error(file, "not a numpy.savez archive")
    tensors = {}
    try:
        with np.load(file, allow_pickle=False) as archive:
            for name in archive.files:
                tensors[name] = torch.from_numpy(archive[name])
    except (ValueError, TypeError) as error:
        if "allow_pickle" not in str(error) and "numpy.object_" not in str(error):
            raise _make_damage_error(file, _reason(error)) from error
        raise ConfigError(
            f"'{file}' holds Python objects, which can run code when they are loaded, so Patchline "
            "does not read them. Save plain arrays."
        ) from error
    except _ZIP_ERRORS as error:
        raise _make_damage_error(file, _reason(error)) from error
    return tensors


def _reason(error: Exception) -> str:
    return first_line(error).split(". ")[0][:120]


def _make_damage_error(file: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"'{file}' cannot be read as {file.suffix.lower()} ({reason}). "
        "Download or copy the file again."
    )


def _unwrap(
    contents: Mapping[Any, Any],
) -> tuple[dict[str, torch.Tensor], dict[str, str], tuple[str, ...]]:
    """Return the tensors inside the wrappers of a checkpoint, its other parts, and notes."""
    others: dict[str, str] = {}
    notes: list[str] = []
    path = ""
    while True:
        wrapper = next((name for name in _WRAPPERS if _holds_tensors(contents.get(name))), None)
        tensors = {str(k): v for k, v in contents.items() if isinstance(v, torch.Tensor)}
        rest = {k: v for k, v in contents.items() if str(k) not in tensors and k != wrapper}
        others |= {
            f"{path}{name}": "another part of the checkpoint"
            for name, part in rest.items()
            if _holds_tensors(part)
        }
        if wrapper is None:
            return tensors, others, tuple(notes)
        others |= {f"{path}{name}": "another part of the checkpoint" for name in tensors}
        taken = contents[wrapper]
        if rivals := [f"'{name}'" for name, part in rest.items() if _has_names_of(part, taken)]:
            notes.append(
                f"The checkpoint has weights as '{wrapper}' and as {' and '.join(rivals)}: those "
                f"of '{wrapper}' are taken. Save the others as a file of their own to start from "
                "them."
            )
        path += f"{wrapper}."
        contents = taken


def _has_names_of(part: object, taken: Mapping[Any, Any]) -> bool:
    """Return whether a part of a checkpoint has tensors by the names of another part."""
    return isinstance(part, Mapping) and not _names(part).isdisjoint(_names(taken))


def _names(part: Mapping[Any, Any]) -> set[str]:
    tensors = {str(name): each for name, each in part.items() if isinstance(each, torch.Tensor)}
    return set(_without_prefixes(tensors))


def _holds_tensors(part: object) -> bool:
    return isinstance(part, Mapping) and any(map(_contains_tensor, part.values()))


def _contains_tensor(part: object) -> bool:
    if isinstance(part, Mapping):
        return _holds_tensors(part)
    if isinstance(part, (list, tuple)):
        return any(map(_contains_tensor, part))
    return isinstance(part, torch.Tensor)


def _without_prefixes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Strip wrappers' prefixes from the names that have them, unless two names become one."""
    result = dict(tensors)
    found = True
    while found:
        found = False
        for prefix in _PREFIXES:
            renamed = {name.removeprefix(prefix): tensor for name, tensor in result.items()}
            if len(renamed) == len(result) and renamed.keys() != result.keys():
                result, found = renamed, True
    return result


_READERS: dict[str, Callable[[Path], Mapping[Any, Any]]] = {
    ".safetensors": _read_safetensors,
    ".pth": _read_pickle,
    ".pt": _read_pickle,
    ".bin": _read_pickle,
    ".ckpt": _read_pickle,
    ".npz": _read_npz,
}
