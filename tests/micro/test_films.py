"""The whole road on the embedded model: held-out sentences in, films out, and what the films show read back from their MP4s.

Eight films here; `python -m tests.bench.films` makes as many as one likes and prints the table.
"""

import pytest

from tests.micro import films


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return list(films.films(tmp_path_factory.mktemp("films"), count=8, frames=22))


def test_films_show_the_sentence(made):
    shares = films.shares(made)
    told = [(film.prompt, film.seen.colour, film.seen.motion, film.seen.place) for film in made]
    assert shares["colour"] >= 7 / 8 and shares["place"] >= 7 / 8, told
    assert shares["direction"] >= 3 / 4, told


def test_films_are_whole(made):
    for film in made:
        assert film.frames.shape == (22, 128, 128, 3)
        assert film.frames.std() > 5
