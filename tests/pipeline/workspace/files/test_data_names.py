"""What names of folders and values of tables say about splits."""

from __future__ import annotations

import pytest

from patchline.pipeline.workspace.files.data_names import split_named


@pytest.mark.parametrize(
    ("names", "split"),
    [
        (("train", "Training", "training_set", "train_set", "trainset", "seg_train"), "train"),
        (("train-images", "images_train", "Train Data", "train.images", "traindata"), "train"),
        (("val", "dev", "val_data", "valset", "validation images", "valid_set"), "validation"),
        (("TEST", "testset", "test_images", "images-test", "testing_set"), "test"),
        (("test2017", "train_2", "train_val", "train_test_split", "testament"), None),
        (("test_positive", "bullet train", "invalid", "images", "set", "", "_"), None),
    ],
)
def test_usual_spellings_of_splits(names: tuple[str, ...], split: str | None) -> None:
    """Words that say nothing may be there; a number, another split or another word may not."""
    assert {name: split_named(name) for name in names} == dict.fromkeys(names, split)
