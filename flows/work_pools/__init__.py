"""Workers of a team's work pools, on any machine that shares the workspace."""
