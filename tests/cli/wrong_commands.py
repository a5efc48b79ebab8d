"""Wrong commands, and the files that they name. ``python -m benchmarks.wrong_input`` measures them."""

from pathlib import Path

import yaml

from captioning.cli.main import main
from tests.conftest import REPOSITORY, make_captioner

LATIN_1 = "image,caption\nphoto.jpg,Ein Bär\n".encode("latin-1")

# Command, parts of the message. {name} is a file of the workspace.
CAPTION = [
    ("caption {none}.jpg --model {model}", "no such file"),
    ("caption {empty} --model {model}", "no images in this directory"),
    ("caption {root}/x*.png --model {model}", "no file matches"),
    ("caption {photo} --model {none}.safetensors", "model file not found"),
    ("caption {photo} --model {photo}", "not a captioning model, or corrupt"),
    ("caption {photo} --model {model} --batch-size 0", "--batch-size must be >= 1"),
    ("caption {photo} --model {model} --seed -1", "--seed must be in"),
    ("caption {photo} --model {model} --num-beams 0", "--num-beams must be >= 1"),
    ("caption {photo} --model {model} --num-beams 4 --num-beam-groups 3", "--num-beam-groups must divide --num-beams"),
    ("caption {photo} --model {model} --num-return-sequences 3", "--num-return-sequences must be in [1, 1]"),
    ("caption {photo} --model {model} --min-length 9 --max-length 3", "--min-length must be <= --max-length"),
    ("caption {photo} --model {model} --attention-mode argmax", "requires hard attention"),
    ("caption {photo} --model {model} --overlay-format gif", "no effect without --overlay-dir"),
    ("caption {photo} --model {model} --overlay-dir {empty} --overlay-format tiff", "'tiff'"),
    ("caption {photo} --model {model} --overlay-dir {empty} --colormap jet", "'jet'"),
    ("caption {photo} --model {model} --overlay-dir {photo}", "cannot create the output directory"),
    ("caption {photo} --model {model} --temperature 0.5", "temperature has no effect without sampling"),
    ("caption {photo} --model {model} --diversity-penalty 2 --num-beams 4", "--diversity-penalty has no effect"),
    ("caption {photo} --model {model} --do-sample --num-beams 4", "--num-beams has no effect with --do-sample"),
    ("caption {photo} --model {model} --threads 0", "--threads must be >= 1, got 0"),
]
TOOLS = [
    ("score {none}.json {dataset}", "none.json", "cannot be read"),
    ("score {photo} {dataset}", "photo.jpg", "cannot be read"),
    ("score {predictions} {none}", "none", "no such directory"),
    ("score {predictions} {predictions} {predictions} {dataset}", "expected one or two files"),
    ("score {predictions} {dataset}", "have no references", "other.jpg"),
    ("inspect-data {none}", "no such directory"),
    ("inspect-data {empty}", "no captions found, expected one of"),
    ("inspect-data {latin}", "latin.csv", "not UTF-8 text", "save it as UTF-8"),
    ("make-shapes {root}", "exists and is not empty"),
    ("make-shapes {photo}/scenes", "cannot be written"),
    ("make-shapes {root}/new --num-images 0", "--num-images must be >= 1"),
    ("compress {none}.safetensors {root}/out.safetensors", "model file not found"),
    ("compress {model} {photo}/out.safetensors", "cannot be written"),
    ("compress {model} {root}/out.safetensors --top-p 2", "--top-p must be <= 1"),
    ("compress {model} {root}/out.safetensors --top-k 3", "--top-k has no effect without sampling"),
    ("faithfulness {model} --data {drawn} --num-images 0", "--num-images must be >= 1"),
    ("faithfulness {model} --data {drawn} --split tests", "no images in split 'tests'"),
    ("plot {empty}", "metrics.csv", "give the directory of a run"),
]
FIT = [
    ("fit --config {none}.yaml", "none.yaml", "config does not exist"),
    ("fit --config {photo}", "photo.jpg", "cannot be read as YAML"),
    ("fit --config {dataset}", "dataset.json", "unknown setting"),
    ("fit --config {config} --data.root {none} --data.num_scenes 0", "none", "no such directory"),
    ("fit --config {config} --data.root {photo}/x --data.num_scenes 5", "photo.jpg/x", "Not a directory"),
    ("fit --config {config} --data.num_scenes 5", "contains another dataset"),
    ("fit --config {config} --data.root {empty} --data.num_scenes 0", "no captions found"),
    ("fit --config {config} --data.batch_size 0", "data.batch_size must be >= 1, got 0"),
    ("fit --config {config} --data.batch_size many", "data.batch_size: expected a whole number, not many"),
    ("fit --config {config} --data.rot x", "unknown setting 'data.rot'", "did you mean 'data.root'?"),
    ("fit --config {config} --dta.root x", "unknown setting 'dta.root'", "did you mean 'data.root'?"),
    ("fit --config {top_level_typo}", "top_level_typo.yaml", "unknown setting 'trainr", "did you mean 'trainer"),
    (
        "fit --config {nested_typo}",
        "nested_typo.yaml",
        "decoder.hiden_size'",
        "did you mean 'model.decoder.hidden_size'?",
    ),
    ("fit --config {wrong_type}", "wrong_type.yaml", "trainer.max_epochs: expected a whole number or null, not many"),
    (
        "fit --config {config} --trainer.max_epochs many",
        "trainer.max_epochs: expected a whole number or null, not many",
    ),
    ("fit --config {config} --model.decoder.hidden_size -5", "hidden_size must be >= 1, got -5"),
    ("fit --config {config} --model.decoder.hiden_size 5", "did you mean 'model.decoder.hidden_size'?"),
    ("fit --config {config} --model.decoder.dropout 1.5", "dropout must be in [0, 1), got 1.5"),
    ("fit --config {config} --model.decoder.attention_score sum", "model.decoder.attention_score", "additive"),
    ("fit --config {config} --model.encoder.backbone vgg20", "unknown backbone 'vgg20'", "vgg19"),
    ("fit --config {config} --model.objective Nothing", "model.objective: unknown class 'Nothing'", "CrossEntropy"),
    ("fit --config {config} --model.objective SelfCritical", "SelfCritical requires the setting rollout"),
    (
        "fit --config {config} --model.objective VariationalBound --model.objective.estimator Reinforc",
        "unknown class 'Reinforc'; did you mean 'Reinforce'?",
    ),
    ("fit --config {config} --model.optimizer Adamm", "model.optimizer: unknown class 'Adamm'; did you mean 'Adam'?"),
    ("fit --config {config} --model.optimizer.lr -1", "model.optimizer: Invalid learning rate: -1.0"),
    ("fit --config {config} --model.lr_scheduler StepLR", "StepLR requires the setting step_size"),
    ("fit --config {config} --trainer.devices 2x", "trainer: ", "devices 2x"),
    (
        "fit --config {config} --ckpt_path {checkpoint} --model.optimizer.lr 0.5",
        "model.optimizer differs from that in the checkpoint",
    ),
    ("fit --config {config} --model.objective.label_smoothing 3", "label_smoothing"),
    ("fit --config {config} --model.objective.sharpness 3", "'sharpness'"),
    ("fit --config {config} --model.generation.temperature 0.5", "temperature has no effect without sampling"),
    ("fit --config {config} --model.attention_mode argmax", "requires hard attention"),
    ("fit --config {config} --model.init_from {none}", "model file not found"),
    ("fit --config {config} --model.init_from {photo}", "not a captioning model, or corrupt"),
    ("fit --config {config} --ckpt_path {none}.ckpt", "checkpoint not found"),
    ("fit --config {config} --ckpt_path {photo}", "not a checkpoint of 'captioning fit'"),
    (
        "fit --config {config} --ckpt_path {checkpoint} --model.decoder.hidden_size 99",
        "is 99, but 32 in the checkpoint",
    ),
    ("fit --config {config} --ckpt_path {checkpoint} --model.init_from flickr8k-soft", "give only one of them"),
    ("fit --config {config} --trainer.accelerator gpu", "gpu"),
    ("fit --config {config} --trainer.precision 7", "trainer.precision"),
    ("fit --config {config} --trainer.logger.init_args.save_dir {photo}/x", "photo.jpg/x", "check the path"),
    ("fit --config {config} --threads 0", "--threads must be >= 1"),
    ("fit --config {config} --threads many", "threads: expected a whole number"),
    ("fit --config {wrong_monitor}", "monitor: there is no metric 'val/cider'", "val/cider_d"),
    ("test --config {config}", "requires a trained model"),
    ("validate --config {config} --ckpt_path {none}.ckpt", "checkpoint not found"),
    ("predict --config {config} --ckpt_path {checkpoint} --predictions.path {photo}/x.jsonl", "cannot be written"),
]


def make_workspace(root: Path, drawn: Path) -> dict[str, Path]:
    """Write the files that the commands name and return their paths.

    Args:
        root: an empty directory.
        drawn: directory of 60 synthetic scenes.
    """
    names = ("none", "empty", "config", "photo", "dataset", "predictions", "latin", "model", "checkpoint")
    files = {name: root / name for name in names} | {"root": root, "drawn": drawn}
    files["empty"].mkdir()
    files["photo"] = root / "photo.jpg"
    files["photo"].write_bytes(next((drawn / "images").iterdir()).read_bytes()[:700] + b"\x00: [")
    files["dataset"] = drawn / "dataset.json"
    files["predictions"] = root / "predictions.json"
    files["predictions"].write_text('[{"image": "other.jpg", "caption": "a dog"}]')
    files["latin"] = root / "latin.csv"
    files["latin"].write_bytes(LATIN_1)
    files["model"] = root / "model.safetensors"
    make_captioner().save(files["model"])
    write_configs(root, drawn, files)
    fit = ["fit", "--config", str(files["config"]), "--trainer.limit_train_batches", "1"]
    main([*fit, "--trainer.limit_val_batches", "1", "--trainer.num_sanity_val_steps", "0"])
    (files["checkpoint"],) = root.glob("runs/*/*/checkpoints/last.ckpt")
    return files


def write_configs(root: Path, drawn: Path, files: dict[str, Path]) -> None:
    config = yaml.safe_load((REPOSITORY / "configs" / "shapes-soft.yaml").read_text())
    config["data"].update(root=str(drawn), num_scenes=60, seed=3, feature_cache_dir=str(root / "features"))
    config["model"]["decoder"].update(embedding_size=16, hidden_size=32, attention_size=16)
    config["trainer"].update(max_epochs=1, enable_progress_bar=False, enable_model_summary=False)
    config["trainer"]["logger"]["init_args"].update(save_dir=str(root / "runs"))
    text = yaml.safe_dump(config)
    texts = {
        "config": text,
        "top_level_typo": text.replace("trainer:", "trainr:"),
        "nested_typo": text.replace("hidden_size", "hiden_size"),
        "wrong_type": text.replace("max_epochs: 1", "max_epochs: many"),
        "wrong_monitor": text.replace("val/caption_accuracy", "val/cider"),
    }
    for name, content in texts.items():
        files[name] = root / f"{name}.yaml"
        files[name].write_text(content)
