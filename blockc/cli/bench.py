"""blockc bench: how fast builds are, and how close to what the machine allows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from blockc.cli.common import ENVIRONMENT, USAGE, WRONG, app, plain_line, require_path, say, stop
from blockc.cli.files import Output, require_folder
from blockc.cli.terminal import write_text
from blockc.graph.target import Provider

if TYPE_CHECKING:
    from blockc.api import Bench


PICTURES = (".svg", ".png")
NONE: list[Path] = []


@app.command()
def bench(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A build with weights.", show_default=False)],
    against: Annotated[
        list[Path],
        typer.Option(metavar="DIR", help="Another build, or a folder with another tool's model.onnx; may be repeated."),
    ] = NONE,
    prefill: Annotated[
        str, typer.Option(metavar="N,...", help="Lengths of prompts, in tokens; empty for none.")
    ] = "128,512",
    decode: Annotated[
        str, typer.Option(metavar="N,...", help="Tokens before decode steps; empty for none.")
    ] = "128,1024",
    encode: Annotated[
        str | None,
        typer.Option(
            metavar="N,...",
            help="Of a model without a cache: tokens of a text; by default 16,128,512 within its context.",
        ),
    ] = None,
    batch: Annotated[
        str, typer.Option(metavar="N,...", help="Of a model without a cache: the texts of a batch.")
    ] = "32,1",
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads, one on each core; all cores by default.")
    ] = None,
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="The number of turns of each candidate.")] = 5,
    ep: Annotated[Provider, typer.Option(help="The provider of onnxruntime to run on.")] = "cpu",
    ops: Annotated[bool, typer.Option("--ops", help="Show what a decode step takes by operator, too.")] = False,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write on from this text in UTF-8, too, without and with prompt lookup."),
    ] = None,
    lookup: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="With --text: draft up to N tokens, 0 for none; by default 7 where the build allows it.",
        ),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=2, metavar="K", help="With --text: the most tokens to write; 128 by default.")
    ] = None,
    format_: Annotated[
        Literal["text", "json"], typer.Option("--format", help="Text for people or JSON for programs.")
    ] = "text",
    output: Output = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the results too, as .svg or .png.", dir_okay=False, callback=require_folder
        ),
    ] = None,
) -> None:
    """Measure builds in turns, each in its own process, beside the machine's floor: prefill and decode, or encoding."""
    lengths = _parse_numbers("--prefill", prefill), _parse_numbers("--decode", decode)
    texts = None if encode is None else _parse_numbers("--encode", encode)
    rows = _parse_numbers("--batch", batch, "texts such as 32,1")
    if not any((*lengths, texts)) and text is None:
        stop(USAGE, "nothing to measure: give --prefill, --decode or --text")
    _refuse_plot(plot, any((*lengths, texts)))
    made = _measure(
        [require_path(path) for path in (folder, *against)],
        prefill=lengths[0],
        decode=lengths[1],
        encode=texts,
        batch=rows,
        threads=threads,
        turns=turns,
        provider=ep,
        ops=ops,
        text=None if text is None else require_path(text),
        lookup=lookup,
        tokens=tokens,
    )
    from blockc.bench import tables

    said = (tables.as_text if format_ == "text" else tables.as_json)(made) + "\n"
    if output is None:
        write_text(said)
    else:
        from blockc.authoring.specfiles import write_whole

        write_whole(output, said)
    if plot is not None:
        from blockc.bench.plot import draw_plot

        plot.write_bytes(draw_plot(made, plot.suffix[1:]))


def _parse_numbers(option: str, text: str, what: str = "tokens such as 128,1024") -> list[int]:
    """The numbers in a text such as 128,1024."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if bad := [word for word in words if not (word.isascii() and word.isdecimal() and int(word[:10]) > 0)]:
        stop(USAGE, f"{option} {plain_line(bad[0])}: expected numbers of {what}")
    return list(dict.fromkeys(map(int, words)))


def _refuse_plot(path: Path | None, lengths: bool) -> None:
    """Refuses a picture that cannot be drawn, before anything is measured."""
    from importlib.util import find_spec

    from blockc.basics.distribution import missing_message

    if path is None:
        return
    if not lengths:
        stop(USAGE, "--plot draws prefill and decode: give --prefill or --decode")
    if path.suffix not in PICTURES:
        stop(USAGE, f"--plot {plain_line(str(path))}: expected a name that ends in {' or '.join(PICTURES)}")
    if find_spec("matplotlib") is None:
        stop(ENVIRONMENT, f"--plot: {missing_message('matplotlib')}")


def _measure(folders: list[Path], **asked: Any) -> Bench:
    """What api.bench measures of the folders. `asked` are its options."""
    from blockc import api

    try:
        return api.bench(folders[0], folders[1:], said=say, **asked)
    except api.WorkerError as error:
        stop(ENVIRONMENT if error.environment else WRONG, str(error))
