"""Load initial weights into a new model: what fits is used, what is resized or new is listed.

Shapes: N tokens, D embedding, C channels, K classes.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import nn

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.layers.grid_resizing import resize_positions
from patchline.pipeline.models.pretrained.resizing import adapt_channels, resize_kernel
from patchline.pipeline.models.probing.linear_head import linear_head
from patchline.pipeline.training.initial_weights.record import TENSORS_FILE, InitialWeights
from patchline.pipeline.workspace.files.sealed_files import read_tensors
from patchline.pipeline.workspace.files.table_cells import table_cell

Action = Literal["used", "resized", "matched by class", "initialized", "not used"]
Tensors = dict[str, torch.Tensor]
_KERNEL_AXES = 4  # D, C, height, width
_IN_HEAD = re.compile(r"(?:^|\.)heads?\.")
"""Names of weights in the head, also those before its last layer."""


class Assignment(NamedTuple):
    """What happened to one weight of the model, or to one tensor of the file."""

    weight: str
    action: Action
    shape: str
    detail: str = ""


def load_into(
    model: nn.Module, start: InitialWeights, folder: Path, classes: Sequence[str]
) -> list[Assignment]:
    """Give a model its initial weights, and return what happened to each of them.

    The head keeps the outputs of classes with the same name; other classes, and a head whose
    classes are unknown and whose size differs, keep their random initial weights. An encoder has no
    classes, and its one output is not used.

    Args:
        model: the model, just built; its weights are overwritten.
        start: the description of the weights.
        folder: the folder that holds their tensors.
        classes: the classes of the model's outputs, in order; none for an encoder.

    Raises:
        ConfigError: if a weight other than the head's is missing, left over, or does not fit.
        DamagedFileError: if the tensors are not what was written.
    """
    weights, _ = read_tensors(folder / TENSORS_FILE)
    head = _name_of_head(model, max(1, len(classes)))
    loader = _Loader(model, start, weights, tuple(classes), head)
    state = {name: loader.value_of(name, tensor) for name, tensor in model.state_dict().items()}
    loader.check_left_over()
    model.load_state_dict(state)
    return [*loader.done, *_not_used(start)]


def summary(start: InitialWeights, done: Sequence[Assignment]) -> str:
    """Return what happened, in one sentence."""
    counts = Counter(each.action for each in done)
    parts = [f"{counts[action]} {action}" for action in counts]
    return f"initial weights of {start.origin} ({start.layout}): {', '.join(parts)}"


def as_csv(done: Sequence[Assignment]) -> str:
    """Return the table as CSV, with one row for each weight."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Assignment._fields)
    writer.writerows([table_cell(str(cell)) for cell in each] for each in done)
    return text.getvalue()


class _Loader:
    """Finds the value of each weight of a model."""

    def __init__(
        self,
        model: nn.Module,
        start: InitialWeights,
        weights: Tensors,
        classes: tuple[str, ...],
        head: str,
    ) -> None:
        self.model, self.start, self.weights, self.classes = model, start, weights, classes
        self.head = head
        self.done: list[Assignment] = []

    def value_of(self, name: str, own: torch.Tensor) -> torch.Tensor:
        """Return the initial value of a weight, and note where it comes from."""
        old = self.weights.get(name)
        if _is_below(name, self.head):
            return self._of_head(name, own, old)
        if old is None and _IN_HEAD.search(name):
            return self._noted(name, own, "initialized")
        if old is None:
            raise ConfigError(
                f"model.init {self.start.origin} has no weight '{name}', which the model needs. "
                "Leave out the model's settings, or choose other weights."
            )
        if old.shape == own.shape:
            return self._noted(name, old, "used", self._source(name))
        return self._resized(name, own, old)

    def check_left_over(self) -> None:
        """Refuse weights that the model has no place for, unless they belong to another head."""
        own = self.model.state_dict()
        for name, tensor in self.weights.items():
            if name in own:
                continue
            if not (_IN_HEAD.search(name) or _is_below(name, self.head)):
                raise ConfigError(
                    f"model.init {self.start.origin} has the weight '{name}', which the model does "
                    "not have. Leave out the model's settings, or choose other weights."
                )
            shape = _shape(tensor)
            self.done.append(Assignment(name, "not used", shape, "the model has another head"))

    def _of_head(self, name: str, own: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
        if old is None or old.shape[1:] != own.shape[1:]:
            return self._noted(name, own, "initialized")
        if not self.classes and self.start.classes != ():
            reason = "the encoder has no classes"
            self.done.append(Assignment(name, "not used", _shape(old), reason))
            return own
        known = self.start.classes
        if known == self.classes or (known is None and old.shape == own.shape):
            detail = "" if known else "the names of the file's classes are unknown"
            return self._noted(name, old, "used", detail or self._source(name))
        rows = {label: row for row, label in enumerate(known or ())}
        matches = [(row, rows[label]) for row, label in enumerate(self.classes) if label in rows]
        if not matches:
            return self._noted(name, own, "initialized", "other classes")
        value = own.clone()
        for row, old_row in matches:
            value[row] = old[old_row]
        detail = f"{len(matches)} of {len(self.classes)} classes; the others are initialized"
        return self._noted(name, value, "matched by class", detail)

    def _resized(self, name: str, own: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        change = f"from {_shape(old)}"
        if name.endswith("positions_1ND") and old.shape[2] == own.shape[2]:
            module = self.model.get_submodule(name.rpartition(".")[0])
            prefix, new_grid = _grid_of(module)
            grid = self.start.grid or _square(old.shape[1] - prefix)
            if grid is not None:
                resized = resize_positions(old, prefix, grid, new_grid, self.start.resizing)
                return self._noted(name, resized, "resized", change)
        if name.startswith("patch_embedding.") and old.ndim == own.ndim == _KERNEL_AXES:
            kernel_DChw = adapt_channels(old, own.shape[1])
            resized = resize_kernel(kernel_DChw, (own.shape[2], own.shape[3]))
            if resized.shape == own.shape:
                return self._noted(name, resized, "resized", change)
        raise ConfigError(
            f"The weight '{name}' has the shape {_shape(own)} in the model, but {_shape(old)} in "
            f"model.init {self.start.origin}. Leave out the model's settings, or choose other "
            "weights."
        )

    def _noted(
        self, name: str, value: torch.Tensor, action: Action, detail: str = ""
    ) -> torch.Tensor:
        self.done.append(Assignment(name, action, _shape(value), detail))
        return value

    def _source(self, name: str) -> str:
        names = self.start.sources.get(name)
        if names is None:
            return ""
        return ", ".join(names) or "zeros: the file has none"


def _name_of_head(model: nn.Module, num_classes: int) -> str:
    """Return the name of the layer that ends a model; empty if it is not a linear one."""
    with contextlib.suppress(ConfigError):
        head = linear_head(model, num_classes)
        names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
        return names[head]
    return ""


def _is_below(name: str, module: str) -> bool:
    return bool(module) and name.startswith(f"{module}.")


def _grid_of(positions: nn.Module) -> tuple[int, tuple[int, int]]:
    prefix, grid = positions.prefix_tokens, positions.grid
    if not isinstance(prefix, int) or not isinstance(grid, tuple):
        raise TypeError(f"{type(positions).__name__} has no grid of positions")
    return prefix, grid


def _square(tokens: int) -> tuple[int, int] | None:
    side = math.isqrt(max(0, tokens))
    return (side, side) if side * side == tokens and side else None


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(str(side) for side in tensor.shape) or "scalar"


def _not_used(start: InitialWeights) -> list[Assignment]:
    return [Assignment(name, "not used", "", reason) for name, reason in start.skipped.items()]
