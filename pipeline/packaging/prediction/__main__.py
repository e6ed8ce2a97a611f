"""The worker for a part of the images: `python -P -m patchline.pipeline.packaging.prediction`.

The launcher of a command may place several of them, on this machine or on others.
"""

from __future__ import annotations

from patchline.pipeline.packaging.prediction.batch_prediction import PREDICTION, predict_part

if __name__ == "__main__":
    PREDICTION.main(predict_part)
