"""Files are whole or not there, and a disk that fails is named in a sentence."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from patchline.pipeline.errors import StorageError
from patchline.pipeline.files.atomic_files import full_disk, replacing, storage_errors, write_text
from tests.small_disks import small_disk


def names_in(folder: Path) -> list[str]:
    """Return everything in a folder, hidden files included."""
    return sorted(path.name for path in folder.iterdir())


def write_half(target: Path, error: BaseException) -> None:
    """Write the beginning of a file, and then fail."""
    with replacing(target) as temporary:
        temporary.write_text("half of the new te")
        raise error


def test_text_is_written_with_its_folders(tmp_path: Path) -> None:
    """A file is written with all folders that it needs, and nothing else is left there."""
    target = tmp_path / "a" / "b" / "note.txt"
    write_text(target, "Blüte\n")
    assert target.read_text(encoding="utf-8") == "Blüte\n"
    assert names_in(target.parent) == ["note.txt"]


def test_old_file_is_replaced(tmp_path: Path) -> None:
    """Writing again replaces the whole content."""
    target = tmp_path / "note.txt"
    write_text(target, "a long first text")
    write_text(target, "short")
    assert target.read_text() == "short"


@pytest.mark.parametrize("existing", [None, "old"])
@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, existing: str | None, error: BaseException
) -> None:
    """Whatever interrupts the writing, the old file stays and no temporary one is left."""
    target = tmp_path / "note.txt"
    if existing is not None:
        target.write_text(existing)
    with pytest.raises(type(error)):
        write_half(target, error)
    assert names_in(tmp_path) == ([] if existing is None else ["note.txt"])
    assert existing is None or target.read_text() == existing


def test_target_is_untouched_until_the_block_ends(tmp_path: Path) -> None:
    """A reader sees the old file until the new one is whole."""
    target = tmp_path / "note.txt"
    target.write_text("old")
    with replacing(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == target.parent
        assert target.read_text() == "old"
    assert target.read_text() == "new"


def test_block_that_writes_nothing_makes_no_file(tmp_path: Path) -> None:
    """A block that forgets to write fails instead of leaving an empty file."""
    target = tmp_path / "note.txt"
    with pytest.raises(OSError, match="No such file"), replacing(target):
        pass
    assert names_in(tmp_path) == []


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
    with replacing(target) as first:
        first.write_text("first")
        with replacing(target) as second:
            second.write_text("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first"
    assert names_in(tmp_path) == ["note.txt"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_named_in_a_sentence(tmp_path: Path, code: int) -> None:
    """Without space left the error names the file and what to do."""
    target = tmp_path / "note.txt"
    with pytest.raises(StorageError) as raised:
        write_half(target, OSError(code, os.strerror(code)))
    assert str(raised.value).startswith(f"There is no space left to write {target}.")
    assert "another disk" in str(raised.value)
    assert names_in(tmp_path) == []


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_device_that_is_full_is_recognised(tmp_path: Path) -> None:
    """What the system itself reports about a full disk is understood."""
    with pytest.raises(StorageError, match="no space left"), storage_errors(tmp_path / "x"):
        Path("/dev/full").write_text("anything")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_read_only_disk_is_named_in_a_sentence(tmp_path: Path, code: int) -> None:
    """Where nothing may be written the error names the file, the reason and what to do."""
    target = tmp_path / "note.txt"
    with pytest.raises(StorageError) as raised, replacing(target):
        raise OSError(code, os.strerror(code))
    sentence = str(raised.value)
    assert sentence.startswith(f"{target} may not be written ({os.strerror(code)}).")
    assert "Work in a folder that you may write to" in sentence


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission_is_recognised(tmp_path: Path) -> None:
    """What the system itself reports about a read-only folder is understood."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="may not be written"):
            write_text(tmp_path / "note.txt", "note")
    finally:
        tmp_path.chmod(0o700)


def test_other_errors_pass_through(tmp_path: Path) -> None:
    """An error that is not about space or permission keeps its own type."""
    with pytest.raises(FileNotFoundError), storage_errors(tmp_path):
        (tmp_path / "nowhere").read_text()
