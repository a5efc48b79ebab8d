"""Color gradients of attention overlays. The page in the browser uses the same values (``constants.js``)."""

from captioning.utils.errors import CaptioningError

Stop = tuple[float, float, float, float]

# Gradient stops from low to high attention: red, green, blue, and the alpha of the color at an opacity of 1. Except for
# spotlight, alpha rises with the attention, so that regions of low attention keep the colors of the image.
COLORMAPS: dict[str, tuple[Stop, ...]] = {
    # Darkens the image where attention is low. The brightness grows with the square root of the attention, so that
    # regions with some attention remain visible beside a peak.
    "spotlight": ((0, 0, 0, 1), (0, 0, 0, 0.5), (0, 0, 0, 0.29), (0, 0, 0, 0.13), (0, 0, 0, 0)),
    "hot": ((150, 0, 20, 0), (200, 20, 10, 0.4), (235, 70, 0, 0.75), (255, 165, 0, 0.95), (255, 245, 160, 1)),
    "viridis": (
        *((68, 1, 84, 0), (71, 44, 122, 0.125), (59, 81, 139, 0.25), (44, 113, 142, 0.375), (33, 144, 141, 0.5)),
        *((39, 173, 129, 0.625), (92, 200, 99, 0.75), (170, 220, 50, 0.875), (253, 231, 37, 1)),
    ),
}
# Darkening a night photo has no visible effect, so spotlight also brightens the region of high attention there.
DARK_SPOTLIGHT: tuple[Stop, ...] = ((0, 0, 0, 1), (30, 25, 10, 0.4), (255, 226, 150, 0.7))
DARK_LUMINANCE = 60  # mean luminance, 0 to 255, below which an image counts as dark
DEFAULT_OPACITY = 0.65


def colormap_stops(colormap: str, opacity: float, is_dark: bool = False) -> list[list[float]]:
    """Return the gradient stops [red, green, blue, alpha] from low to high attention.

    Args:
        colormap: a key of :data:`COLORMAPS`.
        opacity: factor of the alpha values, 0 to 1.
        is_dark: the image is dark.
    """
    if colormap not in COLORMAPS:
        raise CaptioningError(f"unknown colormap '{colormap}'; choose one of {', '.join(COLORMAPS)}")
    if not 0 <= opacity <= 1:
        raise CaptioningError(f"opacity must be in [0, 1], got {opacity}; 0 hides the map, 1 hides the image")
    stops = DARK_SPOTLIGHT if is_dark and colormap == "spotlight" else COLORMAPS[colormap]
    return [[*color, round(alpha * opacity, 4)] for *color, alpha in stops]
