"""Specs that are wrong, with what is said of each beside it."""
