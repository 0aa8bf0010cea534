"""Films on disk: frames and sound into an MP4 through the bundled ffmpeg, PNG pictures, and the probe that reads a film
to its end.

Nothing is taken from PATH, nothing appears under a final name before it is whole, and the same frames and sound give
the same bytes. Knows pixels and samples, no model.
"""

import contextlib
import re
import shutil
import struct
import subprocess
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np

from h3core import fault
from h3core.engine.checkpoint import publish, write_whole

FPS = 24
CRF = 15  # visually lossless for flat colours; a film is a few MB beside weights of many GB
ENCODER_THREADS = 4  # fixed: x264's bytes depend on the count, not on the machine
AAC_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
CHUNK_BYTES = 1 << 20  # the cancel flag is read between writes of this size
PATIENCE_S = 120.0  # an encoder that has all its input and says nothing for so long has hung

# RGB to limited-range BT.709, converted with that matrix and tagged as such in the frames, hence in the stream
TO_BT709 = (
    "scale=in_range=pc:out_range=tv:out_color_matrix=bt709:flags=bicubic+accurate_rnd+full_chroma_int+bitexact,"
    "format=yuv420p,setparams=range=tv:color_primaries=bt709:color_trc=bt709:colorspace=bt709"
)
FROM_BT709 = (
    "scale=in_color_matrix=bt709:in_range=tv:out_range=pc:flags=bicubic+accurate_rnd+full_chroma_int,format=rgb24"
)


class MediaError(RuntimeError):
    """A film could not be written or read; the message is one sentence for people."""


def ffmpeg() -> str:
    """The ffmpeg that came with the package."""
    return imageio_ffmpeg.get_ffmpeg_exe()


def sound_samples(frames: int, rate: int) -> int:
    """Samples per channel that last exactly as long as the frames: frames / 24 s."""
    return round(Fraction(frames * rate, FPS))


def fit_sound(sound: np.ndarray, frames: int, rate: int) -> np.ndarray:
    """Cut or padded with silence at its end to the length of the film.

    sound: (channels, n) float32 in [-1, 1].   returns (channels, sound_samples(frames, rate)).
    """
    wanted = sound_samples(frames, rate)
    fitted = np.zeros((sound.shape[0], wanted), np.float32)
    kept = min(wanted, sound.shape[1])
    fitted[:, :kept] = sound[:, :kept]
    return fitted


def _write_wav(path: Path, sound: np.ndarray, rate: int) -> None:
    """(channels, n) float32 as a float WAV: 16 bits would be rounded before AAC rounds again."""
    channels, samples = sound.shape
    size = channels * samples * 4
    form = (16, 3, channels, rate, rate * channels * 4, channels * 4, 32)  # 3: IEEE float
    header = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", size + 36, b"WAVE", b"fmt ", *form)
    with open(path, "wb") as file:
        fault.point("sound.begun")
        file.write(header + struct.pack("<4sI", b"data", size))
        file.write(np.ascontiguousarray(sound.T, "<f4").data)
    fault.point("sound.written")


def write_png(path: Path, pixels: np.ndarray, what: str) -> None:
    """pixels: (H, W, 3) uint8 RGB as a PNG, whole or absent.   what: "preview" or "poster"."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + width * 3), np.uint8)  # each row starts with filter type 0
    rows[:, 1:] = pixels.reshape(height, width * 3)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    picture = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    picture += chunk(b"IDAT", zlib.compress(rows.tobytes(), 3)) + chunk(b"IEND", b"")
    write_whole(path, lambda file: file.write(picture), what)


def _write_notes(path: Path, comment: str) -> None:
    """A file in ffmpeg's own format: an argument could not hold a long prompt."""
    escaped = re.sub(r"([=;#\\\n])", r"\\\1", comment)
    lines = f";FFMETADATA1\n{f'comment={escaped}' if comment else ''}\n"
    path.write_bytes(lines.encode("utf-8", "backslashreplace"))


class FilmWriter:
    """One film being written. Frames are streamed to the encoder; the file gets its name in `finish` and not before.

    output: final path; its folder exists.   size: (width, height).   frames: how many will come.
    sound: (channels, n) float32 in [-1, 1] at `rate` Hz, cut or padded to the film's length.
    wav: where the sound waits for the encoder; removed at the end.   cancelled: asked between chunks.
    comment: text that the film carries, of any length and any characters; "" leaves it out.
    A context manager: leaving it without `finish` kills the encoder and leaves no file behind.
    """

    def __init__(
        self,
        output: Path,
        size: tuple[int, int],
        frames: int,
        sound: np.ndarray,
        rate: int,
        wav: Path,
        cancelled: Callable[[], bool] = lambda: False,
        comment: str = "",
    ):
        self.output, self.frames, self.wav, self.cancelled = output.absolute(), frames, wav, cancelled
        self.width, self.height = size
        if self.width % 2 or self.height % 2:
            raise MediaError(f"H.264 needs an even width and height, not {self.width}x{self.height}.")
        self.temporary = self.output.with_name(temporary_name(self.output))
        self.written = 0
        self.lines: deque[str] = deque(maxlen=8)
        self.encoder: Any = None  # the Popen, once entered
        self.done = False
        self.notes = wav.with_suffix(".ffmeta")
        try:
            _write_notes(self.notes, comment)
            _write_wav(wav, fit_sound(sound, frames, rate), rate)
        except OSError as error:
            wav.unlink(missing_ok=True)
            self.notes.unlink(missing_ok=True)
            raise MediaError(f"The sound could not be written to {wav.parent}: {error.strerror}.") from error
        self.command = self._command(rate)

    def _command(self, rate: int) -> list[str]:
        sound_rate = next((each for each in AAC_RATES if each >= rate), AAC_RATES[-1])
        return [
            *(ffmpeg(), "-hide_banner", "-nostats", "-loglevel", "warning", "-y"),
            *("-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", f"{self.width}x{self.height}"),
            *("-framerate", str(FPS), "-i", "pipe:0", "-i", f"file:{self.wav.absolute()}"),
            *("-f", "ffmetadata", "-i", f"file:{self.notes.absolute()}"),
            *("-map", "0:v", "-map", "1:a", "-map_metadata", "2"),
            *("-filter_threads", "1", "-vf", TO_BT709),
            *("-c:v", "libx264", "-preset", "medium", "-crf", str(CRF), "-threads:v", str(ENCODER_THREADS)),
            *("-bsf:v", "filter_units=remove_types=6"),  # the encoder's own signature
            *("-color_range", "tv", "-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709"),
            *("-c:a", "aac", "-b:a", "192k", "-ar", str(sound_rate), "-threads:a", "1"),
            *("-fflags", "+bitexact", "-flags:v", "+bitexact", "-flags:a", "+bitexact"),
            *("-movflags", "+faststart", "-f", "mp4", f"file:{self.temporary}"),
        ]

    def __enter__(self) -> "FilmWriter":
        self.temporary.unlink(missing_ok=True)  # an encoder orphaned by a killed run must not share our file
        # its own session: Ctrl-C in a terminal is the studio's to answer, not the encoder's
        self.encoder = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read_lines, daemon=True)
        self.reader.start()
        fault.point("encoder.started")
        return self

    def _read_lines(self) -> None:
        for line in self.encoder.stderr:
            text = line.decode("utf-8", "replace").strip()
            if text:
                self.lines.append(text)

    def write(self, pixels: np.ndarray) -> None:
        """The next frames. pixels: (n, H, W, 3) uint8. raises: MediaError; Interrupted when cancelled."""
        assert pixels.dtype == np.uint8 and pixels.shape[1:] == (self.height, self.width, 3), pixels.shape
        flat = np.ascontiguousarray(pixels).reshape(-1).data
        for start in range(0, len(flat), CHUNK_BYTES):
            if self.cancelled():
                raise Interrupted
            try:
                self.encoder.stdin.write(flat[start : start + CHUNK_BYTES])
            except OSError as error:
                raise self._failure() from error
        self.written += len(pixels)

    def finish(self) -> Path:
        """The film under its final name, durable, after it was decoded to its end.

        raises: MediaError when frames are missing, the encoder failed or the file does not hold what was written.
        """
        if self.written != self.frames:
            raise MediaError(f"{self.written} of {self.frames} frames were made.")
        fault.point("encoder.fed")
        try:
            self.encoder.stdin.close()
        except OSError as error:
            raise self._failure() from error
        waited_s = 0.0
        while True:
            try:
                code = self.encoder.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                waited_s += 0.2
                if self.cancelled():
                    raise Interrupted from None
                if waited_s > PATIENCE_S + self.frames:
                    raise MediaError("The video encoder stopped answering.") from None
        if code:
            raise self._failure()
        fault.point("encoder.ended")
        self._check(probe(self.temporary, self.cancelled))
        fault.point("film.checked")
        try:
            publish(self.temporary, self.output, "film")
        except OSError as error:
            raise MediaError(f"The film could not be saved as {self.output}: {error.strerror}.") from error
        self.done = True
        return self.output

    def _check(self, found: "Probe") -> None:
        """What was written is what was asked, read back from the file."""
        if (found.width, found.height, found.frames) != (self.width, self.height, self.frames):
            raise MediaError(
                f"The encoder made {found.frames} frames of {found.width}x{found.height}, "
                f"not {self.frames} of {self.width}x{self.height}."
            )
        if abs(found.sound_s - self.frames / FPS) > 0.01:
            raise MediaError(f"The encoder made {found.sound_s:.3f} s of sound for {self.frames / FPS:.3f} s of film.")

    def _failure(self) -> MediaError:
        self.encoder.kill()
        self.encoder.wait()
        self.reader.join(1)
        if any("No space left on device" in line for line in self.lines):
            return MediaError(f"The disk is full: {self.output.parent} has no room for the film.")
        said = " | ".join(self.lines) or f"no message, exit code {self.encoder.returncode}"
        return MediaError(f"The video encoder stopped while writing to {self.output.parent}: {said.rstrip('.')}.")

    def __exit__(self, *_: object) -> None:
        if self.encoder.poll() is None:
            self.encoder.kill()
        self.encoder.wait()
        self.reader.join(1)
        for pipe in (self.encoder.stdin, self.encoder.stderr):
            with contextlib.suppress(OSError):  # what was still buffered has nowhere to go
                pipe.close()
        self.wav.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)
        if not self.done:
            self.temporary.unlink(missing_ok=True)


class Interrupted(Exception):
    """Cancelled while a film was written; nothing was left behind."""


def temporary_name(output: Path) -> str:
    """Hidden and short whatever the final name is; the same for the same film, so a leftover is found again."""
    return f".h3-{zlib.crc32(output.name.encode('utf-8', 'surrogateescape')):08x}.part.mp4"


def companions(output: Path) -> tuple[Path, Path]:
    """The poster picture and the recipe that lie beside a film."""
    return output.with_suffix(".png"), output.with_suffix(".json")


def prove_target(output: Path, size: tuple[int, int], needed_bytes: int, wav: Path) -> None:
    """Before any work: the film can be written there. One grey frame is encoded in that folder and removed again.

    size: (width, height).   needed_bytes: what the film will need at most.
    raises: MediaError, one sentence with what to change.
    """
    output = output.absolute()
    folder = output.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if output.is_dir():
            raise MediaError(f"{output} is a folder; give the film a file name.")
        for path in (output, *companions(output)):
            with contextlib.suppress(FileNotFoundError):
                path.lstat()  # a name that the file system refuses raises something else
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MediaError(f"The film cannot be saved as {output.name!r} in {folder}: {reason}.") from error
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise MediaError(
            f"{folder} has {free / 1e6:.1f} MB free and the film may need {needed_bytes / 1e6:.1f} MB: "
            "free some space or choose another folder."
        )
    trial = folder / f".h3-{zlib.crc32(output.name.encode('utf-8', 'surrogateescape')):08x}.test.mp4"
    grey = np.full((1, size[1], size[0], 3), 128, np.uint8)
    try:
        with FilmWriter(trial, size, 1, np.zeros((2, 1334), np.float32), 32000, wav) as film:
            film.write(grey)
            film.finish()
    except MediaError as error:
        raise MediaError(f"A test frame could not be written to {folder}: {error}") from error
    finally:
        trial.unlink(missing_ok=True)


@dataclass(frozen=True)
class Probe:
    """What is in a film, found by decoding all of it. samples: per channel, 0 without sound."""

    width: int
    height: int
    frames: int
    rate: int
    channels: int
    samples: int

    @property
    def duration_s(self) -> float:
        return self.frames / FPS

    @property
    def sound_s(self) -> float:
        return self.samples / self.rate if self.rate else 0.0


# from a line's beginning: ffmpeg prints the comment too, and a prompt may say "Stream #0:0: Video: ... 999x999"
_VIDEO = re.compile(r"^ *Stream #0:\d+.*: Video: .*?(\d{2,5})x(\d{2,5})", re.MULTILINE)
_AUDIO = re.compile(r"^ *Stream #0:\d+.*: Audio: .*?(\d+) Hz, (\w+)", re.MULTILINE)
_LAYOUTS = {"mono": 1, "stereo": 2}


def _streams(path: Path) -> str:
    """What ffmpeg prints about a file."""
    command = [ffmpeg(), "-hide_banner", "-nostdin", "-i", f"file:{path.absolute()}"]
    return subprocess.run(command, capture_output=True, check=False).stderr.decode("utf-8", "replace")


def probe(path: Path, cancelled: Callable[[], bool] = lambda: False) -> Probe:
    """Decodes the film to its end. raises: MediaError when it does not decode; Interrupted."""
    header = _streams(path)
    video, audio = _VIDEO.search(header), _AUDIO.search(header)
    if not video:
        last = header.strip().splitlines()[-1:] or ["no message"]
        raise MediaError(f"{path} holds no video that can be read: {last[0]}")
    width, height = int(video[1]), int(video[2])
    frames = sum(1 for _ in read_frames(path, (width, height), cancelled))
    rate, channels, samples = 0, 0, 0
    if audio:
        rate, channels = int(audio[1]), _LAYOUTS.get(audio[2], 2)
        samples = read_sound(path, channels, rate, cancelled).shape[1]
    return Probe(width, height, frames, rate, channels, samples)


def read_frames(
    path: Path, size: tuple[int, int], cancelled: Callable[[], bool] = lambda: False
) -> Iterator[np.ndarray]:
    """The frames of a film, one (H, W, 3) uint8 RGB array at a time. size: its (width, height)."""
    width, height = size
    options = ("-map", "0:v:0", "-vf", FROM_BT709, "-fps_mode", "passthrough", "-f", "rawvideo")
    for data in _decode(path, options, width * height * 3, cancelled):
        if len(data) != width * height * 3:
            raise MediaError(f"{path} ends in the middle of a frame.")
        yield np.frombuffer(data, np.uint8).reshape(height, width, 3)


def read_sound(path: Path, channels: int, rate: int, cancelled: Callable[[], bool] = lambda: False) -> np.ndarray:
    """(channels, samples) float32 at the given rate in Hz."""
    options = ("-map", "0:a:0", "-ac", str(channels), "-ar", str(rate), "-f", "f32le")
    data = b"".join(_decode(path, options, CHUNK_BYTES, cancelled))
    return np.frombuffer(data, "<f4").reshape(-1, channels).T


def _decode(path: Path, options: tuple[str, ...], size: int, cancelled: Callable[[], bool]) -> Iterator[bytes]:
    """Decoded bytes in pieces of `size`. raises: MediaError with ffmpeg's words if any error was met."""
    command = [ffmpeg(), "-hide_banner", "-nostdin", "-v", "error", "-i", f"file:{path.absolute()}", *options, "pipe:1"]
    decoder: Any = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    said: list[bytes] = []
    reader = threading.Thread(target=lambda: said.append(decoder.stderr.read()), daemon=True)
    reader.start()
    try:
        while data := decoder.stdout.read(size):
            if cancelled():
                raise Interrupted
            yield data
        code = decoder.wait()
        reader.join()
        words = b"".join(said).decode("utf-8", "replace").strip()
        if code or words:
            raise MediaError(f"{path} does not decode to its end: {words or code}")
    finally:
        if decoder.poll() is None:
            decoder.kill()
            decoder.wait()
        reader.join(1)
        decoder.stdout.close()
        decoder.stderr.close()
