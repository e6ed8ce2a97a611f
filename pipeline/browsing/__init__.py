"""What people look at: views, names, descriptions and image grids in MLflow, results in notebooks."""
