"""The names of the figures."""

from __future__ import annotations

import subprocess
import sys

from patchline.pipeline.metrics.names import METRICS


def test_every_figure_says_what_it_is_and_where_its_interval_comes_from() -> None:
    """Titles differ, and no text is empty; losses alone are better when low."""
    assert len({name.title for name in METRICS.values()}) == len(METRICS)
    assert all(name.meaning and name.interval for name in METRICS.values())
    low = {key for key, name in METRICS.items() if not name.higher_is_better}
    assert low == {"log_loss", "ece"}


def test_names_cost_no_import() -> None:
    """Reading the names imports neither numpy nor anything heavier."""
    script = "import sys, patchline.pipeline.metrics.names; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
