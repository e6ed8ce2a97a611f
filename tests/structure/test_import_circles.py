"""No files of the product import each other in a circle."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.structure.import_rules import FOLDERS, ROOT_PACKAGE
from tests.structure.source_files import source_file

ROOT = Path(__file__).resolve().parents[2]


def import_circle(root: Path, *packages: str) -> list[str]:
    """Return files that import each other in a circle, one way round; none: no file does.

    Imports in functions and below `if TYPE_CHECKING` count: they hide a circle from Python, and
    not from a reader.
    """
    sources = [file for package in packages for file in sorted((root / package).rglob("*.py"))]
    files = {_module(file.relative_to(root)): file for file in sources}
    imports = {
        module: {
            name
            for each in source_file(file.read_text(encoding="utf-8")).imports
            for name in [name for name in (str(each), each.module) if name in files][:1]
        }
        - {module}
        for module, file in files.items()
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def _module(file: Path) -> str:
    parts = (*([ROOT_PACKAGE] if file.parts[0] in FOLDERS else []), *file.with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def test_no_files_of_the_product_are_in_a_circle() -> None:
    """A reader can read each file before those that use it."""
    assert import_circle(ROOT, "pipeline", "flows", "plugins", "patchline") == []


def test_a_circle_of_three_files_is_found(tmp_path: Path) -> None:
    """Whatever form an import has, and also if a function or `TYPE_CHECKING` hides it."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "first.py").write_text("from library import second\n", encoding="utf-8")
    (library / "second.py").write_text("import library.third\n", encoding="utf-8")
    third = library / "third.py"
    third.write_text("", encoding="utf-8")
    assert import_circle(tmp_path, "library") == []
    for hidden in ("def late():", "if TYPE_CHECKING:"):
        third.write_text(f"{hidden}\n    from library.first import name\n", encoding="utf-8")
        circle = import_circle(tmp_path, "library")
        assert set(circle) == {"library.first", "library.second", "library.third"}
