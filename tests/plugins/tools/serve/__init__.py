"""Tests of `patchline.plugins.tools.serve`; those of the server are beside the registry's."""
