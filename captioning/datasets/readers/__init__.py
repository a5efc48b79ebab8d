"""Readers of dataset layouts, one module each.

A reader has ``LAYOUT`` (a description for error messages), ``can_read(root)`` and ``read_records(root)``.
"""
