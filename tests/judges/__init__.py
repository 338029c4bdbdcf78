"""Judges of our bytes that we did not write: Apache's own classes, and kio."""
