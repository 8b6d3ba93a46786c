"""The distribution `stentor-client`: what is in it, and that it is enough."""

import ast
import os
import re
import runpy
import subprocess
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from stentor.testing import broker

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
CLIENT = ROOT / "packaging" / "client"
PROGRAM = ROOT / "tests" / "unit" / "client" / "light_client.py"


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def included() -> set[Path]:
    forced = project(CLIENT)["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    found: set[Path] = set()
    for source, target in forced.items():
        path = (CLIENT / source).resolve()
        assert path == (SOURCE / target).resolve(), f"{source} would become {target}"
        found |= set(path.glob("**/*.py")) if path.is_dir() else {path}
    return found


def imports(node: ast.AST) -> set[str]:
    """Modules that code imports when it runs, also inside functions; possibly names in modules as well."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            found |= {alias.name for alias in child.names}
        elif isinstance(child, ast.ImportFrom):
            assert child.module
            found |= {child.module, *(f"{child.module}.{alias.name}" for alias in child.names)}
        elif isinstance(child, ast.Call) and ast.unparse(child.func) == "import_module":
            (name,) = child.args
            found |= {name.value} if isinstance(name, ast.Constant) else set()
        found |= imports(child)
    return found


def file_of(module: str) -> Path | None:
    path = SOURCE / Path(*module.split("."))
    return next((one for one in (path / "__init__.py", path.with_suffix(".py")) if one.exists()), None)


def test_it_holds_every_module_that_its_modules_import():
    files = included()
    for path in sorted(files):
        if path.suffix != ".py":
            continue
        for module in imports(ast.parse(path.read_text())):
            needed = file_of(module) if module.split(".")[0] == "stentor" else None
            assert needed is None or needed in files, f"{path.name} imports {module}, which the client lacks"


def test_it_holds_the_home_of_every_public_name():
    import stentor

    homes = {file_of(module) for module in stentor._EXPORTS}
    assert homes <= included()


def test_it_needs_what_the_whole_system_needs_and_no_other_version_of_it():
    whole, light = project(ROOT)["project"], project(CLIENT)["project"]
    assert light["version"] == whole["version"]
    assert light["requires-python"] == whole["requires-python"]
    assert project(CLIENT)["build-system"] == project(ROOT)["build-system"]
    known = set(whole["dependencies"]).union(*whole["optional-dependencies"].values())
    assert known >= set(light["dependencies"]).union(*light["optional-dependencies"].values())
    assert len(light["dependencies"]) == 2


def test_the_hint_for_pyarrow_names_the_version_that_is_needed():
    from stentor.wire import bodies

    (hint,) = re.findall(r"pip install '(pyarrow[^']*)'", Path(bodies.__file__).read_text())
    assert hint in project(ROOT)["project"]["dependencies"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_fresh_environment_with_it_alone_publishes_and_subscribes(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command, **options):
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=150, env=environment, cwd=tmp_path, **options
        )

    venv.create(tmp_path / "fresh", with_pip=True)
    python = str(tmp_path / "fresh" / "bin" / "python")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet")
    built = run(*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(CLIENT))
    if "No matching distribution found" in built.stderr:
        pytest.skip(f"no package index: {built.stderr}")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("stentor_client-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name}
    assert names == {path.relative_to(SOURCE.resolve()).as_posix() for path in included()}
    installed = run(*pip, "install", str(wheel))
    assert installed.returncode == 0, installed.stderr
    listing = "from importlib.metadata import distributions as d; print(*(one.name for one in d()))"
    names = set(run(python, "-c", listing).stdout.split()) - {"pip", "setuptools"}
    assert names == {"crc32c", "msgspec", "stentor-client"}
    with broker() as local:
        runpy.run_path(str(PROGRAM))["fill"](local.url)
        used = run(python, str(PROGRAM), local.url)
    assert used.stdout == "ok\n", used.stderr
