"""One image file turned into pixels: the same for the store, the evaluation and every package."""
