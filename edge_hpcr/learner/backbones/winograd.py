"""A 3x3 convolution with a quarter of the multiplications, for the layers where a CPU gains by it.

Winograd's F(4x4, 3x3): a tile of 4x4 outputs needs 36 products per channel instead of 144, in the forward pass and in
both gradients, at the price of three linear transforms (Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks", 2016). Everything is a matrix product, which PyTorch does at full speed. The result is the convolution's up
to rounding (about 1e-5 of the largest value, where a direct convolution has 1e-6).
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Below this many channels the transforms cost more than they save; in maps larger than this they grow too dear.
FEWEST_CHANNELS, LARGEST_SIDE = 64, 16

# The transforms in one dimension, for interpolation at 0, 1, -1, 2, -2 and infinity.
_INPUT = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
_WEIGHT = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24
_OUTPUT = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])
_POINTS = len(_INPUT)
_TILE = len(_OUTPUT)


class Conv3x3(nn.Conv2d):
    """`nn.Conv2d` with a 3x3 kernel, padding 1 and no bias; the same parameters and state."""

    def __init__(self, width_in: int, width_out: int, stride: int = 1) -> None:
        super().__init__(width_in, width_out, 3, stride, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # Most of the gain is in the gradients; a forward pass alone is left to the library.
        if torch.is_grad_enabled() and self._gains(x):
            return _Winograd.apply(x, self.weight)
        return super().forward(x)

    def _gains(self, x: Tensor) -> bool:
        return (
            x.device.type == "cpu"
            and x.dtype == torch.float32
            and x.is_contiguous(memory_format=torch.channels_last)
            and self.stride == (1, 1)
            and min(self.in_channels, self.out_channels) >= FEWEST_CHANNELS
            and max(x.shape[2:]) <= LARGEST_SIDE
        )


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        width_out, width_in = weight.shape[:2]
        rows, columns = _matrices(x.shape[2]), _matrices(x.shape[3])
        values = _to_points(x, rows.into, columns.into)
        weights = (_weights() @ weight.permute(2, 3, 0, 1).reshape(9, -1)).view(-1, width_out, width_in)
        ctx.save_for_backward(values, weights)
        ctx.rows, ctx.columns, ctx.batch = rows, columns, len(x)
        return _from_points(values @ weights.transpose(1, 2), rows.out, columns.out, len(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        values, weights = ctx.saved_tensors
        rows, columns = ctx.rows, ctx.columns
        # Every transform is linear: its gradient is its transpose.
        by_point = _to_points(gradient, rows.out.T, columns.out.T)
        of_x = _from_points(by_point @ weights, rows.into.T, columns.into.T, ctx.batch)
        of_weights = (by_point.transpose(1, 2) @ values).view(len(weights), -1)
        of_weight = (_weights().T @ of_weights).view(3, 3, *weights.shape[1:]).permute(2, 3, 0, 1)
        return of_x, of_weight.contiguous(memory_format=torch.channels_last)


class _Matrices:
    """The transforms of a whole row or column of pixels: padding, overlap and the cut at the end are in them."""

    def __init__(self, size: int) -> None:
        tiles = -(-size // _TILE)
        into, out = np.zeros((_POINTS, tiles, size)), np.zeros((size, _POINTS, tiles))
        for tile in range(tiles):
            for offset, column in enumerate(_INPUT.T, start=_TILE * tile - 1):
                if 0 <= offset < size:
                    into[:, tile, offset] = column
            for offset, row in enumerate(_OUTPUT, start=_TILE * tile):
                if offset < size:
                    out[offset, :, tile] = row
        self.into = torch.tensor(into.reshape(-1, size), dtype=torch.float32)
        self.out = torch.tensor(out.reshape(size, -1), dtype=torch.float32)


@lru_cache
def _matrices(size: int) -> _Matrices:
    return _Matrices(size)


@lru_cache
def _weights() -> Tensor:
    return torch.tensor(np.kron(_WEIGHT, _WEIGHT), dtype=torch.float32)


def _to_points(x: Tensor, of_rows: Tensor, of_columns: Tensor) -> Tensor:
    """[N, C, H, W] to [36 points, tiles * N, C]."""
    _, channels, height, width = x.shape
    by_row = of_rows @ x.permute(2, 3, 0, 1).reshape(height, -1)
    by_both = of_columns @ by_row.view(len(of_rows), width, -1)
    apart = by_both.view(_POINTS, len(of_rows) // _POINTS, _POINTS, len(of_columns) // _POINTS, -1)
    return apart.transpose(1, 2).reshape(_POINTS**2, -1, channels)


def _from_points(points: Tensor, of_rows: Tensor, of_columns: Tensor, count: int) -> Tensor:
    """[36 points, tiles * N, C] to [N, C, H, W], channels_last."""
    (height, across), (width, along) = of_rows.shape, of_columns.shape
    apart = points.view(_POINTS, _POINTS, across // _POINTS, along // _POINTS, -1)
    by_column = of_columns @ apart.transpose(1, 2).reshape(across, along, -1)
    x = of_rows @ by_column.view(across, -1)
    return x.view(height, width, count, -1).permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)
