"""The studio and its worker are killed while they make a film: it is made all the same, and has the same bytes."""

import pytest

from h3core import fault
from tests.bench import kills


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    home = tmp_path_factory.mktemp("quiet")
    digest, count = kills.finish(kills.start(home), home)
    assert len(digest) == 16 and count == 1, digest
    return digest


def test_the_server_at_every_fault_point(tmp_path, undisturbed):
    # a studio killed right after it wrote the end of a run never cleans up itself: the next one sweeps
    points = {*fault.SERVER} - {"run.cleaned"}
    digest, count, hit = kills.at_points(tmp_path, points)
    assert digest == undisturbed and hit == points
    assert count == len(points) + 1
    assert kills.left_behind(tmp_path / "home") == []


@pytest.mark.parametrize("who", ["worker", "server"])
@pytest.mark.parametrize("after_s", [1.1, 2.3])
def test_at_any_instant(tmp_path, undisturbed, who, after_s):
    digest, _ = kills.at_random(tmp_path, who, after_s)
    assert digest == undisturbed
    assert kills.left_behind(tmp_path) == []
