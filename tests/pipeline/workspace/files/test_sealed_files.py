"""A file of weights that was changed by one bit, or cut short, is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.workspace.files.sealed_files import read_tensors, verify, write_tensors

TENSORS = {
    "weight": torch.arange(600, dtype=torch.float32).reshape(20, 30),
    "half": torch.ones(7, dtype=torch.bfloat16),
    "count": torch.tensor(3),
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a file."""
    file = tmp_path_factory.mktemp("sealed") / "model.safetensors"
    write_tensors(file, TENSORS, {"progress": '{"step": 7}'})
    return file.read_bytes()


def test_what_was_written_is_read(sealed: bytes, tmp_path: Path) -> None:
    """Tensors and metadata come back, and any other reader of the format can read them too."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(sealed)
    tensors, metadata = read_tensors(file)
    assert metadata == {"progress": '{"step": 7}'}
    for found in (tensors, load_file(file)):
        assert found.keys() == TENSORS.keys()
        assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)


def test_every_changed_bit_is_noticed(sealed: bytes, tmp_path: Path) -> None:
    """Wherever a bit flips: in the length, the names, the digest, the metadata, the weights."""
    file, generator = tmp_path / "model.safetensors", np.random.default_rng(0)
    places = {*range(0, len(sealed), 7), len(sealed) - 1}
    for place in places:
        changed = bytearray(sealed)
        changed[place] ^= 1 << int(generator.integers(8))
        file.write_bytes(changed)
        with pytest.raises(DamagedFileError, match=r"is damaged \(.+\)\. Restore it"):
            read_tensors(file)


def test_every_cut_is_noticed(sealed: bytes, tmp_path: Path) -> None:
    """However short the file was cut, and also if something was put behind it, or it is gone."""
    file = tmp_path / "model.safetensors"
    with pytest.raises(DamagedFileError, match=r"model\.safetensors is damaged"):
        verify(file)
    lengths = [*range(0, 700, 9), *range(700, len(sealed), 41), len(sealed) - 1]
    for content in (*(sealed[:length] for length in lengths), sealed + b"\0"):
        file.write_bytes(content)
        with pytest.raises(DamagedFileError, match="is damaged"):
            verify(file)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_of_another_program_is_read(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    """Without a digest nothing can be compared; what safetensors itself refuses is damaged."""
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file, metadata)
    assert torch.equal(read_tensors(file)[0]["weight"], TENSORS["weight"])
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DamagedFileError, match="is damaged"):
        read_tensors(file)
