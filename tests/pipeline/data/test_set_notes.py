"""What a run says about sets of labels before it trains."""

from __future__ import annotations

import pandas as pd

from patchline.pipeline.data.set_notes import notes_on_sets
from patchline.pipeline.labels.label_pairs import label_pairs
from patchline.pipeline.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, encoded


def _notes(sets: list[list[str]]) -> list[str]:
    texts = [encoded(each) for each in sets]
    rows = pd.DataFrame({"path": [f"{n}.png" for n in range(len(sets))], "label": texts})
    return notes_on_sets(rows, label_pairs(texts, MULTI_LABEL))


def test_the_task_is_said_with_how_many_labels_an_image_has() -> None:
    """Nothing else is said of frequent labels in frequent sets."""
    assert _notes([["a"], ["a", "b"], ["c"]] * 20) == [
        "several labels for each image: 1.3 on average, at most 2"
    ]


def test_images_without_labels_are_counted_and_named() -> None:
    """They are trained on, but a missing label may be a mistake."""
    notes = _notes([["a"], ["b"], []] * 10)
    assert notes[1] == "10 images have no label: 2.png, 5.png, 8.png and 7 more"


def test_labels_on_few_or_on_nearly_all_images_are_named() -> None:
    """The rarest comes first."""
    notes = _notes([["a"]] * 30 + [["a", "b"]] * 4 + [["a", "c"]] * 9 + [["b"]] * 3)
    assert notes[1].startswith("2 labels are on fewer than 10 images")
    assert notes[1].endswith("b (7), c (9)")
    assert notes[2].startswith("1 label is on nearly every image")
    assert notes[2].endswith("a (not on 3)")


def test_a_rare_set_of_frequent_labels_is_no_news() -> None:
    """Neither is an image without a label, beyond being counted."""
    notes = _notes([["a"], ["b"]] * 20 + [["a", "b"], []])
    assert [note.partition(":")[0] for note in notes] == [
        "several labels for each image",
        "1 image has no label",
    ]


def test_pairs_are_the_same_for_one_label_and_for_sets_of_one() -> None:
    """Names are sorted; images without labels have no pair."""
    single = label_pairs(["b", "a", "b"], SINGLE_LABEL)
    sets = label_pairs([encoded([name]) for name in "bab"], MULTI_LABEL)
    assert single.names == sets.names == ("a", "b")
    assert single.labels.tolist() == sets.labels.tolist() == [1, 0, 1]
    several = label_pairs([encoded("ca"), "[]", encoded("b"), ""], MULTI_LABEL)
    assert several.images.tolist() == [0, 0, 2]
    assert several.labels.tolist() == [0, 2, 1]
    assert several.counts() == {"a": 1, "b": 1, "c": 1}
    assert label_pairs([], MULTI_LABEL).counts() == {}
