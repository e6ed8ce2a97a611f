"""The commands in `benchmarks/`: pages name those that exist, and each is named by a page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks.results import FOLDER, PICTURE, Record, draw_peers, page_of_records, table
from tests.structure.pages import PAGES, ROOT

_NAMED = re.compile(r"\bbenchmarks\.([a-z]\w*)(?:\s+([a-z][\w-]*))?")
_SHOWN = re.compile(r"<!-- results: ([a-z0-9_]+) -->")
BENCHMARKS = {file.stem: file for file in (ROOT / "benchmarks").glob("*.py")}


def _unknown(text: str) -> list[str]:
    """Return the commands in a text that no benchmark has."""
    found = []
    for name, word in _NAMED.findall(text):
        source = BENCHMARKS[name].read_text("utf-8") if name in BENCHMARKS else ""
        has_word = "add_subparsers" not in source or (word and f'"{word}"' in source)
        if not source or not has_word:
            found.append(f"{name} {word}".strip())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_benchmark_that_a_page_names_exists(page: Path) -> None:
    """The module exists, and so does the subcommand if it has subcommands."""
    assert _unknown(page.read_text("utf-8")) == []


def test_the_usage_of_every_benchmark_is_right() -> None:
    """The commands in the docstrings of the benchmarks exist, too."""
    usages = [file.read_text("utf-8").partition("from __future__")[0] for file in _commands()]
    assert _unknown("\n".join(usages)) == []


def test_a_benchmark_that_does_not_exist_is_noticed() -> None:
    """A wrong module, a wrong subcommand and a missing one are found."""
    text = "`python -m benchmarks.speed 3`, `benchmarks.loader fast` and `benchmarks.loader`"
    assert _unknown(text) == ["speed", "loader fast", "loader"]


def test_a_page_claims_the_figures_of_every_benchmark() -> None:
    """A command whose figures no page claims has no place here."""
    named = {name for page in PAGES for name, _ in _NAMED.findall(page.read_text("utf-8"))}
    assert {file.stem for file in _commands()} <= named


def test_tables_of_pages_are_what_was_recorded() -> None:
    """`python -m benchmarks.results` writes them; each record is on a page, and has values."""
    pages = {page: page.read_text("utf-8") for page in PAGES}
    assert [page.name for page, text in pages.items() if page_of_records(text) != text] == []
    recorded = {file.name.partition(".")[0] for file in FOLDER.glob("*.json")}
    shown = {name for text in pages.values() for name in _SHOWN.findall(text)}
    assert recorded == shown - {"peers"}
    assert PICTURE.read_text("utf-8") == draw_peers()
    assert all(Record.from_file(file).values for file in FOLDER.glob("*.json"))


def test_a_table_that_was_edited_is_noticed() -> None:
    """Whatever stands between the marks is replaced by what was recorded."""
    [name, *_] = sorted(FOLDER.glob("*.json"))
    benchmark = name.name.partition(".")[0]
    start, end = f"<!-- results: {benchmark} -->\n", "<!-- end of results -->"
    made = page_of_records(f"{start}a better number\n{end}")
    assert made == f"{start}{table(benchmark)}{end}"
    assert "a better number" not in made


def _commands() -> list[Path]:
    return [file for file in BENCHMARKS.values() if "__main__" in file.read_text("utf-8")]


@pytest.mark.parametrize("file", _commands(), ids=lambda file: file.stem)
def test_a_benchmark_asked_for_help_measures_nothing(file: Path) -> None:
    """The arguments are parsed before anything is computed, so that `--help` ends it."""
    tree = ast.parse(file.read_text("utf-8"))
    main = next(each for each in tree.body if getattr(each, "name", "") == "main")
    called = [node.func for node in ast.walk(main) if isinstance(node, ast.Call)]
    names = {each.attr for each in called if isinstance(each, ast.Attribute)}
    assert "parse_args" in names or any("parser" in ast.unparse(each) for each in called)
