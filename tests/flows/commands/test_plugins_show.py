"""`patchline plugins show`: settings and costs of one plugin, learning rates, and pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_cost import ModelCost, model_cost
from tests.made.servers import Command

SHIFTED = {"size": "mini", "patch_embedding": {"name": "shifted"}}
CCT = {"patch_embedding": {"name": "cct", "num_layers": 1}}
LAYER = ("--model.patch-embedding.num-layers", "1")
SMALL = ("--data.image-size", "32")
MODEL = '''
"""One linear layer on averaged patches."""

import torch
from torch import nn

from patchline.plugin_api import ModelPlugin, PluginConfig


class FlatConfig(PluginConfig):
    """One setting."""

    width: int = 8
    """Dimension of a token."""


class Flat(nn.Module):
    def __init__(self, config, context):
        super().__init__()
        self.patches = context.patch_embedding(config.width)
        self.head = nn.Linear(config.width, context.num_classes)

    def forward(self, images_BCHW):
        return self.head(self.patches(images_BCHW).tokens_BND.mean(1))


plugin = ModelPlugin(
    summary="A linear model", paper="", config_class=FlatConfig, build=Flat,
    patch_embedding="linear",
)
'''


def _figures(image_size: int, **choice: Any) -> dict[str, Any]:
    return model_cost(ModelChoice.model_validate(choice), image_size).model_dump()


def test_the_text_has_settings_and_figures(run_here: Command) -> None:
    """It prints summary, paper, settings with what was given, and every figure."""
    out = run_here.out("plugins", "show", "vit", "--model.size", "ti", *SMALL)
    assert out.startswith("model vit (patchline ")
    assert "arXiv 2010.11929" in out
    assert re.search(r'\n  size +Dimensions: .* \[default "micro", set to "ti"\]\n', out)
    assert "vit with patch embedding conv, 32x32 pixels, 1000 classes:" in out
    figures = _figures(32, size="ti")
    for text in (
        f"{figures['parameters']:,} ({figures['parameters_without_head']:,} without the head)",
        f"{figures['macs'] / 1e9:.3f} GMACs per image",
        f"{figures['activation_bytes'] / 2**20:.1f} MiB per image in training, float32",
    ):
        assert f" {text}\n" in out


@pytest.mark.parametrize(
    ("arguments", "image_size", "choice"),
    [
        (["vit"], 224, {}),
        (["shifted", "--model.size=mini", *SMALL], 32, SHIFTED),
        (
            ["patch_embedding", "cct", "--model.name", "cct", *LAYER, *SMALL],
            *(32, {"name": "cct", **CCT}),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_settings_are_the_flags_of_run(
    run_here: Command, arguments: list[str], image_size: int, choice: dict[str, Any]
) -> None:
    """The figures are those of the model that the flags describe; the image is 224 by default."""
    shown = run_here.json("plugins", "show", *arguments)
    assert set(shown) == {"kind", "name", "image_size", "settings", *ModelCost.model_fields}
    figures = {"image_size": image_size, **_figures(image_size, **choice)}
    assert {key: shown[key] for key in figures} == figures


def test_other_kinds_show_settings_and_no_costs(run_here: Command) -> None:
    """An augmentation has settings, and nothing that a model costs."""
    light = (
        "--augmentation.no-horizontal-flip",
        "augmentation",
        "light",
        "--augmentation.shift=0.2",
    )
    shown = run_here.json("plugins", "show", *light)
    assert set(shown) == {"kind", "name", "settings"}
    assert "shift" in shown["settings"]["properties"]
    text = run_here.out("plugins", "show", *light)
    assert "parameters" not in text
    assert "[default 0.12, set to 0.2]" in text


def test_a_model_from_a_file_is_fed_by_what_it_declares(tmp_path: Path, run_here: Command) -> None:
    """`--plugin FILE.py` adds a model, whose settings are flags and whose embedding is its own.

    A forward pass that raises is the plugin's fault: one sentence names it.
    """
    (tmp_path / "flat.py").write_text(MODEL, encoding="utf-8")
    arguments = ("flat", "--plugin", "flat.py", *SMALL, "--model.width=16")
    shown = run_here.json("plugins", "show", *arguments)
    assert shown["parameters_without_head"] == (3 * 4 * 4 + 1) * 16
    assert shown["parameters"] == (3 * 4 * 4 + 1) * 16 + 1000 * 17
    assert shown["macs"] == 64 * 48 * 16 + 1000 * 16
    assert set(shown["settings"]["properties"]) == {"width"}
    broken = MODEL.replace("return self.head(", "return self.head(images_BCHW) * self.head(")
    (tmp_path / "flawed.py").write_text(broken, encoding="utf-8")
    code, out, err = run_here("plugins", "show", "flawed", "--plugin", "flawed.py", *SMALL)
    assert (code != 0, out) == (True, "")
    [sentence] = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert sentence.startswith("Error: The model plugin 'flawed'")


def test_a_picture_is_written_beside_the_answer(run_here: Command) -> None:
    """`--picture` writes the file and says so on standard error; the answer stays one object."""
    Image.new("RGB", (300, 240), (200, 120, 40)).save("photo.png")
    pictured = ("--photo", "photo.png", "--picture", "x.png", "--json")
    code, out, err = run_here("plugins", "show", "conv", *SMALL, *pictured)
    assert (code, err) == (0, "Picture: x.png\n")
    assert json.loads(out)["tokens"] == 64
    with Image.open("x.png") as picture:
        assert (picture.format, min(picture.size) > 300) == ("PNG", True)


def test_learning_rates_are_those_of_the_schedule(run_here: Command, tmp_path: Path) -> None:
    """Linear falls from the peak to zero; a picture is written on request.

    Schedule-free AdamW is constant after the warm-up.
    """
    linear = ("schedule", "linear", "--optimizer.warmup-fraction", "0")
    peak = ("--optimizer.learning-rate", "0.5")
    rates = run_here.json("plugins", "show", *linear, *peak)["learning_rates"]
    expected = [0.5 * (1 - (point + 0.5) / len(rates)) for point in range(len(rates))]
    assert rates == pytest.approx(expected)
    out = run_here.out("plugins", "show", "schedule", "wsd", "--picture", "rates.svg")
    assert "optimizer adamw, schedule wsd" in out
    assert "└──" in out
    assert "<svg" in (tmp_path / "rates.svg").read_text(encoding="utf-8")
    rates = run_here.json("plugins", "show", "optimizer", "schedule_free")["learning_rates"]
    assert rates[0] < rates[10] == rates[-1]
