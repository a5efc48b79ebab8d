"""Attention overlays: rendering, file export and self-contained HTML pages."""
