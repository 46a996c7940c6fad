"""Two experts on a frozen trunk: the picture, as a whole and by its layout, and single places of it.

*Picture* is streaming LDA (`slda`): statistics of every sample that ever came. *Places* is LDA over single vectors of the
trunk's last map. Whoever teaches at a desk shows things before one background, and asks before another one later: the places
that differ most from the mean map of all samples are the thing, so of a sample the memory keeps these few. A picture's score
of a class is the highest over all its places. The memory's samples are all that *places* knows: undoing a label is
forgetting its sample.

How much layout and places count is decided by leaving samples of the memory out, and by what is known of the background.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge_hpcr.learner.backbones.backbone import Trunk
from edge_hpcr.learner.bursts import bursts, one_of_each
from edge_hpcr.learner.methods.method import Method, StepView
from edge_hpcr.learner.methods.slda import NEVER, SLDA, factor
from edge_hpcr.learner.network import Classifier, Network

KEPT_PLACES = 3  # of a sample
# Median distance (one minus the cosine) of a picture's places from the mean map's, below which the background is taken to stay:
# it was 0.17 before one scene, 0.22 for drawn hands, and 0.6 for CIFAR100's training pictures.
SAME_SCENE = 0.4
FAR = 3.0  # as no two directions are
# Before another scene a class is near from about this lead on: there about one right answer in ten had less, with 3 to 20
# labels per class and with 4 to 10 classes.
LEAST_LEAD, STEEP = 0.25, 10.0
# What places may count, the picture being 1. The most is taken that costs hardly any right answers about samples left out:
# before one scene nothing that can be left out says what they earn before another one.
SHARES = (1.0, 0.5, 0.25, 0.0)
MAY_COST = 0.04  # of the answers
FEWEST_LEFT_OUT = 20
MOST_LEFT_OUT = 400
LABELS_FOR_LENGTH = 5  # of a class: then half of its mean's own distance counts
MOST_SAMPLES = 2000  # of which places are looked at: a label must not take longer with every label
FOLDS = 4
# By how much layout is multiplied beside the whole picture: the least that explains samples left out nearly as well as any.
DETAILS = (1.0, 3.0)
NEARLY = 0.03  # nats per sample
SHARPNESS = np.geomspace(0.3, 100, 16)  # of scores as a softmax takes them: the best counts
LEAST_APART = 0.1  # from the scene: below it no place shows a thing
EXTENT = 4.0  # sides of the square that shows a thing, in standard deviations of its places
GROWN = 1.25  # times as many samples in memory: then the evidence is looked at again


class PlacesToo(Classifier):
    """Scores of the picture, and of the place that speaks most for each class; nearness by the picture as a whole.

    Before another scene all pictures are far from what was taught. There a class is near when the best place's score is ahead
    of the mean of all classes; at a class's own mean it is ahead by 1.
    """

    PARTS = ("place_weight", "place_bias", "place_share", "scene", "same_scene", "among")
    NEAR = ("whitening", "near_weight", "near_bias", "certainty")
    BY_CLASS = ("place_weight", "place_bias", "among", "near_weight", "near_bias", "certainty")

    place_weight: Tensor
    place_bias: Tensor
    place_share: Tensor  # what places count beside the picture
    scene: Tensor  # [P, D], each of length one
    same_scene: Tensor  # distance from the scene below which a picture shows it
    among: Tensor  # [C], a share of one for each class that is known
    whitening: Tensor
    near_weight: Tensor
    near_bias: Tensor
    certainty: Tensor  # [C], by which squared distances are multiplied

    def __init__(self, picture: Classifier, places: tuple[Tensor, ...], near: tuple[Tensor, ...]) -> None:
        super().__init__(picture.lift, picture.weight, picture.bias)
        for name, tensor in zip((*self.PARTS, *self.NEAR), (*places, *near), strict=True):
            self.register_buffer(name, tensor)

    def keep(self, columns: list[int]) -> None:
        super().keep(columns)
        for name in self.BY_CLASS:
            setattr(self, name, getattr(self, name)[columns])
        self.among /= self.among.sum().clamp_min(1e-9)

    def forward(self, features: Tensor, inputs: Tensor) -> Tensor:
        return super().forward(features, inputs) + self.place_share * self._found(self._places(inputs))

    def _places(self, inputs: Tensor) -> Tensor:
        return inputs[:, self.weight.shape[1] :].unflatten(1, (-1, self.scene.shape[1]))

    def _found(self, places: Tensor) -> Tensor:
        return (places @ self.place_weight.T).amax(1) + self.place_bias

    def similarity(self, cosines: Tensor, inputs: Tensor) -> Tensor:
        """By the Mahalanobis distance d from the nearest class's mean: 1 / (1 + d²); before another scene by places."""
        whole = self.lift(inputs[:, : self.weight.shape[1]])[:, : len(self.whitening)]
        own = (whole @ self.whitening).square().sum(1, keepdim=True)
        squared = own - 2 * (whole @ self.near_weight.T + self.near_bias)
        near = 1 / (1 + F.relu((squared * self.certainty).amin(1)))
        places = self._places(inputs)
        if places.shape[1] < len(self.scene):  # of a sample in memory, which keeps few
            return near
        found = self._found(places)
        lead = found.amax(1) - found @ self.among
        elsewhere = (STEEP * (lead - LEAST_LEAD)).sigmoid()
        return torch.where(_apart(places, self.scene) < self.same_scene, near, elsewhere)


class Experts(SLDA):
    name = "experts"
    order = 98
    source = "ours: SLDA of the picture, and LDA of its places; no row of the paper's tables"
    uses_memory = True
    KEPT = (*SLDA.KEPT, "scene", "maps", "spread", "share", "weighed_at", "detail")

    scene: Tensor  # float32 [P, D]: the sum of all maps, each vector of length one
    maps: Tensor  # int64: how many those are
    spread: Tensor  # float32: the sum of each picture's median distance from the scene
    share: Tensor  # float32: how much places count beside the picture
    weighed_at: Tensor  # int64: how many samples the memory had when that was decided
    detail: Tensor  # float32: by how much layout is multiplied

    _follows = False  # what another has decided

    def begin(self, view: StepView) -> None:
        trunk = view.network.backbone.trunk
        size = (0, 0) if trunk is None else (trunk.places, trunk.place_size)
        self.scene = torch.zeros(size, device=view.device)
        super().begin(view)
        self.maps = torch.zeros((), dtype=torch.int64, device=view.device)
        self.spread = torch.zeros((), device=view.device)
        self.share = torch.zeros((), device=view.device)
        self.weighed_at = torch.zeros((), dtype=torch.int64, device=view.device)
        self.detail = torch.ones((), device=view.device)

    @property
    def looks_at_places(self) -> bool:
        return self.scene.numel() > 0

    def bytes_left(self, view: StepView) -> int | None:
        """Half of what is left beside the scene is for samples."""
        left = super().bytes_left(view)
        return None if left is None else max(4, (left - self.scene.nbytes) // 2)

    # What is kept of a sample -----------------------------------------------------------------------------------------

    def kept_shape(self, trunk: Trunk) -> tuple[int, ...]:
        return trunk.with_places(min(KEPT_PLACES, trunk.places))

    def keep(self, view: StepView, inputs: np.ndarray) -> np.ndarray:
        """The picture, and the places that differ most from the scene so far, which then has seen these pictures too."""
        trunk = view.network.backbone.trunk
        if trunk is None or not self.looks_at_places or inputs.shape[2:] == self.kept_shape(trunk):
            return inputs
        rows = torch.from_numpy(inputs[:, 0]).to(self.scene)
        picture = rows[:, : -self.scene.numel()]
        maps = rows[:, -self.scene.numel() :].unflatten(1, self.scene.shape)
        # The very first picture is compared with its own mean.
        scene = self.scene if self.maps else maps.mean((0, 1), keepdim=True)[0]
        scene = F.normalize(scene, dim=1)
        apart = 1 - (maps * scene).sum(2)
        if self.maps:
            self.spread += _apart(maps, scene).sum()
        self.scene += maps.sum(0)
        self.maps += len(rows)
        farthest = apart.topk(min(KEPT_PLACES, len(self.scene)), dim=1).indices
        chosen = maps.gather(1, farthest[:, :, None].expand(-1, -1, maps.shape[2]))
        return torch.cat([picture, chosen.flatten(1)], 1).cpu().numpy()[:, None]

    # What is made of it -----------------------------------------------------------------------------------------------

    def solve(self, view: StepView, network: Network) -> Classifier:
        if not self.looks_at_places:
            return super().solve(view, network)
        size, count = self.scene.shape[1], len(view.held)
        weighs = self._is_due(count)
        wanted = MOST_SAMPLES if weighs or self.share or self.scene_stays else 0
        held = view.held.at(np.random.default_rng(count).permutation(count)[:wanted])
        columns = torch.from_numpy(held.labels)
        directions, places = self._parts(network, held.inputs, view)
        if weighs:
            self._weigh(directions, places, columns)
            self.weighed_at.fill_(count)
        picture = super().solve(view, network)
        self._even_lengths(picture)
        seen = self.counts.cpu() > 0
        held_too = torch.bincount(columns, minlength=len(self.counts))[seen] > 0
        known = len(columns) > 0 and bool(held_too.all())
        share = float(self.share) if known else 0.0
        weight, bias, means = _lda(places, columns, len(self.counts))
        # Both experts in one unit: how far the means of two classes are apart on average.
        means_of_picture = self.sums.cpu() / self.counts.cpu().clamp_min(1)[:, None]
        assert picture.bias is not None
        unit = _margin(picture.weight.cpu(), means_of_picture, seen)
        picture.weight, picture.bias = picture.weight / (1 + share), picture.bias / (1 + share)
        among = seen / seen.sum().clamp_min(1)
        # Of the mean of all classes, where 1 is how far two are apart.
        ahead = 1 - 1 / max(1, int(seen.sum()))
        lead = max(ahead * _margin(weight, means, seen), 1e-9)
        knows_scene = known and len(held_too) > 1 and self.scene_stays
        parts = (
            weight / lead,
            bias / lead,
            torch.tensor(share / (1 + share) * unit * ahead),
            F.normalize(self.scene, dim=1),
            torch.tensor(SAME_SCENE if knows_scene else FAR),
            among,
        )
        return PlacesToo(picture, tuple(each.to(self.sums) for each in parts), self._nearness(size))

    def _even_lengths(self, picture: Classifier) -> None:
        """While labels are few, draw the means of classes to one distance from their middle: how far each is was chance."""
        seen, counts = self.counts > 0, self.counts.float()
        if not seen.any():  # a correction has taken the only sample out, and its new class comes next
            return
        means = self.sums / counts.clamp_min(1)[:, None]
        middle = means[seen].mean(0)
        away = means - middle
        squared = (away * picture.weight).sum(1).clamp_min(1e-9)  # of the distance, in LDA's own measure
        drawn = LABELS_FOR_LENGTH / (LABELS_FOR_LENGTH + counts)
        factor = (1 + drawn * ((squared[seen].mean() / squared).sqrt() - 1))[:, None]
        picture.weight = factor * picture.weight
        bias = -(picture.weight * (middle + factor * away / 2)).sum(1)
        picture.bias = torch.where(seen, bias, NEVER)

    def _parts(self, network: Network, inputs: np.ndarray, view: StepView) -> tuple[Tensor, Tensor]:
        """Of kept samples: the picture's direction, and the places [N, K, D]."""
        rows = view.plain(inputs)
        if not len(rows):
            return torch.zeros(0, network.feature_size), torch.zeros(0, KEPT_PLACES, self.scene.shape[1])
        features = network.eval().features(rows)
        places = rows[:, features.shape[1] :].unflatten(1, (-1, self.scene.shape[1]))
        return F.normalize(features, dim=1).cpu(), places.cpu()

    def _nearness(self, size: int) -> tuple[Tensor, ...]:
        """What `PlacesToo.similarity` needs: the picture as a whole is the first part of a direction.

        Another picture is farther from the mean of n samples than from the class's own mean, in square by the factor 1 + 1/n.
        The copies that calibrate have fewer samples than the learner, and would put the line too far out.
        """
        size = min(size, len(self.scatter))
        means = self.sums[:, :size].cpu().double() / self.counts.cpu().clamp_min(1)[:, None]
        inverse = torch.cholesky_inverse(factor(self.scatter[:size, :size].cpu().double(), int(self.samples)))
        weight = means @ inverse
        bias = torch.where(self.counts.cpu() > 0, -(weight * means).sum(1) / 2, NEVER)
        whitening = torch.linalg.cholesky(inverse).to(self.sums)
        counts = self.counts.clamp_min(1)
        return whitening, weight.to(self.sums), bias.to(self.sums), counts / (counts + 1)

    # Evidence ---------------------------------------------------------------------------------------------------------

    @property
    def scene_stays(self) -> bool:
        return bool(self.maps > 1) and float(self.spread) / (int(self.maps) - 1) < SAME_SCENE

    def _is_due(self, count: int) -> bool:
        """Whether the memory has grown or shrunk so much that the evidence is looked at again."""
        before = int(self.weighed_at)
        return not self._follows and not before / GROWN < count < before * GROWN

    def stretch(self) -> Tensor:
        """The numbers of layout follow those of the whole picture. Lengths stay about the same."""
        found = super().stretch() * float(self.detail)
        found[: self.scene.shape[1]] = 1
        return found * math.sqrt(2 / (1 + float(self.detail) ** 2))

    def _weigh(self, directions: Tensor, places: Tensor, columns: Tensor) -> None:
        """How much layout and places may count, by samples of the memory that are left out; a burst is left out together."""
        self.share.zero_()
        self.detail.fill_(1)
        if len(columns) < FEWEST_LEFT_OUT:
            return
        # They come in no order.
        directions, places, columns = (each[:MOST_LEFT_OUT] for each in (directions, places, columns))
        shots = bursts(directions.numpy(), columns.numpy())
        folds = torch.from_numpy(shots % FOLDS)  # which share every class: a class's shots are neighbours
        weights = torch.from_numpy(one_of_each(shots, np.ones(len(shots), bool))).float()
        weights *= torch.bincount(columns, weights)[columns] > 1  # of a class that has no other burst
        if weights.sum() < FEWEST_LEFT_OUT / 2:
            return
        by_detail = {}
        for detail in DETAILS:
            self.detail.fill_(detail)
            pictures = directions * self.stretch().float()
            by_detail[detail] = _left_out(pictures[:, None], columns, folds)
        losses = {detail: _surprise(scores, columns, weights) for detail, scores in by_detail.items()}
        detail = min(each for each in DETAILS if losses[each] <= min(losses.values()) + NEARLY)
        self.detail.fill_(detail)
        if self.scene_stays:
            picture, single = by_detail[detail], _left_out(places, columns, folds)
            right = {
                share: float(weights @ (picture + share * single).argmax(1).eq(columns).float())
                for share in SHARES
            }
            least = right[0.0] - MAY_COST * float(weights.sum())
            self.share.fill_(max(share for share in SHARES if right[share] >= least))

    def follow(self, other: Method) -> None:
        assert isinstance(other, Experts)
        self.decide(float(other.share))
        self.detail.copy_(other.detail)

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state({"detail": self.detail} | state)  # the first checkpoints have none

    def decide(self, share: float) -> None:
        """Let places count so much, whatever the evidence says."""
        self.share.fill_(share)
        self._follows = True

    def where(self, seen: np.ndarray) -> tuple[float, float, float] | None:
        """The middle and the extent of the places that differ from the scene more than most do."""
        if not self.looks_at_places or not self.maps:
            return None
        scene = self.scene.cpu()
        apart = 1 - F.cosine_similarity(
            torch.from_numpy(seen.flatten()[-scene.numel() :]).view_as(scene), scene
        )
        if apart.max() < LEAST_APART:  # it is all that was ever seen
            return None
        weight = F.normalize((apart - apart.median()).clamp(min=0) ** 2, p=1, dim=0)
        steps = (torch.arange(math.isqrt(len(scene))) + 0.5) / math.isqrt(len(scene))
        places = torch.cartesian_prod(steps, steps)
        middle = weight @ places
        side = EXTENT * (weight @ (places - middle) ** 2).sum().sqrt()
        return float(middle[1]), float(middle[0]), float(side)

    def evidence(self) -> str | None:
        if not self.looks_at_places or self.weighed_at < FEWEST_LEFT_OUT:
            return None
        if not self.scene_stays:
            return "Looks at the whole picture: most of it changes from picture to picture."
        if self.share > 0:
            return "Looks at single places too: the background is the same in all pictures."
        same = "the background is the same in all pictures"
        return f"Looks at the whole picture: {same}, but single places tell these classes apart less well."


def _apart(maps: Tensor, scene: Tensor) -> Tensor:
    """The median distance of each picture's places from the scene's, which a thing before it hardly moves."""
    cosines = (maps * scene).sum(2)
    return 1 - cosines.topk(cosines.shape[1] // 2 + 1, dim=1).values[:, -1]


def _lda(vectors: Tensor, columns: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, biases and means by class of [N, K, D]. The K of one picture are alike: together they count as one sample."""
    flat, own = vectors.flatten(0, 1), columns.repeat_interleave(vectors.shape[1])
    counts = torch.bincount(own, minlength=classes)
    means = torch.zeros(classes, flat.shape[1]).index_add_(0, own, flat) / counts.clamp_min(1)[:, None]
    deviations = flat - means[own]
    lower = factor((deviations.T @ deviations).double(), len(vectors))
    weight = torch.cholesky_solve(means.double().T, lower).T.float()
    return weight, torch.where(counts > 0, -(weight * means).sum(1) / 2, NEVER), means


def _margin(weight: Tensor, means: Tensor, seen: Tensor) -> float:
    """By how much a class's score at its own mean is above the other classes' there, on average."""
    # Summed over all pairs biases cancel, and what is left needs no score of a pair: thousands of classes have millions.
    weight, means = weight[seen], means[seen]
    if len(means) < 2:
        return 0.0
    return float(((means - means.mean(0)) * weight).sum() / (len(means) - 1))


def _left_out(vectors: Tensor, columns: Tensor, folds: Tensor) -> Tensor:
    """Each sample's scores, by LDA of the vectors [N, K, D] in other folds, in units of how far two classes are apart."""
    classes = int(columns.max()) + 1
    scores = torch.zeros(len(columns), classes)
    for fold in range(FOLDS):
        out = folds == fold
        weight, bias, means = _lda(vectors[~out], columns[~out], classes)
        apart = _margin(weight, means, bias > NEVER)
        scores[out] = ((vectors[out] @ weight.T).amax(1) + bias) / max(apart, 1e-9)
    return scores


def _surprise(scores: Tensor, columns: Tensor, weights: Tensor) -> float:
    """The log-loss of these scores at their best temperature."""
    losses = [F.cross_entropy(scores * sharpness, columns, reduction="none") for sharpness in SHARPNESS]
    return min(float(weights @ each / weights.sum()) for each in losses)
