"""Tells people: one message for each change of the node, or of a critical service."""
