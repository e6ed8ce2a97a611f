"""The steps of the guide, from an image to the answer; `steps.txt.j2` has their words."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.evaluation.visual_guide import receptive_field
from patchline.pipeline.evaluation.visual_guide.pictures import (
    SIGNED,
    Picture,
    patches_uri,
    picture,
    png_uri,
    sheet_uri,
    tile,
)
from patchline.pipeline.evaluation.visual_guide.story import (
    Array,
    Bar,
    Bars,
    Chart,
    ChartLine,
    Figure,
    Shape,
    Step,
    Subject,
    line,
    rank,
    shape_of,
)
from patchline.pipeline.models.layers.layer_scale import LayerScale
from patchline.pipeline.models.layers.learned_positions import LearnedPositionEmbedding
from patchline.pipeline.models.layers.mlp import MLP
from patchline.pipeline.models.layers.pooling import (
    AttentionPooling,
    AveragePooling,
    ClassTokenPooling,
    SequencePooling,
)
from patchline.pipeline.models.layers.rotary_attention import RotarySelfAttention, grid_positions
from patchline.pipeline.models.layers.sine_cosine_positions import SineCosinePositionEmbedding
from patchline.pipeline.terminal_words import percent

_FILTERS = 28
"""As many as in figure 7 of arXiv 2010.11929."""
_SEARCHED_BESIDE = 60
"""Components that are computed beside the shown ones, so that these are accurate."""


def steps_of(subject: Subject) -> list[Step]:
    """Return the steps of one image, in the order of the page."""
    every = (
        _example,
        _image,
        _patches,
        _flattening,
        _projection,
        _tokens,
        _class_token,
        _positions,
        _input,
        _queries_keys_values,
        _scores,
        _softmax,
        _weighted_sum,
        _heads,
        _describe_concatenation,
        _residual,
        _mlp,
        _all_blocks,
        _reach,
        _journey,
        _answer,
        _attribution,
    )
    outside = (_example, _image, _answer, _attribution)
    return [step(subject) for step in (every if subject.traced.transformer else outside)]


def _example(subject: Subject) -> Step:
    """Return the step about the data: the photograph, its label, and the classes."""
    return subject.step("example", (subject.photo,))


def _image(subject: Subject) -> Step:
    """Return the step about the image as the model gets it."""
    pixels, input_CHW = subject.traced.pixels, subject.traced.input_CHW
    height, width, _ = pixels.shape
    alt = f"The image at {height} by {width} pixels, as it enters the model"
    return subject.step(
        "image",
        (picture(pixels, "photo", alt, "What the model sees"),),
        (shape_of("image", input_CHW, "C × H × W"),),
        low=input_CHW.min(),
        high=input_CHW.max(),
    )


def _patches(subject: Subject) -> Step:
    rows, columns = subject.inside.grid
    pixels = subject.traced.pixels
    if subject.projection is None:
        return _no_patches(subject)
    *_, high, wide = subject.projection.weight_DCpq.shape
    cut = Picture(
        patches_uri(pixels, (rows, columns)),
        f"The image cut into {rows} rows of {columns} patches",
        f"{rows} × {columns} patches, read like a page: left to right, top to bottom",
        display="photo",
        width=pixels.shape[1],
        height=pixels.shape[0],
        live="cut",
    )
    return subject.step(
        "patches",
        (cut,),
        (
            Shape(
                "patches",
                (rows * columns, high, wide, pixels.shape[2]),
                "n × p × p × C",
            ),
        ),
    )


def _no_patches(subject: Subject) -> Step:
    pixels = subject.traced.pixels
    height, width, channels = pixels.shape
    field = receptive_field.measure(
        subject.model.get_submodule("patch_embedding"), height, width, channels
    )
    high, wide = field.size
    least = "at least " if field.is_cut else ""
    influence = np.sqrt(field.influence_HW)[..., None]
    lit = (np.broadcast_to(pixels, (*pixels.shape[:2], 3)) * (0.15 + 0.85 * influence)).astype(
        np.uint8
    )
    figure = picture(
        lit,
        "photo",
        f"The image, lit where the token in the middle looks: {least}{high} by {wide} pixels",
        "Lit: the pixels that the token in the middle depends on",
    )
    return subject.step("patches", (figure,), applies=False, field=field)


def _flattening(subject: Subject) -> Step:
    projection = subject.projection
    if projection is None:
        return subject.step("flattening", applies=False)
    patch = int(projection.flat_nP.std(dim=1).argmax())  # the one with the most to see
    flat_P = projection.flat_nP[patch].numpy()
    return subject.step(
        "flattening",
        (
            picture(
                flat_P[None],
                "strip",
                f"The {len(flat_P)} values of patch {patch + 1} in one row",
                f"Patch {patch + 1}: blue is below the mean of the training images, orange above",
                "flat",
            ),
        ),
        (
            shape_of("xₚ", projection.flat_nP[patch], "p² C"),
            shape_of("all patches", projection.flat_nP, "n × p² C"),
        ),
        patch=patch,
    )


def _projection(subject: Subject) -> Step:
    projection = subject.projection
    if projection is None:
        return _convolutions(subject)
    weight_DCpq = projection.weight_DCpq
    embed_dim, _, high, wide = weight_DCpq.shape
    components = _components(weight_DCpq)
    return subject.step(
        "projection",
        (
            Picture(
                _filters_uri(components),
                f"The first {len(components)} principal components of the learned filters",
                f"First {len(components)} principal components of the {embed_dim} filters",
                width=7 * (wide + 1) - 1,
                height=-(-len(components) // 7) * (high + 1) - 1,
            ),
        ),
        (
            Shape("E", (weight_DCpq[0].numel(), embed_dim), "p² C × D"),
            shape_of("as a convolution", weight_DCpq, "D × C × p × p"),
        ),
        components=components,
    )


def _convolutions(subject: Subject) -> Step:
    """Return the step of an embedding that is not one linear map."""
    inside = subject.inside
    layers = [
        _filters(module)
        for module in subject.model.get_submodule("patch_embedding").modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    maps_Dhw = inside.patch_tokens.T.reshape(-1, *inside.grid)[:_FILTERS].numpy()
    limits = np.maximum(np.abs(maps_Dhw).max(axis=(1, 2), keepdims=True), 1e-12)
    sheet = tile(maps_Dhw / (2 * limits) + 0.5, 7)
    return subject.step(
        "projection",
        (
            Picture(
                sheet_uri(sheet, SIGNED),
                f"The first {len(maps_Dhw)} numbers of the tokens, each as a map of the image",
                "Orange is positive, blue negative; each map is scaled to its own maximum",
                width=sheet.shape[1],
                height=sheet.shape[0],
            ),
        ),
        (shape_of("feature map", inside.patch_tokens.T.reshape(-1, *inside.grid), "D × h × w"),),
        applies=False,
        layers=layers,
        maps=maps_Dhw,
    )


def _filters(layer: nn.Conv2d | nn.Linear) -> str:
    """Describe the filters of a layer, which may use each of its weights twice."""
    count = layer.out_channels if isinstance(layer, nn.Conv2d) else layer.out_features
    mirrored = " in mirrored pairs" if count > len(layer.weight) else ""
    return f"{count} filters of {' × '.join(map(str, layer.weight.shape[1:]))}{mirrored}"


def _components(weight_DCpq: torch.Tensor) -> Array:
    """Return the first principal components of the filters, scaled from 0 to 1: (k, p, p, C)."""
    centred = weight_DCpq.flatten(1) - weight_DCpq.flatten(1).mean(dim=0)
    count = min(_FILTERS, *centred.shape)
    searched = min(count + _SEARCHED_BESIDE, *centred.shape)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        # A whole SVD takes seconds for the 768 x 768 numbers of a ViT-B/16.
        _, _, directions_Pk = torch.svd_lowrank(centred, q=searched, niter=10)
    directions = directions_Pk[:, :count].T
    kCpq = directions.reshape(count, *weight_DCpq.shape[1:])
    largest = kCpq.abs().amax(dim=(1, 2, 3), keepdim=True)
    scaled: Array = (0.5 + 0.5 * kCpq / largest).permute(0, 2, 3, 1).numpy()
    return scaled


def _filters_uri(components_kpqC: Array) -> str:
    rgb = np.broadcast_to(components_kpqC, (*components_kpqC.shape[:3], 3))
    sheet = tile(rgb, 7)
    alpha = np.where(np.isnan(sheet[..., :1]), 0, 255)
    return png_uri(np.concatenate([np.nan_to_num(sheet) * 255, alpha], axis=-1).astype(np.uint8))


def _matrix_picture(subject: Subject, tokens: torch.Tensor, what: str) -> Picture:
    """Return the picture of a matrix with one row for each token."""
    rows, columns = tokens.shape
    return picture(
        tokens.numpy(),
        "matrix",
        f"{what}: a matrix of {rows} rows and {columns} columns",
        f"{rows} rows, one for each {'token' if rows > subject.inside.num_patches else 'patch'}; "
        f"{columns} columns. Blue is negative, orange positive",
    )


def _tokens(subject: Subject) -> Step:
    tokens_nD = subject.inside.patch_tokens
    return subject.step(
        "tokens",
        (_matrix_picture(subject, tokens_nD, "The patches' tokens"),),
        (shape_of("tokens", tokens_nD, "n × D"),),
    )


_MOST_MAPS = 14
"""Maps of positions along a side, at most."""


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
    sheet = tile(shown.reshape(-1, rows, columns), shown.shape[1])
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
    sheet = tile(maps_Ahw, across)
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
        (_matrix_picture(subject, tokens_ND, "The input of the first block"),),
        (shape_of("z₀", tokens_ND, f"(n + {P}) × D" if P else "n × D"),),
    )


_SHOWN_TOKENS = 6


def _token_map(subject: Subject, weights_XN: Array) -> Array:
    """Return the weights of the patches as maps (..., rows, columns)."""
    patches_Xn = weights_XN[..., len(subject.inside.prefix) :]
    mapped: Array = patches_Xn.reshape(*patches_Xn.shape[:-1], *subject.inside.grid)
    return mapped


def _scale_maps(subject: Subject, weights_XN: Array, columns: int) -> Array:
    """Return a sheet of maps of the patches' weights, each divided by its own maximum."""
    maps = _token_map(subject, weights_XN.reshape(-1, weights_XN.shape[-1]))
    return tile(maps / np.maximum(maps.max(axis=(1, 2), keepdims=True), 1e-12), columns)


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
                _token_map(subject, shown),
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
                _token_map(subject, row_N),
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
    best = rank(row_N)[:_SHOWN_TOKENS]
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
    best = rank(weights_N)[:_SHOWN_TOKENS]
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
                _scale_maps(subject, weights_AN, min(heads, 6)),
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


def _describe_concatenation(subject: Subject) -> Step:
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


def _strip(vector: Array, name: str) -> Picture:
    caption = f"{name}: mean {vector.mean():.3f}, standard deviation {vector.std():.3f}"
    return picture(vector[None], "strip", f"{name}: {len(vector)} numbers", caption)


def _residual(subject: Subject) -> Step:
    inside, token = subject.inside, subject.token
    before_ND = inside.blocks[0].tokens_in_BND[0].numpy()
    normed_ND = subject.part("block.attention_norm")
    branch = subject.part("block.attention_scale")
    branch_ND = branch if branch is not None else subject.part("block.attention")
    figures: list[Picture | Chart] = [_strip(before_ND[token], "Before the block, z₀")]
    if normed_ND is not None:
        figures.append(_strip(normed_ND[token], "After the norm, LN(z₀)"))
    if branch_ND is not None:
        figures.append(_strip(branch_ND[token], "What attention adds, MSA(LN(z₀))"))
        figures.append(_strip((before_ND + branch_ND)[token], "The sum, z′₁"))
    scales = subject.modules(LayerScale)
    figures.append(_lengths(subject))
    return subject.step(
        "residual",
        figures,
        (shape_of("z′₁", before_ND, "tokens × D"),),
        gain=scales[0].gain_D.detach().abs().mean() if scales else None,
    )


def _lengths(subject: Subject) -> Chart:
    inside = subject.inside
    outputs = [inside.blocks[0].tokens_in_BND, *(b.tokens_out_BND for b in inside.blocks)]
    lengths_LN = torch.stack([tokens[0].norm(dim=1) for tokens in outputs]).numpy()
    first = len(inside.prefix)
    series = [("patches, on average", lengths_LN[:, first:].mean(axis=1))]
    if first:
        series.insert(0, (inside.prefix[0], lengths_LN[:, 0]))
    return Chart(
        "Length of the tokens, as vectors, before block 1 (at 0) and after each block",
        "; ".join(f"{n}: from {v[0]:.2f} to {v[-1]:.2f}" for n, v in series),
        tuple(line(name, values, 0) for name, values in series),
        float(max(v.max() for _, v in series)),
        "after block",
    )


def _mlp(subject: Subject) -> Step:
    hidden_NM = subject.part("block.mlp.expand")
    active_NM = subject.part("block.mlp.activation")
    output_ND = subject.part("block.mlp")
    if hidden_NM is None or active_NM is None or output_ND is None:
        return subject.step("mlp", applies=False)
    token = subject.token
    activation = type(subject.modules(MLP)[0].get_submodule("activation")).__name__
    return subject.step(
        "mlp",
        (
            _strip(hidden_NM[token], f"Before {activation}"),
            _strip(active_NM[token], f"After {activation}"),
            _strip(output_ND[token], "What the MLP adds"),
        ),
        (
            shape_of("hidden", hidden_NM, "tokens × MLP size"),
            shape_of("MLP", output_ND, "tokens × D"),
            shape_of("z₁", subject.inside.blocks[0].tokens_out_BND[0], "tokens × D"),
        ),
        activation=activation,
        negative=float((hidden_NM[token] < 0).mean()),
    )


def _all_blocks(subject: Subject) -> Step:
    inside = subject.inside
    attention_LAN = inside.attention()[:, :, subject.token]
    layers, heads, _ = attention_LAN.shape
    rows = f"block 1 at the top, block {layers} at the bottom; " if layers > 1 else ""
    return subject.step(
        "blocks",
        (
            picture(
                _scale_maps(subject, attention_LAN, heads),
                "map",
                f"Attention of {subject.the_token}, blocks by heads: {layers} by {heads}",
                f"Attention of {subject.the_token}: {rows}each map is scaled to its own maximum",
            ),
        ),
        (
            Shape(
                "all attention",
                (layers, heads, inside.num_tokens, inside.num_tokens),
                "L × heads × tokens × tokens",
            ),
            shape_of("z_L", inside.blocks[-1].tokens_out_BND[0], "tokens × D"),
        ),
    )


def _reach(subject: Subject) -> Step:
    inside = subject.inside
    distances_LA = subject.distances_LA
    row_N = subject.rollout_row
    reader = "class token" if "class token" in inside.prefix else "tokens, on average"
    dots = tuple(
        (float(layer + 1), float(distance))
        for layer, heads in enumerate(distances_LA)
        for distance in heads
    )
    means = distances_LA.mean(axis=1)
    return subject.step(
        "reach",
        (
            Chart(
                "Mean attention distance of each head, in patches; the line is the block's mean",
                f"From {means[0]:.2f} patches in block 1 to {means[-1]:.2f} in block {len(means)}",
                (ChartLine("each head", dots, joined=False), line("mean of the block", means)),
                float(distances_LA.max()),
                "block",
            ),
            picture(
                _token_map(subject, row_N),
                "overlay",
                f"Rollout: how much of each patch reaches the {reader}",
                "Attention rollout",
            ),
        ),
        (shape_of("rollout", subject.rollout_NN, "tokens × tokens"),),
        reader=reader,
        share=float(row_N[len(inside.prefix) :].sum()),
    )


_SHOWN_CLASSES = 5
_POOLINGS = (ClassTokenPooling, AveragePooling, SequencePooling, AttentionPooling)


def _journey(subject: Subject) -> Step:
    readouts_LK = subject.inside.readouts_LK
    if readouts_LK is None:
        return subject.step("journey", applies=False)
    classes = subject.description.classes
    best = rank(readouts_LK[-1])[:_SHOWN_CLASSES]
    true = subject.true_label
    if true is not None and true not in best:
        best[-1] = true
    lines = tuple(line(classes[k], readouts_LK[:, k]) for k in best)
    leads = readouts_LK.argmax(axis=1).tolist()
    settled = max((i + 1 for i, lead in enumerate(leads) if lead != leads[-1]), default=0) + 1
    return subject.step(
        "journey",
        (
            Chart(
                "Probability of the "
                f"{'labels' if subject.description.is_multi_label else 'classes'} if the model "
                "ended after each block",
                "; ".join(f"{each.name}: {percent(each.points[-1][1], 2)}" for each in lines),
                lines,
                1.0,
                "after block",
                percent=True,
            ),
        ),
        (shape_of("probabilities", readouts_LK, "L × classes"),),
        leads=leads,
        settled=settled,
    )


def _answer(subject: Subject) -> Step:
    """Return the step about the answer; it suits every model."""
    traced, classes = subject.traced, subject.description.classes
    best = rank(traced.probabilities_K)[:_SHOWN_CLASSES]
    true = subject.true_label
    is_multi_label = subject.description.is_multi_label
    for shown in (*subject.labels, subject.attributions.label if is_multi_label else true):
        if shown is not None and shown not in best:
            best.append(shown)
    bars = Bars(
        "The most probable labels, the given ones marked: probability, and logit in brackets"
        if is_multi_label
        else "The most probable classes: probability, and logit in brackets",
        tuple(
            Bar(
                classes[k] + (" (true label)" if k == true else ""),
                float(traced.probabilities_K[k]),
                f"{percent(traced.probabilities_K[k], 2)} ({traced.logits_K[k]:.2f})",
                marked=k in subject.labels if is_multi_label else k == true,
            )
            for k in best
        ),
    )
    figures, pooling = _describe_pooling(subject) if traced.transformer else ([], "")
    return subject.step(
        "answer",
        (*figures, bars),
        (
            shape_of("logits", traced.logits_K, "classes"),
            shape_of("probabilities", traced.probabilities_K, "classes"),
        ),
        pooling=pooling,
        is_scaled=not math.isclose(subject.description.temperature, 1.0),
    )


def _describe_pooling(subject: Subject) -> tuple[list[Figure], str]:
    """Return the figure of the pooling, if there is one, and the pooling's name if it is known."""
    pooling = getattr(subject.model, "pooling", None)
    name = next((kind.__name__ for kind in _POOLINGS if isinstance(pooling, kind)), "")
    normed_ND, pooled_D = subject.part("norm"), subject.part("pooling")
    if not name or normed_ND is None:
        return [], ""
    if isinstance(pooling, SequencePooling):
        with torch.inference_mode():
            weights_N = torch.softmax(pooling.importance(torch.from_numpy(normed_ND)), dim=0)[:, 0]
        shown = picture(
            _token_map(subject, weights_N.numpy()),
            "overlay",
            "How much each token counts in the pooled vector",
            "Weights of the pooling",
        )
        return [shown], name
    if pooled_D is None:
        return [], name
    alt = f"The {len(pooled_D)} numbers that the head reads"
    return [picture(pooled_D[None], "strip", alt, "What the head reads, y")], name


# -- what the answer depends on --------------------------------------------------------------------


def _attribution(subject: Subject) -> Step:
    """Return the step about the cross-entropy, its gradient, and covering parts of the image."""
    attributions = subject.attributions
    probability = float(subject.traced.probabilities_K[attributions.label])
    rows, columns = attributions.grid
    worst = None
    figures: list[Figure] = [
        _draw_signed(
            attributions.gradient_hw,
            f"Predicted rise of the cross-entropy for each of {rows} by {columns} parts",
            "Predicted by the gradient",
        )
    ]
    if attributions.occlusion_hw is not None:
        worst = np.unravel_index(
            int(attributions.occlusion_hw.argmax()), attributions.occlusion_hw.shape
        )
        figures.append(
            _draw_signed(
                attributions.occlusion_hw,
                f"Measured rise of the cross-entropy for each of {rows} by {columns} parts",
                "Measured by covering",
            )
        )
    return subject.step(
        "attribution",
        figures,
        (
            shape_of("gradient", subject.traced.input_CHW, "C × H × W"),
            shape_of("map", attributions.gradient_hw, "parts"),
        ),
        loss=-math.log(max(probability, 1e-45)),
        worst=worst,
    )


def _draw_signed(values_hw: Array, alt: str, caption: str) -> Picture:
    return picture(
        values_hw,
        "signed",
        f"{alt}, from {values_hw.min():.3f} to {values_hw.max():.3f}",
        f"{caption}; strongest colour: {np.abs(values_hw).max():.3g}",
    )
