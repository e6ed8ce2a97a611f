"""Keep the features of some validation and test images while a model predicts them.

Shapes: N rows, B images of a batch, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.calibrated_models import Ensemble
from patchline.pipeline.models.probing.linear_head import find_classifying_head
from patchline.plugin_api import ImageSpec

Array = np.ndarray[Any, Any]
_MOST_IMAGES = 2000


def choose_rows(table: pd.DataFrame, seed: int) -> Array:
    """Return the rows of at most 2,000 validation and 2,000 test images, drawn at random.

    Args:
        table: usable rows of a manifest.
        seed: the seed of the draw.
    """
    parts = []
    for split in ("validation", "test"):
        rows = np.flatnonzero(table["split"] == split)
        drawn = np.random.default_rng(seed).permutation(rows)[:_MOST_IMAGES]
        parts.append(np.sort(drawn))
    return np.concatenate(parts)


class ChosenFeatures:
    """The features of some images, collected in the pass that predicts them.

    Args:
        rows: the rows of the store whose features are collected.

    Attributes:
        collected: features (D) by row.
    """

    def __init__(self, rows: Array) -> None:
        self._rows = {int(row) for row in rows}
        self.collected: dict[int, Array] = {}

    def take_kept(self, features: Mapping[int, Array]) -> None:
        """Take those of the images from features that were kept, by their row."""
        self.collected |= {row: value for row, value in features.items() if row in self._rows}

    @contextmanager
    def observing(
        self, model: nn.Module, image: ImageSpec, num_classes: int, rows: Array
    ) -> Iterator[Callable[[slice], None] | None]:
        """Observe a model within the context; call the result after each batch of `rows`.

        A model whose head has no features of one vector an image leaves none.
        """
        members = list(model.members) if isinstance(model, Ensemble) else [model]
        inputs: list[torch.Tensor | None] = [None] * len(members)
        with ExitStack() as stack:
            try:
                heads = [find_classifying_head(each, num_classes, image) for each in members]
            except ConfigError:
                yield None
                return
            for place, head in enumerate(heads):

                def keep(_: nn.Module, given: tuple[Any, ...], *, place: int = place) -> None:
                    inputs[place] = given[0]

                stack.callback(head.register_forward_pre_hook(keep).remove)

            def take(batch: slice) -> None:
                places = [i for i, row in enumerate(rows[batch]) if int(row) in self._rows]
                parts = [each for each in inputs if each is not None and each.ndim == 2]  # noqa: PLR2004 - (B, D)
                if not places or len(parts) < len(members):
                    return
                features_BD = torch.cat([part[places] for part in parts], dim=1).float().cpu()
                taken = rows[batch][places].tolist()
                self.collected |= dict(zip(taken, features_BD.numpy(), strict=True))

            yield take
