"""Preprocessing of images and captions."""
