"""Augmentation: each image exactly as torchvision's functions do it, and at random as its transforms do."""

import colorsys
import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_sample_images
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as TF

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.augment import HUE, SHIFT, AugmentConfig, AugmentParams, apply, augment, draw

pytestmark = pytest.mark.computes

ADJUST = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
# 26 comparisons are made of the views' statistics: at 0.01 each, one in four sets would fail by chance alone.
ONE_OF_MANY = 0.01 / 26
SIZES = [(32, 32), (8, 8), (84, 84), (24, 40), (40, 24), (33, 17)]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def torch_seed():
    """torchvision draws from torch's global generator; give it a seed and put the old state back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        yield


def photographs(height: int, width: int, limit: int | None = None) -> torch.Tensor:
    """Tiles of scikit-learn's two sample photographs, spread over both, as float32 NCHW in [0, 1]."""
    tiles = [
        photograph[top : top + height, left : left + width]
        for photograph in load_sample_images().images
        for top in range(0, photograph.shape[0] - height + 1, height)
        for left in range(0, photograph.shape[1] - width + 1, width)
    ]
    if limit is not None:
        tiles = [tiles[i] for i in np.linspace(0, len(tiles) - 1, limit).astype(int)]
    return torch.from_numpy(np.stack(tiles).astype(np.float32) / 255).permute(0, 3, 1, 2).contiguous()


def noise(count: int, height: int, width: int) -> torch.Tensor:
    """Noise, with the pixels at which colour formulas go wrong: black, white, grey, pure colours, and ties."""
    rng = np.random.default_rng(3)
    pixels = rng.random((count, 3, height, width), dtype=np.float32)
    corners = np.array(list(itertools.product((0.0, 0.5, 1.0), repeat=3)), dtype=np.float32)
    chosen = rng.random((count, height, width)) < 0.4
    special = corners[rng.integers(0, len(corners), (count, height, width))].transpose(0, 3, 1, 2)
    return torch.from_numpy(np.where(chosen[:, None], special, pixels))


def rows(params: AugmentParams, chosen: np.ndarray) -> AugmentParams:
    return AugmentParams(**{field.name: getattr(params, field.name)[chosen] for field in fields(params)})


def every_order(count: int, height: int, width: int) -> AugmentParams:
    """Drawn parameters, but with each of the 24 orders in turn."""
    params = draw(np.random.default_rng(5), count, height, width)
    orders = np.array(list(itertools.islice(itertools.cycle(itertools.permutations(range(4))), count)))
    return replace(params, order=orders)


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
@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize(
    # Of noise, float32 resampling positions leave more: torchvision is then 1.4e-5 off its own float64 result.
    ("source", "tolerance"),
    [("photographs", 1e-5), ("noise", 5e-5)],
)
def test_each_image_is_what_torchvision_makes_of_it_with_the_same_parameters(
    height, width, source, tolerance
):
    count = 72
    images = photographs(height, width, count) if source == "photographs" else noise(count, height, width)
    params = every_order(count, height, width)
    views = apply(images, params)
    expected = torch.stack([by_torchvision(images[i], params, i) for i in range(count)])
    torch.testing.assert_close(views, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("factor", [-0.5, -0.1, 1e-6, 0.07, 0.5])
def test_hue_alone_is_the_hsv_rotation_of_the_standard_library(factor):
    images = noise(2, 8, 8)
    params = draw(
        np.random.default_rng(0), 2, 8, 8, AugmentConfig(scale=(1, 1), ratio=(1, 1), flip=0, grey=0)
    )
    params = replace(params, jitter=np.ones(2, bool), factors=np.tile([1.0, 1.0, 1.0, factor], (2, 1)))
    expected = images.permute(0, 2, 3, 1).reshape(-1, 3).double().numpy()
    for i, pixel in enumerate(expected):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        expected[i] = colorsys.hsv_to_rgb((hue + factor) % 1, saturation, value)
    views = apply(images, params).permute(0, 2, 3, 1).reshape(-1, 3).double().numpy()
    np.testing.assert_allclose(views, expected, atol=2e-6)


def test_an_image_is_treated_alike_alone_and_in_a_batch():
    images, params = photographs(32, 32, 40), every_order(40, 32, 32)
    together = apply(images, params)
    alone = torch.cat([apply(images[i : i + 1], rows(params, np.array([i]))) for i in range(40)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


# -- Drawn parameters: distributed as torchvision's ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("height", "width", "scale", "config"),
    [
        (32, 32, (0.2, 1.0), AugmentConfig()),
        (84, 84, (0.08, 1.0), AugmentConfig(scale=(0.08, 1.0))),
        (24, 40, (0.2, 1.0), AugmentConfig()),
        # Long images, of which only a small crop fits: many of ten tries fail, and the fallback is common.
        (16, 64, (0.3, 1.0), AugmentConfig(scale=(0.3, 1.0))),
        (64, 16, (0.3, 1.0), AugmentConfig(scale=(0.3, 1.0))),
    ],
)
def test_crop_boxes_are_distributed_as_torchvision_draws_them(height, width, scale, config, torch_seed):
    transform = v2.RandomResizedCrop((height, width), scale=scale)
    image = torch.empty(3, height, width)
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


@pytest.mark.parametrize(("height", "width"), [(12, 60), (60, 12), (11, 64), (64, 11), (10, 63)])
def test_the_crop_falls_back_to_torchvisions_centre_box_when_nothing_fits(height, width, torch_seed):
    box = v2.RandomResizedCrop((height, width), scale=(1.0, 1.0)).make_params([torch.empty(3, height, width)])
    params = draw(np.random.default_rng(0), 50, height, width, AugmentConfig(scale=(1.0, 1.0)))
    for name, side in box.items():
        assert set(getattr(params, name)) == {side}, name


def test_a_whole_image_between_the_ratios_is_the_fallback_of_a_scale_that_cannot_fit():
    params = draw(np.random.default_rng(0), 10, 32, 36, AugmentConfig(scale=(2.0, 3.0)))
    assert set(zip(params.top, params.left, params.height, params.width, strict=True)) == {(0, 0, 32, 36)}


@pytest.mark.parametrize(
    ("transform", "config"),
    [
        (v2.ColorJitter(0.4, 0.4, 0.4, 0.1), AugmentConfig()),
        # Different spreads, so that no two can be mixed up; one that reaches below zero.
        (
            v2.ColorJitter(0.2, 0.3, 1.5, 0.4),
            AugmentConfig(brightness=0.2, contrast=0.3, saturation=1.5, hue=0.4),
        ),
    ],
)
def test_colour_factors_are_distributed_as_torchvision_draws_them(transform, config, torch_seed):
    theirs = [transform.make_params([]) for _ in range(4000)]
    factors = draw(np.random.default_rng(2), 40_000, 32, 32, config).factors
    for column, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        same = stats.ks_2samp(factors[:, column], [params[f"{name}_factor"] for params in theirs])
        assert same.pvalue > 0.01, name
        low, high = getattr(transform, name)
        assert low <= factors[:, column].min() and factors[:, column].max() <= high, name


def test_all_orders_of_the_colour_changes_are_equally_likely():
    order = draw(np.random.default_rng(2), 48_000, 32, 32).order
    orders, counts = np.unique(order, axis=0, return_counts=True)
    assert len(orders) == 24 and (np.sort(orders, axis=1) == np.arange(4)).all()
    assert stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize(("name", "probability"), [("flip", 0.5), ("jitter", 0.8), ("grey", 0.2)])
def test_flip_jitter_and_grey_come_at_their_rates(name, probability):
    happens = getattr(draw(np.random.default_rng(2), 40_000, 32, 32), name)
    assert stats.binomtest(int(happens.sum()), 40_000, probability).pvalue > 0.01


def test_the_parameters_of_an_image_do_not_depend_on_each_other():
    params = draw(np.random.default_rng(2), 40_000, 64, 64, AugmentConfig(scale=(0.2, 0.5)))
    columns = [
        params.top / (64 - params.height),
        params.left / (64 - params.width),
        params.height * params.width,
        params.width / params.height,
        params.flip,
        params.jitter,
        params.grey,
        *params.factors.T,
        *params.order.argsort(axis=1).T[:HUE],  # three places tell the fourth
    ]
    correlations = np.corrcoef(np.stack([column.astype(float) for column in columns]))
    np.fill_diagonal(correlations, 0)
    # Four places in one order exclude each other: a correlation of -1/3 by nature.
    correlations[-3:, -3:] = 0
    assert np.abs(correlations).max() < 0.02


# -- Views of real images: statistics as torchvision's ---------------------------------------------------------


def changes(images: torch.Tensor, views: torch.Tensor) -> dict[str, np.ndarray]:
    """What a person would see change from an image to its view, one number for each image."""

    def look(pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Brightness; contrast apart from brightness; saturation apart from both; hue as a complex number."""
        red, green, blue = pixels.flatten(2).unbind(1)
        luma = 0.2989 * red + 0.587 * green + 0.114 * blue
        chroma = pixels.amax(1).sub(pixels.amin(1)).mean((1, 2))
        hue = torch.complex(red - (green + blue) / 2, (green - blue) * 3**0.5 / 2).mean(1)
        return luma.mean(1), luma.std(1) / (luma.mean(1) + 0.01), chroma / (luma.std(1) + 0.01), hue

    brightness, contrast, saturation, hue = look(images)
    new_brightness, new_contrast, new_saturation, new_hue = look(views)
    coloured = (new_saturation > 1e-3) & (hue.abs() > 0.03)  # of a grey image, hue means nothing
    half = images.shape[-1] // 2
    found = {
        "brightness": new_brightness / (brightness + 0.01),
        "contrast": new_contrast / (contrast + 0.01),
        "saturation": new_saturation[coloured] / (saturation[coloured] + 0.01),
        "hue": torch.angle(new_hue * hue.conj())[coloured],
        "detail": views.diff(dim=-1).abs().mean((1, 2, 3)) / (new_brightness + 0.01),
        "left and right": (views[..., half:] - views[..., :half]).mean((1, 2, 3))
        * (images[..., half:] - images[..., :half]).mean((1, 2, 3)).sign(),
    }
    return {name: values.double().numpy() for name, values in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        AugmentConfig(),
        # Without the crop, which hides much of the colours' change.
        AugmentConfig(scale=(1, 1), ratio=(1, 1)),
    ],
)
def test_views_of_photographs_have_the_statistics_of_torchvisions_views(config, torch_seed):
    images = photographs(32, 32).repeat(2, 1, 1, 1)
    transform = v2.Compose(
        [
            v2.RandomResizedCrop((32, 32), scale=config.scale, ratio=config.ratio),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(p=0.2),
        ]
    )
    their_views = torch.stack([transform(image) for image in images])
    our_views = augment(images.repeat(10, 1, 1, 1), np.random.default_rng(4), config)

    theirs = changes(images, their_views)
    for name, values in changes(images.repeat(10, 1, 1, 1), our_views).items():
        assert stats.ks_2samp(values, theirs[name]).pvalue > ONE_OF_MANY, name
        error = np.sqrt(values.var() / len(values) + theirs[name].var() / len(theirs[name]))
        assert abs(values.mean() - theirs[name].mean()) < stats.norm.isf(ONE_OF_MANY / 2) * error, name

    def grey(views: torch.Tensor) -> int:
        return int(((views.amax(1) - views.amin(1)).amax((1, 2)) < 1e-6).sum())

    table = [[grey(views), len(views) - grey(views)] for views in (our_views, their_views)]
    assert stats.chi2_contingency(table).pvalue > ONE_OF_MANY


# -- The contract ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 20])
@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_view_has_its_images_shape_and_type_and_lies_channels_last(count, height, width, layout):
    images = noise(count, height, width).contiguous(memory_format=layout)
    before = images.clone()
    views = augment(images, np.random.default_rng(0))
    assert views.shape == images.shape and views.dtype == torch.float32 and views.device == images.device
    assert views.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before), "the images themselves must stay as they are"
    assert torch.equal(views, augment(images.contiguous(), np.random.default_rng(0))), (
        "layout must not matter"
    )


@pytest.mark.parametrize("level", [0.0, 1.0, None])
def test_views_stay_between_0_and_1(level):
    images = noise(500, 33, 17) if level is None else torch.full((500, 3, 33, 17), level)
    views = augment(
        images, np.random.default_rng(0), AugmentConfig(brightness=2, contrast=2, saturation=2, hue=0.5)
    )
    assert views.isfinite().all() and views.min() >= 0 and views.max() <= 1


def test_the_same_generator_state_gives_the_same_views_and_the_next_state_others():
    images = photographs(32, 32, 20)
    rng = np.random.default_rng(11)
    augment(images, rng)
    state = rng.bit_generator.state
    first, next_one = augment(images, rng), augment(images, rng)
    rng.bit_generator.state = state
    assert torch.equal(augment(images, rng), first)
    assert not torch.equal(next_one, first)


def test_torchs_own_generator_is_left_alone(torch_seed):
    before = torch.get_rng_state()
    augment(photographs(32, 32, 20), np.random.default_rng(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_config_that_changes_nothing_returns_the_images():
    images = photographs(32, 32, 20)
    config = AugmentConfig(scale=(1, 1), ratio=(1, 1), flip=0, jitter=0, grey=0)
    torch.testing.assert_close(augment(images, np.random.default_rng(0), config), images, rtol=0, atol=1e-6)
    no_spread = replace(config, jitter=1, brightness=0, contrast=0, saturation=0, hue=0)
    torch.testing.assert_close(
        augment(images, np.random.default_rng(0), no_spread), images, rtol=0, atol=1e-6
    )


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [AugmentConfig(), AugmentConfig(jitter=0, grey=0), AugmentConfig(jitter=1, grey=1), AugmentConfig(hue=0)],
)
def test_on_cuda_nothing_is_mixed_with_the_host_and_nothing_is_read_back(config):
    # A fake CUDA tensor has no values and refuses to meet one of another device: no GPU is needed for this.
    with FakeTensorMode():
        for seed in range(5):
            images = torch.empty(20, 3, 32, 32, device="cuda", dtype=torch.float32)
            views = augment(images, np.random.default_rng(seed), config)
            assert views.device == images.device and views.shape == images.shape
            assert views.dtype == torch.float32 and views.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"scale": (0.0, 1.0)}, "scale"),  # an empty crop
        ({"scale": (0.9, 0.2)}, "scale"),  # the wrong way round
        ({"ratio": (-1.0, 1.0)}, "ratio"),
        ({"flip": 1.5}, "flip"),
        ({"pad": -0.1}, "pad"),
        ({"jitter": -0.1}, "jitter"),
        ({"grey": float("nan")}, "grey"),
        ({"hue": 0.6}, "hue"),  # more than half a turn
        ({"contrast": -0.4}, "contrast"),
        ({"brightness": float("inf")}, "brightness"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_by_name(wrong, named):
    with pytest.raises(UserError, match=f"augment: {named} must"):
        AugmentConfig(**wrong)
