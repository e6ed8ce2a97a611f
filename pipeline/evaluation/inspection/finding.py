"""What an inspection found: kinds, how bad each is, and the result that holds all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from pydantic import Field

from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL, Task
from patchline.pipeline.frozen_model import FrozenModel

Kind = Literal[
    "foreign", "unreadable", "truncated", "wrong_extension", "unusual_mode", "size_outlier",
    "exact_duplicate", "near_duplicate", "leakage", "label_conflict", "label_error", "imbalance",
    "small_class", "empty_class", "dark", "blurred", "blank", "contradictory_rows", "missing_file",
    "refused_member", "similar_classes", "suspicious_class", "suspicious_labels",
    "value_range", "bands", "mirror_asymmetric",
    "no_label", "frequent_label", "implied_label", "rare_label_set",
    "augmented_copy", "color_profile", "unread_frames", "unreadable_profile",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""An error stops a run; a warning lowers the quality of the model or of its metrics."""
TITLES: dict[Kind, str] = {
    "foreign": "Files that are not images of a class",
    "unreadable": "Unreadable images",
    "truncated": "Truncated images",
    "contradictory_rows": "Rows that contradict each other",
    "missing_file": "Images that do not exist",
    "refused_member": "Members of the archive that are not read",
    "wrong_extension": "Wrong file extensions",
    "unusual_mode": "Unusual colour modes",
    "size_outlier": "Unusual sizes",
    "exact_duplicate": "Exact duplicates",
    "near_duplicate": "Near duplicates",
    "leakage": "Leakage between splits",
    "label_conflict": "Conflicting labels",
    "label_error": "Likely label errors",
    "imbalance": "Imbalanced classes",
    "small_class": "Small classes",
    "empty_class": "Empty classes",
    "similar_classes": "Classes with similar names",
    "suspicious_class": "Suspicious class names",
    "suspicious_labels": "Labels that are no classes",
    "mirror_asymmetric": "Classes that differ from their mirror images",
    "dark": "Dark images",
    "blurred": "Blurred images",
    "blank": "Blank images",
    "value_range": "Values of more than 8 bits",
    "bands": "Unclear bands",
    "no_label": "Images without labels",
    "frequent_label": "Labels on nearly every image",
    "implied_label": "Labels that never occur alone",
    "rare_label_set": "Labels that hardly ever meet",
    "augmented_copy": "Augmented copies",
    "color_profile": "Colour profiles that are not applied",
    "unreadable_profile": "Colour profiles that cannot be read",
    "unread_frames": "Frames and pages that are not read",
}


class Finding(FrozenModel):
    """Everything of one kind that was found."""

    kind: Kind
    severity: Severity
    count: int
    """Number of files, or of classes for findings about classes."""
    files: tuple[str, ...]
    """All files, as paths of the manifest; empty if the finding is about classes alone."""
    action: str
    """What Patchline does about it, and what the user can do."""
    title: str
    summary: str
    """What was found, in a sentence."""
    classes: tuple[str, ...] = ()
    """The classes that the finding is about, if it is about classes."""
    groups: tuple[tuple[str, ...], ...] = ()
    """The files that belong together, for duplicates, leakage and conflicting labels."""
    details: dict[str, str] = Field(default_factory=dict)
    """What is special about a file, by path."""
    exclude: tuple[str, ...] = ()
    """The files that are best excluded; the table of findings marks them so."""


def finding_on_classes(
    kind: Kind,
    severity: Severity,
    classes: Sequence[str],
    summary: str,
    action: str,
    files: Iterable[str] = (),
) -> Finding:
    """Return a finding that counts classes.

    Args:
        kind: what is wrong with them.
        severity: how bad it is.
        classes: sorted.
        summary: what was found, in a sentence.
        action: what Patchline does about it, and what the user can do.
        files: of the classes, if the finding is about their files, too.
    """
    return Finding(
        kind=kind,
        severity=severity,
        count=len(classes),
        files=tuple(files),
        action=action,
        title=TITLES[kind],
        summary=summary,
        classes=tuple(classes),
    )


def finding_on_files(
    kind: Kind, severity: Severity, files: Sequence[str], summary: str, action: str, **more: Any
) -> Finding:
    """Return a finding that counts files.

    Args:
        kind: what is wrong with them.
        severity: how bad it is.
        files: as paths of the manifest.
        summary: what was found, in a sentence.
        action: what Patchline does about it, and what the user can do.
        more: other fields of the finding.
    """
    return Finding(
        kind=kind,
        severity=severity,
        count=len(files),
        files=tuple(files),
        action=action,
        title=TITLES[kind],
        summary=summary,
        **more,
    )


class Range(FrozenModel):
    """The smallest, the median and the largest value, in pixels."""

    min: int
    median: int
    max: int


class Sizes(Range):
    """The shorter sides of the images; widths and heights are listed beside them."""

    width: Range
    height: Range


class Inspection(FrozenModel):
    """The result of an inspection; its JSON is what `patchline data inspect --json` prints."""

    name: str
    """The source's name of the data."""
    images: int
    """Usable images."""
    files: int
    """All files, usable or not."""
    task: Task = SINGLE_LABEL
    """Whether an image has one class, or a set of labels."""
    classes: dict[str, int]
    """Usable images by class, or with each label of multi-label data."""
    splits: dict[str, int]
    """Usable images by split."""
    unlabelled: int = 0
    """Usable images of `data.unlabelled`, without copies; in no split."""
    class_splits: dict[str, dict[str, int]]
    """Usable images by class and split."""
    co_occurrence: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Of multi-label data: usable images with two labels, by each of them; without zeros."""
    set_sizes: dict[int, int] = Field(default_factory=dict)
    """Of multi-label data: usable images by their number of labels."""
    split_origin: str
    """Where the splits come from."""
    sizes: Sizes | None
    """None without a usable image."""
    modes: dict[str, int]
    """Usable images by color mode."""
    aspect_ratios: dict[str, int]
    """Usable images by shape: `square`, `landscape`, `portrait`."""
    fingerprint: str
    """The data's version."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    """What a run would train and why, a line each; empty if nobody asked for the plan."""

    def worst(self, severity: Severity) -> list[Finding]:
        """Return the findings of a severity."""
        return [finding for finding in self.findings if finding.severity == severity]
