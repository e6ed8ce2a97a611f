"""How the stages of a run tell their user what they do: by the display that is shown."""

from __future__ import annotations

from patchline.flows.progress.progress_display import display, show_event
from patchline.pipeline.stages.context import Reporting


def reporting() -> Reporting:
    """Return the functions of the current display."""
    return Reporting(display().stage, display().note, display().advance, show_event)
