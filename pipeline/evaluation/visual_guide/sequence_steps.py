"""The next steps of the guide: from the patches' tokens to the input of the first block."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from patchline.pipeline.evaluation.visual_guide.embedding_steps import matrix_picture
from patchline.pipeline.evaluation.visual_guide.pictures import (
    SIGNED,
    Picture,
    picture,
    sheet_uri,
    tiled,
)
from patchline.pipeline.evaluation.visual_guide.story import Step, Subject, shape_of
from patchline.pipeline.models.layers.learned_positions import LearnedPositionEmbedding
from patchline.pipeline.models.layers.rotary_attention import RotarySelfAttention, grid_positions
from patchline.pipeline.models.layers.sine_cosine_positions import SineCosinePositionEmbedding

_MOST_MAPS = 14
"""Maps of positions along a side, at most."""


def sequence_steps(subject: Subject) -> list[Step]:
    """Return the steps about the class token, the positions and the input."""
    return [_class_token(subject), _positions(subject), _input(subject)]


def _class_token(subject: Subject) -> Step:
    joined_ND = subject.part("class_token")
    if "class token" not in subject.inside.prefix or joined_ND is None:
        return subject.step("class-token", applies=False)
    vector = joined_ND[:1]
    return subject.step(
        "class-token",
        (
            picture(
                vector,
                "strip",
                f"The {vector.shape[1]} numbers of the class token",
                "The class token",
            ),
        ),
        (shape_of("sequence", joined_ND, "(n + 1) × D"),),
    )


# -- positions -------------------------------------------------------------------------------------


def _positions(subject: Subject) -> Step:
    inside = subject.inside
    vectors = _position_vectors(subject)
    if vectors is None:
        rotary = subject.modules(RotarySelfAttention)
        return _rotary(subject, rotary[0]) if rotary else subject.step("positions", applies=False)
    return subject.step(
        "positions",
        (_similarity(vectors[-inside.num_patches :], inside.grid),),
        (shape_of("E_pos", vectors, "tokens × D"),),
        learned=subject.modules(LearnedPositionEmbedding),
    )


def _position_vectors(subject: Subject) -> torch.Tensor | None:
    for module in subject.modules(LearnedPositionEmbedding, SineCosinePositionEmbedding):
        if isinstance(module, LearnedPositionEmbedding):
            return module.on_grid(subject.inside.grid)[0].detach()
        if isinstance(module, SineCosinePositionEmbedding):
            return module.positions_1ND[0]
    return None


def _similarity(patches_nD: torch.Tensor, grid: tuple[int, int]) -> Picture:
    rows, columns = grid
    unit = functional.normalize(patches_nD, dim=1)
    maps = (unit @ unit.T).numpy().reshape(rows, columns, rows, columns)
    every = -(-max(grid) // _MOST_MAPS)
    shown = maps[::every, ::every]
    sheet = tiled(shown.reshape(-1, rows, columns), shown.shape[1])
    lowest = float(np.nanmin(sheet))
    note = f" (every {every}th place)" if every > 1 else ""
    return picture(
        (sheet - lowest) / max(1e-9, 1 - lowest),
        "map",
        "For each place of the grid, a map of how similar its position vector is to all others",
        f"One map for each place{note}; cosine similarity from {lowest:.2f} (dark) to 1 (bright)",
    )


def _rotary(subject: Subject, attention: RotarySelfAttention) -> Step:
    rows, columns = subject.inside.grid
    places_N2 = grid_positions(subject.inside.grid)
    middle_2 = torch.tensor([(columns - 1) // 2, (rows - 1) // 2])
    x_N, y_N = (places_N2 - middle_2).T
    x_AF, y_AF = attention.frequencies_2HF.detach()
    angles_ANF = x_N[None, :, None] * x_AF[:, None] + y_N[None, :, None] * y_AF[:, None]
    maps_Ahw = angles_ANF.cos().mean(dim=-1).reshape(-1, rows, columns).numpy()
    across = min(len(maps_Ahw), 6)
    sheet = tiled(maps_Ahw, across)
    return subject.step(
        "positions",
        (
            Picture(
                sheet_uri((sheet + 1) / 2, SIGNED),
                "For each head, a map of the match that rotation leaves by distance",
                f"One map for each of the {len(maps_Ahw)} heads: orange is a full match, blue the "
                "opposite",
                width=sheet.shape[1],
                height=sheet.shape[0],
            ),
        ),
        (shape_of("frequencies", attention.frequencies_2HF, "2 × heads × d / 2"),),
        applies=False,
    )


def _input(subject: Subject) -> Step:
    tokens_ND = subject.inside.blocks[0].tokens_in_BND[0]
    P = len(subject.inside.prefix)
    return subject.step(
        "input",
        (matrix_picture(subject, tokens_ND, "The input of the first block"),),
        (shape_of("z₀", tokens_ND, f"(n + {P}) × D" if P else "n × D"),),
    )
