"""Stored logits of the outside models, so that what they say can be checked where they are not installed."""
