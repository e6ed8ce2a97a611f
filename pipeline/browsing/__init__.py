"""What the MLflow UI shows of runs and models: saved views, names, descriptions, image grids."""
