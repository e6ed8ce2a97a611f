"""The programs of `patchline up`: a supervisor, the two servers, a runner and a keeper."""
