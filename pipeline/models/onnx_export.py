"""Write a module as an ONNX file with a free batch size."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from patchline.pipeline.errors import PackagingError, first_line
from patchline.pipeline.workspace.files.atomic_files import replace_file

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # torch colours its errors


def write_onnx(
    module: nn.Module,
    example: torch.Tensor,
    file: Path,
    *,
    input_name: str,
    output_names: Sequence[str],
) -> None:
    """Export with torch's exporter; the first dimension is dynamic, the weights are in the file.

    Args:
        module: a module that maps one tensor to one tensor, or to several; put into evaluation
            mode.
        example: an input with a batch of at least 2.
        file: the ONNX file to write; it is whole or absent afterwards.
        input_name: the name of the input in the file.
        output_names: the names of the outputs in the file.

    Raises:
        PackagingError: if torch cannot export it.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), replace_file(file) as temporary:
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                module.eval(),
                (example,),
                str(temporary),
                input_names=[input_name],
                output_names=list(output_names),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # torch documents no class for what it cannot export
            reason = first_line(error.__cause__ or error)
            raise PackagingError(
                f"The model cannot be exported to ONNX: {_ESCAPES.sub('', reason)}. Change the "
                "model so that torch.onnx.export(dynamo=True) accepts it."
            ) from error
        _without_traces(temporary)


def _without_traces(file: Path) -> None:
    """Remove what torch notes at each node: its stack, with the paths of this machine."""
    import onnx

    model = onnx.load(file)
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in nodes:
            del node.metadata_props[:]
    for values in (model.graph.value_info, model.graph.input, model.graph.output):
        for value in values:
            del value.metadata_props[:]
    del model.graph.metadata_props[:]
    onnx.save(model, file)
