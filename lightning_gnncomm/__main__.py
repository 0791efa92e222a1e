"""``python -m lightning_gnncomm`` is the ``gnncomm`` command."""

from lightning_gnncomm.cli import main

if __name__ == "__main__":
    main()
