"""What people see of runs and models in the MLflow UI: views, names, descriptions, images."""
