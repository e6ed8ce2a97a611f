"""Files are whole or not there, and a disk that fails is named in a sentence."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace.files.atomic_files import (
    full_disk,
    open_replacing,
    replace_file,
    storage_errors,
    write_text,
)
from tests.small_disks import small_disk


def names_in(folder: Path) -> list[str]:
    """Return everything in a folder, hidden files included."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    """Whatever interrupts the writing; until the new file is whole, a reader sees the old one."""
    target = tmp_path / "a" / "note.txt"
    write_text(target, "old Blüte")

    def write_half() -> None:
        with replace_file(target) as temporary:
            temporary.write_text("half of the new te")
            assert temporary.parent == target.parent
            assert target.read_text("utf-8") == "old Blüte"
            raise error

    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else StorageError
    with pytest.raises(expected) as raised:
        write_half()
    if expected is StorageError:
        assert str(raised.value).startswith(f"There is no space left to write {target}.")
        assert "another disk" in str(raised.value)
    assert names_in(target.parent) == ["note.txt"]
    assert target.read_text("utf-8") == "old Blüte"
    write_text(target, "short")
    assert target.read_text() == "short"


def test_a_binary_file_replaces_another_once_it_is_whole(tmp_path: Path) -> None:
    """Until then a reader sees the old one."""
    target = tmp_path / "a" / "numbers"
    for content in (b"old", b"new"):
        with open_replacing(target) as opened:
            opened.write(content)
            assert target.exists() == (content == b"new")
        assert target.read_bytes() == content
    with pytest.raises(KeyboardInterrupt), open_replacing(target) as opened:  # noqa: PT012 - within
        opened.write(b"half")
        raise KeyboardInterrupt
    assert (names_in(target.parent), target.read_bytes()) == (["numbers"], b"new")


def test_file_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    """A file written this way has the permissions of any other file."""
    usual = tmp_path / "usual.txt"
    usual.write_text("usual")
    write_text(tmp_path / "note.txt", "note")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual.txt", "note.txt")]
    assert modes[0] == modes[1]


def test_two_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    """Two blocks that write the same file do not mix: the last to finish wins."""
    target = tmp_path / "note.txt"
    with replace_file(target) as first:
        first.write_text("first")
        with replace_file(target) as second:
            second.write_text("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first"
    assert names_in(tmp_path) == ["note.txt"]


def test_a_disk_is_known_to_be_full_by_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For failures without a cause: nothing is said while there is room."""
    assert full_disk(tmp_path) is None
    assert full_disk(tmp_path / "none") is None
    with small_disk(tmp_path / "disk", mebibytes=2) as folder:
        assert full_disk(folder) is None
        (folder / "file").write_bytes(bytes(2**20 + 4096))
        said = full_disk(folder)
        assert said is not None
        assert str(said).startswith(f"There is no space left on the disk of {folder} (1.0 MiB")
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        said = full_disk(tmp_path)
        assert said is not None
        assert "or set TMPDIR to another disk" in str(said)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_read_only_disk_is_named_in_a_sentence(tmp_path: Path, code: int) -> None:
    """Where nothing may be written the error names the file, the reason and what to do."""
    target = tmp_path / "note.txt"
    with pytest.raises(StorageError) as raised, replace_file(target):
        raise OSError(code, os.strerror(code))
    sentence = str(raised.value)
    assert sentence.startswith(f"{target} may not be written ({os.strerror(code)}).")
    assert "Work in a folder that you may write to" in sentence
    with pytest.raises(FileNotFoundError), storage_errors(tmp_path):
        (tmp_path / "nowhere").read_text()  # any other error keeps its own type
