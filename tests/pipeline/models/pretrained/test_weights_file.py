"""Reading weight files of every kind, and every fault that they may have."""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.pretrained.weights_file import read_tensors

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2, dtype=torch.half)}


def _written(file: Path, contents: Any, **settings: Any) -> Path:
    if file.suffix == ".safetensors":
        save_file(contents, file)
    elif file.suffix == ".npz":
        np.savez(file, **{name: tensor.numpy() for name, tensor in contents.items()})
    else:
        torch.save(contents, file, **settings)
    return file


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".ckpt", ".npz", ".PTH"])
def test_every_kind_of_file_is_read(suffix: str, tmp_path: Path) -> None:
    """Names, values and types of the tensors come back from every kind of file."""
    found = read_tensors(_written(tmp_path / f"weights{suffix}", TENSORS)).weights
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        torch.testing.assert_close(found[name], tensor)


def test_files_of_old_versions_of_torch_are_read(tmp_path: Path) -> None:
    """A checkpoint that is no zip archive, as before torch 1.6, is read as well."""
    file = _written(tmp_path / "old.pth", TENSORS, _use_new_zipfile_serialization=False)
    assert torch.equal(read_tensors(file).weights["a.weight"], TENSORS["a.weight"])


@pytest.mark.parametrize(
    "wrappers",
    [["model_state_dict"], ["teacher"], ["model_ema"], ["model", "state_dict"]],
)
def test_wrappers_are_opened(wrappers: list[str], tmp_path: Path) -> None:
    """The tensors are found inside the usual wrappers, also inside two of them."""
    contents: Any = TENSORS
    for wrapper in reversed(wrappers):
        contents = {wrapper: contents, "epoch": 3, "args": argparse.Namespace(lr=0.1)}
    assert (
        read_tensors(_written(tmp_path / "weights.pth", contents)).weights.keys() == TENSORS.keys()
    )


@pytest.mark.parametrize("prefix", ["backbone.", "module._orig_mod."])
def test_prefixes_are_stripped(prefix: str, tmp_path: Path) -> None:
    """The prefixes of wrapping modules are not part of the names."""
    contents = {prefix + name: tensor for name, tensor in TENSORS.items()}
    file = _written(tmp_path / "weights.safetensors", contents)
    assert read_tensors(file).weights.keys() == TENSORS.keys()


def test_a_prefix_stays_where_two_names_would_become_one(tmp_path: Path) -> None:
    """With `bias` and `module.bias` in a file, both keep their names."""
    contents = {"bias": torch.ones(2), "module.bias": torch.zeros(2)}
    assert (
        read_tensors(_written(tmp_path / "weights.pth", contents)).weights.keys() == contents.keys()
    )


def test_the_rest_of_a_checkpoint_is_listed(tmp_path: Path) -> None:
    """Other parts with tensors, and integers, are named with a reason."""
    contents = {
        "model": {**TENSORS, "steps": torch.tensor(3)},
        "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}},
        "model_ema": {f"module.{name}": tensor for name, tensor in TENSORS.items()},
        "scale": torch.ones(1),
        "epoch": 3,
    }
    found = read_tensors(_written(tmp_path / "weights.pth", contents))
    assert found.weights.keys() == TENSORS.keys()
    assert found.others == {
        "optimizer": "another part of the checkpoint",
        "model_ema": "another part of the checkpoint",
        "scale": "another part of the checkpoint",
        "steps": "not floating-point (int64)",
    }
    [note] = found.notes
    assert note.startswith("The checkpoint has weights as 'model' and as 'model_ema': those of 'm")


class _Intruder:
    """A pickle of it would make a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def _truncated(file: Path, contents: Any = TENSORS) -> Path:
    whole = _written(file, contents).read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    return file


def _with_bytes(file: Path, contents: bytes) -> Path:
    file.write_bytes(contents)
    return file


def _torchscript(file: Path) -> Path:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), buffer)
    return _with_bytes(file, buffer.getvalue())


def _objects(file: Path) -> Path:
    np.savez(file, a=np.array([{"a": 1}], dtype=object))
    return file


FAULTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda f: f / "none.pth", "There is no weight file"),
    "folder": (lambda f: f, "is a folder, not a weight file. Name the file"),
    "no suffix": (lambda f: _with_bytes(f / "weights", b"x"), "suffix ''; weights are read from"),
    "unknown suffix": (lambda f: _with_bytes(f / "w.h5", b"x"), "suffix '.h5'; .*Convert the file"),
    "index": (
        lambda f: _with_bytes(f / "model.safetensors.index.json", b"{}"),
        "split into several files, .*Save them as one",
    ),
    "shard": (
        lambda f: _written(f / "model-00001-of-00002.safetensors", TENSORS),
        "split into several files",
    ),
    "pointer": (
        lambda f: _with_bytes(f / "w.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
        "Git LFS pointer, .*git lfs pull",
    ),
    "truncated safetensors": (
        lambda f: _truncated(f / "w.safetensors"),
        r"cannot be read as \.safetensors .*Download or copy the file again",
    ),
    "truncated npz": (lambda f: _truncated(f / "w.npz"), r"cannot be read as \.npz "),
    "text as pth": (lambda f: _with_bytes(f / "w.pth", b"<html>"), r"cannot be read as \.pth "),
    "empty": (lambda f: _with_bytes(f / "w.bin", b""), r"cannot be read as \.bin "),
    "whole model": (
        lambda f: _written(f / "w.pth", nn.Linear(2, 2)),
        "contains code, which Patchline does not run. Convert it to safetensors",
    ),
    "TorchScript": (
        lambda f: _torchscript(f / "w.pt"),
        "contains code, which Patchline does not run. Convert its state_dict to safetensors",
    ),
    "objects": (lambda f: _objects(f / "w.npz"), "holds Python objects, .*Save plain arrays"),
    "a list": (lambda f: _written(f / "w.pth", [torch.ones(2)]), "holds a list, not tensors"),
    "integers": (
        lambda f: _written(f / "w.safetensors", {"a": torch.ones(2, dtype=torch.int64)}),
        "no floating-point tensors",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence(fault: str, tmp_path: Path) -> None:
    """Every fault names the file, the rule and the remedy on one line."""
    prepare, expected = FAULTS[fault]
    file = prepare(tmp_path)
    with pytest.raises(ConfigError, match=expected) as caught:
        read_tensors(file)
    assert f"'{file}'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_never_run(zipped: bool, tmp_path: Path) -> None:
    """A pickle that would run a command is refused, and the command is not run."""
    trace = tmp_path / "trace"
    contents = {"model": TENSORS, "intruder": _Intruder(trace)}
    file = _written(tmp_path / "w.pth", contents, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ConfigError, match="contains code, which Patchline does not run"):
        read_tensors(file)
    assert not trace.exists()
