"""What the initial weights of a run, or its teacher, have seen of its images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from patchline.pipeline.data.ingested_data import IngestedData, SeenBefore
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.models.provenance import CONTENT, Provenance, describe_unused
from patchline.pipeline.terminal_words import by_number


def count_seen_images(
    manifest_file: Path, provenance: Provenance, weights: str = "the initial weights"
) -> SeenBefore:
    """Count the images that initial weights or a teacher have seen.

    A validation image was seen if it was trained on, a test image also if it was used for model
    selection.

    Args:
        manifest_file: the manifest of the run's data.
        provenance: the record of the images that the weights have seen.
        weights: the name of the weights, for sentences.
    """
    rows = manifests.usable(manifests.load(manifest_file))
    counts = {}
    for split in ("validation", "test"):
        of_split, seen = rows[rows["split"] == split], provenance.images
        overlap_N = seen.contain(of_split, CONTENT, trained_only=split == "validation")
        counts[split] = int(overlap_N.sum())
    related_N = seen.contain(of_split, ["group"]) & ~overlap_N  # of the test split, the last one
    trained_N = seen.contain(rows[rows["split"] == "train"], CONTENT, trained_only=True)
    return SeenBefore(
        weights=weights,
        trained=int(trained_N.sum()),
        counts={split: count for split, count in counts.items() if count},
        related=int(related_N.sum()),
        provenance=provenance.summary,
    )


def with_seen_images(data: IngestedData, before: SeenBefore) -> IngestedData:
    """Return the data with what weights have seen of it, and notes about that.

    They take the place of notes on the initial weights alone.
    """
    replaced = set(describe_seen_images(data.seen_before, data.counts))
    kept = [note for note in data.notes if note not in replaced]
    notes = (*kept, *describe_seen_images(before, data.counts))
    return data.model_copy(update={"seen_before": before, "notes": notes})


def describe_seen_images(before: SeenBefore, counts: Mapping[str, int]) -> list[str]:
    """Return how many images were seen, and what that means for the metrics.

    Args:
        before: the counts of images that the weights have seen.
        counts: number of all images by split.
    """
    words = {
        "validation": f"used to train {before.weights}: the validation metrics, the choice of "
        "the best epoch and the calibration are optimistic",
        "test": f"used to train or select {before.weights}: the test metrics are optimistic; "
        "`patchline evaluate` leaves such images out",
    }
    notes = [
        f"{before.counts[split]:,} of the {counts[split]:,} {split} images "
        f"{by_number(before.counts[split], 'was', 'were')} {meaning}"
        for split, meaning in words.items()
        if before.counts.get(split)
    ]
    if before.related:
        notes.append(
            f"{before.related:,} {'other ' if before.counts.get('test') else ''}test "
            f"{_describe_related(before)}: the test metrics may be optimistic; `patchline "
            "evaluate` leaves such images out"
        )
    caveat = before.provenance.caveat(before.weights, "validation or test images")
    return [*notes, caveat] if caveat else notes


def about_test_images(before: SeenBefore) -> str:
    """Return what the test images were used for before, as far as it is known."""
    provenance = before.provenance
    unused = f"{'were' if provenance.is_known else 'are'} {describe_unused(provenance)}"
    caveat = provenance.caveat(before.weights, "these images")
    more = f" {caveat[:1].upper()}{caveat[1:]}." if caveat else ""
    if before.related:
        more = f" {before.related:,} of these {_describe_related(before)}.{more}"
    if count := before.counts.get("test", 0):
        return (
            f"{count:,} of these images {by_number(count, 'was', 'were')} used to train or select "
            f"{before.weights}, so the metrics are optimistic; the others {unused}.{more}"
        )
    return f"These images {unused}.{more}"


def caveat_on_test_images(before: SeenBefore) -> str:
    """Return why the test metrics may be optimistic; empty if they are not."""
    is_clean = before.provenance.is_known and not (before.counts.get("test") or before.related)
    return "" if is_clean else about_test_images(before)


def _describe_related(before: SeenBefore) -> str:
    """Return what is said of images whose groups the weights know."""
    subject = by_number(before.related, "image is in a group", "images are in groups")
    have = "has" if before.weights.endswith("teacher") else "have"
    return f"{subject} of which {before.weights} {have} seen other images"
