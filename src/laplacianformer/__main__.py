"""`python -m laplacianformer COMMAND`, as `laplacianformer COMMAND`."""

from laplacianformer.cli import main

if __name__ == "__main__":
    main()
