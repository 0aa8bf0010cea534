"""The one command: `python launch.py` makes .venv once, installs and builds, then hands over to the studio.

    python launch.py                 open the studio in the browser
    python launch.py test            run the tests (add --reference to compare with the reference implementation, live)
    python launch.py generate ...    or any other command of `h3`

A second start touches neither the network nor the compiler: two stamps in .venv say what was installed and what was built.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent
VENV = HOME / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def main(arguments: list[str]) -> None:
    """Prepare what is missing, then become the command. raises: SystemExit with one sentence when something is missing."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("studio", [])
    if command.startswith("-") and command not in ("-h", "--help"):  # `launch.py --share` means the studio's own flag
        command, rest = "studio", arguments
    extras = []
    if command == "test":
        extras.append("test")
        if "--reference" in rest:
            extras.append("reference")
    prepare(extras)
    if command == "test":
        rest = ["--run-reference" if argument == "--reference" else argument for argument in rest]
        hand_over(["-m", "pytest", *rest])
    hand_over(["-m", "h3core.cli", command, *rest])


def prepare(extras: list[str]) -> None:
    """Make .venv, install what pyproject.toml asks for, build the extensions; each only when its inputs changed."""
    if sys.version_info < (3, 10):  # noqa: UP036 - this file is what an older Python meets first
        sys.exit(f"Python {sys.version.split()[0]} is too old: start launch.py with Python 3.10 or newer.")
    if not PYTHON.exists():
        shutil.rmtree(VENV, ignore_errors=True)
    if not any(VENV.glob("[Ll]ib/**/site-packages/pip-*/RECORD")):  # none, or half of one
        print("Making .venv ...", flush=True)
        run([sys.executable, "-m", "venv", str(VENV)], "could not make .venv; on Debian and Ubuntu install python3-venv")
    wanted = digest([HOME / "pyproject.toml"])
    stamp = VENV / "installed"  # the digest, then the extras that are there too
    installed = stamp.read_text(encoding="utf-8").split() if stamp.exists() else []
    if installed[:1] != [wanted]:
        require_compiler()
        print("Installing the page and its libraries (once, a minute or two) ...", flush=True)
        pip("install", "--upgrade", "setuptools>=77", "wheel", "cython>=3.1", "numpy>=1.26", "gradio>=6.0,<7")
        print("Compiling the kernels (once, a minute or two) ...", flush=True)
        pip("install", "--no-build-isolation", "--editable", ".")
        write(VENV / "built", build_digest())  # before the stamp that is asked first
        write(stamp, wanted)
        installed = [wanted]
    elif (VENV / "built").read_text(encoding="utf-8") != build_digest():
        require_compiler()
        print("Compiling the kernels ...", flush=True)
        build = [str(PYTHON), "setup.py", "-q", "build_ext", "--inplace"]
        run(build, "the kernels did not build; the compiler's message is above")
        write(VENV / "built", build_digest())
    for extra in extras:
        if extra not in installed:
            print(f"Installing what `{extra}` needs (once) ...", flush=True)
            pip("install", *requirements(extra))
            installed.append(extra)
            write(stamp, "\n".join(installed))


def requirements(extra: str) -> list[str]:
    """What pyproject.toml lists for an extra, as installed with the package: no second build for a test runner."""
    code = "import importlib.metadata as m; print(*m.requires('h3-studio'), sep='\\n')"
    listed = subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True, cwd=HOME).stdout
    pairs = (line.partition(";") for line in listed.splitlines())
    return [name.strip() for name, _, marker in pairs if f'"{extra}"' in marker or f"'{extra}'" in marker]


def build_digest() -> str:
    """What the extensions are built from: setup.py, the C sources, the Cython sources."""
    sources = [HOME / "setup.py", *(HOME / "csrc").rglob("*.[ch]")]
    sources += [path for path in (HOME / "h3core" / "kernels").iterdir() if path.suffix in (".pyx", ".pxd")]
    return digest(sorted(sources))


def digest(paths: list[Path], *words: str) -> str:
    """16 hex digits of the files' bytes and this Python, then as many of the words."""
    content = hashlib.sha256(f"{sys.version_info[:2]} {HOME}".encode())
    for path in paths:
        content.update(path.name.encode() + b"\0" + path.read_bytes())
    return content.hexdigest()[:16] + hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def require_compiler() -> None:
    """A sentence now is kinder than a page of compiler errors later."""
    names = [os.environ["CC"].split()[0]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    if not any(shutil.which(name) for name in names):
        hint = "xcode-select --install" if sys.platform == "darwin" else "sudo apt install gcc python3-dev"
        sys.exit(f"No C compiler found ({', '.join(names)}): install one ({hint}) and start again.")


def pip(*arguments: str) -> None:
    run([str(PYTHON), "-m", "pip", "-q", "--disable-pip-version-check", *arguments],
        "the installation failed; pip's message is above (a first start needs the network)")


def run(command: list[str], failure: str) -> None:
    if subprocess.run(command, cwd=HOME).returncode != 0:
        sys.exit(f"launch.py: {failure}.")


def write(path: Path, text: str) -> None:
    """Whole or not at all, so that a stop in mid-build is not mistaken for a finished one."""
    temporary = path.with_suffix(".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def hand_over(arguments: list[str]) -> None:
    """This process becomes the command, so that signals and the exit code are its own. Tests run in the checkout."""
    command = [str(PYTHON), *arguments]
    if arguments[1] == "pytest":
        os.chdir(HOME)
    if os.name == "nt":
        sys.exit(subprocess.run(command).returncode)
    os.execv(command[0], command)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
