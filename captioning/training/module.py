"""The LightningModule: an encoder, a decoder, a loss, and validation by really generating."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from captioning import attention, losses
from captioning.captioner import Captioner, describe_model
from captioning.decoder import Decoder
from captioning.encoders import Encoder
from captioning.errors import CaptioningError
from captioning.images import Fit
from captioning.search import Found, Search
from captioning.text import Vocabulary
from captioning.training.checkpoints import read_checkpoint
from captioning.training.critic import Baseline, Critic, Try, check_settings, learn, make_critic, trial, way_to_try
from captioning.training.data import Batch
from captioning.training.evaluation import Generated, scores
from captioning.training.scheduled_sampling import with_own_words
from captioning.training.schedules import WarmupCosine


class CaptioningModule(pl.LightningModule):
    """Trains a captioner by likelihood, and measures it by the captions that it generates.

    Args:
        vocabulary: every word in the order of its id; its length is the decoder's vocabulary_size.
        encoder: an entry of the encoder table.
        weights: of the encoder: ``random``, ``pretrained``, or the path of a ``.pth`` file.
        image_size: side of the encoder's input in pixels; 0 takes the encoder's own.
        fit: how a photo that is not square is made so.
        train_encoder: train the encoder too; else it is frozen.
        objective: ``likelihood`` of the captions, or ``self_critical``: CIDEr-D of captions that it samples itself.
        begin_with: a checkpoint whose weights training begins with; ``self_critical`` needs one to be of any use.
        tries: the captions that ``self_critical`` judges: ``samples``, drawn by chance, or a ``beam``, the best that
            the search finds (Cornia et al. 2020): what learns then is what will be said.
        captions: how many of each picture.
        baseline: what they are compared with: the mean of the ``others``, or the ``greedy`` one.
        sharpness: p ** sharpness is what samples are drawn from, and what learns. At 1, ``self_critical`` first makes
            the model sure of itself, which a beam search gains nothing by; at 2 it learns what to say from the start.
        likelihood_weight: of the likelihood of the true captions, beside what its own captions earn. With it
            ``self_critical`` goes on learning what is in the photos, and may begin before they are known by heart. All
            settings of ``likelihood`` count for it; a hard model reads them where it looks when it captions.
        look_alikes: how many of the training pictures that look most like a picture have a say in what a caption of it
            earns, so that what suits only a photo known by heart earns less; 0 for none. Needs the feature cache.
        look_alike_share: share of the reward, as it is logged too, that they decide together.
        label_smoothing: share of the probability that training asks for all words alike.
        scheduled_sampling: share of the words before, at the end of the training, that are the model's own and not the
            truth; it grows from 0. Of true captions only.
        doubly_stochastic: λ, weight of the term that asks each place to be looked at once in all.
        estimator: how the gradient of hard attention is estimated: ``reinforce`` (the paper's), ``leave_one_out``,
            ``learned``, ``gumbel`` or ``top_k``. This and the seven settings below are of ``attention: hard`` only.
        samples: how often each caption's places are sampled; 0 takes the estimator's own number.
        candidates: how many places ``top_k`` sums over.
        reward_weight: λ_r, weight of the score-function term; 1 follows the gradient of the bound.
        entropy_weight: λ_e, weight of the entropy of the maps.
        expected: share of training pictures whose sampled places are replaced by their expectation.
        coin: that share is drawn for each ``picture`` (the paper) or each ``batch`` (its authors' code).
        soft_start: share of the training, from its beginning, in which places are not sampled at all but expected.
        look: how a hard model looks when it captions: ``argmax``, ``sample`` or ``expect``; by itself by ``argmax``.
        search: how captions are found.
        optimizer: any of torch's.
        lr_scheduler: any of torch's, stepped each epoch, or WarmupCosine, stepped each batch.
        **decoder: settings of the decoder.
    """

    def __init__(
        self,
        vocabulary: list[str],
        encoder: str = "tiny",
        weights: str = "random",
        image_size: int = 0,
        fit: Fit = "stretch",
        train_encoder: bool = False,
        objective: Literal["likelihood", "self_critical"] = "likelihood",
        begin_with: Path | None = None,
        tries: Try = "samples",
        captions: int = 5,
        baseline: Baseline = "others",
        sharpness: float = 1.0,
        likelihood_weight: float = 0.0,
        look_alikes: int = 0,
        look_alike_share: float = 0.5,
        label_smoothing: float = 0.0,
        scheduled_sampling: float = 0.0,
        doubly_stochastic: float = 1.0,
        estimator: losses.EstimatorName = "reinforce",
        samples: int = 0,
        candidates: int = 4,
        reward_weight: float = 1.0,
        entropy_weight: float = 0.0,
        expected: float = 0.5,
        coin: losses.Coin = "picture",
        soft_start: float = 0.0,
        look: attention.LookName | None = None,
        search: Search = Search(),
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        **decoder: Any,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["vocabulary", "optimizer", "lr_scheduler", "look", "search", "begin_with"])
        self.vocabulary = Vocabulary(vocabulary)
        self.encoder = Encoder(encoder, weights, image_size, fit, frozen=not train_encoder)
        rows, columns = self.encoder.grid
        self.decoder = Decoder(
            vocabulary_size=len(vocabulary), annotation_size=self.encoder.width, places=rows * columns, **decoder
        )
        if objective == "self_critical":
            check_settings(
                tries=tries,
                captions=captions,
                baseline=baseline,
                sharpness=sharpness,
                likelihood_weight=likelihood_weight,
                look_alikes=look_alikes,
                look_alike_share=look_alike_share,
                look=look,
            )
        self.objective = objective
        self.tries = tries
        self.captions = captions
        self.baseline = baseline
        self.sharpness = sharpness
        self.likelihood_weight = likelihood_weight
        self.look_alikes = look_alikes
        self.look_alike_share = look_alike_share
        self.label_smoothing = label_smoothing
        if not 0 <= scheduled_sampling <= 1:
            raise CaptioningError(f"scheduled_sampling {scheduled_sampling}: a share lies between 0 and 1")
        self.scheduled_sampling = scheduled_sampling
        self.doubly_stochastic = doubly_stochastic
        self.hard = None
        if self.decoder.hard:
            size = self.decoder.state_gates.in_features
            self.hard = losses.HardLoss(
                estimator, size, samples, candidates, reward_weight, entropy_weight, expected, coin
            )
        if not 0 <= soft_start <= 1:
            raise CaptioningError(f"soft_start {soft_start}: a share of the training lies between 0 and 1")
        self.soft_start = soft_start
        attention.check_look(look, self.decoder.hard)
        self.look = look
        self.search = search
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self._critic: Critic | None = None
        if begin_with is not None:
            self._take_over(begin_with)
        self._evaluated: list[tuple[Batch, list[Found]]] = []

    def _take_over(self, checkpoint: Path) -> None:
        weights = read_checkpoint(checkpoint)["state_dict"]
        # A soft model may go on as a hard one, whose baseline it has not.
        weights = {**{name: value for name, value in self.state_dict().items() if name.startswith("hard.")}, **weights}
        try:
            self.load_state_dict(weights)
        except RuntimeError as error:
            first = str(error).splitlines()[1].strip()
            raise CaptioningError(f"{checkpoint}: is of another model than this config's ({first})") from None

    def training_step(self, batch: Batch) -> Tensor:
        annotations = self._annotations(batch)
        if self._critic is not None:
            loss, parts = self._critical_loss(self._critic, batch, annotations)
        elif self.hard is None:
            loss, parts = self._loss(batch, annotations, attention.expect)
        elif self.trainer.global_step < self._soft_steps():
            loss, parts = self._loss(batch, annotations, attention.expect)
            parts["expected"] = torch.ones(())
            # Processes that train together want every weight to have had its part in the loss.
            loss = loss + sum(0 * parameter.sum() for parameter in self.hard.parameters())
        else:
            loss, parts = self._hard_loss(self.hard, batch, annotations)
        self.log_dict({f"train/{name}": part for name, part in parts.items() if name != "likelihood"})
        self.log("train/loss", loss)
        self.log("train/likelihood", parts["likelihood"], prog_bar=True)  # what says how far training has come
        return loss

    def _soft_steps(self) -> float:
        steps = self.trainer.estimated_stepping_batches
        if self.soft_start and steps == float("inf"):
            raise CaptioningError("soft_start is a share of the training: set trainer.max_epochs or trainer.max_steps")
        return self.soft_start and self.soft_start * steps

    def validation_step(self, batch: Batch) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch) -> None:
        self._evaluate(batch, "test")

    def on_validation_epoch_end(self) -> None:
        self._score("val")

    def on_test_epoch_end(self) -> None:
        self._score("test")

    def predict_step(self, batch: Batch) -> list[tuple[str, str]]:
        """(file, caption) of each picture."""
        found = self._caption(self._annotations(batch))
        return [
            (str(record.image), " ".join(self.vocabulary.decode(one.words)))
            for record, one in zip(batch.records, found, strict=True)
        ]

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(parameter for parameter in self.parameters() if parameter.requires_grad)
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        if not isinstance(scheduler, WarmupCosine):
            return [optimizer], [{"scheduler": scheduler, "interval": "epoch", "monitor": "val/loss"}]
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def on_train_start(self) -> None:
        if self.objective == "self_critical":
            loader: Any = self.trainer.train_dataloader
            self._critic = make_critic(loader.dataset, self.vocabulary, self.look_alikes, self.look_alike_share)
        # Not earlier: counting the steps makes the loaders, and a checkpoint's state reaches only those made after it.
        for schedule in (configured.scheduler for configured in self.trainer.lr_scheduler_configs):
            if isinstance(schedule, WarmupCosine):
                schedule.plan(int(self.trainer.estimated_stepping_batches))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["captioner"] = describe_model(self.encoder, self.decoder, self.vocabulary, self.search, self.look)

    def captioner(self) -> Captioner:
        """What captions pictures with the weights as they are now."""
        search = dataclasses.asdict(self.search)
        return Captioner(self.encoder, self.decoder, self.vocabulary, self.look, **search)

    def _annotations(self, batch: Batch) -> Tensor:
        """(B, L, D), from the CNN or, if it has seen the pictures before, from the feature cache."""
        if batch.annotations is None:
            return self.encoder(batch.pixels)
        return self.encoder.finish(batch.annotations.float(), batch.blocks)

    def _loss(
        self, batch: Batch, annotations: Tensor, choose: attention.Choose | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        reading = self.decoder(annotations, batch.words, batch.lengths, choose, self._told(batch, annotations, choose))
        smoothing = self.label_smoothing if self.training else 0.0
        captions = int((batch.lengths > 0).sum())
        weights = reading.weights if self.doubly_stochastic else reading.weights.detach()  # spares its backward pass
        parts = {
            "likelihood": losses.likelihood(reading.logits, reading.targets, captions, smoothing),
            "doubly_stochastic": losses.doubly_stochastic(weights, captions),
        }
        return parts["likelihood"] + self.doubly_stochastic * parts["doubly_stochastic"], parts

    def _told(self, batch: Batch, annotations: Tensor, choose: attention.Choose | None) -> Tensor | None:
        """What it is told, in training only, that the words before were, if not the truth alone."""
        if not (self.training and self.scheduled_sampling):
            return None
        share = self.scheduled_sampling * self.trainer.global_step / self.trainer.estimated_stepping_batches
        return with_own_words(self.decoder, annotations, batch, share, choose)

    def _hard_loss(self, hard: losses.HardLoss, batch: Batch, annotations: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        generator = self._generator()
        expected = hard.toss(len(annotations), generator)
        words, lengths = (part.repeat_interleave(hard.samples, dim=1) for part in (batch.words, batch.lengths))
        told = self._told(batch, annotations, attention.expect)
        told = None if told is None else told.repeat_interleave(hard.samples, dim=1)
        reading = self.decoder(annotations, words, lengths, hard.choose(expected, generator), told)
        captions = int((batch.lengths > 0).sum())
        parts = hard(losses.Sampled.of(reading, hard.samples, self.decoder.elsewhere, self.label_smoothing), captions)
        weights = reading.weights if self.doubly_stochastic else reading.weights.detach()  # spares its backward pass
        spread = losses.doubly_stochastic(weights, captions * hard.samples)
        logged = {
            "likelihood": -parts.reward,
            "doubly_stochastic": spread,
            "reward": parts.reward,
            "baseline": parts.baseline,
            "entropy": parts.entropy,
            "expected": expected.float().mean(),
        }
        trainer: Any = self.trainer  # some of it is set where mypy does not see it
        every = trainer.log_every_n_steps
        if every and (self.trainer.global_step + 1) % every == 0:  # where it is logged: it takes its own backward pass
            parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
            term = hard.reward_weight * parts.score
            gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
            logged["score_gradient"] = torch.nn.utils.get_total_norm([one for one in gradients if one is not None])
        return parts.total + self.doubly_stochastic * spread, logged

    def _critical_loss(self, critic: Critic, batch: Batch, annotations: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """By policy gradient on whole captions; a hard model looks as it does when it captions."""
        shown = self.decoder.show(annotations)
        self.decoder.eval()  # the model that captions is judged, not one with some of its parts left out
        tried = trial(
            critic,
            self.decoder,
            shown,
            batch.records,
            self.captions,
            self.baseline,
            way_to_try(self.search, self.tries, self.captions, self.sharpness),
            self._generator(),
            self._choose(),
        )
        loss, parts = learn(self.decoder, shown, tried, self.sharpness, self._choose())
        self.decoder.train()
        if self.likelihood_weight:
            true, of_true = self._loss(batch, annotations, self._choose())
            loss = loss + self.likelihood_weight * true
            parts["true_likelihood"] = of_true["likelihood"]
        return loss, parts

    def _evaluate(self, batch: Batch, stage: str) -> None:
        annotations = self._annotations(batch)
        loss, _ = self._loss(batch, annotations, self._choose())
        self.log(f"{stage}/loss", loss, batch_size=int((batch.lengths > 0).sum()), sync_dist=True)
        self._evaluated.append((batch, self._caption(annotations)))

    def _caption(self, annotations: Tensor) -> list[Found]:
        found = self.search(self.decoder, annotations, self._generator(), choose=self._choose())
        return [best for best, *_ in found]

    def _choose(self) -> attention.Choose | None:
        return attention.way_to_look(self.look, self._generator())

    def _generator(self) -> torch.Generator:
        """Randomness of its own for the places, begun from the step's seed."""
        return torch.Generator(self.device).manual_seed(int(torch.randint(2**62, ())))

    def _score(self, stage: str) -> None:
        generated = [
            Generated(record, self.vocabulary.decode(one.words), one.weights.unflatten(1, self.encoder.grid).numpy())
            for batch, captions in self._evaluated
            for record, one in zip(batch.records, captions, strict=True)
        ]
        self._evaluated.clear()
        figures = scores(generated, self.trainer)
        training = self.trainer.state.fn == "fit"
        self.log_dict({f"{stage}/{name}": figure for name, figure in figures.items()}, prog_bar=training)
