"""The middle of the guide: self-attention in the first block, value by value."""

from __future__ import annotations

import numpy as np

from patchline.pipeline.evaluation.visual_guide.pictures import picture, tiled
from patchline.pipeline.evaluation.visual_guide.story import (
    Array,
    Bar,
    Bars,
    Step,
    Subject,
    ranked,
    shape_of,
)

_SHOWN_TOKENS = 6


def attention_steps(subject: Subject) -> list[Step]:
    """Return the steps from queries, keys and values to the projected heads."""
    return [
        _queries_keys_values(subject),
        _scores(subject),
        _softmax(subject),
        _weighted_sum(subject),
        _heads(subject),
        _concatenated(subject),
    ]


def token_map(subject: Subject, weights_XN: Array) -> Array:
    """Return the weights of the patches as maps (..., rows, columns)."""
    patches_Xn = weights_XN[..., len(subject.inside.prefix) :]
    mapped: Array = patches_Xn.reshape(*patches_Xn.shape[:-1], *subject.inside.grid)
    return mapped


def scaled_maps(subject: Subject, weights_XN: Array, columns: int) -> Array:
    """Return a sheet of maps of the patches' weights, each divided by its own maximum."""
    maps = token_map(subject, weights_XN.reshape(-1, weights_XN.shape[-1]))
    return tiled(maps / np.maximum(maps.max(axis=(1, 2), keepdims=True), 1e-12), columns)


def _queries_keys_values(subject: Subject) -> Step:
    values = subject.inside.blocks[0].attention
    head = subject.head
    three = {
        "queries": values.query_BHNd[0, head],
        "keys": values.key_BHNd[0, head],
        "values": values.value_BHNd[0, head],
    }
    N, head_dim = three["keys"].shape
    figures = tuple(
        picture(
            matrix.numpy(),
            "matrix",
            f"The {name} of head {head + 1}: {N} rows, {head_dim} columns",
            name.capitalize(),
        )
        for name, matrix in three.items()
    )
    return subject.step(
        "queries-keys-values",
        figures,
        (
            shape_of("Q", three["queries"], "tokens × d"),
            shape_of("K", three["keys"], "tokens × d"),
            shape_of("V", three["values"], "tokens × d"),
        ),
    )


def _scores(subject: Subject) -> Step:
    values = subject.inside.blocks[0].attention
    scores_NN = values.scores_BHNN[0, subject.head].numpy()
    row_N = scores_NN[subject.token]
    finite = np.isfinite(row_N)
    low, high = float(row_N[finite].min()), float(row_N[finite].max())
    name = subject.the_token
    shown = np.where(finite, (row_N - low) / max(1e-9, high - low), 0.0)
    return subject.step(
        "scores",
        (
            picture(
                token_map(subject, shown),
                "overlay",
                f"Map of the scores of {name} with every patch",
                f"Scores of {name} in block 1, head {subject.head + 1}: bright is high",
                "scores",
            ),
        ),
        (shape_of("Q Kᵀ / √d", values.scores_BHNN[0, subject.head], "tokens × tokens"),),
        root=values.query_BHNd.shape[-1] ** 0.5,
        low=low,
        high=high,
    )


def _softmax(subject: Subject) -> Step:
    weights_NN = subject.inside.blocks[0].attention.weights_BHNN[0, subject.head].numpy()
    row_N, name = weights_NN[subject.token], subject.the_token
    return subject.step(
        "softmax",
        (
            picture(
                token_map(subject, row_N),
                "overlay",
                f"Map of the attention of {name} in block 1, head {subject.head + 1}",
                f"Attention of {name} in block 1, head {subject.head + 1}"
                + _elsewhere(subject, row_N),
                "attention",
            ),
            Bars(
                "The largest shares in this row",
                _largest(subject, row_N),
                live="largest",
            ),
        ),
        (shape_of("A", subject.inside.blocks[0].attention.weights_BHNN[0, 0], "tokens × tokens"),),
        total=row_N.sum(),
    )


def _elsewhere(subject: Subject, row_N: Array) -> str:
    """Return how much attention the map does not show, for its caption."""
    first = len(subject.inside.prefix)
    if not first:
        return ""
    whose = "the class token" if first == 1 else "tokens that are not patches"
    return f"; {row_N[:first].sum():.1%} goes to {whose}"


def _largest(subject: Subject, row_N: Array) -> tuple[Bar, ...]:
    best = ranked(row_N)[:_SHOWN_TOKENS]
    top = float(row_N[best[0]]) or 1.0
    return tuple(
        Bar(subject.inside.token_name(token), float(row_N[token]) / top, f"{row_N[token]:.4f}")
        for token in best
    )


def _weighted_sum(subject: Subject) -> Step:
    attention = subject.inside.blocks[0].attention
    head, token = subject.head, subject.token
    weights_N = attention.weights_BHNN[0, head, token].numpy()
    values_Nd = attention.value_BHNd[0, head].numpy()
    best = ranked(weights_N)[:_SHOWN_TOKENS]
    weighted = weights_N[best, None] * values_Nd[best]
    mixed_d = attention.mixed_BHNd[0, head, token].numpy()
    rest_d = mixed_d - weighted.sum(axis=0)
    rows = np.concatenate([weighted, rest_d[None], mixed_d[None]])
    names = map(subject.inside.token_name, best)
    return subject.step(
        "weighted-sum",
        (
            picture(
                rows,
                "matrix",
                "Weighted values of the tokens with the largest shares, the rest, and their sum",
                f"From top to bottom: {', '.join(names)}, all others, and in the last row the sum",
            ),
        ),
        (shape_of("A V", attention.mixed_BHNd[0, head], "tokens × d"),),
    )


def _heads(subject: Subject) -> Step:
    weights_AN = subject.inside.blocks[0].attention.weights_BHNN[0, :, subject.token].numpy()
    heads = len(weights_AN)
    return subject.step(
        "heads",
        (
            picture(
                scaled_maps(subject, weights_AN, min(heads, 6)),
                "map",
                f"A map of the attention of {subject.the_token} for each head of block 1",
                f"Attention of {subject.the_token} in block 1, head 1 to {heads}; each "
                "map is scaled to its own maximum",
                "heads",
            ),
        ),
        (
            shape_of(
                "A, all heads",
                subject.inside.blocks[0].attention.weights_BHNN[0],
                "heads × tokens × tokens",
            ),
        ),
    )


def _concatenated(subject: Subject) -> Step:
    mixed_ANd = subject.inside.blocks[0].attention.mixed_BHNd[0]
    joined_ND = mixed_ANd.transpose(0, 1).flatten(1)
    projected_ND = subject.part("block.attention")
    strips = [("Heads, one after the other", joined_ND[subject.token].numpy())]
    shapes = [shape_of("concatenated", joined_ND, "tokens × heads · d")]
    if projected_ND is not None:
        strips.append(("After the projection", projected_ND[subject.token]))
        shapes.append(shape_of("MSA", projected_ND, "tokens × D"))
    return subject.step(
        "concatenation",
        tuple(
            picture(vector[None], "strip", f"{name}: {len(vector)} numbers", name)
            for name, vector in strips
        ),
        shapes,
        joined=joined_ND.shape[1],
    )
