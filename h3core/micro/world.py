"""The small world that h3-micro knows, drawn by code: one coloured shape in front of one place, moving, seen by a camera.

Pure numpy, 24 frames a second, any canvas. Lengths are in world units; the short side of the canvas spans 128 of them.
Every edge is antialiased over one pixel from a signed distance. This file knows pictures only: sound.py gives the same
shot its sound, language.py its words.

Palette (RGB): red 230 30 30, green 0 200 60, blue 30 70 240, yellow 250 220 20, purple 165 40 215, white 245 245 245.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

FPS = 24
SPAN = 128.0  # world units along the short side
SHAPES = ("ball", "box", "triangle", "star")
COLOURS = {
    "red": (230, 30, 30),
    "green": (0, 200, 60),
    "blue": (30, 70, 240),
    "yellow": (250, 220, 20),
    "purple": (165, 40, 215),
    "white": (245, 245, 245),
}
SIZES = {"small": 17.0, "large": 27.0}  # radius of the circle around the shape
PLACES = ("night sky", "desert", "grass field", "grey studio")
MOTIONS = ("moves right", "moves left", "moves up", "moves down", "bounces", "spins", "grows", "stays still")
CAMERAS = ("static", "pans left", "pans right", "pushes in", "pulls back")

BOUNCE_FRAMES = 12  # from one impact to the next; the shot begins at the top, so impacts fall on frames 6, 18, 30, ...
BOUNCE_HEIGHT = 50.0
BOUNCE_FLOOR = 112.0
SPIN_FRAMES = 24
TRAVEL = 66.0  # how far a move goes in one shot, whatever its length
PAN = 48.0
ZOOM = 1.45
STARS = ((9, 14), (27, 47), (46, 22), (63, 70), (78, 12), (88, 40), (105, 62), (118, 25), (20, 84), (101, 91))
STAR_PERIOD = 128.0


@dataclass(frozen=True)
class Shot:
    """One uninterrupted view. x, y: world units added to the usual path; scale, tint: small differences between takes."""

    shape: str = "ball"
    colour: str = "red"
    size: str = "large"
    place: str = "night sky"
    motion: str = "stays still"
    camera: str = "static"
    frames: int = 22
    x: float = 0.0
    y: float = 0.0
    scale: float = 1.0
    tint: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Film:
    """Shots joined by hard cuts."""

    shots: tuple[Shot, ...]
    height: int = 128
    width: int = 128
    frames: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", sum(shot.frames for shot in self.shots))


def random_shot(rng: np.random.Generator, frames: int = 22, moving_camera: float = 0.0) -> Shot:
    """A shot with every attribute drawn evenly. moving_camera: probability that the camera is not static."""
    pick = lambda names: names[int(rng.integers(len(names)))]  # noqa: E731
    camera = pick(CAMERAS[1:]) if rng.random() < moving_camera else "static"
    return jitter(
        Shot(pick(SHAPES), pick(tuple(COLOURS)), pick(tuple(SIZES)), pick(PLACES), pick(MOTIONS), camera, frames), rng
    )


def jitter(shot: Shot, rng: np.random.Generator) -> Shot:
    """The same shot as another take: a little elsewhere, a little larger or smaller, a slightly different tint."""
    x, y = rng.uniform(-4, 4, 2)
    tint = tuple(int(v) for v in rng.integers(-6, 7, 3))
    return replace(shot, x=float(x), y=float(y), scale=float(rng.uniform(0.95, 1.05)), tint=tint)


def impacts(shot: Shot) -> list[int]:
    """Frames at which a bouncing subject touches the floor."""
    return list(range(BOUNCE_FRAMES // 2, shot.frames, BOUNCE_FRAMES)) if shot.motion == "bounces" else []


def subject_path(shot: Shot, height: int = 128, width: int = 128) -> np.ndarray:
    """Centre x, y, radius and angle of the subject in world units before the camera, (frames, 4)."""
    unit = SPAN / min(height, width)
    middle_x, middle_y = width * unit / 2, height * unit / 2
    frame = np.arange(shot.frames, dtype=np.float64)
    u = frame / max(shot.frames - 1, 1)
    path = np.zeros((shot.frames, 4))
    radius = SIZES[shot.size] * shot.scale
    path[:] = middle_x + shot.x, middle_y + shot.y, radius, 0.0
    sweep = TRAVEL * (u - 0.5)
    if shot.motion == "moves right":
        path[:, 0] += sweep
    elif shot.motion == "moves left":
        path[:, 0] -= sweep
    elif shot.motion == "moves up":
        path[:, 1] -= sweep
    elif shot.motion == "moves down":
        path[:, 1] += sweep
    elif shot.motion == "bounces":
        phase = (frame / BOUNCE_FRAMES + 0.5) % 1.0
        floor = middle_y + BOUNCE_FLOOR - SPAN / 2 - radius
        path[:, 1] = floor - BOUNCE_HEIGHT * (1 - (2 * phase - 1) ** 2)
    elif shot.motion == "spins":
        path[:, 3] = 2 * np.pi * frame / SPIN_FRAMES
    elif shot.motion == "grows":
        path[:, 2] *= 0.55 + 0.75 * u
    return path


def camera_path(shot: Shot) -> np.ndarray:
    """Background offset in world units and zoom, (frames, 2). A pan keeps the subject framed, so only the place slides."""
    u = np.arange(shot.frames, dtype=np.float64) / max(shot.frames - 1, 1)
    path = np.stack([np.zeros_like(u), np.ones_like(u)], axis=1)
    if shot.camera == "pans left":
        path[:, 0] = -PAN * u
    elif shot.camera == "pans right":
        path[:, 0] = PAN * u
    elif shot.camera == "pushes in":
        path[:, 1] = 1 + (ZOOM - 1) * u
    elif shot.camera == "pulls back":
        path[:, 1] = ZOOM - (ZOOM - 1) * u
    return path


def _inside(distance: np.ndarray, pixel: float) -> np.ndarray:
    """Coverage 0..1 of a pixel whose centre lies at this signed distance (negative inside)."""
    return np.clip(0.5 - distance / pixel, 0.0, 1.0)


def _paint(canvas: np.ndarray, cover: np.ndarray, colour: tuple[float, ...]) -> None:
    canvas += cover[..., None] * (np.asarray(colour, np.float32) - canvas)


def _gradient(y: np.ndarray, top: tuple[float, ...], bottom: tuple[float, ...]) -> np.ndarray:
    u = np.clip(y / SPAN, 0, 1)[..., None]
    return (1 - u) * np.asarray(top, np.float32) + u * np.asarray(bottom, np.float32)


def draw_place(place: str, x: np.ndarray, y: np.ndarray, pixel: float) -> np.ndarray:
    """The place at world coordinates x, y (H, W); pixel is the size of one pixel in world units. (H, W, 3) float32."""
    if place == "night sky":
        canvas = _gradient(y, (10, 12, 40), (30, 30, 78))
        for star_x, star_y in STARS:
            dx = (x - star_x + STAR_PERIOD / 2) % STAR_PERIOD - STAR_PERIOD / 2
            _paint(canvas, _inside(np.hypot(dx, y - star_y) - 1.5, pixel), (225, 225, 205))
        _paint(canvas, _inside(116 - 5 * np.sin(x * (2 * np.pi / 90)) - y, pixel), (7, 8, 16))
    elif place == "desert":
        canvas = _gradient(y, (242, 190, 178), (236, 205, 188))
        _paint(canvas, _inside(82 - 7 * np.sin(x * (2 * np.pi / 100)) - y, pixel), (206, 140, 82))
        _paint(canvas, _inside(102 - 6 * np.sin(x * (2 * np.pi / 70) + 2) - y, pixel), (184, 116, 62))
    elif place == "grass field":
        canvas = _gradient(y, (130, 192, 248), (176, 218, 250))
        _paint(canvas, _inside(86 - 5 * np.sin(x * (2 * np.pi / 120) + 1) - y, pixel), (112, 140, 58))
        for bush_x in (14, 96):
            dx = (x - bush_x + 64) % 128 - 64
            _paint(canvas, _inside(np.hypot(dx, (y - 92) * 1.3) - 11, pixel), (66, 92, 40))
        _paint(canvas, _inside(94 - y, pixel), (112, 140, 58))
    elif place == "grey studio":
        canvas = _gradient(y, (112, 112, 116), (128, 128, 132))
        dx = (x - 32 + 32) % 64 - 32
        _paint(canvas, _inside(np.abs(dx) - 2.5, pixel), (92, 92, 96))
        _paint(canvas, _inside(96 - y, pixel), (158, 158, 160))
    else:
        raise ValueError(f"unknown place {place!r}")
    return canvas


def _polygon(x: np.ndarray, y: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Signed distance to a closed polygon, points (n, 2)."""
    best, sign = np.full(x.shape, np.inf, np.float32), np.ones(x.shape, np.float32)
    for i in range(len(points)):
        (ax, ay), (bx, by) = points[i - 1], points[i]
        ex, ey = bx - ax, by - ay
        px, py = x - ax, y - ay
        u = np.clip((px * ex + py * ey) / (ex * ex + ey * ey), 0, 1)
        best = np.minimum(best, (px - ex * u) ** 2 + (py - ey * u) ** 2)
        above, below = ay <= y, by > y
        left = ex * py > ey * px
        flip = (above & below & left) | (~above & ~below & ~left)
        sign = np.where(flip, -sign, sign)
    return sign * np.sqrt(best)


def _corners(shape: str, radius: float) -> np.ndarray:
    if shape == "box":
        angles, radii = np.pi / 4 + np.arange(4) * np.pi / 2, np.full(4, radius)
    elif shape == "triangle":
        angles, radii = -np.pi / 2 + np.arange(3) * 2 * np.pi / 3, np.full(3, radius)
    else:
        angles, radii = -np.pi / 2 + np.arange(10) * np.pi / 5, np.where(np.arange(10) % 2, 0.48, 1.0) * radius
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


def draw_subject(canvas: np.ndarray, shot: Shot, x: np.ndarray, y: np.ndarray, radius: float, angle: float, pixel: float) -> None:
    """Paint the subject over canvas (H, W, 3), OUT. x, y: coordinates relative to its centre, (H, W)."""
    colour = np.clip(np.asarray(COLOURS[shot.colour]) + shot.tint, 0, 255)
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = x * cos + y * sin, y * cos - x * sin
    if shot.shape == "ball":
        radius *= 0.94
        cover = _inside(np.hypot(x, y) - radius, pixel)
        _paint(canvas, cover, tuple(colour))
        # Without the band nobody could see a ball spin.
        _paint(canvas, np.minimum(cover, _inside(np.abs(y) - 0.2 * radius, pixel)), tuple(colour * 0.55))
    else:
        _paint(canvas, _inside(_polygon(x, y, _corners(shot.shape, radius)), pixel), tuple(colour))


def draw_shot(shot: Shot, height: int = 128, width: int = 128) -> np.ndarray:
    """All frames of one shot, (frames, height, width, 3) uint8."""
    unit = SPAN / min(height, width)
    grid_y, grid_x = np.meshgrid((np.arange(height) + 0.5) * unit, (np.arange(width) + 0.5) * unit, indexing="ij")
    grid_y, grid_x = grid_y.astype(np.float32), grid_x.astype(np.float32)
    middle_x, middle_y = width * unit / 2, height * unit / 2
    path, camera = subject_path(shot, height, width), camera_path(shot)
    out = np.empty((shot.frames, height, width, 3), np.uint8)
    ground = None
    for i in range(shot.frames):
        centre_x, centre_y, radius, angle = path[i]
        offset, zoom = camera[i]
        if ground is None or shot.camera != "static":
            world_x = (grid_x - middle_x) / zoom + middle_x + offset
            world_y = (grid_y - middle_y) / zoom + middle_y
            # A canvas taller than the world is drawn from its bottom: the horizon stays in the lower third.
            ground = draw_place(shot.place, world_x, world_y - (height * unit - SPAN), unit / zoom)
        canvas = ground.copy()
        screen_x, screen_y = middle_x + (centre_x - middle_x) * zoom, middle_y + (centre_y - middle_y) * zoom
        reach = radius * zoom + 2 * unit
        top, bottom = (int(np.clip((screen_y + s * reach) / unit, 0, height)) for s in (-1, 1))
        left, right = (int(np.clip((screen_x + s * reach) / unit, 0, width)) for s in (-1, 1))
        box = slice(max(top - 1, 0), bottom + 1), slice(max(left - 1, 0), right + 1)
        if canvas[box].size:
            draw_subject(canvas[box], shot, grid_x[box] - screen_x, grid_y[box] - screen_y, radius * zoom, angle, unit)
        out[i] = np.rint(canvas)
    return out


def draw_film(film: Film) -> np.ndarray:
    """All frames of a film, (frames, height, width, 3) uint8."""
    return np.concatenate([draw_shot(shot, film.height, film.width) for shot in film.shots])
