"""Augmentation: each image exactly as torchvision's functions do it, and at random as its transforms do."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_sample_images
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as TF

from edge_hpcr.learner.augment import SHIFT, AugmentConfig, AugmentParams, apply, draw

pytestmark = pytest.mark.computes

ADJUST = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)


def photographs(height: int, width: int, count: int) -> torch.Tensor:
    """Tiles of scikit-learn's two sample photographs, spread over both, as float32 NCHW in [0, 1]."""
    tiles = [
        photograph[top : top + height, left : left + width]
        for photograph in load_sample_images().images
        for top in range(0, photograph.shape[0] - height + 1, height)
        for left in range(0, photograph.shape[1] - width + 1, width)
    ]
    chosen = [tiles[i] for i in np.linspace(0, len(tiles) - 1, count).astype(int)]
    return torch.from_numpy(np.stack(chosen).astype(np.float32) / 255).permute(0, 3, 1, 2).contiguous()


def by_torchvision(image: torch.Tensor, params: AugmentParams, i: int) -> torch.Tensor:
    box = (int(side[i]) for side in (params.top, params.left, params.height, params.width))
    image = TF.resized_crop(image, *box, size=list(image.shape[-2:]))
    if params.flip[i]:
        image = TF.horizontal_flip(image)
    if params.jitter[i]:
        for kind in params.order[i]:
            image = ADJUST[kind](image, float(params.factors[i, kind]))
    return TF.rgb_to_grayscale(image, 3) if params.grey[i] else image


# -- Given parameters: exactly as torchvision ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 8), (24, 40)])
def test_each_image_is_what_torchvision_makes_of_it_with_the_same_parameters(height, width):
    count = 72
    images = photographs(height, width, count)
    params = draw(np.random.default_rng(5), count, height, width)
    every_order = itertools.islice(itertools.cycle(itertools.permutations(range(4))), count)
    params = replace(params, order=np.array(list(every_order)))
    views = apply(images, params)
    expected = torch.stack([by_torchvision(images[i], params, i) for i in range(count)])
    torch.testing.assert_close(views, expected, rtol=0, atol=1e-5)


# -- Drawn parameters: distributed as torchvision's ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("height", "width", "scale", "config"),
    [
        (32, 32, (0.2, 1.0), AugmentConfig()),
        # Long images, of which only a small crop fits: many of ten tries fail, and the fallback is common.
        (16, 64, (0.3, 1.0), AugmentConfig(scale=(0.3, 1.0))),
    ],
)
def test_crop_boxes_are_distributed_as_torchvision_draws_them(height, width, scale, config):
    transform = v2.RandomResizedCrop((height, width), scale=scale)
    image = torch.empty(3, height, width)
    with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's global generator
        torch.manual_seed(1)
        theirs = [tuple(transform.make_params([image]).values()) for _ in range(4000)]
    params = draw(np.random.default_rng(2), 40_000, height, width, config)
    ours = np.stack([params.top, params.left, params.height, params.width], axis=1)

    def features(boxes: np.ndarray) -> dict[str, np.ndarray]:
        top, left, tall, wide = np.asarray(boxes, dtype=float).T
        return {
            "top": top,
            "left": left,
            "height": tall,
            "width": wide,
            "area": tall * wide,
            "ratio": wide / tall,
            "distance from the centre": np.abs(2 * top + tall - height) + np.abs(2 * left + wide - width),
        }

    of_theirs = features(theirs)
    for name, values in features(ours).items():
        assert stats.ks_2samp(values, of_theirs[name]).pvalue > 0.005, name
    assert (ours >= [0, 0, 1, 1]).all()
    assert (params.top + params.height <= height).all() and (params.left + params.width <= width).all()


# -- The contract ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 32)])
def test_a_shifted_view_is_a_part_of_the_image_with_its_border_continued(height, width):
    images = photographs(height, width, 20).repeat(10, 1, 1, 1)
    params = draw(np.random.default_rng(0), len(images), height, width, replace(SHIFT, flip=0))
    views = apply(images, params)
    above, beside = height // 8, width // 8
    continued = torch.nn.functional.pad(images, (beside, beside, above, above), mode="replicate")
    for view, wide, top, left in zip(views, continued, params.top + above, params.left + beside, strict=True):
        torch.testing.assert_close(view, wide[:, top : top + height, left : left + width], rtol=0, atol=1e-5)
    assert set(params.top) == set(range(-above, above + 1))
    assert set(params.left) == set(range(-beside, beside + 1))
