"""What those see who have not installed Spark."""

import subprocess
import sys

import pytest

WITHOUT = "import sys; sys.modules['pyspark'] = None; "


@pytest.mark.parametrize("what", ["from stentor.spark import session", "import stentor.spark.offsets"])
def test_importing_it_without_pyspark_says_what_to_install(what):
    ran = subprocess.run([sys.executable, "-c", WITHOUT + what], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.endswith("PySpark is not installed. pip install 'stentor[spark]'")
    assert "During handling" not in ran.stderr
