"""Settings and reasons come out of one list of rules, and what the user has set is left out."""

from __future__ import annotations

from typing import Any

import pytest

from patchline.pipeline.planning.rules import plan
from tests.pipeline.planning.test_plan import facts


@pytest.mark.parametrize(
    ("user", "settings", "is_said"),
    [
        ({}, {"shuffle_window"}, True),
        ({"training.ema_decay": 0.5}, {"shuffle_window"}, True),
        ({"record.shuffle_window": 1.0}, set(), False),
    ],
    ids=str,
)
def test_a_rule_is_left_out_with_its_reason_where_the_user_decides(
    user: dict[str, Any], settings: set[str], *, is_said: bool
) -> None:
    """What another rule sets makes no difference."""
    made = plan(facts(training_images=200_000, median_side=500, host_memory_gib=4), user)
    assert {"shuffle_window"} & set(made.settings.get("record", {})) == settings
    assert any("(record.shuffle_window)" in each for each in made.reasons) is is_said


def test_a_rule_that_only_explains_is_said_whatever_is_set() -> None:
    """As the model and the length are, which the plan of the user takes as they are."""
    made = plan(facts(rate=900.0), {"model.size": "mini", "training.epochs": 3})
    assert made.reasons[0].endswith("the model as set")
    assert "3 epochs take about" in made.reasons[1]
    assert "epochs" not in made.settings["training"]
