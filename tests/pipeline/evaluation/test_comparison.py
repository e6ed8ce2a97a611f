"""Which images count, and what two models do on them, held against counting by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn import metrics as reference

from patchline.pipeline.data.manifests.manifest import COLUMNS
from patchline.pipeline.evaluation.comparison import (
    CONTRADICTING,
    COPY,
    SEEN_BY_CHALLENGER,
    SEEN_BY_CHAMPION,
    SEEN_GROUP,
    Comparison,
    ComparisonSubject,
    comparable_images,
    compare,
)
from patchline.pipeline.models.provenance import KNOWN

Array = np.ndarray[Any, Any]
CLASSES = ("across", "down", "rising")
Row = tuple[str, str, str, str]


def _manifest(*rows: Row, status: str = "ok") -> pd.DataFrame:
    """Return a manifest of images given as content, split, group, label."""
    values = [
        (f"{place}.png", label, split, group, content, "", 8, 8, "L", "", 99, status, "")
        for place, (content, split, group, label) in enumerate(rows)
    ]
    return pd.DataFrame(values, columns=COLUMNS)


def _image(content: str, split: str, group: str = "", label: str = "across") -> Row:
    return content, split, group, label


def _one_hot(said: Array, sure: Array | float = 0.8) -> Array:
    """Return probabilities (N, 3) of models that give these answers with this confidence."""
    sure_N = np.broadcast_to(np.asarray(sure, float), said.shape)
    probabilities = np.repeat((1 - sure_N)[:, None] / 2, 3, axis=1)
    probabilities[np.arange(len(said)), said] = sure_N
    return probabilities


def _compared(labels: Array, a_said: Array, b_said: Array, **changes: Any) -> Comparison:
    models = ComparisonSubject("2", "3", CLASSES, {}, provenance=(KNOWN, KNOWN))
    of_models = {key: changes.pop(key) for key in set(changes) & set(models._fields)}
    arguments: dict[str, Any] = {
        "paths": [f"{place}.png" for place in range(len(labels))],
        "labels_N": labels,
        "champion_NK": _one_hot(a_said),
        "challenger_NK": _one_hot(b_said),
    }
    return compare(models._replace(**of_models), **{**arguments, **changes})


def _random(images: int = 200) -> tuple[Array, list[Array]]:
    """Return labels and the answers of two models that are mostly right."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, images)
    said = [
        np.where(generator.random(images) < share, labels, generator.integers(0, 3, images))
        for share in (0.6, 0.75)
    ]
    return labels, said


def test_each_test_image_that_does_not_count_has_its_reason() -> None:
    """Of copies with one label the first counts; copies that contradict each other do not."""
    champion = _manifest(
        _image("old", "train"),
        _image("chosen", "validation"),
        _image("held", "test"),
        _image("of anna", "train", "anna"),
        _image("later grouped", "train"),
        _image("renamed", "train", "p1"),
        _image("was p1", "test", "p1"),
    )
    challenger = _manifest(
        *(_image(each, "test") for each in ("old", "chosen", "held", "twice", "held", "was p1")),
        _image("twice", "validation"),
        _image("both", "test", label="down"),
        _image("both", "test", label="rising"),
        _image("other of anna", "test", "anna"),
        _image("later grouped", "test", "ben"),
        _image("other of ben", "test", "ben"),
        _image("new", "test", "cleo"),
    )
    found = comparable_images(champion, challenger)
    assert list(found.images["path"]) == ["2.png", "12.png"]
    assert found.left_out == {
        SEEN_BY_CHAMPION: 3, SEEN_BY_CHALLENGER: 1, SEEN_GROUP: 3, CONTRADICTING: 2, COPY: 1
    }  # fmt: skip


def test_files_that_are_no_images_neither_count_nor_teach() -> None:
    """Only rows with status `ok` matter, on either side."""
    damaged = _manifest(_image("x", "train", "anna"), _image("y", "test"), status="damaged")
    whole = _manifest(_image("x", "test", "anna"))
    found = comparable_images(damaged, pd.concat([damaged, whole], ignore_index=True))
    assert (list(found.images.index), found.left_out) == ([2], {})


_ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.sampled_from(["train", "validation", "test", "test", "test"]),
        st.sampled_from(["", "", "g1", "g2", "g3"]),
        st.sampled_from(CLASSES),
    ),
    max_size=12,
)


@settings(max_examples=15)
@given(champion=_ROWS, challenger=_ROWS)
def test_what_counts_is_what_counting_by_hand_says(
    champion: list[Row], challenger: list[Row]
) -> None:
    """Every test image is either kept, unseen and once, or left out for one reason."""
    both = [*champion, *challenger]
    seen = {row[0] for row in both if row[1] != "test"}
    groups = {row[2] for row in both if row[0] in seen and row[2]}
    related = {row[0] for row in both if row[2] in groups}
    tests = [row for row in challenger if row[1] == "test"]
    labels = {row[0]: {other[3] for other in tests if other[0] == row[0]} for row in tests}
    expected = {content for content in labels if len(labels[content]) == 1} - seen - related

    before = _manifest(*challenger)
    found = comparable_images(_manifest(*champion), before)

    assert set(found.images["sha256"]) == expected
    assert not found.images["sha256"].duplicated().any()
    assert len(found.images) + sum(found.left_out.values()) == len(tests)
    assert all(count > 0 for count in found.left_out.values())
    pd.testing.assert_frame_equal(found.images, before.loc[found.images.index])
    pd.testing.assert_frame_equal(before, _manifest(*challenger))


def test_figures_are_those_of_scikit_learn_and_scipy() -> None:
    """Accuracies, recalls, counts and the p-value equal an independent computation."""
    labels, said = _random()
    found = _compared(labels, *said)
    accuracies = (found.champion_accuracy.value, found.challenger_accuracy.value)
    assert accuracies == pytest.approx([reference.accuracy_score(labels, each) for each in said])
    assert [change.name for change in found.by_class] == list(CLASSES)
    recalls = [reference.recall_score(labels, each, average=None) for each in said]
    for k, change in enumerate(found.by_class):
        a, b = recalls[0][k], recalls[1][k]
        assert change.images == (labels == k).sum() == change.difference.n
        assert (change.champion.value, change.challenger.value) == pytest.approx((a, b))
        assert change.difference.value == pytest.approx(b - a)
        assert change.difference.low < change.difference.value < change.difference.high
    only_a, only_b = found.paired.only_a_right, found.paired.only_b_right
    by_hand = reference.confusion_matrix(said[0] != labels, said[1] != labels)
    assert (found.both_right, only_a, only_b, found.both_wrong) == tuple(by_hand.ravel())
    assert found.paired.p_value == pytest.approx(binomtest(only_a, only_a + only_b).pvalue)


def test_flipped_images_say_what_each_model_said() -> None:
    """Positions, paths, answers and probabilities belong together; the surest 24 come first."""
    labels = np.repeat([2, 1], [30, 2])
    a_said, b_said = np.repeat([2, 0], [30, 2]), np.repeat(1, 32)
    a_NK, b_NK = _one_hot(a_said, 0.9), _one_hot(b_said, np.linspace(0.5, 0.81, 32))
    found = _compared(labels, a_said, b_said, champion_NK=a_NK, challenger_NK=b_NK)
    assert [image.position for image in found.newly_right] == [31, 30]
    assert [image.position for image in found.newly_wrong] == list(range(29, 5, -1))
    wrong = found.newly_wrong[0]
    assert (wrong.path, wrong.label) == ("29.png", "rising")
    assert (wrong.champion_says, wrong.challenger_says) == ("rising", "down")
    assert (wrong.champion_probability, wrong.challenger_probability) == pytest.approx((0.9, 0.79))


def test_same_pixels_in_another_file_are_left_out() -> None:
    """A re-encoded copy of a seen image is no test, where both manifests know the pixels."""
    champion = _manifest(_image("a.png", "train"), _image("b.png", "test"))
    challenger = _manifest(*(_image(name, "test") for name in ("a.bmp", "b.bmp", "b.gif", "c.png")))
    challenger["pixels"] = ["a", "b", "b", "c"]
    assert len(comparable_images(champion.drop(columns="pixels"), challenger).images) == 3
    champion["pixels"] = ["a", "b"]
    found = comparable_images(champion, challenger)
    assert list(found.images["sha256"]) == ["b.bmp", "c.png"]
    assert found.left_out == {SEEN_BY_CHAMPION: 1, COPY: 1}


def test_compared_images_are_of_the_groups_that_either_manifest_names() -> None:
    """So frames that only the champion's data assigns to a patient are not independent either."""
    champion = _manifest(_image("x", "test", "anna"), _image("y", "test", "anna"))
    contents = (("x", ""), ("y", ""), ("z", "ben"), ("u", "ben"), ("v", ""), ("w", ""))
    challenger = _manifest(*(_image(content, "test", group) for content, group in contents))
    groups = comparable_images(champion, challenger).groups_N
    assert (groups[0], groups[2], len(set(groups))) == (groups[1], groups[3], 4)


def test_groups_are_the_units_of_the_test_and_of_every_interval() -> None:
    """20 images of one group that flip together are no evidence; of 20 groups they are."""
    labels = np.repeat([0, 1], 40)
    a_said = np.where(np.arange(80) < 20, 2, labels)
    alone = _compared(labels, a_said, labels)
    together = _compared(labels, a_said, labels, groups_N=np.arange(80) // 20)
    assert (alone.groups, alone.units, together.groups, together.units) == (None, 80, 4, 4)
    assert alone.sentence.endswith("p < 0.001); the difference is significant.")
    for words in ("On 80 images in 4 groups not", "p = 1.000, testing whole groups); the"):
        assert words in together.sentence
    first, second, third = together.by_class
    assert (first.groups, second.groups, third.groups) == (2, 2, None)
    for grouped, single in ((together.paired, alone.paired), (first, alone.by_class[0])):
        assert grouped.difference.low < 0 < single.difference.low
    assert together.champion_accuracy.low < alone.champion_accuracy.low
    assert _compared(labels, a_said, labels, groups_N=np.arange(80)) == alone
