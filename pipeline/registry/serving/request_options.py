"""What a request may ask for beside the answer, whichever interface it uses."""

from __future__ import annotations

from dataclasses import dataclass

TOP_K = 5


@dataclass(frozen=True)
class Options:
    """What a request asks for beside the answer."""

    top_k: int = TOP_K
    """Number of classes in an answer."""
    with_map: bool = False
    """Whether an answer says where the model looked."""
    coverage: float | None = None
    """Probability that the set holds the true class; None for the package's own."""
    with_inside: bool = False
    """Whether an answer has what the server's page shows of each block."""
    is_traffic: bool = True
    """Whether the images are recorded, if the server records its traffic."""
