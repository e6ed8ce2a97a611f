"""The training state on disk, from which training resumes bit for bit."""
