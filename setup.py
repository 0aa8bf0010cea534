"""The extension list: csrc goes into h3core.kernels.table, the others call it through that module's table.

Only baseline instructions are asked for here: what needs more marks its functions with __attribute__((target)).
"""

from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

HERE = Path(__file__).parent
CSRC = sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").rglob("*.c"))
HEADERS = sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").rglob("*.h"))

# No contraction: a * b + c keeps its two roundings on every machine, so C and SIMD agree bit by bit where they must.
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-pthread"]


def extension(path: Path) -> Extension:
    """One .pyx file; table alone links csrc."""
    name = "h3core.kernels." + path.stem
    return Extension(
        name,
        [str(path.relative_to(HERE)), *(CSRC if path.stem == "table" else [])],
        include_dirs=["csrc", numpy.get_include()],
        depends=HEADERS,
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=FLAGS,
        extra_link_args=["-pthread"],
    )


setup(
    ext_modules=cythonize(
        [extension(path) for path in sorted((HERE / "h3core/kernels").glob("*.pyx"))],
        compiler_directives={"language_level": 3, "embedsignature": True},
    )
)
