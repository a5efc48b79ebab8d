"""Command line: one module per command, each with ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(options)``."""
