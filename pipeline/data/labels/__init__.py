"""Labels: which part of a path or a table names the class, and which names look wrong."""
