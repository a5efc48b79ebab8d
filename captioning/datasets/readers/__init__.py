"""Readers of dataset layouts, one module each.

A reader has ``LAYOUT`` (a description for error messages), ``can_read(root)`` and ``read_records(root)``. To add one,
add its module to ``READERS``.
"""

from captioning.datasets.readers import coco, custom, flickr8k, flickr30k, karpathy

# Karpathy's JSON is tried first: it often lies beside the files of a dataset, and papers report results on its splits.
READERS = (karpathy, flickr8k, flickr30k, coco, custom)
