"""Speed relative to a textbook decoder, and to the peak of the machine; ``make bench`` prints both tables.

All alternatives are measured in alternation in one run on the same tensors, so their ratios do not depend on the
machine as much as their times do. Tensors have the sizes of a known tutorial: 196 locations of 2,048 channels, 9,490
words, 32 images with five captions each. Weights are random; the search forbids the end token, so that all captions
have the maximum length.
"""

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import onnx
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.textbook import TextbookDecoder
from captioning import Captioner
from captioning.generation import GenerationConfig
from captioning.generation.beam_search import beam_search
from captioning.models.decoder import Decoder
from captioning.models.engine import inference_engine
from captioning.models.exported_model import create_session
from captioning.objectives.base import caption_nll
from captioning.preprocessing.vocabulary import Vocabulary

NUM_LOCATIONS, FEATURE_SIZE, VOCABULARY_SIZE, SIZE = 196, 2048, 9490, 512
NUM_CAPTIONS, MAX_LENGTH, NUM_BEAMS = 5, 20, 5
SCORES = ("additive", "general", "scaled_dot")
_PEAK_SIZE = 3072  # a matrix product of this size reaches the peak of a library

Task = Callable[[], object]
DecoderT = TypeVar("DecoderT", Decoder, TextbookDecoder)


def make_captions(num_images: int) -> tuple[Tensor, Tensor]:
    """Random captions of 8 to 16 tokens: token ids (B, C, T+1) and lengths (B, C)."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 17, (num_images, NUM_CAPTIONS), generator=generator)
    token_ids = torch.randint(4, VOCABULARY_SIZE, (num_images, NUM_CAPTIONS, 17), generator=generator)
    token_ids[..., 0] = Vocabulary.BOS_ID
    is_padding = torch.arange(17) > lengths[..., None]
    return token_ids.masked_fill(is_padding, Vocabulary.PAD_ID), lengths


def make_decoder(score: str, architecture: str = "show_attend_tell") -> Decoder:
    attention_size = None if score == "general" else SIZE
    return Decoder(
        VOCABULARY_SIZE,
        FEATURE_SIZE,
        NUM_LOCATIONS,
        architecture=architecture,
        embedding_size=SIZE,
        hidden_size=SIZE,
        attention_score=score,
        attention_size=attention_size,
        context_gate="vector",
        dropout=0.5,
    )


def training_tasks(features: Tensor) -> dict[str, Task]:
    """Forward and backward pass of one batch."""
    token_ids, lengths = make_captions(len(features))
    textbook = TextbookDecoder(VOCABULARY_SIZE, FEATURE_SIZE, SIZE)
    order = lengths.flatten().argsort(descending=True)
    rows = features.repeat_interleave(NUM_CAPTIONS, dim=0)[order]

    def textbook_step() -> None:
        textbook.zero_grad()
        textbook.loss(rows, token_ids.flatten(0, 1)[order], lengths.flatten()[order]).backward()

    def step(decoder: Decoder) -> None:
        decoder.zero_grad()
        output = decoder(features, token_ids, lengths)
        caption_nll(output.logits, output.targets, lengths.numel()).backward()

    tasks: dict[str, Task] = {"textbook": textbook_step}
    for score in SCORES:
        tasks[score] = functools.partial(step, make_decoder(score))
    tasks["scaled_dot, luong"] = functools.partial(step, make_decoder("scaled_dot", "luong"))
    return tasks


def forbid_end(decoder: DecoderT) -> DecoderT:
    with torch.no_grad():
        decoder.output.bias[Vocabulary.EOS_ID] = -1000.0
    return decoder


def search_tasks(features: Tensor, batch_size: int) -> dict[str, Task]:
    """Beam search over all images, ``batch_size`` images at once."""
    textbook = forbid_end(TextbookDecoder(VOCABULARY_SIZE, FEATURE_SIZE, SIZE))
    config = GenerationConfig(MAX_LENGTH, num_beams=NUM_BEAMS)

    def search(decoder: Decoder) -> None:
        with torch.inference_mode():
            for batch in features.split(batch_size):
                beam_search(config, decoder, batch)

    tasks: dict[str, Task] = {
        "textbook": lambda: [textbook.beam_search(image[None], NUM_BEAMS, MAX_LENGTH) for image in features]
    }
    for score in SCORES:
        tasks[score] = functools.partial(search, forbid_end(make_decoder(score)).eval())
    return tasks


def cnn_tasks(batch_size: int) -> dict[str, Task]:
    """The CNN of the default model in PyTorch, and in the engine that captioning uses."""
    encoder = Captioner.from_pretrained(device="cpu").encoder
    pixels = torch.rand(batch_size, 3, encoder.transform.image_size, encoder.transform.image_size)
    modules = {"PyTorch": encoder.for_inference(), "inference engine": inference_engine(encoder)}

    def run(module: Callable[[Tensor], Tensor]) -> None:
        with torch.inference_mode():
            module(pixels)

    return {name: functools.partial(run, module) for name, module in modules.items()}


def peak_tasks() -> dict[str, Task]:
    """A large matrix product in both libraries: MKL, which PyTorch uses, is slower than the other on CPUs of AMD."""
    matrix = torch.rand(_PEAK_SIZE, _PEAK_SIZE)
    square = onnx.helper.make_tensor_value_info("matrix", onnx.TensorProto.FLOAT, [_PEAK_SIZE, _PEAK_SIZE])
    product = onnx.helper.make_tensor_value_info("product", onnx.TensorProto.FLOAT, [_PEAK_SIZE, _PEAK_SIZE])
    node = onnx.helper.make_node("MatMul", ["matrix", "matrix"], ["product"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "product", [square], [product]),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "product.onnx"
        onnx.save(model, path)
        session = create_session(path)
    return {"PyTorch": lambda: matrix @ matrix, "ONNX Runtime": lambda: session.run(None, {"matrix": matrix.numpy()})}


def median_times(tasks: Mapping[str, Task], repeats: int) -> dict[str, float]:
    """Median time of each task. The tasks alternate, and a first round is not measured."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(repeats + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if repeat:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def count_flops(task: Task) -> int:
    """Floating-point operations of matrix products and convolutions."""
    # The counter does not know oneDNN's operator for linear layers.
    formulas = {torch.ops.mkldnn._linear_pointwise: _linear_flops}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        task()
    return counter.get_total_flops()


def _linear_flops(x_shape: torch.Size, weight_shape: torch.Size, *_: object, **__: object) -> int:
    return 2 * x_shape.numel() * weight_shape[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ratios", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="number of measurements (default 3)")
    parser.add_argument("--num-images", type=int, default=32, help="batch size (default 32)")
    options = parser.parse_args()
    features = torch.rand(options.num_images, NUM_LOCATIONS, FEATURE_SIZE)
    groups = {
        f"training step, {options.num_images} images × {NUM_CAPTIONS} captions": training_tasks(features),
        f"beam {NUM_BEAMS}, {options.num_images} images": search_tasks(features, options.num_images),
        f"beam {NUM_BEAMS}, one image at a time": search_tasks(features, 1),
        "CNN of the default model, 8 images": cnn_tasks(8),
    }
    print("| task | implementation | seconds | times as fast |\n|---|---|---|---|")
    all_times = {}
    for group, tasks in groups.items():
        all_times[group] = times = median_times(tasks, options.repeats)
        reference = next(iter(times.values()))
        for name, seconds in times.items():
            print(f"| {group} | {name} | {seconds:.3f} | {reference / seconds:.2f} |", flush=True)

    rates = {name: 2 * _PEAK_SIZE**3 / time for name, time in median_times(peak_tasks(), options.repeats).items()}
    peak = max(rates.values())
    print(f"\nProduct of two {_PEAK_SIZE}×{_PEAK_SIZE} matrices:", end=" ")
    print(", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in rates.items()), end=".\n\n")
    print("| task | implementation | GFLOP | share of the peak |\n|---|---|---|---|")
    for group, tasks in groups.items():
        # The engine executes the same operations as PyTorch, which can count them.
        counted = {name: count_flops(task) for name, task in tasks.items() if name != "inference engine"}
        for name, seconds in all_times[group].items():
            flops = counted.get(name, next(iter(counted.values())))
            print(f"| {group} | {name} | {flops / 1e9:.1f} | {flops / seconds / peak:.0%} |")


if __name__ == "__main__":
    main()
