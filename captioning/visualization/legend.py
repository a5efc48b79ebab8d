"""Explanations that overlays and pages show beside attention maps."""

import math

OUTLINE = "Outline: the smallest region that holds half of the attention."
SINGLE_LOCATION = "Yellow square: the attended location. Frame: its receptive field. Line: the path from word to word."
COLORMAP_LEGENDS = {
    "spotlight": "Bright: high attention. Dark: low attention.",
    "hot": "Yellow: high attention. Red: medium. No color: low attention.",
    "viridis": "Yellow: high attention. Green, blue: medium. No color: low attention.",
}
GATE = '"gate": weight of the image for this word (\u03b2).'


def percent(fraction: float) -> str:
    return f"{math.floor(100 * fraction + 0.5)} %"  # rounds like the viewer in the browser


def word_details(prob: float, area: float | None, gate: float | None) -> list[str]:
    """Return the values that are shown beside a word.

    Args:
        prob: probability of the word.
        area: result of :func:`captioning.visualization.concentration.half_attention_area`; None for a single location.
        gate: the gate of the word; None without a gate.
    """
    details = [percent(prob)]
    if area is not None:
        details.append(f"half in {percent(area)}")
    if gate is not None:
        details.append(f"gate {gate:.2f}")
    return details


def sheet_legend(colormap: str, has_single_locations: bool, has_gates: bool) -> str:
    """Return the legend of a sheet with a panel per word."""
    parts = ["Percentage: probability of the word."]
    if has_single_locations:
        parts.append(SINGLE_LOCATION)
    else:
        parts += [COLORMAP_LEGENDS[colormap], OUTLINE, '"half in": its area.']
    if has_gates:
        parts.append(GATE)
    return " ".join(parts)
