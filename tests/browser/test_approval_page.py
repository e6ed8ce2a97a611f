"""A person answers a promotion in the Prefect UI, and the runner carries it out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import browser, missing
from tests.conftest import patchline
from tests.flows.approval.approval_parts import champion, versions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Start the servers of a folder with a champion and a version that is better."""
    up = patchline("up", "--json", cwd=tmp_path)
    assert up.code == 0, up.err
    try:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", up.json["mlflow_url"])  # logs in by itself
        versions("roses", tmp_path, range(60), range(10))
        yield up.json
    finally:
        patchline("down", "--now", cwd=tmp_path)


def test_the_form_shows_the_comparison_and_takes_the_answer(
    served: dict[str, str], tmp_path: Path
) -> None:
    """Suspended, the flow shows both versions; approved in the form, the better one is champion."""
    options = ("--ask", "--promotion.no-package-check")
    asked = patchline("promote", "roses", *options, cwd=tmp_path)
    assert asked.code == 0, asked.err
    with browser(1400, 1100) as window:
        window.sign_in(served["prefect_login_url"])
        window.open(f"{served['prefect_url'].rstrip('/')}/v2/runs", "roses, version 2: champion?")
        window.follow("roses, version 2: champion?")
        window.assert_shows("Suspended")
        window.press("Open menu")
        window.take("Resume", "menuitem")
        window.assert_shows(
            "Should roses, version 2, become champion?",
            "challenger roses/2 has an accuracy of 95.0% and champion roses/1 70.0%",
            "Without an answer within 72 hours, the request expires.",
        )
        window.press("Select")
        window.take("approve", "option")
        window.write("Who", "Ada")
        window.write("Reason (Optional)", "looks good")
        assert champion("roses") == "1"
        window.press("Resume")
        window.assert_shows("Promoted")
    assert champion("roses") == "2"
    shown = patchline("models", "roses", cwd=tmp_path)
    assert "promoted: approved by Ada: looks good" in shown.out
