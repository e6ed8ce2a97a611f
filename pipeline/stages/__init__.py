"""The spine: what a run consists of, one file for each stage, in the order of `lines.py`."""
