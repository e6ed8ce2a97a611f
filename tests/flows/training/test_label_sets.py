"""A run on pictures with several labels, from its data to an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.serving.checked_package import checked_package
from tests.conftest import patchline_here, write_photos

SETTINGS = (
    "--data.source", "shapes", "--data.options.images", "200", "--data.image-size", "16",
    "--preset", "none", "--training.epochs", "2", "--evaluation.corruptions", "0",
    "--model.embed-dim", "16", "--model.depth", "1", "--model.num-heads", "2", "--name", "shapes",
    "--json",
)  # fmt: skip


@pytest.mark.slow
def test_a_run_whose_test_images_have_equal_labels_ends_with_a_model(
    tmp_path: Path, own_store: None
) -> None:
    """Their mAP, and that of corrupted ones, is unknown; the version is registered all the same."""
    del own_store
    write_photos(tmp_path / "photos", classes=2, images=40, side=16)
    files = sorted((tmp_path / "photos").rglob("*.png"))
    rows = [
        {
            "file_name": str(file.relative_to(tmp_path / "photos")),
            "labels": ["across", "down"] if number % 4 == 0 else [file.parent.name],
            "split": ("test", "validation", "train", "train")[number % 4],
        }
        for number, file in enumerate(files)
    ]
    (tmp_path / "photos" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    given = [*SETTINGS[4:], "--data.source", "table"]
    given[given.index("--evaluation.corruptions") + 1] = "5"
    done = patchline_here("run", "photos", *given, cwd=tmp_path)
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert "test/mAP" not in summary["metrics"]
    assert "test/exact_match" in summary["metrics"]
    page = (tmp_path / summary["report"]).read_text("utf-8")
    assert "mAP is unknown: no label is on some and not on others of these 20 images" in page
    shown = patchline_here("models", "shapes", cwd=tmp_path)
    assert "test mAP unknown" in shown.out
    space = ["--sweep.space.optimizer.learning-rate", "1e-4..1e-2"]
    searched = patchline_here("sweep", "photos", *given, *space, cwd=tmp_path)
    assert searched.code == 2
    assert "test images have the same labels, so their mAP is unknown" in searched.err


@pytest.mark.slow
def test_a_run_on_label_sets_answers_with_labels(tmp_path: Path, own_store: None) -> None:
    """The registered package has the report's thresholds; tables and served answers agree."""
    del own_store
    done = patchline_here("run", *SETTINGS, cwd=tmp_path)
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert "test/mAP" in summary["metrics"]
    report = json.loads(Path(tmp_path / summary["report"]).with_name("report.json").read_text())
    [package] = tmp_path.glob(".patchline/runs/*/package")
    described = json.loads((package / "model.json").read_text(encoding="utf-8"))
    assert described["task"] == "multi_label"
    assert described["thresholds"] == report["thresholds"]
    assert described["label_calibration"] == report["calibration"]
    assert described["answers"]["thresholds"] == []
    pictures = next((tmp_path / ".patchline" / "sources" / "shapes").iterdir())
    images = [str(pictures / f"{number:06}.png") for number in range(12)]
    predicted = patchline_here("predict", "shapes", *images, "--out", "table.parquet", cwd=tmp_path)
    assert predicted.code == 0, predicted.err
    table = pd.read_parquet(tmp_path / "table.parquet")
    served = checked_package(package, 1).package.answers(list(images))
    for row, answer in zip(table.to_dict("records"), served, strict=True):
        given = [each["label"] for each in answer["labels"]]
        assert json.loads(row["labels"]) == given
        assert given or pd.isna(row["label"])
    card = (package / "model_card.md").read_text(encoding="utf-8")
    assert "| 1 | circle |" in card
