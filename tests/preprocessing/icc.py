"""ICC profiles with the tone curve of sRGB and other primaries."""

import struct

# Columns X, Y, Z of the primaries, adapted to the white point D50 of the profile connection space.
SRGB = ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410))
DISPLAY_P3 = ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407))
_D50 = (0.96420, 1.0, 0.82491)


def matrix_profile(primaries: tuple[tuple[float, float, float], ...]) -> bytes:
    """Build an ICC profile (version 4) of an RGB display."""
    curve = b"para\0\0\0\0" + struct.pack(">HH", 3, 0) + _fixed(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    text = "test".encode("utf-16-be")
    name = b"mluc\0\0\0\0" + struct.pack(">II", 1, 12) + b"enUS" + struct.pack(">II", len(text), 28) + text
    tags = [(b"desc", name), (b"cprt", name), (b"wtpt", b"XYZ \0\0\0\0" + _fixed(*_D50))]
    for channel, xyz in zip(b"rgb", primaries, strict=True):
        tags.append((bytes([channel]) + b"XYZ", b"XYZ \0\0\0\0" + _fixed(*xyz)))
        tags.append((bytes([channel]) + b"TRC", curve))
    table, body = struct.pack(">I", len(tags)), b""
    for signature, data in tags:
        table += signature + struct.pack(">II", 128 + 4 + 12 * len(tags) + len(body), len(data))
        body += data + b"\0" * (-len(data) % 4)
    size = 128 + len(table) + len(body)
    header = struct.pack(">I4sI4s4s4s", size, b"\0" * 4, 0x04000000, b"mntr", b"RGB ", b"XYZ ")
    header += struct.pack(">6H4s", 2026, 1, 1, 0, 0, 0, b"acsp") + b"\0" * 28 + _fixed(*_D50)
    return header.ljust(128, b"\0") + table + body


def _fixed(*values: float) -> bytes:
    return b"".join(struct.pack(">i", round(value * 65536)) for value in values)
