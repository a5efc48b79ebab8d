import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from captioning.models import format1
from captioning.models.checkpoint import (
    FORMAT,
    ModelFile,
    build_model_header,
    build_modules,
    compact,
    read_model,
    write_model_file,
)
from captioning.models.decoder import Decoder
from captioning.models.encoder import Encoder
from captioning.models.pretrained import DEFAULT_MODEL, PRETRAINED, resolve_model_path
from captioning.preprocessing.vocabulary import Vocabulary
from captioning.utils.errors import CaptioningError

VOCABULARY = Vocabulary([*Vocabulary.SPECIAL_TOKENS, "a", "red", "circle"])
GENERATION = {"max_length": 12, "num_beams": 3, "temperature": 0.7}
SIZES = {"embedding_size": 6, "hidden_size": 8, "attention_size": 4}


def make_model(backbone: str = "tiny", decoder: dict[str, Any] | None = None, **encoder: Any) -> ModelFile:
    torch.manual_seed(0)
    encoder_module = Encoder(backbone, **encoder)
    rows, columns = encoder_module.grid_size
    decoder_module = Decoder(
        len(VOCABULARY), encoder_module.feature_size, rows * columns, **{**SIZES, **(decoder or {})}
    )
    header = build_model_header(encoder_module, decoder_module, VOCABULARY, GENERATION, None)
    modules = {"encoder": encoder_module, "decoder": decoder_module}
    tensors = {f"{name}.{key}": value for name, part in modules.items() for key, value in part.state_dict().items()}
    return ModelFile(header, tensors)


def assert_equal_tensors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize(
    "decoder",
    [
        {},
        {"attention": "hard", "attention_temperature": 0.5, "feature_mixer": "bilstm"},
        {"architecture": "luong", "attention_score": "dot", "attention_size": None, "projection_size": 8},
        {"attention_activation": "entmax15"},
    ],
)
def test_round_trip(tmp_path: Path, decoder: dict[str, Any]) -> None:
    model = make_model(decoder=decoder, image_size=32, resize_mode="crop")
    path = tmp_path / "model.safetensors"
    write_model_file(path, model.header, {**model.tensors, "objective.baseline": torch.zeros(1)})
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    read = read_model(path)
    assert read.header == json.loads(json.dumps(model.header))
    assert_equal_tensors(read.tensors, model.tensors)
    encoder, decoder_module, vocabulary = build_modules(read)
    header = build_model_header(encoder, decoder_module, vocabulary, GENERATION, None)
    assert header == model.header
    assert_equal_tensors(
        {f"encoder.{key}": value for key, value in encoder.state_dict().items()}
        | {f"decoder.{key}": value for key, value in decoder_module.state_dict().items()},
        model.tensors,
    )
    assert not any(parameter.is_meta for parameter in [*encoder.parameters(), *decoder_module.parameters()])


def test_header_has_sections_of_plain_values() -> None:
    header = make_model().header
    assert list(header) == [
        "format",
        "encoder",
        "decoder",
        "transform",
        "vocabulary",
        "generation",
        "attention_mode",
        "calibration",
    ]
    assert header["format"] == FORMAT == 2
    assert header["generation"] == GENERATION
    assert "weights" not in header["encoder"]


def test_checkpoint_of_lightning(tmp_path: Path) -> None:
    model = make_model()
    state_dict = {**model.tensors, "objective.estimator.baseline": torch.zeros(1)}
    torch.save({"model_header": model.header, "state_dict": state_dict, "epoch": 3}, tmp_path / "best.ckpt")
    read = read_model(tmp_path / "best.ckpt")
    assert read.header == model.header
    assert_equal_tensors(read.tensors, model.tensors)


def test_transform_of_the_header_wins() -> None:
    """A model keeps the preprocessing that it was trained with, even if the registry changes."""
    model = make_model()
    model.header["transform"]["mean"] = [0.1, 0.2, 0.3]
    encoder, _, _ = build_modules(model)
    assert encoder.transform == dataclasses.replace(Encoder("tiny").transform, mean=(0.1, 0.2, 0.3))


def test_compact_contains_trained_encoder_tensors_only(tmp_path: Path) -> None:
    model = make_model("efficientnet_lite0", weights="pretrained", image_size=32)
    trained = "encoder.backbone.conv_head.weight"
    model.tensors[trained] = model.tensors[trained] + 1
    compacted = compact(model)
    assert compacted.header["encoder"]["weights"] == "pretrained"
    assert "weights" not in model.header["encoder"], "the argument is unchanged"
    assert {name for name in compacted.tensors if name.startswith("encoder.")} == {trained}
    path = tmp_path / "compact.safetensors"
    write_model_file(path, *compacted)
    assert {tensor.dtype for tensor in load_file(path).values()} == {torch.float16}
    read = read_model(path)
    assert {tensor.dtype for tensor in read.tensors.values()} == {torch.float32}
    encoder, decoder, _ = build_modules(read)
    for name, tensor in encoder.state_dict().items():
        expected = model.tensors[f"encoder.{name}"]
        torch.testing.assert_close(tensor, expected, atol=1e-3, rtol=1e-3)
        assert torch.equal(tensor, expected) or f"encoder.{name}" == trained
    for name, tensor in decoder.state_dict().items():
        torch.testing.assert_close(tensor, model.tensors[f"decoder.{name}"], atol=1e-3, rtol=1e-3)


class _Code:
    """Pickled object that would execute code when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('code was executed')",))


def test_unreadable_files(tmp_path: Path) -> None:
    model = make_model()
    (tmp_path / "text.safetensors").write_text("not a model")
    (tmp_path / "empty.ckpt").write_bytes(b"")
    (tmp_path / "code.ckpt").write_bytes(pickle.dumps({"model_header": _Code()}))
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    save_file({"x": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "list.safetensors", {"captioning": "[]"})
    write_model_file(tmp_path / "whole.safetensors", model.header, model.tensors)
    (tmp_path / "truncated.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:-100])
    without = {key: value for key, value in model.header.items() if key != "vocabulary"}
    write_model_file(tmp_path / "incomplete.safetensors", without, model.tensors)
    write_model_file(tmp_path / "newer.safetensors", {**model.header, "format": 3}, model.tensors)
    torch.save({"model_header": {"format": 3}, "state_dict": {}}, tmp_path / "newer.ckpt")
    corrupt = "not a captioning model, or corrupt; expected a .safetensors or .ckpt file of 'captioning fit'"
    names = ("text", "foreign", "list", "truncated", "incomplete")
    cases = dict.fromkeys([f"{name}.safetensors" for name in names], corrupt)
    cases |= dict.fromkeys(["empty.ckpt", "code.ckpt", "foreign.ckpt"], corrupt)
    cases |= dict.fromkeys(
        ["none.safetensors", "none.ckpt"], "model file not found; .* pretrained model: photos-soft, "
    )
    cases |= dict.fromkeys(["newer.safetensors", "newer.ckpt"], "format 3 is newer than format 2 .*; update captioning")
    for name, message in cases.items():
        with pytest.raises(CaptioningError, match=f"{name}: .*{message}") as caught:
            read_model(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(CaptioningError, match="model file not found"):
        read_model(tmp_path)


@pytest.mark.parametrize("section", ["encoder", "decoder"])
def test_weights_that_do_not_match_the_header(section: str) -> None:
    model = make_model()
    tensors = {name: tensor for name, tensor in model.tensors.items() if not name.startswith(section)}
    with pytest.raises(CaptioningError, match="do not match its header") as caught:
        build_modules(ModelFile(model.header, tensors))
    assert "\n" not in str(caught.value)
    unknown = {**model.header, section: {**model.header[section], "unknown_key": 1}}
    with pytest.raises(CaptioningError, match="unknown_key"):
        build_modules(ModelFile(unknown, model.tensors))


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    model = make_model()
    with pytest.raises(CaptioningError, match="the model file cannot be written"):
        write_model_file(tmp_path / "none" / "model.safetensors", model.header, model.tensors)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"previous")
    with pytest.raises(TypeError):  # the header is not serializable
        write_model_file(path, {"format": object()}, model.tensors)
    assert path.read_bytes() == b"previous"
    assert list(tmp_path.iterdir()) == [path]


def test_names_of_pretrained_models() -> None:
    assert DEFAULT_MODEL == PRETRAINED[0] == "photos-soft"
    assert all(resolve_model_path(name).is_file() for name in PRETRAINED)
    assert resolve_model_path("runs/best.ckpt") == Path("runs/best.ckpt")


@pytest.mark.parametrize("name", ["flickr8k-soft", "flickr8k-hard"])
def test_format_1_is_upgraded(name: str) -> None:
    """The models of Flickr8k are files of format 1; their modules have the names and settings of format 2."""
    path = resolve_model_path(name)
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["captioning"])["format"] == 1
    model = read_model(name)
    assert model.header["format"] == FORMAT
    assert model.header["encoder"]["weights"] == "pretrained"
    assert model.header["attention_mode"] == {"flickr8k-soft": None, "flickr8k-hard": "argmax"}[name]
    assert model.header["generation"]["num_beams"] == {"flickr8k-soft": 3, "flickr8k-hard": 5}[name]
    stored = load_file(path)
    assert len(model.tensors) == len(stored)
    _, decoder, _ = build_modules(model)
    assert torch.equal(decoder.input_proj.weight, stored["decoder.word_gates.weight"].float())
    assert torch.equal(decoder.projection[0].weight, stored["decoder.squash.0.weight"].float())


def test_values_of_format_1() -> None:
    """Settings that the pretrained models do not use, and settings without effect, which format 2 refuses."""
    header = {
        "format": 1,
        "encoder": {"name": "tiny", "image_size": 64, "fit": "pad"},
        "decoder": {
            "squash": 0,
            "dropout_by": "picture",
            "wiring": "paper",
            "neighbours": "bidirectional_lstm",
            "attention": "soft",
            "temperature": 2.0,
            "score": "dot",
            "attention_size": 256,
        },
        "transform": {"size": 64, "fit": "pad"},
        "vocabulary": ["<pad>"],
        "look": "expect",
        "temperature": 0.8,
    }
    assert format1.upgrade_header(header) == {
        "format": 2,
        "encoder": {"backbone": "tiny", "image_size": 64, "resize_mode": "pad"},
        "decoder": {
            "projection_size": None,
            "spatial_dropout": True,
            "architecture": "show_attend_tell",
            "feature_mixer": "bilstm",
            "attention": "soft",
            "attention_score": "dot",
        },
        "transform": {"image_size": 64, "resize_mode": "pad"},
        "vocabulary": ["<pad>"],
        "generation": {"temperature": 0.8},
        "attention_mode": "expectation",
    }


def test_tensor_names_of_format_1() -> None:
    names = {
        "encoder.network.pixels.0.weight": "encoder.backbone.stem.0.weight",
        "encoder.network.places.0.weight": "encoder.backbone.head.0.weight",
        "encoder.network.layer4.0.conv1.weight": "encoder.backbone.layer4.0.conv1.weight",
        "decoder.neighbours.mix.weight": "decoder.feature_mixer.mixer.weight",
        "decoder.neighbours.norm.bias": "decoder.feature_mixer.norm.bias",
        "decoder.attention.score.score.weight": "decoder.attention.score_fn.energy_proj.weight",
        "decoder.combine.bias": "decoder.attentional_hidden.bias",
        "decoder.embedding.weight": "decoder.embedding.weight",
    }
    tensors = {name: torch.zeros(()) for name in names}
    assert list(format1.upgrade_tensors(tensors)) == list(names.values())


@pytest.mark.parametrize("backbone", ["tiny", "resnet18", "timm/test_vit"])
def test_compact_files_of_backbones_whose_weights_are_not_installed_are_complete(backbone: str, tmp_path: Path) -> None:
    model = make_model(backbone)
    path = tmp_path / "compact.safetensors"
    write_model_file(path, *compact(model))
    encoder, decoder, _ = build_modules(read_model(path))
    for name, module in (("encoder", encoder), ("decoder", decoder)):
        for key, tensor in module.state_dict().items():
            torch.testing.assert_close(tensor, model.tensors[f"{name}.{key}"], rtol=1e-3, atol=1e-3)
    assert path.stat().st_size < 0.6 * sum(tensor.nbytes for tensor in model.tensors.values()) + 20_000
