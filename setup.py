"""The extension list: csrc goes into h3core.kernels.table, the others call it through that module's table.

Only baseline instructions are asked for here: what needs more marks its functions with __attribute__((target)).
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
CSRC = sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").rglob("*.c"))
HEADERS = sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").rglob("*.h"))
# what a wrapper sees: a change in a kernel's own header rebuilds the library only
PUBLIC = ["csrc/" + name for name in re.findall(r'extern from "(.+?)"', (HERE / "h3core/kernels/csrc.pxd").read_text())]

# No contraction: a * b + c keeps its two roundings on every machine, so C and SIMD agree bit by bit where they must.
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-pthread"]


def extension(path: Path) -> Extension:
    """One .pyx file; table alone links csrc."""
    library = path.stem == "table"
    return Extension(
        "h3core.kernels." + path.stem,
        [str(path.relative_to(HERE)), *(CSRC if library else [])],
        include_dirs=["csrc", numpy.get_include()],
        depends=HEADERS if library else PUBLIC,
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=FLAGS if library else [*FLAGS, "-O1"],  # wrappers only check and call
        extra_link_args=["-pthread"],
    )


class BuildOnAllCores(build_ext):
    """The library is one extension of many C files: compile them side by side."""

    def build_extensions(self) -> None:
        compile_one_by_one = self.compiler.compile

        def compile_side_by_side(sources: list[str], *args, **options) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                found = pool.map(lambda source: compile_one_by_one([source], *args, **options), sources)
            return [each for objects in found for each in objects]

        self.compiler.compile = compile_side_by_side
        super().build_extensions()


setup(
    cmdclass={"build_ext": BuildOnAllCores},
    ext_modules=cythonize(
        [extension(path) for path in sorted((HERE / "h3core/kernels").glob("*.pyx"))],
        compiler_directives={"language_level": 3, "embedsignature": True},
    )
)
