"""Kinds of events: their documented names, payloads and sentences."""

from __future__ import annotations

import re
from pathlib import Path

from patchline.flows.notifications import events

_PAGE = Path(__file__).parents[3] / "docs/how_to/notifications.md"
_ROW = re.compile(r"^\| `(patchline\.[a-z._]+)` \| (.+?) \| `(.+?)` \| (.+?) \|$", re.MULTILINE)


def test_the_page_describes_each_event_as_the_code_does() -> None:
    """The table in docs/how_to/notifications.md has every name, with when, resource and payload.

    With all keys given, a sentence shows each that it names and no gap.
    """
    described = {
        name: (when, resource, tuple(re.findall(r"`(\w+)`", payload)))
        for name, when, resource, payload in _ROW.findall(_PAGE.read_text(encoding="utf-8"))
    }
    kinds = events.kinds().items()
    assert described == {name: (kind.when, kind.resource, kind.payload) for name, kind in kinds}
    for name, kind in kinds:
        words = dict.fromkeys(kind.payload, "WORD")
        sentence = events.complete_payload(name, words)["sentence"]
        assert "?" not in sentence
        assert sentence.count("WORD") == kind.sentence.count("{")


def test_credentials_and_undocumented_keys_are_not_sent() -> None:
    """An address loses user and password, a long text its end, and an unknown key is dropped."""
    sent = events.complete_payload(
        events.RUN_FAILED,
        {
            "name": "flowers",
            "reason": "https://me:secret@example.org/ does not answer " + "x" * 1000,
            "password": "secret",
            "run_id": None,
        },
    )
    assert "secret" not in str(sent)
    assert set(sent) == {"name", "reason", "sentence"}
    assert len(sent["reason"]) == 500
    assert sent["sentence"].startswith("Training of flowers has failed: https://example.org/")
