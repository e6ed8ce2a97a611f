"""A path from a store, a record or an archive stays in its folder, or is refused."""

from __future__ import annotations

import os
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.safe_paths import safe_join

_PARTS = st.one_of(
    st.sampled_from(["", ".", "..", "a", "b.txt", "C:", "~", "\0", "link", "x" * 300, "\ud800"]),
    st.text(max_size=8),
)
_PATHS = st.lists(st.tuples(_PARTS, st.sampled_from("/\\")), max_size=6).map(
    lambda pairs: "".join(part + separator for part, separator in pairs).rstrip("\n")
)


@settings(max_examples=60)
@given(path=st.one_of(_PATHS, _PATHS.map(lambda path: path[:-1])))
def test_what_is_accepted_is_a_file_below_the_folder(path: str) -> None:
    """On any system, and whatever the path is made of; another one is one sentence."""
    folder = Path("/nowhere/folder")
    try:
        file = safe_join(folder, path, "s3://bucket/team")
    except DataError as error:
        assert str(error).startswith("s3://bucket/team names the path ")  # noqa: PT017 - a property
        return
    normal = os.path.normpath(file)
    assert normal == str(file) == f"{folder}/{path}"
    assert normal.startswith(f"{folder}/")
    on_windows = PureWindowsPath(path)
    assert not on_windows.drive
    assert not on_windows.root
    assert ".." not in on_windows.parts
    assert max(map(len, os.fsencode(path).split(b"/"))) <= 255


@settings(max_examples=20)
@given(
    path=st.lists(
        st.text("ab .-é", min_size=1).filter(lambda each: each not in ". .."),
        min_size=1,
        max_size=3,
    )
)
def test_an_ordinary_path_is_accepted(path: list[str]) -> None:
    """Spaces, accents, and names that begin with dots are no reason to refuse one."""
    names = [each for each in path if each not in (".", "..")] or ["a"]
    assert safe_join(Path("/nowhere"), "/".join(names), "x") == Path("/nowhere", *names)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../x", "leads out of its folder"),
        ("a\\..\\..\\x", "leads out of its folder"),
        ("/etc/passwd", "is absolute"),
        ("C:\\x", "begins like a drive"),
        ("a/./b", r"or '\.'"),
        ("a\0b", "has a null byte"),
        ("x" * 256, "is longer than a file system takes"),
        ("a/" * 2100 + "a", "is longer than a file system takes"),
        ("link/x", "leads out of .* through a link"),
        ("loop/x", "leads out of .* through a link"),
    ],
)
def test_other_paths_are_refused(tmp_path: Path, path: str, reason: str) -> None:
    """The sentence says what names the path, and why it is refused."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / "loop").symlink_to("/proc/self/cwd")
    with pytest.raises(DataError, match=f"The record names the path .*{reason}"):
        safe_join(folder, path, "The record")


def test_links_that_stay_in_the_folder_are_followed(tmp_path: Path) -> None:
    """Also those above it, such as a folder of the workspace on another disk."""
    (tmp_path / "disk/a").mkdir(parents=True)
    (tmp_path / "disk/inside").symlink_to("a")
    (tmp_path / "folder").symlink_to("disk")
    assert safe_join(tmp_path / "folder", "inside/x", "x") == tmp_path / "folder/inside/x"
