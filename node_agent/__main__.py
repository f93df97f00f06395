"""`python -m node_agent`: the same as the `mlx-node` command."""

from node_agent.cli import main

if __name__ == "__main__":
    main()
