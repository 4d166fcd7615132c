"""`pylogd verify-log` and `pylogd dump-log`: check and print log files, without a broker."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pylogd.broker.log.dump import dump_file
from pylogd.broker.log.verify import Severity, verify_log_dir
from pylogd.cli.output import note, output_format, output_option, print_document, print_line

_COLOURS = {Severity.INFO: None, Severity.WARNING: "yellow", Severity.ERROR: "red"}


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.option("--records", is_flag=True, help="Also decompress and decode every record.")
@output_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; only set the exit status.")
def verify_log(directory: Path, records: bool, quiet: bool) -> None:
    """Check the log of a partition, or all logs of a data directory. Nothing is changed.

    Checks CRC, length and offsets of every batch, the indexes against the batches, and the checkpoints. Prints a line
    for each finding. Exit status 1 if anything is damaged. While a broker writes to the directory, the last batch of a
    newest segment may look damaged.

    \b
    pylogd verify-log /var/lib/pylogd
    pylogd verify-log /var/lib/pylogd/events-0 --records
    """
    damage = 0
    found = []
    in_text = output_format() in ("table", "tsv")
    for finding in verify_log_dir(str(directory), records=records):
        damage += finding.severity is Severity.ERROR
        if not in_text:
            found.append({
                "severity": finding.severity.value, "path": finding.path, "position": finding.position,
                "message": finding.message,
            })  # fmt: skip
        elif not quiet:
            print_line(str(finding), colour=_COLOURS[finding.severity])
    if not quiet:
        print_document(found)
    if damage:
        raise click.exceptions.Exit(1)
    if in_text and not quiet and sys.stderr.isatty():
        note("no damage found")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--records", is_flag=True, help="Also print the records of each batch.")
def dump_log(file: Path, records: bool) -> None:
    """Print the contents of a segment, an index, a producer snapshot or a checkpoint.

    \b
    pylogd dump-log /var/lib/pylogd/events-0/00000000000000000000.log --records
    pylogd dump-log /var/lib/pylogd/events-0/00000000000000000000.timeindex
    """
    try:
        for line in dump_file(str(file), records=records):
            print_line(line)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
