"""What would read or write out of bounds is refused before the kernels see it."""

import numpy as np
import pytest
from sojourn_runtime.model.batch import flatten
from sojourn_runtime.model.protocol import Segment
from sojourn_runtime.model.weights import Weights


@pytest.mark.parametrize(
    ("segment", "words"),
    [
        (Segment([], 0, [0]), "at least one token"),
        (Segment([301], 0, [0]), "token ids"),
        (Segment([-1], 0, [0]), "token ids"),
        (Segment([1], 0, [4]), "block numbers"),
        (Segment([1], 0, [-1]), "block numbers"),
        (Segment([1], 64, [0]), "1 blocks hold no position 64"),
        (Segment([1] * 65, 0, [0]), "1 blocks hold no position 64"),
        (Segment([1], 640, list(range(4)) * 4), "exceed the model's 640"),
        (Segment([1], -1, [0]), "exceed"),
    ],
)
def test_out_of_bounds_is_refused(weights: Weights, segment: Segment, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        flatten([segment], weights.config, num_blocks=4)


def test_rows_of_two_segments_stand_one_after_the_other(weights: Weights) -> None:
    segments = [
        Segment([5, 6, 7], 62, [3, 1], "all"),
        Segment(np.array([8, 9], np.int32), 0, [2], "last"),
        Segment([4], 10, [0], "none"),
    ]
    rows = flatten(segments, weights.config, num_blocks=4)
    assert rows.tokens.tolist() == [5, 6, 7, 8, 9, 4]
    assert rows.positions.tolist() == [62, 63, 64, 0, 1, 10]
    assert rows.table_start.tolist() == [0, 0, 0, 2, 2, 3]
    assert rows.blocks.tolist() == [3, 1, 2, 0]
    assert rows.wanted.tolist() == [0, 1, 2, 4]
