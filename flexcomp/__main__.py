"""`python -m flexcomp`."""

from flexcomp.cli import main

if __name__ == "__main__":
    main()
