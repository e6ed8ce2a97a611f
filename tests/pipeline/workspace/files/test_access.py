"""What belongs to another user of the machine is answered, never raised."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workspace.files.access import (
    check_no_link,
    check_own_folder,
    check_secret,
)

_AS_ANOTHER_USER = """
import sys
from pathlib import Path
from patchline.pipeline.data.reading import image_root
from patchline.pipeline.workspace.files.access import is_readable
import os
os.setgid(12345); os.setuid(12345)
for each in map(Path, sys.argv[1:]):
    print(int(is_readable(each)), int(image_root.exists(each)))
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder that all users may enter."""
    with tempfile.TemporaryDirectory(prefix="patchline-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root becomes another user"
)
def test_files_of_another_user(shared: Path) -> None:
    """A public file and folder; a private one; a file in a private folder; a missing one."""
    public, private, photos = shared / "public.zip", shared / "private.zip", shared / "photos"
    inside = shared / "home" / "photos"
    for folder in (photos, inside):
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    for file in (public, private, inside / "a.zip"):
        shutil.make_archive(str(file.with_suffix("")), "zip", photos)
        file.chmod(0o644)
    private.chmod(0o600)
    inside.parent.chmod(0o700)
    asked = (public, photos, private, inside, inside / "a.zip", shared / "missing")
    command = [sys.executable, "-c", _AS_ANOTHER_USER, *map(str, asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:6] == ["1 1", "1 1", "0 0", "0 0", "0 0", "0 0"]


_root_only = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root gives files to others"
)
_OTHER = 12_345


def _refusal(folder: Path) -> str:
    try:
        check_own_folder(folder, "--record", "name a folder of your own")
    except ConfigError as error:
        return str(error)
    return ""


@_root_only
@pytest.mark.parametrize(
    ("mode", "owner", "group", "words"),
    [
        (0o700, 0, 0, ""),
        (0o775, 0, 0, ""),
        (0o775, 0, _OTHER, "another group of this machine may write to (mode 0775)"),
        (0o777, 0, 0, "every user of this machine may write to (mode 0777)"),
        (0o700, _OTHER, 0, "belongs to another user"),
    ],
)
def test_a_folder_that_others_may_write_is_refused(
    shared: Path, mode: int, owner: int, group: int, words: str
) -> None:
    """One's own group may write; the sentence has the remedy."""
    folder = shared / "folder"
    folder.mkdir()
    os.chown(folder, owner, group)
    folder.chmod(mode)
    said = _refusal(folder)
    assert words in said
    assert bool(said) == bool(words)
    if words:
        assert said.startswith(f"--record is {folder}, which ")
        assert ("chmod go-w" in said) == (owner == 0)
        assert said.lower().endswith("name a folder of your own.")


@_root_only
def test_a_link_of_another_user_is_refused(shared: Path) -> None:
    """In a folder like /tmp, somebody else may have made it; one's own link is a folder."""
    (shared / "folder").mkdir(mode=0o700)
    link = shared / "link"
    link.symlink_to("folder")
    assert _refusal(link) == ""
    os.lchown(link, _OTHER, _OTHER)
    assert "belongs to another user" in _refusal(link)


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    """Also one that leads nowhere yet."""
    check_no_link(tmp_path / "missing", "--record")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="link is a link to nowhere, and --record follows none"):
        check_no_link(tmp_path / "link", "--record")


@_root_only
@pytest.mark.parametrize(
    ("mode", "owner", "is_refused"),
    [
        *((mode, 0, False) for mode in (0o600, 0o640)),
        *((mode, 0, True) for mode in (0o644, 0o660, 0o602)),
        *((mode, _OTHER, mode != 0o600) for mode in (0o600, 0o640, 0o620)),
    ],
)
def test_a_secret_that_others_may_read_is_refused(
    shared: Path, mode: int, owner: int, *, is_refused: bool
) -> None:
    """The group of a file of root's may read it: so a container gets its secrets."""
    file = shared / "token"
    file.write_text("secret")
    os.chown(file, owner, _OTHER)
    file.chmod(mode)
    if is_refused:
        with pytest.raises(ConfigError, match=rf"token file {file} .* `chmod 600 {file}`"):
            check_secret(file, "token file")
    else:
        check_secret(file, "token file")


@pytest.mark.skipif(os.name != "posix", reason="there are no such pipes")
def test_a_secret_may_come_through_a_pipe(tmp_path: Path) -> None:
    """As the shell passes the output of a password manager; it has no mode of a file."""
    os.mkfifo(tmp_path / "pipe", 0o666)
    check_secret(tmp_path / "pipe", "token file")
