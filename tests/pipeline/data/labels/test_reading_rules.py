"""Templates that say which part of a path is the label."""

from __future__ import annotations

import time

import pytest

from patchline.pipeline.data.labels.reading_rules import PathTemplate


@pytest.mark.parametrize(
    ("template", "path", "parts"),
    [
        ("{site}/{label}/*", "siteA/cat/deep/1.jpg", None),
        ("{site}/{label}", "siteA/cat/deep/1.jpg", {"site": "siteA", "label": "cat"}),
        ("*/{label}/**", "siteA/cat/p1/1.jpg", {"label": "cat"}),
        ("**/{label}/*", "a/b/c/cat/1.jpg", {"label": "cat"}),
        ("{label}_*.jpg", "great_dane_12.jpg", {"label": "great_dane"}),
        ("{number}_{label}.jpg", "12_great_dane.jpg", {"number": "12", "label": "great_dane"}),
        ("{label}.x/*", "aqx/1.jpg", None),
        ("{label}/(1|2)/*", "a/(1|2)/1.jpg", {"label": "a"}),
        ("{label}", "1.jpg", None),
    ],
)
def test_template_reads_a_path(template: str, path: str, parts: dict[str, str] | None) -> None:
    """Names in braces stay in one folder; the label takes as much text as it can."""
    assert PathTemplate(template).match(path) == parts


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{site}/*", r"no \{label\}"),
        ("{label}/{label}/*", "twice"),
        ("{a}{label}/*", "no text between"),
        ("{label/*", "brace"),
        ("{la bel}/{label}/*", "not a name"),
        ("{label}//*", "two slashes"),
        ("**/{label}/**/x/*", "several times"),
        ("{a}_{b}_{c}_{d}_{label}.jpg", "more than 3"),
    ],
)
def test_template_that_cannot_be_used_is_refused(template: str, words: str) -> None:
    """The rule that it breaks is said."""
    with pytest.raises(ValueError, match=words):
        PathTemplate(template)


def test_no_path_takes_long() -> None:
    """A name made to mislead the matcher, or longer than that of any file, is decided fast."""
    template = PathTemplate("**/{a}_{b}_{label}_x")
    began = time.process_time()
    assert template.match("/".join(["_" * 254] * 8)) is None
    assert template.match("/".join(["_" * 4000] * 8)) is None
    assert time.process_time() - began < 5  # without the bounds, hours
