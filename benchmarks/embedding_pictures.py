"""Draw every built-in patch embedding on one photograph: a picture for each, and an overview.

python -m benchmarks.embedding_pictures FOLDER [PHOTO]
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.plugin_system.plugin_loader import installed
from pipeline.visual_guide.patch_embedding_picture import (
    draw_overview,
    draw_view,
    load_photo,
    save_figure,
    view,
)

OWNER = "patchline"
OVERVIEW = "overview.png"


def main() -> None:
    """Write the pictures, and print a line for each."""
    folder = Path(sys.argv[1])
    photo = load_photo(Path(sys.argv[2]) if len(sys.argv) > 2 else None)  # noqa: PLR2004 - arguments
    names = [entry.name for entry in installed("patch_embedding") if entry.distribution == OWNER]
    views = [view(name, {}) for name in names]
    for shown in views:
        file = save_figure(draw_view(shown, photo), folder / f"{shown.name}.png")
        print(f"{file}: {' '.join(shown.caption.split())}")
    print(save_figure(draw_overview(views, photo), folder / OVERVIEW))


if __name__ == "__main__":
    main()
