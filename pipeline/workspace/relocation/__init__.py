"""A workspace that was moved, copied, exported or imported follows its own folder."""
