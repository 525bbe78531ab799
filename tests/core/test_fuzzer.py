"""The fuzzer's samples: what it damages is valid, or the damage would be refused unseen."""

import fuzz
import pytest

from dovetail.core import DovetailError


def test_every_sample_is_read(tmp_path):
    known = fuzz.readers(tmp_path)
    fuzz.check_samples(known)
    samples, read = known["chakra"]
    with pytest.raises(DovetailError):
        fuzz.check_samples({"chakra": ([samples[0][:-1]], read)})
