"""The page shows what the models cost now, and every built-in plugin is on its page."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.model_figures import LARGE, SMALL, embedding_rows, model_rows, replace_table
from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_on_meta
from patchline.pipeline.models.model_cost import NUM_CLASSES, resolve_choice
from patchline.pipeline.plugin_system.plugin_loader import list_installed, load_model
from tests.plugins.model_parity import image_spec, traits

pytestmark = pytest.mark.slow  # counts every model

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "docs/reference/models.md"
EMBEDDINGS = ROOT / "docs/reference/patch_embeddings.md"
MODEL_TABLES = {"models at 32 pixels": SMALL, "models at 224 pixels": LARGE}
EMBEDDING_TABLES = {
    "patch embeddings at 32 pixels": (SMALL, "micro"),
    "patch embeddings at 224 pixels": (LARGE, "ti"),
}
_MODEL = re.compile(r"^\| `(\w+)` (\S+) \| ([\d,]+) \|.*$", re.MULTILINE)
_TABLE = re.compile(r"<!-- table: (.+?) -->\n(.*?)<!-- end -->", re.DOTALL)


def _tables(text: str) -> dict[str, str]:
    return dict(_TABLE.findall(text))


def _installed(kind: str) -> set[str]:
    return {e.name for e in list_installed() if (e.kind, e.distribution) == (kind, "patchline")}


@pytest.mark.parametrize("name", EMBEDDING_TABLES)
def test_a_table_of_embeddings_is_what_is_counted_now(name: str) -> None:
    """Each line of a table equals what the benchmark computes."""
    shown = _tables(MODELS.read_text("utf-8"))[name].splitlines()
    assert shown == "\n".join(embedding_rows(*EMBEDDING_TABLES[name])).splitlines()


@pytest.mark.parametrize("name", MODEL_TABLES)
def test_a_table_of_models_is_what_is_counted_now(name: str) -> None:
    """The first size of each model equals what the benchmark computes, the others in parameters."""
    side, seen = MODEL_TABLES[name], set[str]()
    for shown in _MODEL.finditer(_tables(MODELS.read_text("utf-8"))[name]):
        model, size, parameters = shown.groups()
        if model not in seen:
            _, counted = islice(model_rows(side, [model]), 2)
            assert shown[0] == counted
            seen.add(model)
        setting = "architecture" if model in ("timm", "torchvision") else "size"
        choice = ModelChoice.model_validate({"name": model, setting: size})
        built = build_on_meta(resolve_choice(choice, traits(side)), image_spec(side), NUM_CLASSES)
        assert parameters == f"{sum(each.numel() for each in built.parameters()):,}", shown[0]
    assert len(seen) >= 6


def test_the_page_has_every_table_once() -> None:
    """The marks on the page are those that the benchmark replaces."""
    names = [name for name, _ in _TABLE.findall(MODELS.read_text("utf-8"))]
    assert sorted(names) == sorted([*MODEL_TABLES, *EMBEDDING_TABLES])


def test_a_table_alone_is_replaced() -> None:
    """Between its marks the new table stands, and all other text is as before."""
    page = MODELS.read_text("utf-8")
    changed = replace_table(page, "models at 32 pixels", "| new |")
    assert _tables(changed)["models at 32 pixels"] == "| new |\n"
    others = {key: text for key, text in _tables(page).items() if key != "models at 32 pixels"}
    assert others.items() <= _tables(changed).items()
    assert _TABLE.sub("", changed) == _TABLE.sub("", page)


def test_every_model_is_on_the_page() -> None:
    """Each built-in model is explained, and stands in the table of 224 pixels with every size."""
    page = MODELS.read_text("utf-8")
    explained = set(re.findall(r"^\| `(\w+)` \|", page.partition("<!-- table")[0], re.MULTILINE))
    assert explained == _installed("model")
    table = _tables(page)["models at 224 pixels"]
    sizes = [(model, size) for model, size, _ in _MODEL.findall(table)]
    assert {model for model, _ in sizes} == _installed("model")
    for model in _installed("model") - {"timm", "torchvision"}:
        known = get_args(load_model(model).config_class.model_fields["size"].annotation)
        assert [size for name, size in sizes if name == model] == list(known)


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
