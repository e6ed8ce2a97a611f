"""The parts of a training stage: one fit, folds, refit, ensemble, or a head alone."""
