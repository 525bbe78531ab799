"""Link curves as real ones look: times of one-way messages, and noisy samples of them, for tests of fits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.cost import Samples

Floats = NDArray[np.float64]
Link = Callable[[ArrayLike], Floats]


def shaped_100mbit(b: ArrayLike) -> Floats:
    """A token bucket lets the first burst pass at twice the rate, so the line behind it starts below zero."""
    b = np.asarray(b, dtype=np.float64)
    return np.maximum(6.3e-6 + 43.5e-9 * b, -236e-6 + 83.8e-9 * b)


def shaped_1gbit(b: ArrayLike) -> Floats:
    b = np.asarray(b, dtype=np.float64)
    return np.maximum.reduce([7.2e-6 + 5.5e-9 * b, -26e-6 + 7.08e-9 * b, -130e-6 + 8.67e-9 * b])


def switched_100mbit(b: ArrayLike) -> Floats:
    """Store and forward with 50 us: the first frame pays the wire twice."""
    b = np.asarray(b, dtype=np.float64)
    return np.minimum(85.8e-6 + 175e-9 * b, 220e-6 + 85.3e-9 * b)


def shared_memory_3(b: ArrayLike) -> Floats:
    """Eager copy, then a single copy, then out of cache."""
    b = np.asarray(b, dtype=np.float64)
    eager, single, far = 0.9e-6 + 0.25e-9 * b, 2.4e-6 + 0.04e-9 * b, -42e-6 + 0.1e-9 * b
    return np.where(b <= 4096, eager, np.maximum(single, far))


def shared_memory_5(b: ArrayLike) -> Floats:
    """Inline, eager, fragments, rendezvous with its handshake, out of cache."""
    b = np.asarray(b, dtype=np.float64)
    small = np.where(b <= 256, 0.32e-6 + 0.05e-9 * b, 0.42e-6 + 0.35e-9 * b)
    middle = np.where(b <= 4096, small, 1.2e-6 + 0.16e-9 * b)
    large = np.where(b <= 65536, middle, 9.0e-6 + 0.055e-9 * b)
    return np.maximum(large, -30e-6 + 0.098e-9 * b)


LINKS: dict[str, Link] = {
    "shaped 100 Mbit/s": shaped_100mbit,
    "shaped 1 Gbit/s": shaped_1gbit,
    "switched 100 Mbit/s": switched_100mbit,
    "shared memory, 3 protocols": shared_memory_3,
    "shared memory, 5 protocols": shared_memory_5,
}


def scatter(b: ArrayLike) -> Floats:
    """Relative spread of single timings: 12 % at a byte, 0.6 % from 64 KiB."""
    return 0.006 + 0.114 / (1.0 + np.asarray(b, dtype=np.float64) / 600.0)


def sweep(link: Link, seed: int, repeats: int = 15, per_octave: int = 2, outliers: float = 0.04) -> Samples:
    """Timings of `link` from 1 byte to 16 MiB, with scatter, drift from sweep to sweep, and outliers up to 10 times."""
    rng = np.random.default_rng(seed)
    sizes = np.unique(np.round(2.0 ** np.arange(0, 24 + 1e-9, 1 / per_octave)))
    truth = link(sizes)[:, None]
    noise = np.exp(scatter(sizes)[:, None] * rng.normal(size=(len(sizes), repeats)))
    drift = 1.0 + 0.002 * rng.normal(size=repeats)
    far = np.where(rng.random(noise.shape) < outliers, rng.uniform(1.5, 10.0, noise.shape), 1.0)
    return Samples.of(dict(zip(sizes.tolist(), (truth * noise * drift * far).tolist(), strict=True)))
