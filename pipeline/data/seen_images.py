"""What follows from validation and test images that the initial weights have seen before."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.data.ingested_data import IngestedData


def with_seen(data: IngestedData, seen: dict[str, int] | None) -> IngestedData:
    """Return the data with what its initial weights have seen of it, and notes about that.

    Args:
        data: of the run.
        seen: number of these images by split, without zeros; None if that is not known.
    """
    notes = (*data.notes, *notes_on_seen(seen, data.counts))
    return data.model_copy(update={"seen_before": seen, "notes": notes})


def notes_on_seen(seen: Mapping[str, int] | None, counts: Mapping[str, int]) -> list[str]:
    """Return how many images were seen, and what that means for the metrics.

    Args:
        seen: as for `with_seen`.
        counts: number of all images by split.
    """
    if seen is None:
        unknown = "which images the initial weights were trained on is no longer recorded"
        return [f"{unknown}: if validation or test images are among them, metrics are optimistic"]
    words = {
        "validation": "used to train the initial weights: the validation metrics, the choice of "
        "the best epoch and the calibration are optimistic",
        "test": "used to train or select the initial weights: the test metrics are optimistic; "
        "`patchline evaluate` leaves such images out",
    }
    return [
        f"{seen[split]:,} of the {counts[split]:,} {split} images {_were(seen[split])} {meaning}"
        for split, meaning in words.items()
        if seen.get(split)
    ]


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
