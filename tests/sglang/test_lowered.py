"""A turn may tell that another conversation will hardly come back: the price of its leaf falls at once."""

from __future__ import annotations

import numpy as np
import pytest

from radix_tlru.learning.age_bands import BANDS, SPANS
from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.records import Supersession
from radix_tlru.learning.turn_features import SIZES, Feature
from tests.helpers.caches import Driver, our_cache

pytestmark = pytest.mark.usefixtures("tree_core")

PAGE = 16


def rarely_back_once_superseded() -> HazardModel:
    """Who was superseded comes back e^-4 times as soon as others of the same age."""
    effects = tuple(np.zeros((size, len(SPANS))) for size in SIZES)
    effects[Feature.SUPERSEDED][Supersession.NONE + 1 :] = -4.0
    return HazardModel(np.zeros(len(BANDS)), effects)


def test_the_path_that_a_client_has_left_goes_next() -> None:
    """Of 31 paths of 1,600 tokens, 10 s apart, the client of the 21st goes back to its first 304 tokens."""
    driver = Driver(our_cache(100_000, PAGE, policy="etlru", threshold=4_096, median_weight=1.0, trim_chunk=1))
    tail = driver.cache.tail
    tail.learner._returns.use_model(rarely_back_once_superseded())
    paths = [driver.fresh(1_600) for _ in range(31)]
    for number, path in enumerate(paths):
        driver.request(path, prompt=1_568, stamp=10.0 * number)
    driver.evict(PAGE)  # so that all of them have their price
    assert tail.order.choose_victim(PAGE).leaf.conversation.number < 21
    driver.request(paths[20][:304] + driver.fresh(1_296), prompt=1_568, stamp=310.0)
    left = tail.order.choose_victim(PAGE)
    assert (left.leaf.conversation.number, left.leaf.conversation.superseded) == (21, Supersession.EARLY)
    driver.evict(1_600 - 304)
    assert driver.resident(paths[20]) == 304
    assert tail.order.choose_victim(PAGE).leaf.conversation.number < 21
