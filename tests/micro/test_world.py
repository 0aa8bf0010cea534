"""The world and its language: what they promise to the trainer."""

import numpy as np
import pytest

from h3core.micro import language, sound, world


@pytest.mark.parametrize("camera", world.CAMERAS)
@pytest.mark.parametrize("canvas", [(128, 128), (192, 128), (128, 192)])
def test_every_canvas_and_camera_draws(canvas, camera):
    frames = world.draw_shot(world.Shot(camera=camera, frames=5), *canvas)
    assert frames.shape == (5, *canvas, 3) and frames.dtype == np.uint8
    assert (frames[0] != frames[-1]).any() == (camera != "static")


def test_a_film_is_its_shots_in_a_row():
    film = world.Film((world.Shot(frames=22), world.Shot(place="desert", frames=17)))
    frames = world.draw_film(film)
    assert len(frames) == film.frames == 39
    assert np.abs(frames[21].astype(int) - frames[22]).mean() > 30


def test_a_bounce_knocks_at_its_impacts():
    shot = world.Shot(motion="bounces", frames=39)
    track = sound.film_sound(world.Film((shot,)))
    assert track.shape == (2, sound.latents(39) * 800)
    level = np.abs(track[0]).reshape(-1, 800).max(1)
    onsets = [i for i in range(1, len(level)) if level[i] > 0.2 and level[i] > 2 * level[i - 1]]
    assert onsets == [round(frame / 24 * 40) for frame in world.impacts(shot)]


def test_templates_and_wordings_are_enough_and_some_are_held_out():
    assert len(set(language.TEMPLATES_EN)) >= 60 and len(set(language.TEMPLATES_ZH)) >= 60
    for table in (language.COLOURS_EN, language.SHAPES_EN, language.SIZES_EN, language.PLACES_EN, language.MOTIONS_EN, language.CAMERAS_EN):
        assert all(len(set(words)) >= 7 for words in table.values())
    for table in (language.COLOURS_ZH, language.SHAPES_ZH, language.SIZES_ZH, language.PLACES_ZH, language.MOTIONS_ZH, language.CAMERAS_ZH):
        assert all(len(set(words)) >= 7 for words in table.values())
    rng = np.random.default_rng(0)
    shot = world.Shot(motion="bounces", place="night sky")
    trained = {language.describe(shot, rng, "train") for _ in range(2000)}
    assert not trained & {language.describe(shot, rng, "held out") for _ in range(500)}


def test_two_shots_take_the_releases_form():
    film = world.Film((world.Shot(frames=22), world.Shot(frames=17)))
    text = language.describe_film(film, np.random.default_rng(1), language="en")
    assert "[Shot 1] " in text and "[Shot 2] At 00:00.917, " in text
