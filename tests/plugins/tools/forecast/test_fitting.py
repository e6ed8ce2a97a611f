"""The shares of the training images, and what is kept of their fits."""

from __future__ import annotations

import numpy as np
import pandas as pd

from patchline.plugins.tools.forecast.fitting import SHARES, draw_shares


def rows(labels: list[str], groups: list[str] | None = None) -> pd.DataFrame:
    """Return the rows of a manifest, each a file of its own."""
    count = len(labels)
    return pd.DataFrame(
        {
            "label": labels,
            "group": groups or [""] * count,
            "sha256": [f"file{number}" for number in range(count)],
            "pixels": [f"pixels{number}" for number in range(count)],
        }
    )


def test_shares_are_stratified_and_nested() -> None:
    """Each class has its part of each share, within one image."""
    table = rows(["rose"] * 160 + ["tulip"] * 40)
    smallest = draw_shares(table, 0)
    for share, part in enumerate(SHARES):
        chosen = table[smallest <= share]
        for name, count in (("rose", 160), ("tulip", 40)):
            assert abs((chosen["label"] == name).sum() - part * count) <= 1


def test_a_draw_is_repeated_by_its_seed_alone() -> None:
    """The order of the rows does not matter, another seed does."""
    table = rows(["rose", "tulip"] * 40)
    first = draw_shares(table, 0)
    turned = draw_shares(table.iloc[::-1], 0)[::-1]
    assert (first == turned).all()
    assert (first != draw_shares(table, 1)).mean() > 0.3


def test_groups_and_copies_stay_together() -> None:
    """No group, and no pair of equal files, is divided."""
    generator = np.random.default_rng(0)
    groups = [f"patient{number}" for number in generator.integers(0, 30, 200)]
    table = rows(["rose", "tulip"] * 100, groups)
    assert len({*zip(groups, draw_shares(table, 0).tolist(), strict=True)}) == len({*groups})
    copies = rows(["rose", "tulip"] * 50)
    copies.loc[1::2, "sha256"] = copies.loc[::2, "sha256"].to_numpy()
    pairs = {*zip(copies["sha256"], draw_shares(copies, 0).tolist(), strict=True)}
    assert len(pairs) == len(copies) // 2


def test_the_smallest_share_has_every_class() -> None:
    """Also one with a single image."""
    table = rows(["rose"] * 100 + ["tulip"] + ["lily"] * 2)
    for seed in range(5):
        assert set(table["label"][draw_shares(table, seed) == 0]) == {"rose", "tulip", "lily"}
