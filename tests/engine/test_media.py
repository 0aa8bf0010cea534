"""Films: exact length, right colours, the same bytes twice, nothing left behind when anything goes wrong."""

import os
import subprocess
import threading
import zlib

import numpy as np
import pytest

from h3core.engine import media

SIZE = (96, 64)  # width, height


def clip(frames: int) -> np.ndarray:
    """A bright square that moves over a two-coloured ground."""
    pixels = np.empty((frames, SIZE[1], SIZE[0], 3), np.uint8)
    pixels[:] = (200, 30, 10)
    pixels[:, :, 48:] = (20, 40, 210)
    for index in range(frames):
        pixels[index, 8:24, 2 * index : 2 * index + 16] = (240, 240, 60)
    return pixels


def tone(seconds: float, rate: int = 32000) -> np.ndarray:
    time = np.arange(int(seconds * rate)) / rate
    return np.stack([np.sin(time * 2765), np.sin(time * 1382)]).astype(np.float32) * 0.4


def write(path, pixels, sound, rate=32000, cancelled=lambda: False):
    with media.FilmWriter(path, SIZE, len(pixels), sound, rate, path.parent / "s.wav", cancelled) as film:
        for start in range(0, len(pixels), 7):
            film.write(pixels[start : start + 7])
        return film.finish()


@pytest.mark.parametrize(
    "frames, seconds, rate", [(39, 1.6, 32000), (22, 0.5, 32000), (5, 2.0, 32000), (22, 0.925, 1600)]
)
def test_sound_and_picture_have_one_length(tmp_path, frames, seconds, rate):
    path = write(tmp_path / "film.mp4", clip(frames), tone(seconds, rate), rate)
    found = media.probe(path)
    assert (found.width, found.height, found.frames, found.channels) == (*SIZE, frames, 2)
    assert abs(found.sound_s - frames / 24) <= 1 / min(rate, found.rate)
    assert sorted(os.listdir(tmp_path)) == ["film.mp4"]


def test_colours_survive_and_are_tagged(tmp_path):
    pixels = clip(22)
    path = write(tmp_path / "film.mp4", pixels, tone(1))
    decoded = np.stack(list(media.read_frames(path, SIZE)))
    difference = np.abs(decoded[:, 40:, ::3].astype(int) - pixels[:, 40:, ::3])  # flat regions
    assert difference[:, :, 4:12].max() <= 4
    header = media._streams(path)
    assert "yuv420p(tv, bt709" in header and "h264 (High)" in header and "aac (LC)" in header, header
    assert "unknown" not in header.split("Video:")[1].split(",")[2], header
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")  # faststart
    assert b"x264 - core" not in data


def test_the_same_bytes_twice(tmp_path):
    first = write(tmp_path / "a film.mp4", clip(39), tone(1.6)).read_bytes()
    (tmp_path / "other").mkdir()
    assert write(tmp_path / "other" / "b.mp4", clip(39), tone(1.6)).read_bytes() == first


@pytest.mark.parametrize(
    "name", ["one 'two' %04d \"three\".mp4", "-y.mp4", "雪地里的狐狸🦊.mp4", "a:b.mp4", "x" * 250 + ".mp4"]
)
def test_any_name_the_file_system_takes(tmp_path, name):
    folder = tmp_path / "out %03d 'q'"
    media.prove_target(folder / name, SIZE, 10**6, tmp_path / "s.wav")
    assert os.listdir(folder) == []
    assert write(folder / name, clip(5), tone(1)).name == name


def test_unwritable_targets_are_one_sentence(tmp_path):
    wav = tmp_path / "s.wav"
    with pytest.raises(media.MediaError, match="folder; give"):
        media.prove_target(tmp_path, SIZE, 1, wav)
    with pytest.raises(media.MediaError, match="cannot be saved"):
        media.prove_target(tmp_path / ("狐" * 100 + ".mp4"), SIZE, 1, wav)
    with pytest.raises(media.MediaError, match="cannot be saved"):
        media.prove_target(tmp_path / "a\0b.mp4", SIZE, 1, wav)
    with pytest.raises(media.MediaError, match="MB free"):
        media.prove_target(tmp_path / "a.mp4", SIZE, 10**18, wav)
    (tmp_path / "file").write_text("x")
    with pytest.raises(media.MediaError, match="cannot be saved"):
        media.prove_target(tmp_path / "file" / "a.mp4", SIZE, 1, wav)
    with pytest.raises(media.MediaError, match="even width"):
        media.prove_target(tmp_path / "a.mp4", (321, 241), 1, wav)
    assert os.listdir(tmp_path) == ["file"]


def test_encoder_that_dies_gives_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(media, "TO_BT709", "scale=nonsense=1")
    with pytest.raises(media.MediaError, match=r"(?s)stopped while writing.*nonsense"):
        write(tmp_path / "film.mp4", clip(39), tone(1))
    assert os.listdir(tmp_path) == []


def test_encoder_killed_in_mid_film(tmp_path):
    with (
        pytest.raises(media.MediaError, match="encoder stopped"),
        media.FilmWriter(tmp_path / "f.mp4", SIZE, 39, tone(1), 32000, tmp_path / "s.wav") as film,
    ):
        film.write(clip(5))
        film.encoder.kill()
        film.encoder.wait()
        film.write(clip(39))
        film.finish()
    assert os.listdir(tmp_path) == []


def test_cancel_leaves_nothing(tmp_path):
    flag = threading.Event()
    with (
        pytest.raises(media.Interrupted),
        media.FilmWriter(tmp_path / "f.mp4", SIZE, 39, tone(1), 32000, tmp_path / "s.wav", flag.is_set) as film,
    ):
        film.write(clip(5))
        flag.set()
        film.write(clip(34))
    assert film.encoder.poll() is not None and os.listdir(tmp_path) == []


def test_missing_frames_are_an_error(tmp_path):
    with (
        pytest.raises(media.MediaError, match="5 of 39 frames"),
        media.FilmWriter(tmp_path / "f.mp4", SIZE, 39, tone(1), 32000, tmp_path / "s.wav") as film,
    ):
        film.write(clip(5))
        film.finish()
    assert os.listdir(tmp_path) == []


def test_a_cut_off_film_does_not_pass_the_probe(tmp_path):
    path = write(tmp_path / "film.mp4", clip(39), tone(1.6))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(media.MediaError, match=r"does not decode|holds no video"):
        found = media.probe(path)
        assert found.frames == 39
    path.write_bytes(b"not a film at all")
    with pytest.raises(media.MediaError, match="holds no video"):
        media.probe(path)


def test_nothing_comes_from_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert media.probe(write(tmp_path / "film.mp4", clip(5), tone(1))).frames == 5


def test_png_is_read_by_others(tmp_path):
    pixels = clip(3)[1]
    media.write_png(tmp_path / "p.png", pixels, "poster")
    decoded = subprocess.run(
        [media.ffmpeg(), "-v", "error", "-i", str(tmp_path / "p.png"), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
        capture_output=True,
        check=True,
    ).stdout
    assert np.array_equal(np.frombuffer(decoded, np.uint8).reshape(pixels.shape), pixels)
    assert zlib.crc32((tmp_path / "p.png").read_bytes()) and os.listdir(tmp_path) == ["p.png"]


def test_disk_that_fills_up(tmp_path, monkeypatch):
    """The encoder fails in mid-film when the disk is full; here a file size limit stands for the disk."""
    real = subprocess.Popen

    def limited(command, **options):
        import resource

        return real(command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)), **options)

    monkeypatch.setattr(media.subprocess, "Popen", limited)
    with pytest.raises(media.MediaError, match="encoder stopped"):
        write(
            tmp_path / "film.mp4", np.random.default_rng(1).integers(0, 255, (39, *SIZE[::-1], 3), np.uint8), tone(1.6)
        )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "comment",
    [
        "a=b;c#d\\e\nf\n 'q' \"q\" 🐱 é",
        '{"a": "\\n"}',
        "猫" * 50_000,
        ";FFMETADATA1\n[CHAPTER]",
        "Stream #0:0: Video: h264, 999x999 Stream #0:1: Audio: 8000 Hz, mono",
    ],
)
def test_a_comment_of_any_text(tmp_path, comment):
    path = tmp_path / "film.mp4"
    with media.FilmWriter(path, SIZE, 22, tone(1), 32000, tmp_path / "s.wav", comment=comment) as film:
        film.write(clip(22))
        film.finish()
    assert comment.encode() in path.read_bytes() and sorted(os.listdir(tmp_path)) == ["film.mp4"]
