"""Resizing of images by the mean over the area that a pixel covers, and their luminance."""

from __future__ import annotations

import functools

import numpy as np

_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601.


def luminance(image: np.ndarray) -> np.ndarray:
    """Returns the grey image ``[H, W]``, float32, of an RGB image ``[H, W, 3]``."""
    grey: np.ndarray = image @ _LUMINANCE
    return grey


def area_weights(num_in: int, num_out: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns for k = 0, 1, ... which is the k-th input pixel that each output pixel covers, and its share.

    Indices are ``[num_out]``, shares float32 ``[num_out, 1]``; the shares of an output pixel sum to 1.
    """
    edges = np.linspace(0.0, num_in, num_out + 1)
    low, high = edges[:-1], edges[1:]
    terms = []
    for k in range(int(np.ceil(num_in / num_out)) + 1):
        pixel = np.floor(low) + k
        share = np.maximum(np.minimum(high, pixel + 1) - np.maximum(low, pixel), 0.0) * num_out / num_in
        index = np.minimum(pixel, num_in - 1).astype(np.intp)
        terms.append((index, share.astype(np.float32)[:, None]))
    return terms


def average_rows(image: np.ndarray, terms: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Returns an image ``[H, ...]`` with `num_out` rows, float32; `terms` are of `area_weights`."""
    # Not a matrix product: the matrix is nearly empty, and BLAS threads of many actors on one machine
    # wait for each other.
    return functools.reduce(
        np.add, (image[index] * share.reshape(-1, *[1] * (image.ndim - 1)) for index, share in terms)
    )
