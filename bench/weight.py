"""What an installation weighs, and what it costs to start: `make weight`.

Makes a fresh environment for the whole system and one for the client alone, installs them from this tree, and measures
packages, megabytes and imports. `--beside PATH` measures another tree as well, for example one from before a change.
Times are processor time, which other work on the machine disturbs least: the least of several processes, less that of a
Python that does nothing. Differences of a few hundredths of a second are noise, also below zero.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = {"pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence.pth"}  # of every environment
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another tree, to compare with")
    parser.add_argument("--repeat", type=int, default=9, help="processes for each time")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    trees = {"stentor": ROOT, "stentor-client": ROOT / "packaging" / "client"}
    if options.beside:
        trees = {"before": options.beside, **trees}
    found = {}
    for name, tree in trees.items():
        print(f"installing and weighing {name}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            found[name] = weigh(Path(folder), tree, options.repeat)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def weigh(folder: Path, tree: Path, repeat: int) -> dict[str, float]:
    """The figures of one installation."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    install(python, str(tree))
    files = [path for path in site.rglob("*") if path.is_file() and not is_tool(path.relative_to(site))]
    figures = {
        "packages": len([path for path in site.glob("*.dist-info") if not is_tool(path.relative_to(site))]),
        "megabytes": sum(path.stat().st_size for path in files) / 1e6,
    }
    nothing = seconds([python, "-c", "pass"], folder, repeat)
    for code in ("import stentor", "from stentor import Client", "from stentor import AsyncClient"):
        figures[code] = seconds([python, "-c", code], folder, repeat) - nothing
    if (site / "stentor" / "testing").exists():
        install(python, "pytest")
        (folder / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_nothing.py"]
        with_it = seconds(pytest, folder, repeat)
        figures["pytest plugin"] = with_it - seconds([*pytest, "-p", "no:stentor"], folder, repeat)
    install(python, "pandas")
    figures["beside pandas"] = seconds([python, "-c", "from stentor import Client"], folder, repeat) - nothing
    return figures


def is_tool(path: Path) -> bool:
    return path.parts[0].split("-")[0] in TOOLS or path.parts[0] in TOOLS


def install(python: str, what: str) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what]
    subprocess.run(command, check=True, env=ENVIRONMENT)


def seconds(command: list[str], folder: Path, repeat: int) -> float:
    """The least processor time of a process."""
    times = []
    for _ in range(repeat):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, env=ENVIRONMENT, cwd=folder, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def table(found: dict[str, dict[str, float]]) -> str:
    """As Markdown, one column for each installation."""
    rows = {
        "packages": ("packages", "{:.0f}"),
        "megabytes": ("megabytes", "{:.0f}"),
        "import stentor": ("`import stentor`", "{:.2f} s"),
        "from stentor import Client": ("`from stentor import Client`", "{:.2f} s"),
        "from stentor import AsyncClient": ("`from stentor import AsyncClient`", "{:.2f} s"),
        "beside pandas": ("`from stentor import Client`, pandas installed too", "{:.2f} s"),
        "pytest plugin": ("what the plugin adds to a run of pytest", "{:.2f} s"),
    }
    lines = ["| | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for key, (title, form) in rows.items():
        cells = [form.format(figures[key]) if key in figures else "–" for figures in found.values()]
        lines.append("| " + " | ".join([title, *cells]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
