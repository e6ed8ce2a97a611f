"""Where the stages of a run compute: on this machine, or on a cluster."""
