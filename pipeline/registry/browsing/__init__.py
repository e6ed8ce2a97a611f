"""What people look at: names, views and image grids in the MLflow UI; results in notebooks."""
