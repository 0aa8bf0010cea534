"""Imports point one way: webui, cli -> studio -> engine.plan, weights; worker -> engine -> model -> kernels -> csrc."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent

# room -> the rooms it may import (itself always). A longer name wins over its parent, so engine.plan can be stricter than engine.
MAY_IMPORT = {
    "webui": {"h3core.studio", "h3core.version"},
    "h3core.cli": {"h3core.studio", "h3core.version", "webui"},
    "h3core.studio": {"h3core.engine.plan", "h3core.weights", "h3core.version", "h3core.fault"},
    "h3core.engine.plan": {"h3core.weights", "h3core.model"},
    "h3core.engine": {
        "h3core.engine.plan",
        "h3core.model",
        "h3core.kernels",
        "h3core.weights",
        "h3core.version",
        "h3core.fault",
    },
    "h3core.model": {"h3core.kernels"},
    "h3core.kernels": set(),
    "h3core.weights": set(),
    "h3core.micro": set(),
    "h3core.version": set(),
    "h3core.fault": set(),
}


def room(name: str) -> str:
    """The longest room that a dotted module name lies in; '' for modules of others."""
    inside = [each for each in MAY_IMPORT if name == each or name.startswith(each + ".")]
    return max(inside, key=len, default="")


def imports(path: Path) -> set[str]:
    """Dotted names of every module the file imports, relative ones made absolute."""
    package = path.relative_to(HOME).with_suffix("").parts[:-1]
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


FILES = sorted(path for folder in ("h3core", "webui") for path in (HOME / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOME)))
def test_imports_point_one_way(path):
    own = room(".".join(path.relative_to(HOME).with_suffix("").parts).removesuffix(".__init__"))
    for name in imports(path):
        other = room(name)
        allowed = other in ("", own) or other in MAY_IMPORT[own]
        assert allowed, f"{path.relative_to(HOME)} imports {name}"


def test_studio_needs_neither_gradio_nor_the_extensions():
    code = (
        "import sys; import h3core.studio.studio; "
        "bad = [m for m in sys.modules if m == 'gradio' or m == 'torch' or m.startswith('h3core.kernels.')]; "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], cwd=HOME, check=True)
