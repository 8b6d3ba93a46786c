"""`python -m stentor` is the same as `stentor`."""

from __future__ import annotations

from stentor.cli import main

if __name__ == "__main__":
    main()
