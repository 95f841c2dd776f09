"""One module per command of the command line: the only code that prints."""
