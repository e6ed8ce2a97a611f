"""Class names that look wrong are named; ordinary ones are not."""

from __future__ import annotations

import pytest

from patchline.pipeline.data.labels.class_names import groups_alike, suspicions

_CAFE = "caf\u00e9"


@pytest.mark.parametrize(
    ("names", "kind", "words"),
    [
        (["Cat", "cat"], "similar_classes", "upper and lower case"),
        (["cat ", "cat"], "similar_classes", "spaces, dashes"),
        (["cat\u200b", "cat"], "similar_classes", "invisible characters"),
        (["c\u0430t", "cat"], "similar_classes", "letters that look alike"),
        (["cat", "cat (1)"], "similar_classes", "copies of others: 'cat (1)' beside 'cat'"),
        (["cat", "cat copy"], "similar_classes", "'cat copy' beside 'cat'"),
        (["true", "1", "false"], "similar_classes", "same answer: '1', 'true'"),
        (["cat", "unknown"], "suspicious_class", "there is no label: 'unknown' (3)"),
        (["cat", "_unlabeled"], "suspicious_class", "there is no label: '_unlabeled' (3)"),
        (["cat", "annotations"], "suspicious_class", "folders of something else: 'annotations'"),
        (["cat", "images_001"], "suspicious_class", "folders of something else: 'images_001'"),
        (["cat", "JPEGImages"], "suspicious_class", "folders of something else: 'JPEGImages'"),
        (["M\u00c3\u00bcller", "cat"], "suspicious_class", "for 'M\u00fcller'"),
        (
            ["cat\x1b[2J", "dog"],
            "suspicious_class",
            r"cannot be seen, or spaces at an end: 'cat\x1b[2J'",
        ),
        (["\u202ecat", "\tdog"], "suspicious_class", r"at an end: '\tdog', '\u202ecat'"),
        (["c\u0430r", "dog"], "suspicious_class", "several alphabets"),
        (["1.jpg", "2.jpg"], "suspicious_class", "file names"),
        (["cat", "dog", "cat|dog"], "suspicious_class", "several labels of one image: 'cat|dog'"),
    ],
)
def test_what_looks_wrong_is_named(names: list[str], kind: str, words: str) -> None:
    """Each suspicion has its kind, the classes and a sentence."""
    found = [each for each in suspicions(dict.fromkeys(names, 3)) if each.kind == kind]
    assert any(words in each.sentence for each in found), found
    assert all(set(each.classes) <= set(names) and each.remedy for each in found)


@pytest.mark.parametrize(
    "names",
    [
        [str(number) for number in range(10)],
        ["+", "-"],
        ["yes", "no"],
        ["\u092c\u093f\u0932\u094d\u0932\u0940", "\u0915\u0941\u0924\u094d\u0924\u093e"],
        ["\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u06a9\u062a\u0627\u0628"],
        ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f431"],
        [_CAFE, "na\u00efve", "M\u00fcller", "\u0141\u00f3d\u017a", "cafe"],
        ["n02085620-Chihuahua", "n02085782-Japanese_spaniel"],
        ["001", "002"],
    ],
)
def test_ordinary_names_are_not_suspicious(names: list[str]) -> None:
    """Names of any script, numbers and codes are class names."""
    assert suspicions(dict.fromkeys(names, 3)) == []


def test_identifiers_and_measurements_are_no_classes() -> None:
    """Labels with one image each, and numbers with fractions, are named for what they are."""
    [found] = suspicions({f"patient-{number}": 1 for number in range(50)})
    assert found.kind == "suspicious_labels"
    assert "50 of 50 classes have a single image" in found.sentence
    [found] = suspicions({f"{20 + number * 1.37:.2f}": 1 for number in range(50)})
    assert "numbers from 20 to 87.13: they look like a number to predict" in found.sentence
    assert suspicions({f"patient-{number}": 5 for number in range(50)}) == []


def test_names_that_look_equal_are_grouped() -> None:
    """Punctuation alone is a name, too."""
    assert groups_alike(["a", "A", "b", "-", "_", "\u0430"]) == [["A", "a", "\u0430"]]
