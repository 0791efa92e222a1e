"""The ``gnncomm`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["HELP", "main"]

HELP = """usage: gnncomm COMMAND [OPTIONS]

Trains graph neural networks on one large graph over several processes.

commands:
  fit         train a model
  validate    evaluate a checkpoint on the validation nodes
  test        evaluate a checkpoint on the test nodes
  predict     write the outputs of all nodes, in their original order, to a file
  partition   cut a graph into parts once, before training
  report      write a page with plots of one or several recorded runs

examples:
  gnncomm fit --trainer.strategy sylvie_sync --trainer.accelerator cpu --trainer.devices 2
      A GCN on the built-in digits graph, over two processes, with one-bit halo rows.

  gnncomm fit --model.model GraphSAGE --model.hidden_channels 128 --data.data npz:graph.npz
      Another model on a graph of your own, in one process.

  gnncomm fit --config examples/digits.yaml --trainer.devices 4
      Settings from a file; what follows it on the command line wins.

  gnncomm partition npz:graph.npz --parts 4 --out parts/
  gnncomm fit --data.data parts/ --trainer.strategy halo --trainer.devices 4
      Cut once, train often. Each process reads its own part only.

  gnncomm test --ckpt_path CHECKPOINT --data.data npz:graph.npz
      Evaluate on one device what several have trained.

  gnncomm fit --trainer.callbacks+=RunRecorder --trainer.strategy sylvie_async --trainer.devices 2
  gnncomm report lightning_logs/version_0
      Record a run and see what it did: loss, bytes, waiting, staleness.

`gnncomm COMMAND --help` lists the options of a command; `gnncomm fit --print_config` prints a whole file of settings.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``gnncomm`` command.

    Args:
        arguments: What follows the program's name; ``sys.argv`` if not given. Training over several processes starts
            each of them with ``sys.argv``, so only that works there.

    Raises:
        SystemExit: With status 2 on wrong arguments or a user's mistake, 130 on Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(HELP, end="", file=sys.stdout if given else sys.stderr)
        sys.exit(0 if given else 2)
    # Imported here, so that help and a misspelt command answer at once.
    from lightning_gnncomm.cli.failures import short_errors
    from lightning_gnncomm.cli.partition import run_partition
    from lightning_gnncomm.cli.report import run_report
    from lightning_gnncomm.cli.training import TRAINING_COMMANDS, run_training

    command = given[0]
    others = {"partition": run_partition, "report": run_report}
    if not command.startswith("-") and command not in {*TRAINING_COMMANDS, *others}:
        names = ", ".join([*TRAINING_COMMANDS, *others])
        print(f"gnncomm: error: unknown command {command!r}; expected one of {names}", file=sys.stderr)
        sys.exit(2)
    with short_errors(f"gnncomm {command}"):
        if command in others:
            others[command](given[1:])
        else:
            run_training(None if arguments is None else given)
