"""The cost of every built-in model and patch embedding, and pictures of the embeddings.

    python -m benchmarks.model_figures tables                             print the tables
    python -m benchmarks.model_figures tables docs/reference/models.md    update them in the page
    python -m benchmarks.model_figures pictures FOLDER [PHOTO]

`pictures` draws every built-in patch embedding on one photograph: a picture for each, and an
overview.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.evaluation.visual_guide.patch_embedding_picture import (
    draw_overview,
    draw_view,
    load_photo,
    save_figure,
    view,
)
from patchline.pipeline.models.model_cost import ModelCost, model_cost
from patchline.pipeline.plugin_system.plugin_loader import list_installed, load_model

LARGE, SMALL = 224, 32
_HEADER = """\
| {first} | parameters | without head | tokens | multiplications | activation memory |
|---|---:|---:|---:|---:|---:|"""
_ADAPTED = {  # sizes of other libraries, by the names that they give them
    "torchvision": ("resnet18", "resnet50", "convnext_tiny", "swin_t", "vit_b_16"),
    "timm": ("vit_tiny_patch16_224", "vit_base_patch16_224", "efficientnet_b0"),
}
_ONLY_LARGE = {"ti", "s", "b", "l", "h", "14"}  # sizes that nobody trains on 32 pixels


def write_tables(given: argparse.Namespace) -> None:
    """Print the tables, or replace those of a page."""
    tables = {name: "\n".join(lines) for name, lines in _tables()}
    if given.page is None:
        for name, table in tables.items():
            print(f"\n{name}\n\n{table}")
        return
    text = given.page.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = replace_table(text, name, table)
    given.page.write_text(text, encoding="utf-8")


def replace_table(text: str, name: str, table: str) -> str:
    """Return a page with the table between the marks of that name replaced."""
    marks = f"<!-- table: {name} -->", "<!-- end -->"
    pattern = re.escape(marks[0]) + r"\n.*?" + re.escape(marks[1])
    return re.sub(pattern, f"{marks[0]}\n{table}\n{marks[1]}", text, flags=re.DOTALL)


def _tables() -> Iterator[tuple[str, Iterator[str]]]:
    yield "models at 224 pixels", model_rows(LARGE)
    yield "models at 32 pixels", model_rows(SMALL)
    yield "patch embeddings at 224 pixels", embedding_rows(LARGE, "ti")
    yield "patch embeddings at 32 pixels", embedding_rows(SMALL, "micro")


def model_rows(image_size: int, names: list[str] | None = None) -> Iterator[str]:
    """Yield the lines of the table of models, those of other libraries last."""
    yield _HEADER.format(first="model")
    chosen = [entry.name for entry in list_installed("model") if entry.distribution == "patchline"]
    for name in sorted(names or chosen, key=lambda name: (name in _ADAPTED, name)):
        for setting, size in _sizes(name):
            if image_size == SMALL and (size in _ONLY_LARGE or name in _ADAPTED):
                continue
            choice = ModelChoice.model_validate({"name": name, setting: size})
            yield _row(f"`{name}` {size}", model_cost(choice, image_size))


def embedding_rows(image_size: int, size: str) -> Iterator[str]:
    """Yield the lines of the table of patch embeddings, each feeding a ViT of that size."""
    yield _HEADER.format(first=f"`vit` {size} fed by")
    for entry in list_installed("patch_embedding"):
        if entry.distribution == "patchline":
            given: dict[str, Any] = {"size": size, "patch_embedding": {"name": entry.name}}
            choice = ModelChoice.model_validate(given)
            yield _row(f"`{entry.name}`", model_cost(choice, image_size))


def _sizes(name: str) -> list[tuple[str, str]]:
    if name in _ADAPTED:
        return [("architecture", size) for size in _ADAPTED[name]]
    annotation = load_model(name).config_class.model_fields["size"].annotation
    return [("size", size) for size in get_args(annotation)]


def _row(first: str, figures: ModelCost) -> str:
    cells = (
        first,
        f"{figures.parameters:,}",
        f"{figures.parameters_without_head:,}",
        f"{figures.tokens or ''}",
        f"{figures.macs / 1e9:.3f} G",
        f"{figures.activation_bytes / 2**20:.1f} MiB",
    )
    return f"| {' | '.join(cells)} |"


_OWNER = "patchline"
_OVERVIEW = "overview.png"


def write_pictures(given: argparse.Namespace) -> None:
    """Write the pictures, and print a line for each."""
    photo = load_photo(given.photo)
    names = [
        entry.name for entry in list_installed("patch_embedding") if entry.distribution == _OWNER
    ]
    views = [view(name, {}) for name in names]
    for shown in views:
        file = save_figure(draw_view(shown, photo), given.folder / f"{shown.name}.png")
        print(f"{file}: {' '.join(shown.caption.split())}")
    print(save_figure(draw_overview(views, photo), given.folder / _OVERVIEW))


def main() -> None:
    """Write what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    tables = commands.add_parser("tables")
    tables.add_argument("page", type=Path, nargs="?")
    tables.set_defaults(write=write_tables)
    pictures = commands.add_parser("pictures")
    pictures.add_argument("folder", type=Path)
    pictures.add_argument("photo", type=Path, nargs="?")
    pictures.set_defaults(write=write_pictures)
    given = parser.parse_args()
    given.write(given)


if __name__ == "__main__":
    main()
