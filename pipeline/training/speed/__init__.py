"""How fast training is, measured, and what follows: precision, threads, compilation."""
