"""Captions images with a model of "captioning export MODEL DIR". Requires only onnxruntime, numpy and Pillow.

python examples/caption_onnx.py DIR photo.jpg ...
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


class OnnxCaptioner:
    """Generates a caption of an image by beam search."""

    def __init__(self, folder: Path) -> None:
        self.model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self.encoder, self.start, self.step = (
            onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
            for name in ("encoder", "decoder_start", "decoder_step")
        )

    def read_pixels(self, path: str) -> np.ndarray:
        """The normalized pixels (1, 3, S, S) of an image file, for resize_mode "stretch"."""
        transform = self.model["transform"]
        assert transform["resize_mode"] == "stretch", "see docs/export.md for the other modes"
        image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        size = (transform["image_size"],) * 2
        image = image.resize(size, Image.Resampling[transform["interpolation"].upper()])
        pixels = (np.asarray(image, np.float32) / 255 - transform["mean"]) / transform["std"]
        return pixels.astype(np.float32).transpose(2, 0, 1)[None]

    def caption(self, path: str) -> tuple[str, np.ndarray]:
        """Return the sentence and one attention map (rows, columns) per word."""
        settings, special, states = self.model["generation"], self.model["special_tokens"], self.model["state"]
        (features,) = self.encoder.run(None, {"pixels": self.read_pixels(path)})
        start = self.start.run(None, {"encoder_features": features})
        arrays = dict(zip(self.model["memory"] + states, start, strict=True))
        outputs = ["log_probs", "attention_weights", *(f"next_{name}" for name in states)]
        beams = [(0.0, [special["start"]], [])]  # log-probability, token ids, attention weights
        finished = []
        for length in range(1, settings["max_length"] + 1):
            arrays["token_ids"] = np.array([[ids[-1] for _, ids, _ in beams]])
            log_probs, weights, *next_states = self.step.run(outputs, arrays)
            candidates = []
            for beam, (score, ids, maps) in enumerate(beams):
                allowed = self.apply_constraints(log_probs[0, beam], ids)
                for token in np.argsort(-allowed)[: 2 * settings["num_beams"]]:
                    new_maps = [*maps, weights[0, beam]]
                    candidates.append((score + float(allowed[token]), [*ids, int(token)], new_maps, beam))
            candidates.sort(key=lambda candidate: -candidate[0])
            for score, ids, maps, _ in candidates[: settings["num_beams"]]:
                if ids[-1] == special["end"] and score > -np.inf:
                    finished.append((score / length ** settings["length_penalty"], ids[1:-1], maps[:-1]))
            live = [candidate for candidate in candidates if candidate[1][-1] != special["end"]][
                : settings["num_beams"]
            ]
            beams, parents = [candidate[:3] for candidate in live], [candidate[3] for candidate in live]
            arrays |= {name: state[:, parents] for name, state in zip(states, next_states, strict=True)}
            best_possible = beams[0][0] / settings["max_length"] ** settings["length_penalty"]
            if finished and max(finished, key=lambda item: item[0])[0] >= best_possible:
                break
        truncated = [(score, ids[1:], maps) for score, ids, maps in beams[:1]]
        _, ids, maps = max(finished or truncated, key=lambda item: item[0])
        words = [self.model["vocabulary"][token] for token in ids]
        return " ".join(words), np.reshape(maps, (-1, *self.model["grid_size"]))

    def apply_constraints(self, log_probs: np.ndarray, ids: list[int]) -> np.ndarray:
        """Set forbidden tokens to -inf: special tokens, an early end, and repeated n-grams."""
        settings, special = self.model["generation"], self.model["special_tokens"]
        allowed = log_probs.copy()
        allowed[[special["pad"], special["start"], special["unknown"]]] = -np.inf
        if len(ids) <= settings["min_length"]:
            allowed[special["end"]] = -np.inf
        n, words = settings["no_repeat_ngram_size"], ids[1:]
        for first in range(len(words) - n + 1 if n else 0):
            if words[first : first + n - 1] == words[len(words) - n + 1 :]:
                allowed[words[first + n - 1]] = -np.inf
        return allowed


if __name__ == "__main__":
    captioner = OnnxCaptioner(Path(sys.argv[1]))
    for argument in sys.argv[2:]:
        print(f"{argument}\t{captioner.caption(argument)[0]}")
