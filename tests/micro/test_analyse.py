"""The analyser on the world's own films: what it reads there must be what was drawn."""

import numpy as np

from h3core.micro import sound, world
from tests.micro import analyse


def test_reads_drawn_films():
    rng = np.random.default_rng(5)
    wrong = []
    for _ in range(60):
        shot = world.random_shot(rng, int(rng.choice((22, 39))))
        seen = analyse.read(world.draw_shot(shot))
        wrong += [(n, shot, getattr(seen, n)) for n in ("place", "colour", "shape", "motion") if getattr(seen, n) != getattr(shot, n)]
    assert not [w for w in wrong if w[0] in ("place", "colour")], wrong
    assert len(wrong) <= 2, wrong


def test_hears_the_side():
    expected = {"moves right": "right", "moves left": "left", "moves up": "middle", "bounces": "middle", "stays still": "silent"}
    for motion, side in expected.items():
        track = sound.film_sound(world.Film((world.Shot(motion=motion),)))
        assert track.shape == (2, 37 * 800)
        assert analyse.read_side(track) == side
