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
from patchline.pipeline.evaluation.compared_models import p_value_text, points
from patchline.pipeline.evaluation.comparison import (
    CONTRADICTING,
    COPY,
    SEEN_BY_CHALLENGER,
    SEEN_BY_CHAMPION,
    SEEN_GROUP,
    Comparison,
    comparable_images,
    compare,
)
from patchline.pipeline.provenance.provenance import KNOWN

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


def _one_hot(said: Array, sure: Array | float = 0.8, classes: int = 3) -> Array:
    """Return probabilities (N, K) of models that give these answers with this confidence."""
    sure_N = np.broadcast_to(np.asarray(sure, float), said.shape)
    probabilities = np.repeat(((1 - sure_N) / (classes - 1))[:, None], classes, axis=1)
    probabilities[np.arange(len(said)), said] = sure_N
    return probabilities


def _compared(labels: Array, a_said: Array, b_said: Array, **changes: Any) -> Comparison:
    arguments: dict[str, Any] = {
        "champion": "2",
        "challenger": "3",
        "provenance": (KNOWN, KNOWN),
        "classes": CLASSES,
        "paths": [f"{place}.png" for place in range(len(labels))],
        "labels_N": labels,
        "champion_NK": _one_hot(a_said),
        "challenger_NK": _one_hot(b_said),
        "left_out": {},
    }
    return compare(**{**arguments, **changes})


def _random(images: int = 200, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return labels and the answers of two models that are mostly right."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, images)
    said = [
        np.where(generator.random(images) < share, labels, generator.integers(0, 3, images))
        for share in (0.6, 0.75)
    ]
    return labels, said[0], said[1]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_what_the_champion_has_seen_does_not_count(split: str) -> None:
    """An image of the champion's training or validation is left out, whatever its path."""
    champion = _manifest(_image("other", "test"), _image("old", split), _image("held", "test"))
    challenger = _manifest(_image("old", "test"), _image("held", "test"), _image("new", "test"))
    found = comparable_images(champion, challenger)
    assert list(found.images["sha256"]) == ["held", "new"]
    assert found.left_out == {SEEN_BY_CHAMPION: 1}


@pytest.mark.parametrize("split", ["train", "validation"])
def test_copies_of_its_own_training_images_do_not_count(split: str) -> None:
    """A test image whose content the challenger has trained on under another name is left out."""
    challenger = _manifest(_image("twice", split), _image("twice", "test"), _image("x", "test"))
    found = comparable_images(_manifest(), challenger)
    assert list(found.images["path"]) == ["2.png"]
    assert found.left_out == {SEEN_BY_CHALLENGER: 1}


@pytest.mark.parametrize(
    ("champion", "challenger"),
    [
        ([_image("a", "train", "anna")], []),
        ([_image("a", "validation", "anna")], []),
        ([], [_image("a", "train", "anna")]),
        ([_image("a", "train")], [_image("a", "test", "anna")]),
        ([_image("a", "train", "p1"), _image("x", "test", "p1")], []),
    ],
    ids=["trained", "chosen", "own", "grouped since", "renamed"],
)
def test_images_of_a_seen_group_do_not_count(champion: list[Row], challenger: list[Row]) -> None:
    """A group is known by its name, and by its contents in either version of the data."""
    tests = [_image("x", "test", "anna"), _image("y", "test", "ben"), _image("z", "test")]
    found = comparable_images(_manifest(*champion), _manifest(*challenger, *tests))
    assert [row for row in found.images["sha256"] if row in "xyz"] == ["y", "z"]
    assert found.left_out[SEEN_GROUP] == 1


def test_no_group_is_no_common_group() -> None:
    """Images without a group have nothing to do with each other."""
    champion = _manifest(_image("a", "train"), _image("b", "train", "anna"))
    found = comparable_images(champion, _manifest(_image("x", "test"), _image("c", "train")))
    assert len(found.images) == 1
    assert found.left_out == {}


def test_a_content_counts_once_and_only_with_one_label() -> None:
    """Of copies with one label the first counts; copies that contradict each other do not."""
    challenger = _manifest(
        _image("same", "test"),
        _image("both", "test", label="down"),
        _image("same", "test"),
        _image("both", "test", label="rising"),
        _image("same", "test"),
    )
    found = comparable_images(_manifest(), challenger)
    assert list(found.images["path"]) == ["0.png"]
    assert found.left_out == {CONTRADICTING: 2, COPY: 2}


def test_files_that_are_no_images_neither_count_nor_teach() -> None:
    """Only rows with status `ok` matter, on either side."""
    damaged = _manifest(_image("x", "train", "anna"), _image("y", "test"), status="damaged")
    whole = _manifest(_image("x", "test", "anna"))
    found = comparable_images(damaged, pd.concat([damaged, whole], ignore_index=True))
    assert list(found.images.index) == [2]
    assert found.left_out == {}


def test_all_seen_leaves_no_image_but_all_columns() -> None:
    """If nothing is left, the table is empty and the reason tells how many there were."""
    champion = _manifest(_image("x", "train"), _image("y", "validation"))
    found = comparable_images(champion, _manifest(_image("x", "test"), _image("y", "test")))
    assert list(found.images.columns) == COLUMNS
    assert found.images.empty
    assert found.left_out == {SEEN_BY_CHAMPION: 2}


_ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.sampled_from(["train", "validation", "test", "test", "test"]),
        st.sampled_from(["", "", "g1", "g2", "g3"]),
        st.sampled_from(CLASSES),
    ),
    max_size=12,
)


@settings(max_examples=50, deadline=None)
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
    """Accuracies, recalls and the p-value equal an independent computation."""
    labels, a_said, b_said = _random()
    found = _compared(labels, a_said, b_said)
    assert found.images == 200
    assert found.champion_accuracy.value == pytest.approx(reference.accuracy_score(labels, a_said))
    assert found.challenger_accuracy.value == pytest.approx(
        reference.accuracy_score(labels, b_said)
    )
    a_recall = reference.recall_score(labels, a_said, average=None)
    b_recall = reference.recall_score(labels, b_said, average=None)
    assert [change.name for change in found.by_class] == list(CLASSES)
    for k, change in enumerate(found.by_class):
        assert change.images == (labels == k).sum() == change.difference.n
        assert change.champion.value == pytest.approx(a_recall[k])
        assert change.challenger.value == pytest.approx(b_recall[k])
        assert change.difference.value == pytest.approx(b_recall[k] - a_recall[k])
        assert change.difference.low < change.difference.value < change.difference.high
    only_a, only_b = found.paired.only_a_right, found.paired.only_b_right
    assert found.paired.p_value == pytest.approx(binomtest(only_a, only_a + only_b).pvalue)


def test_the_four_counts_are_those_of_the_images() -> None:
    """Both right, only one and both wrong are counted image by image."""
    labels, a_said, b_said = _random(images=157)
    found = _compared(labels, a_said, b_said)
    counts = (
        found.both_right,
        found.paired.only_a_right,
        found.paired.only_b_right,
        found.both_wrong,
    )
    by_hand = reference.confusion_matrix(a_said != labels, b_said != labels)
    assert counts == tuple(by_hand.ravel())


def test_exchanging_the_models_turns_everything_round() -> None:
    """The difference changes its sign, the galleries their places, and the p-value stays."""
    labels, a_said, b_said = _random(images=60)
    there, back = _compared(labels, a_said, b_said), _compared(labels, b_said, a_said)
    assert back.paired.difference.value == -there.paired.difference.value
    assert back.paired.difference.low == pytest.approx(-there.paired.difference.high)
    assert back.paired.p_value == pytest.approx(there.paired.p_value)
    assert [i.position for i in back.newly_right] == [i.position for i in there.newly_wrong]
    assert [i.position for i in back.newly_wrong] == [i.position for i in there.newly_right]


def test_flipped_images_say_what_each_model_said() -> None:
    """Positions, paths, answers and probabilities belong together; the surest come first."""
    labels = np.array([0, 1, 2, 0, 1])
    a_said, b_said = np.array([0, 0, 2, 1, 2]), np.array([0, 1, 1, 1, 1])
    found = _compared(
        labels,
        a_said,
        b_said,
        champion_NK=_one_hot(a_said, np.array([0.9, 0.6, 0.9, 0.8, 0.7])),
        challenger_NK=_one_hot(b_said, np.array([0.9, 0.5, 0.8, 0.9, 0.95])),
    )
    assert [image.position for image in found.newly_right] == [4, 1]
    assert [image.position for image in found.newly_wrong] == [2]
    wrong = found.newly_wrong[0]
    assert (wrong.path, wrong.label) == ("2.png", "rising")
    assert (wrong.champion_says, wrong.challenger_says) == ("rising", "down")
    assert wrong.champion_probability == pytest.approx(0.9)
    assert wrong.challenger_probability == pytest.approx(0.8)


def test_a_gallery_holds_24_images_and_the_counts_all() -> None:
    """However many images flip, 24 are shown, and those are the surest."""
    labels = np.zeros(100, int)
    sure = np.random.default_rng(0).uniform(0.4, 1.0, 100)
    wrong = np.ones(100, int)
    found = _compared(labels, labels, wrong, challenger_NK=_one_hot(wrong, sure))
    assert found.paired.only_a_right == 100
    assert len(found.newly_wrong) == 24
    assert found.newly_right == ()
    assert {image.position for image in found.newly_wrong} == set(np.argsort(-sure)[:24])


@pytest.mark.parametrize("shape", [(0, 3), (0,)])
def test_no_images_are_compared_without_a_verdict(shape: tuple[int, ...]) -> None:
    """With nothing to compare the interval is everything and the sentence says so."""
    empty, none = np.zeros(shape), np.array([], int)
    found = _compared(np.array([]), none, none, champion_NK=empty, challenger_NK=empty)
    assert found.images == found.both_right == found.both_wrong == 0
    assert (found.paired.difference.low, found.paired.difference.high) == (-1, 1)
    assert found.paired.p_value == 1
    assert found.newly_right == found.newly_wrong == ()
    assert [change.images for change in found.by_class] == [0, 0, 0]
    assert found.sentence == "No test image is left for comparing challenger 3 with champion 2."
    assert Comparison.model_validate_json(found.model_dump_json()) == found


def test_a_class_without_images_has_no_certain_change() -> None:
    """The interval of a class that no compared image has is everything."""
    labels = np.array([0, 0, 1])
    change = _compared(labels, labels, labels).by_class[2]
    assert (change.difference.low, change.difference.high, change.images) == (-1, 1, 0)


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    """A row too few or a class too many is an error, never a comparison."""
    labels = np.array([0, 1, 2])
    with pytest.raises(ValueError, match="reshape"):
        _compared(labels, labels, labels, labels_N=labels[:2])
    with pytest.raises(ValueError, match="reshape"):
        _compared(labels, labels, labels, champion_NK=_one_hot(labels[:2]))
    with pytest.raises(ValueError, match="reshape"):
        _compared(labels, labels, labels, challenger_NK=_one_hot(labels, classes=4))


def test_the_sentence_has_every_figure() -> None:
    """Number of images, both accuracies, difference, interval and p-value stand in it."""
    labels = np.zeros(40, int)
    a_said, b_said = (np.repeat([0, 1], [right, 40 - right]) for right in (20, 24))
    found = _compared(labels, a_said, b_said)
    low, high = found.paired.difference.low, found.paired.difference.high
    assert found.sentence == (
        "On 40 images not used for training or model selection by either, challenger 3 has an "
        "accuracy of 60.0% and champion 2 50.0%: +10.0 points (95% confidence interval "
        f"{100 * low:+.1f} to {100 * high:+.1f}; p = 0.125); the difference may be due to chance."
    )


@pytest.mark.parametrize(
    ("right_before", "right_now", "ending"),
    [
        (20, 20, "neither is better."),
        (20, 25, "the difference may be due to chance."),
        (25, 20, "the difference may be due to chance."),
        (20, 26, "the difference is significant."),
        (40, 10, "the difference is significant."),
    ],
)
def test_the_sentence_weighs_the_difference(right_before: int, right_now: int, ending: str) -> None:
    """From six images to none on, McNemar's two-sided test passes 5%: 2 / 2^6 is 0.031."""
    labels = np.zeros(40, int)
    said = [np.repeat([0, 1], [right, 40 - right]) for right in (right_before, right_now)]
    assert _compared(labels, said[0], said[1]).sentence.endswith(ending)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0241, "+2.4"), (-0.0241, "-2.4"), (0.0, "0.0"), (-0.0004, "0.0"), (1.0, "+100.0")],
)
def test_points_have_their_sign(share: float, text: str) -> None:
    """A difference shows where it leads, unless it rounds to nothing."""
    assert points(share) == text


@pytest.mark.parametrize(
    ("p_value", "text"), [(1.0, "p = 1.000"), (0.0312, "p = 0.031"), (0.0001, "p < 0.001")]
)
def test_p_values_have_three_digits(p_value: float, text: str) -> None:
    """A p-value is never written as zero."""
    assert p_value_text(p_value) == text


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
    assert groups[0] == groups[1]
    assert groups[2] == groups[3]
    assert len(set(groups)) == 4


def test_groups_are_the_units_of_the_test_and_of_every_interval() -> None:
    """20 images of one group that flip together are no evidence; of 20 groups they are."""
    labels = np.repeat([0, 1], 40)
    b_said = labels.copy()
    a_said = np.where(np.arange(80) < 20, 2, labels)
    alone = _compared(labels, a_said, b_said)
    together = _compared(labels, a_said, b_said, groups_N=np.arange(80) // 20)
    assert (alone.groups, alone.units, together.groups, together.units) == (None, 80, 4, 4)
    assert alone.sentence.endswith("the difference is significant.")
    assert together.sentence.startswith("On 80 images in 4 groups not used for training")
    assert together.sentence.endswith(
        "p = 1.000, testing whole groups); the difference may be due to chance."
    )
    first, second, third = together.by_class
    assert (first.groups, second.groups, third.groups) == (2, 2, None)
    for grouped, single in ((together.paired, alone.paired), (first, alone.by_class[0])):
        assert grouped.difference.low < 0 < single.difference.low
        assert grouped.difference.value == single.difference.value
    assert together.champion_accuracy.low < alone.champion_accuracy.low
    assert _compared(labels, a_said, b_said, groups_N=np.arange(80)) == alone
    assert Comparison.model_validate_json(together.model_dump_json()) == together
