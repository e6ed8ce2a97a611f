"""Teachers: models whose predictions other models are trained towards (knowledge distillation)."""
