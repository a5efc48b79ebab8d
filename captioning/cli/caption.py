"""``captioning caption``: captions of images, and attention overlays."""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioning.cli.generation_flags import add_generation_flags, generation_options
from captioning.cli.model_checks import check_generation_flags
from captioning.models.pretrained import DEFAULT_MODEL, PRETRAINED, check_model_exists
from captioning.preprocessing.download import is_url
from captioning.preprocessing.find_images import find_images
from captioning.utils.errors import CaptioningError
from captioning.utils.xmp import write_sidecar
from captioning.visualization.colormaps import DEFAULT_OPACITY, colormap_stops
from captioning.visualization.formats import check_formats

if TYPE_CHECKING:
    from captioning.caption import Caption
    from captioning.visualization.export import OverlayWriter

DESCRIPTION = (
    "Caption images. Prints one line per caption: the image and the caption, separated by a tab, as in a TSV file. "
    "Images that cannot be read are reported on stderr; the others are captioned. Overlays other than html, and "
    "sidecars, contain the best caption of each image only."
)

_OVERLAY_FLAGS = ("overlay_format", "colormap", "opacity", "panel_width")  # have an effect with --overlay-dir only


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "images",
        nargs="*",
        metavar="IMAGE",
        help="an image file, a directory, a glob like 'a/*.jpg', an http(s) URL, or - for standard input",
    )
    parser.add_argument(
        "--model",
        nargs="+",
        default=[DEFAULT_MODEL],
        metavar="MODEL",
        help=f"a pretrained model ({', '.join(PRETRAINED)}) or the .safetensors file of a training run; several form "
        f"an ensemble, which averages their word probabilities and attention maps (default {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per image instead of text, also for images that fail"
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per batch (default 32)")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="random seed of sampling; the result also depends on the images and the batch size (default 0)",
    )
    parser.add_argument(
        "--num-return-sequences", type=int, default=1, metavar="N", help="captions per image (default 1)"
    )
    parser.add_argument(
        "--attention-mode",
        choices=("expectation", "argmax", "sample"),
        help="hard attention at inference: 'argmax' uses the most probable location, 'sample' draws one, "
        "'expectation' averages all locations by their attention weights (default: that of the model)",
    )
    parser.add_argument(
        "--write",
        choices=("xmp",),
        help="write each caption to an XMP sidecar, photo.jpg.xmp, that photo programs read; photos are not changed",
    )
    add_generation_flags(parser)
    group = parser.add_argument_group("attention overlays")
    group.add_argument("--overlay-dir", type=Path, metavar="DIR", help="write attention overlays to this directory")
    group.add_argument(
        "--overlay-format",
        metavar="NAMES",
        help="comma-separated: png (a panel per word), frames (a full-size PNG per word), gif, html (an interactive "
        "page that works offline), npz (arrays) (default png)",
    )
    group.add_argument("--colormap", metavar="NAME", help="spotlight, hot or viridis (default spotlight)")
    group.add_argument(
        "--opacity", type=float, metavar="X", help=f"maximum opacity of the map (default {DEFAULT_OPACITY})"
    )
    group.add_argument("--panel-width", type=int, metavar="PIXELS", help="width of a panel of the png (default 200)")


def run(options: argparse.Namespace) -> None:
    """Print the caption of each image; exit with code 2 if an image or overlay failed."""
    overlay_options = _check_options(options)
    inputs, errors = _find_inputs(options.images)
    for error in errors:
        _print_error(error)
    if not inputs:
        sys.exit(2)

    from captioning.onnx_captioner import load_captioner
    from captioning.visualization.export import name_images

    paths = name_images(inputs)
    writer = _make_writer(options.overlay_dir, paths, overlay_options) if options.overlay_dir else None
    captioner = load_captioner(
        options.model,
        attention_mode=options.attention_mode,
        seed=options.seed,
        num_return_sequences=options.num_return_sequences,
        **generation_options(options),
    )
    captions: Iterable[Caption | CaptioningError] = captioner.iter_captions(inputs, options.batch_size)
    # On a terminal the captions themselves show the progress.
    has_progress_bar = sys.stderr.isatty() and not sys.stdout.isatty() and len(inputs) > options.batch_size
    if has_progress_bar:
        from tqdm import tqdm

        captions = tqdm(captions, total=len(inputs), unit="image")
    failed, num_sidecars = bool(errors), 0
    for image, path, caption in zip(inputs, paths, captions, strict=True):
        name = "-" if isinstance(image, bytes) else str(image)
        if isinstance(caption, CaptioningError):
            failed = True
            _print_error(caption)
            if options.json:
                print(json.dumps({"image": name, "error": str(caption)}, ensure_ascii=False), flush=True)
            if writer:
                writer.write_failure(path, caption)
            continue
        result = {"image": name, **caption.to_dict(attention_maps=False)}
        try:
            if writer:
                result["overlay"] = writer.write(path, caption)
            if options.write:
                result["sidecar"] = str(write_sidecar(path, caption.text))
                num_sidecars += 1
        except CaptioningError as error:  # the caption itself is valid
            failed = True
            _print_error(error)
        if options.json:
            print(json.dumps(result, ensure_ascii=False), flush=True)
        else:
            for sequence in (caption, *caption.alternatives):
                print(name, sequence.text, *(["not sure"] if sequence.is_uncertain else []), sep="\t", flush=True)
    if options.write:
        print(f"sidecars: {num_sidecars} written beside the images", file=sys.stderr)
    if writer:
        print(f"overlays: {writer.close() or options.overlay_dir}", file=sys.stderr)
    if failed:
        sys.exit(2)


def _check_options(options: argparse.Namespace) -> dict[str, Any]:
    """Check what needs no model and no torch, and return the overlay options that were given."""
    if not options.images:
        if len(options.model) > 1:
            raise CaptioningError(
                f"no images: --model takes all values after it; put {options.model[-1]} before --model"
            )
        raise CaptioningError("no images given; expected image files, directories, globs, URLs or -")
    if options.write and any(image == "-" or is_url(image) for image in options.images):
        raise CaptioningError("--write xmp requires image files; URLs and standard input have no sidecar")
    if options.batch_size < 1:
        raise CaptioningError(f"--batch-size must be >= 1, got {options.batch_size}")
    if not 0 <= options.seed < 2**63:
        raise CaptioningError(f"--seed must be in [0, {2**63 - 1}], got {options.seed}")
    for model in options.model:
        check_model_exists(model)
    check_generation_flags(options, options.model[0])
    given = {name: value for name in _OVERLAY_FLAGS if (value := getattr(options, name)) is not None}
    if given and not options.overlay_dir:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise CaptioningError(f"{flags}: has no effect without --overlay-dir DIR")
    check_formats(_split_formats(given))
    colormap_stops(given.get("colormap", "spotlight"), given.get("opacity", DEFAULT_OPACITY))
    return given


def _split_formats(overlay_options: dict[str, Any]) -> list[str]:
    return [name.strip() for name in overlay_options.get("overlay_format", "png").split(",")]


def _find_inputs(patterns: list[str]) -> tuple[list[Path | str | bytes], list[CaptioningError]]:
    """Expand the arguments to paths, URLs and the content of standard input."""
    inputs: list[Path | str | bytes] = []
    errors: list[CaptioningError] = []
    for pattern in dict.fromkeys(patterns):
        if pattern == "-":
            content = sys.stdin.buffer.read()
            if content:
                inputs.append(content)
            else:
                errors.append(CaptioningError("-: standard input is empty, expected an image"))
        elif is_url(pattern):
            inputs.append(pattern)
        else:
            found, pattern_errors = find_images([pattern])
            inputs.extend(found)
            errors.extend(pattern_errors)
    return list(dict.fromkeys(inputs)), errors


def _make_writer(output_dir: Path, image_paths: list[Path], overlay_options: dict[str, Any]) -> "OverlayWriter":
    from captioning.visualization.export import OverlayWriter

    formats = _split_formats(overlay_options)
    colors = {name: value for name, value in overlay_options.items() if name != "overlay_format"}
    return OverlayWriter(output_dir, image_paths, formats, **colors)


def _print_error(error: CaptioningError) -> None:
    print(f"captioning: error: {error}", file=sys.stderr)
