"""`python -m lineage` is `lineage`."""

from lineage.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
