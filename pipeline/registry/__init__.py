"""The model registry: versions, promotion through gates and the paired test, rollback, history."""
