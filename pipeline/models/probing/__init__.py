"""Linear probing: features of a frozen model, computed once and kept, and a head fitted on them."""
