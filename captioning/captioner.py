"""The Python API: a picture in, a sentence and a map per word out. One file holds all that it takes."""

import copy
import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from captioning import models
from captioning.attention import LookName, check_look, way_to_look
from captioning.decoder import Decoder
from captioning.encoders import Encoder, blank
from captioning.errors import CaptioningError
from captioning.images import Box, Picture, Transform, open_image
from captioning.overlay import OPACITY, PANEL_WIDTH, Painter, panels
from captioning.receptive_field import receptive_field
from captioning.search import Found, Search
from captioning.text import Vocabulary

_HEADER = "captioning"
_FORMAT = 1
_SEARCH = tuple(field.name for field in dataclasses.fields(Search))  # how a model captions, kept in its file


@dataclasses.dataclass(frozen=True)
class Caption:
    """A sentence about a picture, and for every word of it where the model looked.

    Args:
        words: the sentence.
        probabilities: of each word as it was said and, last, of ending there.
        maps: (T, rows, columns), one per word, each summing to 1.
        picture: what was captioned.
        window: the part of the photo that the maps lie on.
        field: of a model that looked at one place for each word, how much of the photo that place sees: width and
            height as shares of the photo's.
        others: the next best captions, if more than one was asked for.
    """

    words: list[str]
    probabilities: list[float]
    maps: np.ndarray
    picture: Picture
    window: Box
    field: tuple[float, float] | None = None
    others: tuple["Caption", ...] = ()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def score(self) -> float:
        """How sure the model was, 0 to 1: the geometric mean of the probabilities."""
        return math.exp(sum(math.log(max(chance, 1e-12)) for chance in self.probabilities) / len(self.probabilities))

    def describe(self, maps: bool = True) -> dict[str, Any]:
        """Plain values for JSON, the next best captions among them; without the maps what they lie on is left out."""
        described = self._describe_one(maps)
        return {**described, "others": [other._describe_one(maps) for other in self.others]}

    def _describe_one(self, maps: bool) -> dict[str, Any]:
        words: list[dict[str, Any]] = [
            {"word": word, "probability": round(chance, 4)}
            for word, chance in zip(self.words, self.probabilities, strict=False)  # the last probability is the end's
        ]
        described: dict[str, Any] = {"caption": self.text, "score": round(self.score, 4)}
        if maps:
            described["window"] = [round(edge, 6) for edge in self.window]
            described["field"] = None if self.field is None else [round(side, 6) for side in self.field]
            for word, weights in zip(words, self.maps, strict=True):
                word["map"] = [[round(weight, 4) for weight in row] for row in weights.tolist()]
        return {**described, "words": words}

    def overlay(
        self,
        panel_width: int = PANEL_WIDTH,
        colours: str = "light",
        opacity: float = OPACITY,
    ) -> Image.Image:
        """The photo once per word, with the map of where the model looked while it said the word.

        Args:
            panel_width: of each of them, in pixels.
            colours: ``light`` lights the photo there, ``heat`` and ``viridis`` colour it.
            opacity: how much of the photo is hidden at most, 0 to 1.
        """
        photo = open_image(self.picture, panel_width)
        return panels(photo, self.words, self.painter(colours, opacity), panel_width)

    def painter(self, colours: str = "light", opacity: float = OPACITY) -> Painter:
        """What paints the maps on a photo of any size."""
        return Painter(self.maps, self.window, self.field, colours, opacity)


class Prepared(NamedTuple):
    """A picture that has been opened and made ready for the CNN."""

    picture: Picture
    pixels: Tensor  # (3, size, size)
    window: Box


def describe_model(
    encoder: Encoder, decoder: Decoder, vocabulary: Vocabulary, search: Search, look: LookName | None
) -> dict[str, Any]:
    """All of a model but its weights, in plain values: the header of the model file."""
    return {
        "format": _FORMAT,
        "encoder": encoder.settings,
        "decoder": decoder.settings,
        "transform": dataclasses.asdict(encoder.transform),
        "vocabulary": vocabulary.words,
        **dataclasses.asdict(search),
        "look": look,
    }


def write_model(path: Path, header: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Write a model file: the header, and of a state the tensors named ``encoder.…`` and ``decoder.…``."""
    tensors = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in state.items()
        if name.startswith(("encoder.", "decoder."))  # a baseline of hard attention is of use in training only
    }
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        save_file(tensors, unfinished, {_HEADER: json.dumps(header)})
        unfinished.replace(path)
    except (OSError, SafetensorError) as error:
        raise CaptioningError(f"{path}: the model file cannot be written ({error})") from None


class Captioner:
    """Captions pictures.

    >>> captioner = Captioner.load()
    >>> captioner("photo.jpg").text

    Args:
        encoder: turns pictures into annotations.
        decoder: says words about them.
        vocabulary: the words.
        look: how hard attention looks: ``argmax`` at the likeliest place, ``sample`` at one drawn by chance, ``expect``
            at all of them by their chances.
        seed: of all chance: the same pictures in the same batches get the same words, from the same places.
        n_best: how many captions of each picture.
        **search: how captions are found, by the names of :class:`captioning.search.Search`.
    """

    def __init__(
        self,
        encoder: Encoder,
        decoder: Decoder,
        vocabulary: Vocabulary,
        look: LookName | None = None,
        seed: int = 0,
        n_best: int = 1,
        **search: Any,
    ) -> None:
        self.encoder = encoder.eval()
        self._see = encoder.for_inference()
        self._field = functools.cache(functools.partial(receptive_field, self._see))
        self.decoder = decoder.eval()
        self.vocabulary = vocabulary
        self._settle(look, seed, n_best, Search(**search))

    def _settle(self, look: LookName | None, seed: int, n_best: int, search: Search) -> None:
        check_look(look, self.decoder.hard)
        search.check_count(n_best)
        self.look = look
        self.n_best = n_best
        self.search = search
        self.generator = torch.Generator(next(self.decoder.parameters()).device).manual_seed(seed)

    def with_options(self, seed: int = 0, **options: Any) -> "Captioner":
        """The same model, not a copy of it, to caption in another way.

        Args:
            seed: of all chance, which begins anew.
            **options: by the names that the class takes; what is left out or None stays as it is.
        """
        given = {name: value for name, value in options.items() if value is not None}
        other = copy.copy(self)
        look, n_best = given.pop("look", self.look), given.pop("n_best", self.n_best)
        other._settle(look, seed, n_best, dataclasses.replace(self.search, **given))
        return other

    @property
    def by_chance(self) -> bool:
        """Whether captions depend on the seed, and on what else is captioned in the same batch."""
        return self.search.sample or self.look == "sample"

    @classmethod
    def load(cls, model: str | Path = models.SHIPPED[0], device: str | None = None, **search: Any) -> "Captioner":
        """Open a model file; no code in it is run.

        Args:
            model: a ``.safetensors`` file that training left behind, or the name of one that comes along.
            device: where to run; by default the GPU if there is one.
            **search: how to caption, by the names that the class takes, other than the model was validated with.
        """
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        path = models.locate(model)
        try:
            with safe_open(path, framework="pt", device=device) as file:
                header = json.loads((file.metadata() or {})[_HEADER])
                written_in = header["format"]
                names = file.keys()  # it is no dict, and cannot be walked through by itself
                state = {name: _full(file.get_tensor(name)) for name in names}
        except FileNotFoundError:
            raise CaptioningError(
                f"{path}: no such model file; 'captioning fit' leaves one behind, and these come along: "
                + ", ".join(models.SHIPPED)
            ) from None
        except (SafetensorError, KeyError, TypeError, ValueError, OSError):
            raise CaptioningError(
                f"{path}: not a captioning model file; 'captioning fit' leaves one behind, named *.safetensors"
            ) from None
        if written_in != _FORMAT:
            raise CaptioningError(
                f"{path}: written in format {written_in}, this version reads {_FORMAT}; update captioning"
            )
        with blank():
            encoder = Encoder(**header["encoder"], weights=header.get("encoder_weights", "random"))
            decoder = Decoder(**header["decoder"])
        for part, name in ((encoder, "encoder."), (decoder, "decoder.")):
            own = {key.removeprefix(name): tensor for key, tensor in state.items() if key.startswith(name)}
            if part is encoder and "encoder_weights" in header:  # the file has only those that were trained since
                own = {**encoder.state_dict(), **own}
            part.load_state_dict(own, assign=True)
        encoder.to(device)
        transform = header["transform"]
        encoder.transform = Transform(**{**transform, "mean": tuple(transform["mean"]), "std": tuple(transform["std"])})
        own = {name: header[name] for name in (*_SEARCH, "look") if name in header}
        given = {name: value for name, value in search.items() if value is not None}
        return cls(encoder, decoder, Vocabulary(header["vocabulary"]), **{**own, **given})

    def save(self, path: str | Path, slim: bool = False) -> None:
        """Write the model file.

        Args:
            path: of the file.
            slim: in half precision, and of the encoder only what was trained: the rest of its weights must be the
                pretrained ones that everyone has.
        """
        header = describe_model(self.encoder, self.decoder, self.vocabulary, self.search, self.look)
        parts = {"encoder": self.encoder.state_dict(), "decoder": self.decoder.state_dict()}
        if slim:
            known = Encoder(**self.encoder.settings, weights="pretrained").state_dict()
            own = parts["encoder"].items()
            parts["encoder"] = {key: tensor for key, tensor in own if not torch.equal(tensor.cpu(), known[key])}
            header["encoder_weights"] = "pretrained"
        state = {f"{name}.{key}": tensor for name, part in parts.items() for key, tensor in part.items()}
        if slim:
            state = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
        write_model(Path(path), header, state)

    @overload
    def __call__(self, pictures: Picture) -> Caption: ...

    @overload
    def __call__(self, pictures: list[Picture]) -> list[Caption]: ...

    def __call__(self, pictures: Picture | list[Picture]) -> Caption | list[Caption]:
        """Caption a picture (path, bytes or PIL image), or a list of them."""
        several = pictures if isinstance(pictures, list) else [pictures]
        captions = []
        for caption in self.each(several):
            if isinstance(caption, CaptioningError):
                raise caption
            captions.append(caption)
        return captions if isinstance(pictures, list) else captions[0]

    def each(self, pictures: Iterable[Picture], batch_size: int = 32) -> Iterator[Caption | CaptioningError]:
        """Captions in the order of the pictures; in place of one that cannot be read, the reason why."""
        waiting = iter(pictures)
        while batch := list(islice(waiting, batch_size)):
            opened = [self._prepared_or_error(picture) for picture in batch]
            captions = iter(self.caption([one for one in opened if isinstance(one, Prepared)]))
            for one in opened:
                yield next(captions) if isinstance(one, Prepared) else one

    def _prepared_or_error(self, picture: Picture) -> Prepared | CaptioningError:
        try:
            return self.prepare(picture)
        except CaptioningError as error:
            return error

    def prepare(self, picture: Picture, most_pixels: float = math.inf) -> Prepared:
        """Open a picture for :meth:`caption`; any thread may. One of more pixels is refused, undecoded."""
        transform = self.encoder.transform
        image = open_image(picture, transform.size, most_pixels)
        return Prepared(picture, transform(image), transform.window(*image.size))

    def caption(self, pictures: Sequence[Prepared]) -> list[Caption]:
        """Caption one batch; only one thread at a time may."""
        if not pictures:
            return []
        pixels = torch.stack([picture.pixels for picture in pictures])
        with torch.inference_mode():
            annotations = self._see(pixels.to(next(self.decoder.parameters()).device))
        look = way_to_look(self.look, self.generator)
        found = self.search(self.decoder, annotations, self.generator, self.n_best, look)
        captions = []
        for picture, of_picture in zip(pictures, found, strict=True):
            first, *others = (self._put(one, picture) for one in of_picture)
            captions.append(dataclasses.replace(first, others=tuple(others)))
        return captions

    def _put(self, found: Found, prepared: Prepared) -> Caption:
        window = prepared.window
        field = None
        if self.decoder.hard and self.look != "expect":  # finding the field takes a pass through the CNN and back
            across, down = self._field()
            field = (across * (window.right - window.left), down * (window.bottom - window.top))
        return Caption(
            words=self.vocabulary.decode(found.words),
            probabilities=[math.exp(chance) for chance in found.log_probabilities],
            maps=found.weights.unflatten(1, self.encoder.grid).numpy(),
            picture=prepared.picture,
            window=window,
            field=field,
        )


def _full(tensor: Tensor) -> Tensor:
    """A slim file is in half precision, which few CPUs compute in."""
    return tensor.float() if tensor.dtype == torch.float16 else tensor
