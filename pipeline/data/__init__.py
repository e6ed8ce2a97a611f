"""From a folder of images to batches: manifest, splits, prepared store, augmentation, loader."""
