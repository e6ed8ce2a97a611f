"""Folders watched for new images, which start a training run."""
