"""Occlusion test of attention maps: how much a word's probability drops when the locations it attended to are blurred.

A caption is scored again, by teacher forcing, on copies of its image in which some grid cells are blurred. If the map
of a word shows what the word depends on, occluding its most attended locations lowers its probability more than
occluding others. Deletion and insertion curves follow Petsiuk et al. 2018, "RISE". On synthetic scenes the pointing
game is counted as well.

Shapes: W content words of a caption, T words, L locations of the grid, S occlusion steps.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from captioning.captioner import Captioner
from captioning.datasets.synthetic.scene import Scene
from captioning.evaluation.feature_masking import attended_only_log_probs
from captioning.evaluation.synthetic_metrics import pointing_game_counts
from captioning.generation import generate
from captioning.models import attention
from captioning.models.attention import AttentionFn
from captioning.models.decoder import Decoder
from captioning.models.engine import FeatureFn, inference_engine
from captioning.preprocessing.image import ImageInput, open_image
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError

# Closed word classes of English: such words follow from the grammar, and no single location shows them. Numerals are
# not included, since counts are visible.
FUNCTION_WORDS = frozenset(
    (
        # articles and other determiners
        "a an the this that these those some any each every either neither no all both another other such same own "
        # pronouns
        "i me my mine myself you your yours yourself he him his himself she her hers herself it its itself we us our "
        "ours ourselves they them their theirs themselves 's someone somebody something anyone anybody anything "
        "everyone everybody everything nobody nothing who whom whose which what "
        # prepositions
        "about above across after against along alongside among amongst around as at atop away before behind "
        "below beneath beside besides between beyond by down during for from in inside into like near next of off on "
        "onto out outside over past through throughout to together toward towards under underneath until up upon via "
        "with within without "
        # conjunctions
        "and but or nor so yet if because although though than when where whereas whether while "
        # auxiliaries
        "am is are was were be been being 're 'm has have had having do does did doing can could may might must shall "
        "should will would 'll 've 'd n't not "
        # adverbs without content
        "there here then just very too also only even still again how why"
    ).split()
)
_BATCH_SIZE = 32


class CaptionWithAttention(NamedTuple):
    """A caption and the attention weights of each of its words."""

    token_ids: list[int]  # from <start> to <end>
    words: list[str]
    attention_weights: Tensor  # (T, L), α

    @property
    def content_positions(self) -> list[int]:
        """Positions of the content words."""
        return [position for position, word in enumerate(self.words) if word not in FUNCTION_WORDS]


class OcclusionResult(NamedTuple):
    """Log-probabilities of all content words while locations are occluded one after the other, in several orders."""

    num_images: int
    words: list[str]
    image_index: np.ndarray  # (words,)
    log_probs: dict[str, np.ndarray]  # by order: (words, S + 1), or (words, 2) for "other_image" and "attended_only"
    pointing_counts: dict[str, np.ndarray]  # by word category: (num_images, 2); empty for photos


@torch.inference_mode()
def run_occlusion_test(
    captioner: Captioner,
    images: Sequence[ImageInput],
    scenes: Sequence[Scene] | None = None,
    num_steps: int = 8,
    seed: int = 0,
) -> dict[str, OcclusionResult]:
    """Caption images, then occlude their locations in the order of each word's map and in control orders.

    The orders are ``most_attended`` first, ``least_attended`` first, ``random``, and ``other_image``: the order of the
    map of a word of another image. ``other_image`` controls for center bias and spatial clustering of attention maps.
    Only its first step is evaluated.

    ``attended_only`` is a test of features, not of pixels: every location but the most attended one is replaced by the
    mean feature of up to 32 images, see :func:`attended_only_log_probs`.

    Args:
        captioner: the model with its generation settings and attention mode.
        images: at least two images.
        scenes: the scenes of the images, if they are synthetic.
        num_steps: S, number of steps until all locations are occluded.
        seed: random seed of the random orders and of the choice of other images.

    Returns:
        the result of the model under ``soft`` or ``hard``, and under ``uniform`` that of the control: the same model
        with uniform attention, whose orders are random.
    """
    if captioner.attention_mode == "sample":
        raise CaptioningError("attention_mode 'sample' is not deterministic; use 'argmax' or 'expectation'")
    if len(images) < 2:
        raise CaptioningError("the occlusion test compares maps of different images: at least 2 images are required")
    attention_fns: dict[str, AttentionFn | None] = {
        "hard" if captioner.decoder.is_hard else "soft": attention.make_attention_fn(
            captioner.attention_mode, captioner.generator
        ),
        "uniform": attention.attend_uniform,
    }
    encoder = inference_engine(captioner.encoder)
    captions: dict[str, list[CaptionWithAttention]] = {name: [] for name in attention_fns}
    attended_only: dict[str, list[Tensor]] = {name: [] for name in attention_fns}
    _, decoder = captioner.single_model()
    for start in range(0, len(images), _BATCH_SIZE):
        pixels = torch.stack([_load_pixels(captioner, image) for image in images[start : start + _BATCH_SIZE]])
        features = encoder(pixels)
        for name, attention_fn in attention_fns.items():
            batch_captions = generate_with_attention(captioner, features, attention_fn)
            captions[name] += batch_captions
            for image_features, caption in zip(features, batch_captions, strict=True):
                token_log_probs = attended_only_log_probs(
                    decoder, image_features[None], features.mean(dim=(0, 1)), caption.token_ids, attention_fn
                )
                attended_only[name].append(token_log_probs[caption.content_positions])
    for name, model_captions in captions.items():
        if sum(bool(caption.content_positions) for caption in model_captions) < 2:
            raise CaptioningError(
                f"fewer than 2 of {len(images)} captions of the {name} model contain a content word (the first caption "
                f"is '{' '.join(model_captions[0].words)}'); train the model longer"
            )

    generator = torch.Generator().manual_seed(seed)
    num_locations = captions["uniform"][0].attention_weights.shape[1]
    # One random order and one tie order per image. All words and the control share them, which reduces the number of
    # different occluded copies.
    random_orders, tie_orders = (
        torch.stack([torch.randperm(num_locations, generator=generator) for _ in images]) for _ in range(2)
    )
    log_probs: dict[str, list[dict[str, Tensor]]] = {name: [] for name in attention_fns}
    for index, image in enumerate(tqdm(images, desc="occlusion test", unit="image")):
        masks = {}
        for name, model_captions in captions.items():
            other_maps = _maps_of_other_images(model_captions, index, generator)
            masks[name] = occlusion_masks(
                model_captions[index], other_maps, random_orders[index], tie_orders[index], num_steps
            )
        image_captions = {name: model_captions[index] for name, model_captions in captions.items()}
        for name, scores in _score_occluded(captioner, encoder, image, image_captions, attention_fns, masks):
            log_probs[name].append({**scores, "attended_only": attended_only[name][index]})
    return {
        name: _collect(model_captions, log_probs[name], tie_orders, captioner.encoder.grid_size, scenes)
        for name, model_captions in captions.items()
    }


def generate_with_attention(
    captioner: Captioner, features: Tensor, attention_fn: AttentionFn | None
) -> list[CaptionWithAttention]:
    """Caption images given by features (B, L, D).

    The attention weights are α of a teacher-forced pass. For hard attention the map of a decoding step is one-hot and
    does not rank the other locations; α does.
    """
    captions = []
    _, decoder = captioner.single_model()
    hypotheses = generate(decoder, features, captioner.generation, captioner.generator, 1, attention_fn)
    for image_features, (best, *_) in zip(features, hypotheses, strict=True):
        token_ids = [Vocabulary.BOS_ID, *best.token_ids, Vocabulary.EOS_ID]
        _, weights = _teacher_forced_log_probs(decoder, image_features[None], token_ids, attention_fn)
        words = captioner.vocabulary.decode(best.token_ids)
        captions.append(CaptionWithAttention(token_ids, words, weights[0, : len(best.token_ids)].cpu()))
    return captions


def rank_locations(attention_weights: Tensor, tie_order: Tensor) -> Tensor:
    """Locations (W, L) by descending weight (W, L); equal weights follow ``tie_order`` (L,)."""
    return tie_order[attention_weights[:, tie_order].argsort(dim=-1, descending=True, stable=True)]


def occlusion_masks(
    caption: CaptionWithAttention, other_maps: Tensor, random_order: Tensor, tie_order: Tensor, num_steps: int
) -> dict[str, Tensor]:
    """Occluded locations after each step (W, S + 1, L), by order: none at step 0, all at step S.

    Args:
        caption: the caption of an image.
        other_maps: (W, L), a map of another image for each content word.
        random_order: (L,).
        tie_order: (L,), order of locations with equal weight.
        num_steps: S.
    """
    most_attended = rank_locations(caption.attention_weights[caption.content_positions], tie_order)
    orders = {
        "most_attended": most_attended,
        "other_image": rank_locations(other_maps, tie_order),
        "random": random_order.expand_as(most_attended),
        "least_attended": most_attended.flip(-1),
    }
    num_locations = most_attended.shape[-1]
    counts = torch.tensor([-(-step * num_locations // num_steps) for step in range(num_steps + 1)])  # rounded up
    masks = {name: order.argsort(dim=-1)[:, None] < counts[:, None] for name, order in orders.items()}
    return {**masks, "other_image": masks["other_image"][:, :2]}


def gaussian_blur(pixels: Tensor, sigma: float) -> Tensor:
    """Blur square images (…, S, S); the kernel is renormalized at the borders."""
    line = torch.arange(pixels.shape[-1], device=pixels.device, dtype=pixels.dtype)
    kernel = (-((line[:, None] - line) / sigma).square() / 2).exp()
    kernel = kernel / kernel.sum(dim=1, keepdim=True)
    return kernel @ pixels @ kernel.T


def occlude(pixels: Tensor, mask: Tensor) -> Tensor:
    """Copies (N, 3, S, S) of an image (3, S, S), blurred in the masked cells (N, rows, columns)."""
    rows, columns = mask.shape[1:]
    height, width = pixels.shape[1] // rows, pixels.shape[2] // columns
    pixel_mask = mask.repeat_interleave(height, dim=1).repeat_interleave(width, dim=2)
    return torch.where(pixel_mask[:, None], gaussian_blur(pixels, sigma=height), pixels)


def _load_pixels(captioner: Captioner, image: ImageInput) -> Tensor:
    transform = captioner.encoder.transform
    return transform(open_image(image, transform.image_size)).to(captioner.generator.device)


def _maps_of_other_images(captions: Sequence[CaptionWithAttention], index: int, generator: torch.Generator) -> Tensor:
    """For each content word of an image, the map (W, L) of a random content word of another image."""
    candidates = [caption for i, caption in enumerate(captions) if i != index and caption.content_positions]
    maps = [captions[index].attention_weights[:0]]
    for _ in captions[index].content_positions:
        other = candidates[int(torch.randint(len(candidates), (), generator=generator))]
        positions = other.content_positions
        word = positions[int(torch.randint(len(positions), (), generator=generator))]
        maps.append(other.attention_weights[word, None])
    return torch.cat(maps)


def _score_occluded(
    captioner: Captioner,
    encoder: FeatureFn,
    image: ImageInput,
    captions: dict[str, CaptionWithAttention],
    attention_fns: dict[str, AttentionFn | None],
    masks: dict[str, dict[str, Tensor]],
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield log p (W, S + 1) of the content words by order, for each model; equal copies are encoded once."""
    parts = [mask for orders in masks.values() for mask in orders.values()]
    unique, index = torch.cat([mask.flatten(0, 1) for mask in parts]).unique(dim=0, return_inverse=True)
    copies = occlude(
        _load_pixels(captioner, image), unique.to(captioner.generator.device).unflatten(1, captioner.encoder.grid_size)
    )
    features = encoder(copies)
    _, decoder = captioner.single_model()
    rows = iter(index.split([mask.shape[0] * mask.shape[1] for mask in parts]))
    for name, orders in masks.items():
        caption = captions[name]
        log_probs = _teacher_forced_log_probs(decoder, features, caption.token_ids, attention_fns[name])[0]
        log_probs = log_probs.cpu()
        positions = torch.tensor(caption.content_positions, dtype=torch.long)[:, None]
        yield name, {order: log_probs[next(rows).view(mask.shape[:2]), positions] for order, mask in orders.items()}


def _teacher_forced_log_probs(
    decoder: Decoder, features: Tensor, token_ids: list[int], attention_fn: AttentionFn | None
) -> tuple[Tensor, Tensor]:
    """log p (N, T) of the tokens of one caption and its attention weights (N, T, L), for each of N images."""
    tokens = torch.tensor(token_ids, device=features.device).expand(len(features), 1, -1)
    lengths = torch.full((len(features), 1), len(token_ids) - 1)
    output = decoder(features, tokens, lengths, attention_fn)
    log_probs = -F.cross_entropy(output.logits.float(), output.targets, reduction="none")
    return log_probs.view(len(features), -1), output.attention_weights[:, 0].float()


def _collect(
    captions: Sequence[CaptionWithAttention],
    log_probs: Sequence[dict[str, Tensor]],
    tie_orders: Tensor,
    grid_size: tuple[int, int],
    scenes: Sequence[Scene] | None,
) -> OcclusionResult:
    pointing_counts = {}
    if scenes is not None:
        peaks = [
            rank_locations(caption.attention_weights, order)[:, 0]
            for caption, order in zip(captions, tie_orders, strict=True)
        ]
        maps = [F.one_hot(peak, grid_size[0] * grid_size[1]).unflatten(1, grid_size).numpy() for peak in peaks]
        pointing_counts = pointing_game_counts([caption.words for caption in captions], maps, scenes)
    num_words = [len(caption.content_positions) for caption in captions]
    return OcclusionResult(
        num_images=len(captions),
        words=[caption.words[position] for caption in captions for position in caption.content_positions],
        image_index=np.repeat(np.arange(len(captions)), num_words),
        log_probs={order: torch.cat([scores[order] for scores in log_probs]).numpy() for order in log_probs[0]},
        pointing_counts=pointing_counts,
    )
