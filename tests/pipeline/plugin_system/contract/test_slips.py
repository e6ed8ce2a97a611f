"""Faults that are easy to overlook: each is a plugin that an author may well write."""

from __future__ import annotations

import gc
import importlib
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

import pytest
import torch
from pydantic import Field

from patchline.plugin_api import (
    DataTraits,
    ImageListing,
    PatchEmbeddingContext,
    PatchTokens,
    PluginConfig,
)
from patchline.plugin_checks import checks_of
from tests.pipeline.plugin_system.contract import faulty_embeddings as embeddings
from tests.pipeline.plugin_system.contract import faulty_models as models
from tests.pipeline.plugin_system.contract import faulty_sources as sources
from tests.pipeline.plugin_system.contract import test_settings_checks as settings
from tests.pipeline.plugin_system.contract.faults import OF_SETTINGS, SLOW, failures, names_of


def _complaints(plugin: Any) -> dict[str, str]:
    return failures(plugin, set(names_of(plugin)) - SLOW)


class ColumnByColumn(embeddings.Sound):
    def tokens(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        features_BDhw: torch.Tensor = self.projection(images_BCHW)
        return features_BDhw.transpose(2, 3).flatten(2).transpose(1, 2)


class ColumnsAndRows(embeddings.Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        self.grid = self.grid[::-1]


class SquareGrid(embeddings.Sound):
    def __init__(self, config: PluginConfig, context: PatchEmbeddingContext) -> None:
        super().__init__(config, context)
        self.grid = (self.grid[0], self.grid[0])


class TensorsOfTheProcessor(embeddings.Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND + torch.linspace(0, 1, tokens_BND.shape[2])


class NoNumbersForOddSizes(embeddings.Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND if self.grid == (4, 4) else tokens_BND * float("nan")


class OtherDiceInTraining(embeddings.Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        return tokens_BND * random.random() if self.training else tokens_BND  # noqa: S311 - the fault


class GraphBreakInTraining(embeddings.Sound):
    def changed(self, tokens_BND: torch.Tensor) -> torch.Tensor:
        if self.training and tokens_BND.mean().item() > 0:
            return 2 * tokens_BND
        return tokens_BND


class InPlaceInTraining(embeddings.Sound):
    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        images_BCHW = images_BCHW.mul_(2) if self.training else images_BCHW
        return PatchTokens(self.tokens(images_BCHW), self.grid)


class BreaksItsOwnRule(PluginConfig):
    """Resolves a setting to a value that it would refuse from a file."""

    patch_size: Annotated[int, Field(ge=1, le=8)] | None = None
    """Pixels."""

    def resolved_for(self, traits: DataTraits) -> Self:
        """Choose the patch size."""
        return self.model_copy(update={"patch_size": traits.height})


class ResolvesToNothing(PluginConfig):
    """Forgets to return what it resolved."""

    def resolved_for(self, _traits: DataTraits) -> Self:
        """Return nothing."""
        return None  # type: ignore[return-value]  # the fault


class HasANameOfItsOwn(PluginConfig):
    """Has a setting that stands where the plugin's name stands."""

    name: str = "mine"
    """Which of the variants."""


def _listed(change: Callable[[ImageListing], Any]) -> Any:
    return sources._plugin(sources._changing(change))


def _numbered(listing: ImageListing) -> ImageListing:
    images = [image._replace(label=len(image.label)) for image in listing.images]  # type: ignore[arg-type]  # the fault
    return replace(listing, images=images)


def _undecided(listing: ImageListing) -> ImageListing:
    return replace(listing, mirror_symmetric="no")  # type: ignore[arg-type]  # the fault


@pytest.mark.parametrize(
    "plugin",
    [
        pytest.param(embeddings._plugin(ColumnByColumn), id="tokens column by column"),
        pytest.param(embeddings._plugin(ColumnsAndRows), id="grid as columns and rows"),
        pytest.param(embeddings._plugin(SquareGrid), id="a square grid of oblong images"),
        pytest.param(
            embeddings._plugin(TensorsOfTheProcessor),
            id="tensors that stay on the CPU",
            marks=pytest.mark.xfail(reason="every check runs on the CPU"),
        ),
        pytest.param(embeddings._plugin(NoNumbersForOddSizes), id="nan for other sizes"),
        pytest.param(embeddings._plugin(OtherDiceInTraining), id="unseeded in training"),
        pytest.param(embeddings._plugin(InPlaceInTraining), id="in place in training"),
        pytest.param(models._plugin(models.Sound, "conv"), id="ignores its patch embedding"),
        pytest.param(
            embeddings._plugin(embeddings.Sound, BreaksItsOwnRule), id="resolves against its rule"
        ),
        pytest.param(
            embeddings._plugin(embeddings.Sound, ResolvesToNothing), id="resolves to nothing"
        ),
        pytest.param(
            embeddings._plugin(embeddings.Sound, HasANameOfItsOwn), id="a setting called name"
        ),
        pytest.param(_listed(_numbered), id="numbers as labels"),
        pytest.param(
            _listed(lambda listing: replace(listing, name="my data: v1/2")), id="no valid name"
        ),
        pytest.param(_listed(_undecided), id="None as a switch"),
    ],
)
def test_a_plausible_fault_is_found(plugin: Any) -> None:
    """A plugin that goes wrong in a run fails a check."""
    assert _complaints(plugin)


@pytest.mark.slow  # it compiles
def test_a_graph_break_in_training_is_found() -> None:
    """Training is what is compiled in a run."""
    assert failures(embeddings._plugin(GraphBreakInTraining), {"compiles"})


@pytest.mark.parametrize(
    ("modules", "entry"),
    [
        pytest.param(
            {
                "bare.py": "from patchline.pipeline import errors\n"
                "from patchline.plugin_api import AugmentationPlugin, PluginConfig\n"
                "plugin = AugmentationPlugin('x', '', PluginConfig, lambda *_: None)\n"
            },
            "bare",
            id="the empty config class",
        ),
        pytest.param(
            {
                "hull/__init__.py": "from patchline.pipeline import errors\n",
                "hull/entry.py": settings.PLUGIN_MODULE.format(imports=""),
            },
            "hull.entry",
            id="in the package around",
        ),
    ],
)
def test_a_foreign_import_is_found_around_the_plugin(
    modules: dict[str, str], entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with PluginConfig itself for settings, and where importing the package imports it."""
    for name, source in modules.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    plugin = importlib.import_module(entry).plugin
    assert "imports_only_the_public_api" in failures(plugin, {"imports_only_the_public_api"})


@pytest.mark.parametrize("config_class", [settings.Needy, dict], ids=["no default", "no class"])
def test_a_wrong_config_class_fails_a_check(config_class: Any) -> None:
    """What is wrong with the class of the settings is a failed check, and no crash."""
    assert failures(settings._plugin(config_class), OF_SETTINGS)


def test_every_check_says_that_the_example_failed() -> None:
    """All checks that need the example give its error."""
    found = _complaints(sources._plugin(example=sources._failing_example))
    assert set(found.values()) == {"It raised RuntimeError: no network"}


def test_a_size_that_fails_is_named() -> None:
    """A crash of one size says which, wherever it comes from."""

    class Crashes(embeddings.Sound):
        def forward(self, images_BCHW: torch.Tensor) -> Any:
            if images_BCHW.shape[-1] % 2:
                raise ValueError("odd")
            return super().forward(images_BCHW)

    found = _complaints(embeddings._plugin(Crashes))
    assert "31x37" in found["fits_or_refuses_every_size"]


@pytest.mark.slow  # it exports
def test_a_failed_export_says_why() -> None:
    """The sentence has torch's reason, without colours."""
    message = failures(embeddings._plugin(embeddings.UnknownToOnnx), {"exports_to_onnx"})
    assert "\x1b" not in message["exports_to_onnx"]
    assert "i0" in message["exports_to_onnx"]


def test_checks_leave_no_warning() -> None:
    """An author who makes warnings errors can run them."""
    source = importlib.import_module("patchline.plugins.data_sources.image_folder")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ResourceWarning)
        for check in checks_of(source.plugin):
            check()
        gc.collect()
    assert [str(each.message) for each in said if each.category is ResourceWarning] == []
