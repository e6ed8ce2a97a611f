"""When validation images are too few to choose by, so that training images are held out too."""

from __future__ import annotations

FEWEST_VALIDATION = 50
"""With fewer validation images, training images are held out too."""
FOLDS_OF_BLOCKS = 2
"""Parts of the training images, each predicted by a fit of the last blocks without it."""
