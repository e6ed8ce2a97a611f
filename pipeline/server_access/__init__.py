"""Who may use the servers of `patchline up`: the gate before each, and how browsers sign in."""
