"""The table of labels that people give, which a page, a server and an editor write to."""
