"""Tensors as values: described, kept in a content-addressed store, and rebuilt."""
