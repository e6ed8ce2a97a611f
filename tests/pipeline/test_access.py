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

from patchline.pipeline.files.access import is_readable

_AS_ANOTHER_USER = """
import sys
from pathlib import Path
from patchline.pipeline.data.reading import image_root
from patchline.pipeline.files.access import is_readable
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


def test_a_missing_file_cannot_be_read(tmp_path: Path) -> None:
    """Nor can what lies below a file; a folder can, if it may be entered."""
    file = tmp_path / "a.txt"
    file.touch()
    assert is_readable(file)
    assert is_readable(tmp_path)
    assert not is_readable(tmp_path / "missing")
    assert not is_readable(file / "below")


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
