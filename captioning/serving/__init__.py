"""Web page and REST API of ``captioning serve``."""
