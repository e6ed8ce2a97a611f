"""The commands `patchline plugins list`, `show`, `check` and `new`."""
