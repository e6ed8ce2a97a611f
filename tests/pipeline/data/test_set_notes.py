"""What a run says about sets of labels before it trains."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from patchline.pipeline.data.set_notes import notes_on_sets
from patchline.pipeline.labels.label_pairs import label_pairs
from patchline.pipeline.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, encoded


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["a", "ab", "c"] * 20, []),
        (["a", "b", ""] * 10, ["10 images have no label: 2.png, 5.png, 8.png and 7 more$"]),
        (
            ["a"] * 30 + ["ab"] * 4 + ["ac"] * 9 + ["b"] * 3,
            [r"2 labels are on fewer than 10.*b \(7\), c \(9\)", r"1 label is .* a \(not on 3\)"],
        ),
    ],
)
def test_what_is_unusual_about_sets_of_labels_is_said(sets: list[str], words: list[str]) -> None:
    """Images without labels, labels on few or on nearly all images; not a rare set."""
    texts = [encoded(each) for each in sets]
    rows = pd.DataFrame({"path": [f"{n}.png" for n in range(len(sets))], "label": texts})
    first, *notes = notes_on_sets(rows, label_pairs(texts, MULTI_LABEL))
    assert first.startswith("several labels for each image: ")
    assert all(re.match(word, note) for word, note in zip(words, notes, strict=True))


def test_pairs_are_the_same_for_one_label_and_for_sets_of_one() -> None:
    """Names are sorted; images without labels have no pair."""
    single = label_pairs(["b", "a", "b"], SINGLE_LABEL)
    sets = label_pairs([encoded(name) for name in "bab"], MULTI_LABEL)
    assert single.names == sets.names == ("a", "b")
    assert single.labels.tolist() == sets.labels.tolist() == [1, 0, 1]
    several = label_pairs([encoded("ca"), "[]", encoded("b"), ""], MULTI_LABEL)
    assert list(zip(several.images, several.labels, strict=True)) == [(0, 0), (0, 2), (2, 1)]
    assert several.counts() == {"a": 1, "b": 1, "c": 1}
