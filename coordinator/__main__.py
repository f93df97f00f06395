"""`python -m coordinator`: the same as the `mlx-network` command."""

from coordinator.cli import main

if __name__ == "__main__":
    main()
