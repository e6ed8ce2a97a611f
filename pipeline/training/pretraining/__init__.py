"""Pre-training without labels: how well the objective is met on test images, and its report."""
