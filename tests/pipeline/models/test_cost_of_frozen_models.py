"""What a model costs that learns with a part of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_cost import model_cost
from patchline.pipeline.plugin_system.plugin_loader import FILES_VARIABLE

_PARTS = '''
"""A model with a frozen layer and a frozen whole number."""

import torch
from torch import nn

from patchline.plugin_api import NO_PATCH_EMBEDDING, ModelPlugin, PluginConfig


class NoSettings(PluginConfig):
    """There is nothing to set."""


class Parts(nn.Module):
    def __init__(self, config, context):
        super().__init__()
        self.frozen = nn.Linear(3, 8).requires_grad_(requires_grad=False)
        self.steps = nn.Parameter(torch.zeros(1, dtype=torch.long), requires_grad=False)
        self.head = nn.Linear(8, context.num_classes)

    def forward(self, images_BCHW):
        return self.head(self.frozen(images_BCHW.mean((2, 3))))


plugin = ModelPlugin(
    summary="Parts", paper="", config_class=NoSettings, build=Parts,
    patch_embedding=NO_PATCH_EMBEDDING,
)
'''


def test_frozen_parameters_are_not_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may freeze a part, even of whole numbers: nothing is kept for what is not learned."""
    (tmp_path / "parts.py").write_text(_PARTS, encoding="utf-8")
    monkeypatch.setenv(FILES_VARIABLE, str(tmp_path / "parts.py"))
    figures = model_cost(ModelChoice(name="parts"), 32)
    assert figures.parameters == 3 * 8 + 8 + 1 + 1000 * 9
    assert figures.macs == 3 * 8 + 8 * 1000
    assert figures.activation_bytes == 4 * 8  # what the head reads; nothing below it is learned
