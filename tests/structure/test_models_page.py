"""The page shows what the models cost now, and every built-in plugin is on its page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.model_figures import LARGE, SMALL, embedding_rows, model_rows, replaced
from patchline.pipeline.plugin_system.plugin_loader import installed

pytestmark = pytest.mark.slow  # counts every model

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "docs/reference/models.md"
EMBEDDINGS = ROOT / "docs/reference/patch_embeddings.md"
TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "models at 32 pixels": lambda: model_rows(SMALL),
    "patch embeddings at 32 pixels": lambda: embedding_rows(SMALL, "micro"),
    "models at 224 pixels": lambda: model_rows(LARGE),
    "patch embeddings at 224 pixels": lambda: embedding_rows(LARGE, "ti"),
}
_TABLE = re.compile(r"<!-- table: (.+?) -->\n(.*?)<!-- end -->", re.DOTALL)


def _tables(text: str) -> dict[str, str]:
    return dict(_TABLE.findall(text))


def _installed(kind: str) -> set[str]:
    return {e.name for e in installed() if (e.kind, e.distribution) == (kind, "patchline")}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if "224" in name else ()) for name in TABLES],
)
def test_a_table_is_what_is_counted_now(name: str) -> None:
    """Each line of a table equals what the benchmark computes."""
    shown = _tables(MODELS.read_text("utf-8"))[name].splitlines()
    assert shown == "\n".join(TABLES[name]()).splitlines()


def test_the_page_has_every_table_once() -> None:
    """The marks on the page are those that the benchmark replaces."""
    names = [name for name, _ in _TABLE.findall(MODELS.read_text("utf-8"))]
    assert sorted(names) == sorted(TABLES)


def test_a_table_alone_is_replaced() -> None:
    """Between its marks the new table stands, and all other text is as before."""
    page = MODELS.read_text("utf-8")
    changed = replaced(page, "models at 32 pixels", "| new |")
    assert _tables(changed)["models at 32 pixels"] == "| new |\n"
    others = {key: text for key, text in _tables(page).items() if key != "models at 32 pixels"}
    assert others.items() <= _tables(changed).items()
    assert _TABLE.sub("", changed) == _TABLE.sub("", page)


def test_every_model_is_on_the_page() -> None:
    """Each built-in model is explained, and stands in the table of 224 pixels."""
    page = MODELS.read_text("utf-8")
    explained = set(re.findall(r"^\| `(\w+)` \|", page.partition("<!-- table")[0], re.MULTILINE))
    assert explained == _installed("model")
    table = _tables(page)["models at 224 pixels"]
    assert set(re.findall(r"^\| `(\w+)` \S+ \|", table, re.MULTILINE)) == _installed("model")


def test_every_patch_embedding_is_on_its_page() -> None:
    """Each built-in embedding stands in both tables, and on the page of embeddings."""
    tables = _tables(MODELS.read_text("utf-8"))
    for side in (32, 224):
        table = tables[f"patch embeddings at {side} pixels"]
        assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) - {"vit"} == _installed(
            "patch_embedding"
        )
    headings = re.findall(r"^## (\w+)$", EMBEDDINGS.read_text("utf-8"), re.MULTILINE)
    assert set(headings) >= _installed("patch_embedding")
