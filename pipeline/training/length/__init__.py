"""How long training takes: its steps by epochs or a time limit, and its validations."""
