import sys

from edge_hpcr.commands.cli import main

# The benchmark's spawned processes import this file again.
if __name__ == "__main__":
    sys.exit(main())
