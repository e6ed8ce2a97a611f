"""Match the classes of a teacher with those of the data, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from patchline.pipeline.data.manifests.manifest import examples
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.terminal_words import by_number, counted


class ClassColumns(NamedTuple):
    """The outputs of a teacher that are the classes of the data, in the data's order."""

    columns: tuple[int, ...]
    left_out: tuple[str, ...]
    """Classes that only the teacher knows."""

    def note(self) -> str:
        """Say what becomes of classes that only the teacher knows; empty if there are none."""
        if not self.left_out:
            return ""
        return (
            f"the teacher knows {counted(len(self.left_out), 'class', 'classes')} that the data "
            f"does not have ({examples(self.left_out)}): "
            f"{by_number(len(self.left_out), 'it is', 'they are')} left out, and its probabilities "
            f"of the other {len(self.columns)} are scaled to add up to 1"
        )


def class_columns(name: str, of_teacher: Sequence[str], classes: Sequence[str]) -> ClassColumns:
    """Return which outputs of a teacher are the classes of the data.

    Args:
        name: of the teacher, for errors.
        of_teacher: its classes, in the order of its outputs.
        classes: of the data.

    Raises:
        ConfigError: if the teacher does not know a class of the data: its probability could only be
            0, and every image of it would be labelled as something else.
    """
    place = {label: number for number, label in enumerate(of_teacher)}
    missing = [label for label in classes if label not in place]
    if missing:
        raise ConfigError(
            f"training.teacher {name} does not know {counted(len(missing), 'class', 'classes')} of "
            f"the data: {examples(missing)}; it knows {examples(list(of_teacher))}. Name a teacher "
            "that was trained on the same classes, or rename the classes."
        )
    known = set(classes)
    return ClassColumns(
        tuple(place[label] for label in classes),
        tuple(label for label in of_teacher if label not in known),
    )
