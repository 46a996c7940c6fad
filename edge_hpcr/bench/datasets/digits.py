"""scikit-learn's handwritten digits, the dataset that is always there; `edge_hpcr.stream.digits` says how it is split."""

import numpy as np

from edge_hpcr.bench.datasets.registry import Dataset
from edge_hpcr.stream.digits import read_digits


def load_digits() -> Dataset:
    """The 1,797 digits as 8x8 RGB images, 1,433 for training and 364 for testing."""
    images, labels, training = read_digits()
    return Dataset(
        name="digits",
        train_images=images[training],
        train_labels=labels[training],
        test_images=images[~training],
        test_labels=labels[~training],
        class_names=tuple(str(label) for label in np.unique(labels)),
    )
