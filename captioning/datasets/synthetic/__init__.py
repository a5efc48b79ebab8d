"""Synthetic dataset of geometric shapes, with known objects and captions."""
