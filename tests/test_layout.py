"""The house stays as drawn: imports point down, the kernels need jax alone, and nothing needs torch."""

import ast
import pathlib
import pkgutil
import subprocess
import sys

import pytest

import rlzero

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted((ROOT / "rlzero").rglob("*.py"))
PROGRAMS = ("rlzero.train", "rlzero.evaluate", "rlzero.pretrain", "rlzero.export", "rlzero.plan",
            "rlzero.integers", "rlzero.samples", "rlzero.rollout.check")


def imports(path):
    """Full names of what a file imports anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def run(script):
    result = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def third_party_after(statement):
    """Top-level packages outside the standard library that a statement imports."""
    return set(run(f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}} "
                   "- set(sys.stdlib_module_names))").split())


def test_the_package_itself_imports_nothing():
    assert third_party_after("import rlzero") - third_party_after("pass") == {"rlzero"}


def test_kernels_need_nothing_but_jax_and_numpy():
    assert third_party_after("from rlzero import kernels") - third_party_after("import jax, numpy") == {"rlzero"}


def test_kernels_import_nothing_from_the_floors_above():
    for path in (ROOT / "rlzero" / "kernels").glob("*.py"):
        for name in imports(path):
            package = name.partition(".")[0]
            assert package in sys.stdlib_module_names or package in ("jax", "numpy") or name.startswith(
                ("rlzero.kernels", "rlzero.algorithms")), f"{path} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file(path):
    text = path.read_text(encoding="utf-8")
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for name in imports(path):
        assert not name.startswith(("torch", "sglang", "tensorflow")), f"{module} imports {name}"
        is_program = any(f"{name}.".startswith(f"{program}.") for program in PROGRAMS)
        assert module in PROGRAMS or not is_program, f"{module} imports the program {name}"
    assert ast.get_docstring(ast.parse(text)), f"{module} has no docstring"
    assert len(text.splitlines()) <= 350, f"{module} is longer than a file here should be"
    assert all(len(line) <= 120 for line in text.splitlines()), f"{module} has a line of more than 120 characters"


def test_everything_imports_where_torch_and_sglang_are_not_installed():
    modules = [module.name for module in pkgutil.walk_packages(rlzero.__path__, "rlzero.")]
    run("import sys\nsys.modules.update(torch=None, sglang=None, tensorflow=None)\n" +
        "\n".join(f"import {name}" for name in modules))
