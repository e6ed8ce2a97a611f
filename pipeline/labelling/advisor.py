"""What is known about the images beside themselves."""

from __future__ import annotations

from collections.abc import Sequence

from patchline.pipeline.labelling.answer import Suggestion


class Advisor:
    """Knows nothing yet."""

    def together(self, key: str) -> Sequence[str]:
        """Return the near duplicates of an image."""
        del key
        return ()

    def suggestion(self, key: str) -> Suggestion | None:
        """Return what is predicted for an image."""
        del key
        return None

    def answered(self) -> None:
        """Learn that there are new answers."""

    def words(self) -> str:
        """Return how the images are ordered."""
        return "random order"

    def suggests(self) -> str:
        """Return what makes suggestions."""
        return ""
