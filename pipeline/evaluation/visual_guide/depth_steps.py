"""The second half of a block, and what its repetition adds up to over the depth of the model."""

from __future__ import annotations

import torch

from patchline.pipeline.evaluation.visual_guide.attention_steps import scaled_maps, token_map
from patchline.pipeline.evaluation.visual_guide.pictures import Picture, picture
from patchline.pipeline.evaluation.visual_guide.story import (
    Array,
    Chart,
    ChartLine,
    Shape,
    Step,
    Subject,
    line,
    shape_of,
)
from patchline.pipeline.models.layers.layer_scale import LayerScale
from patchline.pipeline.models.layers.mlp import MLP


def depth_steps(subject: Subject) -> list[Step]:
    """Return the steps about residuals, the MLP, and the attention of all blocks."""
    return [_residual(subject), _mlp(subject), _all_blocks(subject), _reach(subject)]


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
                scaled_maps(subject, attention_LAN, heads),
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
                token_map(subject, row_N),
                "overlay",
                f"Rollout: how much of each patch reaches the {reader}",
                "Attention rollout",
            ),
        ),
        (shape_of("rollout", subject.rollout_NN, "tokens × tokens"),),
        reader=reader,
        share=float(row_N[len(inside.prefix) :].sum()),
    )
