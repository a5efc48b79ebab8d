"""Evaluation of captions and of attention maps."""
