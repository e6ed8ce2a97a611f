"""The command `patchline predict`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.progress import display, shown
from pipeline import tracking
from pipeline.atomic_files import replacing
from pipeline.errors import ConfigError, DataError
from pipeline.registry.packaged_models import fetch
from pipeline.registry.registered_models import resolve

_BATCH = 64
_TABLES = (".csv", ".parquet")


def print_predictions(
    reference: str, images: Sequence[Path], *, top_k: int, out: Path | None, as_json: bool
) -> int:
    """Label images; return 2 if none of them could be read."""
    if out is not None and out.suffix not in _TABLES:
        raise ConfigError(f"--out is {out}, but must end in .csv or .parquet. Rename it.")
    if top_k < 1:
        raise ConfigError(f"--top-k is {top_k}, but must be at least 1. Choose a larger number.")
    files = _files(images)
    tracking.close_abandoned()
    model_reference = resolve(reference)
    model = fetch(model_reference)
    answers: list[dict[str, Any]] = []
    with shown():
        for start in range(0, len(files), _BATCH):
            batch: list[object] = list(files[start : start + _BATCH])
            for file, answer in zip(batch, model.answers(batch, top_k), strict=True):
                answers.append({"image": str(file), **answer})
            display().advance("Predicting", len(answers), len(files))
    if out is not None:
        _write_table(answers, out)
        print(f"{_counted(answers)} written to {out}", file=sys.stderr)
    elif as_json:
        shown_as = {"model": model_reference.name, "version": model_reference.version}
        print(json.dumps({**shown_as, "predictions": answers}, indent=2))
    else:
        print("\n".join(_line(answer) for answer in answers))
    if out is not None or as_json:
        for answer in answers:
            if answer["error"]:
                print(_line(answer), file=sys.stderr)
    return 0 if any(answer["error"] is None for answer in answers) else DataError.exit_code


def _files(images: Sequence[Path]) -> list[Path]:
    if not images:
        raise DataError("No image was named. Give image files, or folders of them.")
    files: list[Path] = []
    for image in images:
        if image.is_dir():
            inside = [f for f in image.rglob("*") if f.is_file() and not f.name.startswith(".")]
            if not inside:
                raise DataError(f"The folder {image} holds no files. Name another one.")
            files += sorted(inside)
        elif image.exists():
            files.append(image)
        else:
            raise DataError(f"There is no image {image}. Check the path.")
    return files


def _counted(answers: list[dict[str, Any]]) -> str:
    """Return `63 predictions and 2 unreadable`."""
    errors = sum(answer["error"] is not None for answer in answers)
    predictions = f"{len(answers) - errors} predictions"
    return f"{predictions} and {errors} unreadable" if errors else predictions


def _line(answer: dict[str, Any]) -> str:
    if answer["error"]:
        return f"{answer['image']}  could not be read: {answer['error']}"
    ranked = "  ".join(f"{each['label']} {each['probability']:.1%}" for each in answer["top_k"])
    return f"{answer['image']}  {ranked}"


def _write_table(answers: list[dict[str, Any]], out: Path) -> None:
    import pandas as pd

    table = pd.DataFrame(answers, columns=["image", "label", "probability", "error", "top_k"])
    table["top_k"] = [json.dumps(each) for each in table["top_k"]]
    with replacing(out) as temporary:
        if out.suffix == ".csv":
            table.to_csv(temporary, index=False)
        else:
            table.to_parquet(temporary, index=False)
