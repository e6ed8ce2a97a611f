"""Prefect flows and the command line. Each task calls one function of the library."""
