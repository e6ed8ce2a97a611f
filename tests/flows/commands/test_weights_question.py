"""Whether a person on a terminal is asked about weights to download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchline.flows.commands.weights_question import with_weights
from patchline.pipeline import config_files
from tests.conftest import write_photos


@pytest.mark.parametrize(
    ("side", "preset", "model", "is_asked"),
    [
        (80, None, {}, True),
        (32, None, {}, False),
        (80, "none", {}, False),
        (80, None, {"init": "none"}, False),
        (80, None, {"depth": 2}, False),
    ],
)
def test_few_photographs_without_weights_are_a_question(
    tmp_path: Path, side: int, preset: str | None, model: dict[str, Any], *, is_asked: bool
) -> None:
    """It says how many there are, what is fetched from where, and how to say no for good."""
    photos = write_photos(tmp_path / "photos", images=4, side=side)
    config = config_files.requested(
        str(photos), preset_name=preset, file=None, flags={"model": model}
    )
    asked: list[str] = []
    answers = iter(("y", "", "n"))

    def ask(question: str) -> str:
        asked.append(question)
        return next(answers)

    for answer in ("y", "", "n"):
        chosen = with_weights(config, ask)
        if not (is_asked and answer == "y"):
            assert chosen is config
            continue
        assert (chosen.model.download, chosen.preset) == (True, config.preset)
        assert str(chosen.model.init).startswith(("timm:", "torchvision:"))
        words = (
            "12 photographs",
            str(chosen.model.init),
            "`--model.init none`, you are not asked",
            "[y/N]",
        )
        assert all(each in asked[0] for each in words)
    assert len(asked) == (3 if is_asked else 0)


def test_a_script_is_never_asked(tmp_path: Path) -> None:
    """Its standard input is no terminal."""
    photos = write_photos(tmp_path / "photos", images=4, side=80)
    config = config_files.requested(str(photos), preset_name=None, file=None, flags={})
    assert with_weights(config) is config
