"""The commands of `replayfeed`, their options and their help; what they do is in `jobs.py`.

TensorFlow takes seconds to import, so nothing here does before a command runs.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import traceback
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

BAD_DATA = 1
WRONG_USAGE = 2

app = typer.Typer(
    name="replayfeed",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Offline data of reinforcement learning: into RLDS folders, out of served tables, and checked.",
    epilog="Exit codes: 0 done, 1 the data are bad or need a decision, 2 wrong usage. "
    "Results go to stdout, all else to stderr.",
)


def _word(value: str | None) -> str | None:
    """What TFDS finds again in the names of files."""
    if value is not None and not (value.isascii() and value.isidentifier() and value[0] != "_"):
        raise typer.BadParameter(f"expected letters, digits and underscores, a letter first, got {value!r}.")
    return value


def _address(value: str) -> str:
    """What names a server, before anything waits for it."""
    if not value.startswith("unix:") and not value.rpartition(":")[2].isdecimal():
        raise typer.BadParameter(f"expected host:port, as localhost:8000, got {value!r}.")
    return value


_Split = Annotated[str | None, typer.Option(help="Split of the source, or a slice of it, as 'train[:100]'.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]
_Limit = Annotated[int | None, typer.Option(min=1, help="Episodes to read; all by default.")]
_EpisodeLength = Annotated[
    int | None, typer.Option(min=1, help="Rows after which an episode ends, in HDF5 and NPZ files without flags.")
]
_Name = Annotated[str | None, typer.Option(callback=_word, help="Name of the new dataset; by default that of FOLDER.")]
_AsSplit = Annotated[str, typer.Option(callback=_word, help="Split to write.")]
_FileFormat = Annotated[Literal["tfrecord", "array_record"], typer.Option(help="Format of the files.")]
_Shards = Annotated[int | None, typer.Option(min=1, help="Files to write; by default one for about 256 MB each.")]
_Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the dataset in FOLDER when the new one is complete.")
]


@app.command(
    "import",
    short_help="Any source into an RLDS folder.",
    epilog="Example: replayfeed import hopper.hdf5 data/hopper --on-bad-episode repair",
    help="Writes SOURCE as an RLDS dataset into FOLDER, which tfds.builder_from_directory opens.\n\n"
    "SOURCE is a D4RL-style HDF5 file, a Minari dataset, an NPZ file, the name of a TFDS dataset or the folder of one.",
)
def import_command(
    source: Annotated[str, typer.Argument(show_default=False)],
    folder: Annotated[pathlib.Path, typer.Argument(show_default=False)],
    name: _Name = None,
    split: _Split = None,
    as_split: _AsSplit = "train",
    on_bad_episode: Annotated[
        Literal["error", "skip", "repair", "keep"],
        typer.Option(help="What becomes of unsound episodes, as load_rlds tells; 'keep' writes all as they are."),
    ] = "error",
    alignment: Annotated[
        Literal["sar", "ars", "rsa"],
        typer.Option(
            help="What a step of SOURCE holds: 'sar' is RLDS's, observation, its action, the reward that follows."
        ),
    ] = "sar",
    limit: _Limit = None,
    episode_length: _EpisodeLength = None,
    file_format: _FileFormat = "tfrecord",
    shards: _Shards = None,
    overwrite: _Overwrite = False,
    beam: Annotated[
        bool,
        typer.Option(
            "--beam", help="Convert on Apache Beam, in all cores of this machine unless --beam-option says otherwise."
        ),
    ] = False,
    beam_option: Annotated[
        list[str] | None, typer.Option(help="An option of Beam's, as '--runner=FlinkRunner'; may be repeated.")
    ] = None,
    beam_slices: Annotated[
        int | None, typer.Option(min=1, help="Parts of the split that Beam deals out; 16 by default.")
    ] = None,
    json: _Json = False,
    quiet: _Quiet = False,
    debug: _Debug = False,
) -> None:
    """Writes any source as an RLDS folder."""
    if not beam and (beam_option or beam_slices):
        raise typer.BadParameter("--beam-option and --beam-slices are for --beam.")
    if beam and (limit is not None or shards is not None):
        raise typer.BadParameter("--beam takes no --limit, use a slice as --split 'train[:100]', and no --shards.")
    with _errors(debug) as stage:
        from . import jobs

        settings = jobs.ImportSettings(
            source,
            split=split,
            on_bad_episode=on_bad_episode,
            alignment=alignment,
            limit=limit,
            episode_length=episode_length,
        )
        target = jobs.Target(
            str(folder), _name_of(name, folder), split=as_split, file_format=file_format, overwrite=overwrite
        )
        if beam:
            report = jobs.import_with_beam(
                settings, target, stage, options=beam_option, num_slices=beam_slices or 16, progress=not quiet
            )
        else:
            report = jobs.import_source(settings, target, stage, shards=shards, progress=not quiet)
    _print(report.to_json() if json else str(report))


@app.command(
    "export",
    short_help="A served table into an RLDS folder.",
    epilog="Example: replayfeed export localhost:8000 replay data/replay --name replay",
    help="Writes what TABLE of the Reverb server at ADDRESS holds as an RLDS dataset into FOLDER.\n\n"
    "The table has to be scannable. Nothing is taken out of it, nor counted by its rate limiter.",
)
def export_command(
    address: Annotated[str, typer.Argument(callback=_address, show_default=False, help="host:port")],
    table: Annotated[str, typer.Argument(show_default=False)],
    folder: Annotated[pathlib.Path, typer.Argument(show_default=False)],
    name: _Name = None,
    as_split: _AsSplit = "train",
    file_format: _FileFormat = "tfrecord",
    shards: _Shards = None,
    overwrite: _Overwrite = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the server.")] = 10.0,
    json: _Json = False,
    quiet: _Quiet = False,
    debug: _Debug = False,
) -> None:
    """Writes a served table as an RLDS folder."""
    with _errors(debug) as stage:
        from . import jobs

        target = jobs.Target(
            str(folder), _name_of(name, folder), split=as_split, file_format=file_format, overwrite=overwrite
        )
        report = jobs.export_table(address, table, target, stage, timeout_s=timeout, shards=shards, progress=not quiet)
    _print(report.to_json() if json else str(report))


@app.command(
    "validate",
    short_help="What is in a dataset, and what is wrong with it.",
    epilog="Example: replayfeed validate data/hopper --picture hopper.png",
    help="Reads all of PATH once, and tells what is in it, what is wrong, and what load_rlds does about it.\n\n"
    "PATH is whatever 'import' takes. The exit code is 1 when something needs a decision.",
)
def validate_command(
    path: Annotated[str, typer.Argument(show_default=False)],
    split: _Split = None,
    limit: _Limit = None,
    episode_length: _EpisodeLength = None,
    picture: Annotated[
        pathlib.Path | None, typer.Option(help="Write histograms of lengths, returns, rewards and actions there.")
    ] = None,
    json: _Json = False,
    quiet: _Quiet = False,
    debug: _Debug = False,
) -> None:
    """Checks a dataset."""
    with _errors(debug) as stage:
        from . import jobs

        if picture is not None:
            # A name that cannot be is told now, and not after hours of reading.
            jobs.check_picture(picture)
        report = jobs.validate(path, stage, split=split, episode_length=episode_length, limit=limit, progress=not quiet)
    _print(report.to_json() if json else str(report))
    if picture is not None:
        with _errors(debug) as stage:
            stage.reading = True
            report.save_picture(picture)
    if report.needs_decision:
        raise typer.Exit(BAD_DATA)


class Stage:
    """How far a command got: an error before it reads is wrong usage, one after that is bad data.

    >>> stage = Stage()
    >>> stage.exit_code(ValueError()), stage.exit_code(FileNotFoundError())
    (2, 2)
    >>> stage.reading = True
    >>> stage.exit_code(ValueError()), stage.exit_code(FileExistsError())
    (1, 2)
    """

    def __init__(self) -> None:
        self.reading = False

    def exit_code(self, error: Exception) -> int:
        """The process's, for an error that ended the command."""
        always_usage = isinstance(error, FileExistsError | ImportError | PermissionError)
        return WRONG_USAGE if always_usage or not self.reading else BAD_DATA


@contextlib.contextmanager
def _errors(debug: bool) -> Iterator[Stage]:
    """Says an error in one line on stderr, and ends the process with the exit code of its stage."""
    stage = Stage()
    try:
        yield stage
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"replayfeed: {one_line(error)}", file=sys.stderr)
        raise typer.Exit(stage.exit_code(error)) from error


def _print(result: str) -> None:
    """Prints to stdout; where that fails (a full disk) it says so in one line."""
    try:
        print(result, flush=True)
    except BrokenPipeError:
        # Whoever read has seen enough: typer ends the process without a word.
        raise
    except OSError as error:
        # What is left to write would fail once more when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"replayfeed: the result cannot be printed: {error}", file=sys.stderr)
        raise typer.Exit(WRONG_USAGE) from error


def one_line(error: Exception) -> str:
    r"""What an error says, in one line; its kind too, where it is none that this package raises on purpose.

    >>> one_line(ValueError("no such split;\n  found 'train'")), one_line(KeyError("a"))
    ("no such split; found 'train'", "KeyError: 'a'; --debug shows where")
    >>> one_line(FileExistsError("pass overwrite=True to replace it"))
    'pass --overwrite to replace it'
    """
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        # Of another process, as Beam hands it on.
        text = text.splitlines()[-1]
    # On the command line an argument of a function is an option.
    text = " ".join(text.split()).replace("overwrite=True", "--overwrite")
    if "episode_length=" in text:
        text = f"{text.removesuffix('.')}; on the command line: --episode-length 1000."
    if text and type(error) in (ValueError, TypeError, ImportError, RuntimeError) or isinstance(error, OSError):
        return text
    return f"{type(error).__name__}: {text}; --debug shows where"


def _name_of(name: str | None, folder: pathlib.Path) -> str:
    """The dataset's name: as given, or the folder's with what no name may have turned to underscores."""
    if name is not None:
        return name
    stem = folder.resolve().name
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in stem)
    return plain if plain[:1].isalpha() else f"dataset_{plain}"
