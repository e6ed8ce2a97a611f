"""What a server understands: `/predict`, the Open Inference Protocol, MLflow's form, its page."""
