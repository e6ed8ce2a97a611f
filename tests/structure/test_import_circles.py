"""No files of the product import each other in a circle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure.import_circles import import_circles

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("types_too", [False, True], ids=["at run time", "for types"])
def test_no_files_of_the_product_are_in_a_circle(*, types_too: bool) -> None:
    """A reader can read each file before those that use it."""
    assert (
        import_circles(ROOT, "pipeline", "flows", "plugins", "patchline", types_too=types_too) == []
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package `library` of three files that import nothing."""
    for name in ("__init__", "first", "second", "third"):
        (tmp_path / "library").mkdir(exist_ok=True)
        (tmp_path / "library" / f"{name}.py").write_text("", encoding="utf-8")
    return tmp_path


def test_a_circle_of_three_files_is_found(package: Path) -> None:
    """Whatever form an import has, and also if a function hides it."""
    library = package / "library"
    (library / "first.py").write_text("from library import second\n", encoding="utf-8")
    (library / "second.py").write_text("import library.third\n", encoding="utf-8")
    assert import_circles(package, "library") == []
    hidden = "def late():\n    from library.first import name\n"
    (library / "third.py").write_text(hidden, encoding="utf-8")
    circle = ["library.first", "library.second", "library.third"]
    assert import_circles(package, "library") == [circle]
    assert import_circles(package, "library", types_too=False) == [circle]


def test_a_circle_for_types_counts_only_with_types(package: Path) -> None:
    """`if TYPE_CHECKING` is no circle at run time, but one for a reader."""
    library = package / "library"
    (library / "first.py").write_text("from library.second import name\n", encoding="utf-8")
    guarded = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import library.first\n"
    (library / "second.py").write_text(guarded, encoding="utf-8")
    assert import_circles(package, "library", types_too=False) == []
    assert import_circles(package, "library") == [["library.first", "library.second"]]
