"""blockc run: text from a build with weights, vectors of texts, documents in the order of their fit to a query."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockc.cli import encode
from blockc.cli.common import ENVIRONMENT, NOTHING, USAGE, WRONG, app, plain_line, require_path, stop
from blockc.cli.files import Output
from blockc.cli.terminal import reader_gone
from blockc.graph.target import Provider

if TYPE_CHECKING:
    from blockc.runtime.lookup import Drafts
    from blockc.runtime.text import Tokenizer


TOKENS = 128
# Control characters, which could move a terminal's cursor or worse, are removed from a model's text, except \t, \n, \r.
_CONTROL = dict.fromkeys({*range(32), *range(127, 160)} - {9, 10, 13})


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A build with weights.", show_default=False)],
    prompt: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT",
            help="The text to continue; - reads standard input. Several prompts run as one batch.",
            show_default=False,
        ),
    ] = NOTHING,
    embed: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT",
            help="Print the vector of this text; - reads texts from standard input, one a line. May be repeated.",
            show_default=False,
        ),
    ] = NOTHING,
    rerank: Annotated[
        str | None,
        typer.Option(metavar="QUERY", help="Print each --document, best first, behind its score for this query."),
    ] = None,
    document: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT",
            help="A document for --rerank; - reads them from standard input, one a line. May be repeated.",
            show_default=False,
        ),
    ] = NOTHING,
    prompt_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The prompt of the model that stands before each --embed, such as query."),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For --rerank: a text with {query} and {document}, which the model reads as one."
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, metavar="N", help="The most texts that are read at once, with --embed and --rerank.")
    ] = encode.BATCH,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse texts that are too long, which --embed and --rerank else cut.")
    ] = False,
    format_: Annotated[
        encode.Format,
        typer.Option("--format", help="How vectors or scores are written; npy is a NumPy file of vectors."),
    ] = "text",
    output: Output = None,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="The most tokens to add to each prompt.")] = TOKENS,
    ep: Annotated[Provider, typer.Option(help="The provider of onnxruntime to run on.")] = "cpu",
    cuda_graph: Annotated[
        bool,
        typer.Option("--cuda-graph", help="Run decode steps as a CUDA graph; needs a build with --logits K."),
    ] = False,
    temperature: Annotated[
        float, typer.Option(min=0.0, metavar="T", help="Draw from softmax(logits / T); 0 takes the likeliest token.")
    ] = 0.0,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Draw from the fewest tokens that sum up to P.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Draw from the K likeliest tokens.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The seed of the draws; the same seed gives the same text.")
    ] = None,
    lookup: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Draft up to N tokens from the text itself, and check them in one step: 7 is good for floats, 3 for "
            "codes. Needs a build with --logits last:N+1, or all.",
        ),
    ] = 0,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Take each prompt as a message to an assistant, in the checkpoint's chat template."
        ),
    ] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message, with --chat.")] = None,
    prepack: Annotated[
        bool | None,
        typer.Option(
            "--prepack/--no-prepack",
            help="Copy the weights into the kernels' order: slower to open, faster to run; by default those in codes.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads of the CPU; all cores by default.")
    ] = None,
) -> None:
    """Print the text that a model writes after a prompt, vectors of texts, or documents by their fit to a query."""
    asked = encode.Asked(
        embed, rerank, document, prompt_name=prompt_name, template=template, batch=batch, strict=strict,
        format=format_, output=output,
    )  # fmt: skip
    of_prompts = {
        "--prompt": bool(prompt), "--tokens": tokens != TOKENS, "--cuda-graph": cuda_graph,
        "--temperature": temperature != 0, "--top-p": top_p is not None, "--top-k": top_k is not None,
        "--seed": seed is not None, "--lookup": lookup != 0, "--chat": chat, "--system": system is not None,
    }  # fmt: skip
    if asked.option:
        asked.refuse([option for option, on in of_prompts.items() if on])
        encode.run(require_path(folder), ep, threads, prepack, asked)
        return
    if asked.idle:
        stop(USAGE, f"{asked.idle[0]} is for {encode.FOR[asked.idle[0]]}")
    if not prompt:
        stop(USAGE, "nothing to run: give --prompt TEXT, --embed TEXT, or --rerank QUERY with --document TEXT")
    if system is not None and not chat:
        stop(USAGE, "--system is for an assistant: give --chat too")
    if cuda_graph and ep != "cuda":
        stop(USAGE, "--cuda-graph needs --ep cuda")
    if lookup and len(prompt) > 1:
        stop(USAGE, f"--lookup takes one --prompt, and there are {len(prompt)}")
    from blockc.runtime.sampling import choose_sampler

    choose = choose_sampler(temperature, top_k, top_p, seed)
    texts = _read_prompts(prompt)
    from blockc.basics.distribution import missing_message
    from blockc.runtime import ProviderError, Session, SessionError
    from blockc.runtime.chat import prompt_ids
    from blockc.runtime.text import Tokenizer

    try:
        session = Session(require_path(folder), ep, threads, prepack, cuda_graph)
        tokenizer = Tokenizer(folder, session.model.vocab)
        prompts = [prompt_ids(folder, tokenizer, text, chat, system) for text in texts]
        _refuse_long(max(map(len, prompts)), tokens, session.context)
        if lookup and session.rounds:
            print(
                "blockc: products of codes round several tokens together otherwise than one, so with --lookup the text "
                "may become another one",
                file=sys.stderr,
            )
        if not tokenizer.stop:
            print(f"blockc: no file says which token ends a text, so {tokens} tokens are written", file=sys.stderr)
        steps = session.generate(prompts, tokens, tokenizer.stop, choose, lookup)
        _print_texts(steps, tokenizer, texts, prompts)
        if lookup:
            print(_drafts_text(session.drafts), file=sys.stderr)
    except ModuleNotFoundError as error:
        stop(ENVIRONMENT, missing_message(error.name, "run"))
    except ProviderError as error:
        stop(ENVIRONMENT, str(error))
    except SessionError as error:
        stop(WRONG, str(error))


def _read_prompts(prompts: list[str]) -> list[str]:
    if prompts.count("-") > 1:
        stop(USAGE, "--prompt - reads standard input, so it can be given once")
    return [sys.stdin.read().removesuffix("\n") if text == "-" else text for text in prompts]


def _refuse_long(longest: int, tokens: int, context: int) -> None:
    if longest + tokens > context:
        figures = f"a prompt of {longest} tokens and --tokens {tokens} make {longest + tokens}"
        stop(WRONG, f"{figures}, and the model's context is {context}")


def _print_texts(
    steps: Iterator[list[int | None]], tokenizer: Tokenizer, texts: list[str], prompts: list[list[int]]
) -> None:
    """Prints one text as it comes, or several at the end, each under its prompt."""
    from blockc.runtime.stream import TextStream

    streams = [TextStream(tokenizer, ids) for ids in prompts]
    written = [""] * len(streams)
    started = time.perf_counter()
    times: list[float] = []
    count = 0
    for step in steps:
        if reader_gone():
            break
        times.append(time.perf_counter() - started)
        for i, token in enumerate(step):
            count += token is not None
            if token is not None and token not in tokenizer.stop:
                written[i] += _print_part(streams[i].push(token), len(streams) == 1)
    for i, stream in enumerate(streams):
        written[i] += _print_part(stream.rest(), len(streams) == 1)
    for i, text in enumerate(written if len(streams) > 1 else []):
        print(f"--- {plain_line(texts[i])}\n{text}")
    if len(streams) == 1:
        print(flush=True)
    print(_figures_text(sum(map(len, prompts)), len(prompts), count, times), file=sys.stderr)


def _print_part(text: str, at_once: bool) -> str:
    text = text.translate(_CONTROL)
    if at_once:
        print(text, end="", flush=True)
    return text


def _drafts_text(drafts: Drafts) -> str:
    """A line with what came of the drafts."""
    return f"{drafts.steps} steps: {drafts.kept} of {drafts.drafted} drafted tokens were right"


def _figures_text(prompt: int, rows: int, count: int, times: list[float]) -> str:
    """A line with the tokens read and written and the time they took, without opening the model."""
    after = count - rows
    speed = f", then {after} at {after / (times[-1] - times[0]):.1f} tokens per second" if after else ""
    of = f" of {rows} prompts" if rows > 1 else ""
    return f"{prompt} prompt tokens{of}, first token after {times[0]:.2f} s{speed}"
