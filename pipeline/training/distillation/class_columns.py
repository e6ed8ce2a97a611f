"""Match the classes of a teacher with those of the data, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL, Task, by_task
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.terminal_words import by_number, counted, few_names


class ClassColumns(NamedTuple):
    """The outputs of a teacher that are the classes of the data, in the data's order."""

    columns: tuple[int, ...]
    left_out: tuple[str, ...]
    """Classes that only the teacher knows."""

    def note(self, task: Task = SINGLE_LABEL) -> str:
        """Say what becomes of classes that only the teacher knows; empty if there are none."""
        if not self.left_out:
            return ""
        words, count = by_task(task), len(self.left_out)
        scaled = (
            f", and its probabilities of the other {len(self.columns)} are scaled to add up to 1"
        )
        return (
            f"the teacher knows {counted(count, words.one, words.several)} that the data "
            f"does not have ({few_names(self.left_out, 3)}): "
            f"{by_number(count, 'it is', 'they are')} left out"
            f"{scaled if task == SINGLE_LABEL else ''}"
        )


def class_columns(
    name: str, of_teacher: Sequence[str], classes: Sequence[str], task: Task = SINGLE_LABEL
) -> ClassColumns:
    """Return which outputs of a teacher are the classes of the data.

    Args:
        name: of the teacher, for errors.
        of_teacher: its classes, in the order of its outputs.
        classes: of the data.
        task: of the data.

    Raises:
        ConfigError: if the teacher does not know a class of the data: its probability could only be
            0, and every image of it would be labelled as something else.
    """
    place = {label: number for number, label in enumerate(of_teacher)}
    missing = [label for label in classes if label not in place]
    if missing:
        words = by_task(task)
        raise ConfigError(
            f"training.teacher {name} does not know "
            f"{counted(len(missing), words.one, words.several)} of the data: "
            f"{few_names(missing, 3)}; it knows {few_names(of_teacher, 3)}. Name a teacher that "
            f"was trained on the same {words.several}, or rename the {words.several}."
        )
    known = set(classes)
    return ClassColumns(
        tuple(place[label] for label in classes),
        tuple(label for label in of_teacher if label not in known),
    )
