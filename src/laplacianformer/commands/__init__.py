"""One module per command of the command line: the only code that prints.

Each module of a command has a SUMMARY (one line of `laplacianformer --help`), a DESCRIPTION and an EPILOG (its own
--help), `add_arguments(parser)`, the only place that names its options, and `run(arguments)`, which returns the exit
code (None is 0). Importing it is cheap: what a command needs is imported by `run`.
"""

__all__: list[str] = []
