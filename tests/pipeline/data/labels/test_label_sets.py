"""Sets of labels as text and as numbers."""

from __future__ import annotations

import numpy as np
from sklearn.preprocessing import MultiLabelBinarizer

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.labels.label_sets import are_known, label_pairs

SETS = [("red", "circle"), (), ("circle",), ("ré, d", 'a"b', "circle")]


def test_equal_sets_are_equal_texts_and_come_back() -> None:
    assert (
        label_sets.encode_labels(["b", "a", "b"])
        == label_sets.encode_labels(("a", "b"))
        == '["a", "b"]'
    )
    for labels in SETS:
        assert label_sets.decode_labels(label_sets.encode_labels(labels)) == tuple(sorted(labels))


def test_matrix_is_that_of_scikit_learn() -> None:
    classes = sorted(set().union(*SETS))
    texts = [label_sets.encode_labels(labels) for labels in SETS]
    expected = MultiLabelBinarizer(classes=classes).fit_transform(SETS)
    assert label_sets.matrix(texts, classes).tolist() == expected.tolist()
    counts = label_pairs(texts, label_sets.MULTI_LABEL).counts()
    assert list(counts.items()) == list(zip(classes, expected.sum(0).tolist(), strict=True))


def test_the_first_images_have_each_label() -> None:
    """As few as need be; then each kind of image has its turn."""
    sets_NK = np.zeros((60, 4), np.uint8)
    sets_NK[:50, 0] = 1
    sets_NK[10:50, 1] = 1
    sets_NK[45, 2] = 1  # never without the first two
    order_N = label_sets.by_label(sets_NK)
    assert (sorted(order_N), order_N[0]) == (list(range(60)), 45)
    assert set(order_N[1:4].tolist()) == {0, 10, 50}
    assert label_sets.by_label(np.zeros((3, 2), np.uint8)).tolist() == [0, 1, 2]


def test_images_are_known_if_all_their_labels_are() -> None:
    """Without any label, too; the label of an image with one is its text."""
    texts = [label_sets.encode_labels(labels) for labels in SETS]
    known = are_known(texts, ("circle", "red"), label_sets.MULTI_LABEL)
    assert known.tolist() == [True, True, True, False]
    assert are_known(["red", "blue"], ("red",), label_sets.SINGLE_LABEL).tolist() == [True, False]
    assert label_sets.labels_in("[]", label_sets.SINGLE_LABEL) == ("[]",)
    assert label_sets.labels_in("[]", label_sets.MULTI_LABEL) == ()
