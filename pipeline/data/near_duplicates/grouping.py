"""Near duplicates as groups of a manifest, so that they are never in different splits or folds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.answer_columns import NEAR
from patchline.pipeline.data.manifests.manifest import usable
from patchline.pipeline.data.manifests.same_images import GROUP, column_of, content_numbers, unite
from patchline.pipeline.data.near_duplicates.search import Progress, near_duplicates
from patchline.pipeline.data.near_duplicates.search_memory import SearchMemory
from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector
from patchline.pipeline.terminal_words import counted

Array = np.ndarray[Any, Any]
_NAME_DIGITS = 12


def with_near_groups(
    manifest: pd.DataFrame,
    thumbnails: ThumbnailCollector,
    on_progress: Progress | None = None,
    memory: SearchMemory | None = None,
) -> tuple[pd.DataFrame, str]:
    """Return the manifest with images that nearly show the same in one group, and how many are.

    Groups that near duplicates connect become one. A group has the first of the names that its
    images had; without any, it is named by the first of their digests.

    Args:
        manifest: a manifest that is not yet split.
        thumbnails: the thumbnails of all usable images.
        on_progress: called while the images are compared.
        memory: knows the images that an earlier search has compared.
    """
    rows = usable(manifest)
    near_N = near_duplicates(thumbnails.of(rows["path"]), rows, on_progress, memory)
    return group_by(manifest, near_N)


def group_by(manifest: pd.DataFrame, near_N: Array) -> tuple[pd.DataFrame, str]:
    """Return the manifest with images of the same number in one group, and how many are.

    Args:
        manifest: a manifest that is not yet split.
        near_N: a number for each usable image, equal for images that are nearly the same.
    """
    rows = usable(manifest)
    groups = column_of(rows, GROUP)
    units_N = unite(groups, pd.Series(near_N.astype(str), index=rows.index))
    contents_N = content_numbers(rows)[0].to_numpy()
    contents_by_near = pd.Series(contents_N).groupby(near_N)
    together_N = contents_by_near.transform("nunique").to_numpy() > 1
    changed_N = np.isin(units_N, units_N[together_N])
    names = rows["sha256"].str[:_NAME_DIGITS].radd(NEAR)
    key = groups.where(groups != "", names)
    order = pd.DataFrame({"unit": units_N, "unnamed": groups == "", "key": key})
    first = order.sort_values(["unit", "unnamed", "key"]).drop_duplicates("unit")
    name_of = first.set_index("unit")["key"]
    group = groups.to_numpy(object, copy=True)
    group[changed_N] = name_of.loc[units_N[changed_N]].to_numpy(object)
    grouped = manifest.copy()
    places = np.flatnonzero((manifest["status"] == "ok").to_numpy())
    column = manifest[GROUP].to_numpy(object, copy=True)
    column[places] = group
    grouped[GROUP] = column
    count = len(np.unique(near_N[together_N]))
    images = int(together_N.sum())
    kept = f"kept together in {counted(count, 'group')}"
    return grouped, f"{images:,} images are near duplicates of others, {kept}"
