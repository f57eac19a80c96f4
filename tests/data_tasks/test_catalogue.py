"""Every entry of the catalogue names a function that is there."""

import pytest

from veridical.data.tasks import ENTRIES, _maker


@pytest.mark.parametrize("name", ENTRIES)
def test_the_maker_of_every_task_can_be_imported(name: str) -> None:
    assert callable(_maker(name))
