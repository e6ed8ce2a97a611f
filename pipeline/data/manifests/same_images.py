"""Find images that are the same: those with the same pixels, or the same file.

The same picture saved as PNG and as BMP has two file digests and one pixel digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]

FILE, PIXELS, GROUP = "sha256", "pixels", "group"


def pixel_digest(image_HWC: Array) -> str:
    """Return 32 hexadecimal digits over the shape and the pixels of a decoded uint8 image.

    XXH3 takes no time beside decoding, and no accident makes two images alike. Somebody can make
    two on purpose; so what must be certain, a file's identity, is its SHA-256.
    """
    digest = xxhash.xxh3_128(repr(image_HWC.shape).encode())
    digest.update(np.ascontiguousarray(image_HWC).data)
    return digest.hexdigest()


def content_numbers(*manifests: pd.DataFrame) -> list[pd.Series[int]]:
    """Return a number for each row of each manifest, equal where two rows hold the same image.

    Each result has the index of its manifest; the numbers are comparable across all manifests.
    """
    import pandas as pd

    keys = [pd.concat([column_of(table, key) for table in manifests]) for key in (FILE, PIXELS)]
    numbers = unite(*keys)
    ends = np.cumsum([len(table) for table in manifests])[:-1]
    parts = np.split(numbers, ends)
    return [
        pd.Series(part, index=table.index) for part, table in zip(parts, manifests, strict=True)
    ]


def with_copies(manifest: pd.DataFrame) -> Array:
    """Return which rows (N,) share their file or their pixels with another one."""
    shared = np.zeros(len(manifest), np.bool_)
    for key in (FILE, PIXELS):
        values = column_of(manifest, key)
        shared |= (values.duplicated(keep=False) & (values != "")).to_numpy()
    return shared


def column_of(manifest: pd.DataFrame, key: str) -> pd.Series[str]:
    """Return a column of a manifest, with empty texts where it has no value."""
    import pandas as pd

    if key not in manifest:
        return pd.Series("", index=manifest.index, dtype=object)
    return manifest[key].astype(object).fillna("")


def units_of(manifest: pd.DataFrame) -> Array:
    """Return a number for each row, the same for images of one group, one file or the same pixels.

    Such images belong together: what is fitted on one of them has seen the others.
    """
    return unite(*(column_of(manifest, key) for key in (FILE, PIXELS, GROUP)))


def unite(*keys: pd.Series[str]) -> Array:
    """Return a number for each row, the same for rows connected by shared keys.

    Args:
        keys: columns of equal length; an empty text connects nothing.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(keys[0])
    rows, values, nodes = [], [], count
    for key in keys:
        there = np.flatnonzero((key != "").to_numpy())
        codes, uniques = key.iloc[there].factorize()
        rows.append(there)
        values.append(codes + nodes)
        nodes += len(uniques)
    edges = (np.concatenate(rows), np.concatenate(values))
    graph = coo_array((np.ones(len(edges[0]), np.bool_), edges), shape=(nodes, nodes))
    _, components = connected_components(graph, directed=False)
    _, numbers = np.unique(components[:count], return_inverse=True)
    return numbers
