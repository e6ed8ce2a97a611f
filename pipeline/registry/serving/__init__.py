"""One packaged model behind an HTTP address, without torch, MLflow or Prefect."""
