"""blockc build: a spec to a folder of files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from blockc.basics.floats import FloatType
from blockc.basics.opsets import BUFFERED, OPSETS, USUAL
from blockc.cli.common import (
    ENVIRONMENT,
    NOTHING,
    USAGE,
    WRONG,
    Quantised,
    QuantisedBy,
    Quiet,
    Set,
    SpecPath,
    app,
    plain_line,
    print_findings,
    read_recipe,
    require_path,
    stop,
)
from blockc.cli.terminal import Progress
from blockc.graph.target import DEFAULT, CacheKind, Logits, Padding, Provider, Target

NO_PATHS: list[Path] = []
NO_NAMES: list[str] = []
WeightsMode = Literal["link", "pack"]  # as weights.plan.Mode, which is slow to import


@app.command()
def build(
    spec: SpecPath,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="The folder to write; generated/<name> by default.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace files that were edited since a build, or that no build wrote."),
    ] = False,
    logits: Annotated[
        str,
        typer.Option(
            metavar="all|last|last:N|K",
            help="Which logits model.onnx returns: of all tokens, of the last one, of the last N of a call, or the K "
            "highest of the last one with their tokens.",
        ),
    ] = "all",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Skip the proof of the twin.")] = False,
    require_proof: Annotated[
        bool, typer.Option("--require-proof", help="Fail if a backend for the proof is missing.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The weights for model.onnx: a .safetensors or .gguf file, or a folder.",
        ),
    ] = None,
    adapter: Annotated[
        list[Path],
        typer.Option(
            metavar="DIR",
            help="A LoRA adapter as PEFT saves it, merged into the weights; may be repeated.",
        ),
    ] = NO_PATHS,
    dtype: Annotated[
        FloatType | None,
        typer.Option(help="The float type of model.onnx; by default fp32, for cuda fp16.", show_default=False),
    ] = None,
    weights_mode: Annotated[
        WeightsMode | None,
        typer.Option(
            help="Link to the weights' files, or copy them to model.onnx.data; by default link if they are in --dtype.",
            show_default=False,
        ),
    ] = None,
    pack: Annotated[bool, typer.Option("--pack", help="The same as --weights-mode pack.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Store the digest of each linked tensor, for verify --deep.")
    ] = False,
    ep: Annotated[
        Provider | None,
        typer.Option(help="Write model.onnx in the operators of this onnxruntime provider; portable ONNX by default."),
    ] = None,
    cache: Annotated[
        CacheKind | None,
        typer.Option(
            help="How portable ONNX keeps keys and values: joined to the past, or written into a buffer.",
            show_default=False,
        ),
    ] = None,
    opset: Annotated[
        int | None,
        typer.Option(
            min=OPSETS.start,
            max=OPSETS[-1],
            metavar="N",
            help=f"The opset of portable ONNX, for other runtimes; {USUAL} by default, {BUFFERED} with --cache buffer.",
            show_default=False,
        ),
    ] = None,
    padding: Annotated[
        Padding,
        typer.Option(
            help="The side on which --ep cpu allows padding of a batch; right is a little faster, and what cuda does."
        ),
    ] = "any",
    quant: Quantised = None,
    quant_policy: QuantisedBy = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A text on which scales are chosen, by the tokens of its beginning; by default drawn tokens.",
            show_default=False,
        ),
    ] = None,
    dequantise: Annotated[
        bool,
        typer.Option("--dequantise", help="Make floats of weights that are codes, as in most GGUF files."),
    ] = False,
    step_graph: Annotated[
        bool | None,
        typer.Option(
            "--step-graph/--no-step-graph",
            help="Add step.onnx, a graph of one new token that run takes for long texts; by default with --ep cpu and "
            "weights, where the model can be one.",
            show_default=False,
        ),
    ] = None,
    products: Annotated[
        list[str],
        typer.Option(
            "--target",
            metavar="NAME",
            help="Add the files that a runtime needs to load the folder: genai for onnxruntime-genai, or "
            "sentence-transformers; may be repeated.",
        ),
    ] = NO_NAMES,
    assignments: Set = NOTHING,
    quiet: Quiet = False,
) -> None:
    """Prove a spec's tiny twin, then write model.py, model.onnx and their report, all or nothing."""
    from blockc import api
    from blockc.authoring.specfiles import model_file

    file = model_file(spec)
    if weights is None and file.is_dir() and api.has_weights(file):
        weights = file
    of_weights = {
        "--pack": pack,
        "--weights-mode": weights_mode is not None,
        "--deep": deep,
        "--adapter": bool(adapter),
        "--quant": quant is not None,
        "--quant-policy": quant_policy is not None,
        "--calibrate": calibrate is not None,
        "--dequantise": dequantise,
        "--step-graph": step_graph is True,
    }
    if weights is None and (said := [flag for flag, on in of_weights.items() if on]):
        stop(USAGE, f"{said[0]} is for weights: give them with --weights PATH")
    if pack and weights_mode == "link":
        stop(USAGE, "--pack and --weights-mode link say opposite things")
    if quant is not None and weights_mode == "link":
        stop(USAGE, "--quant and --weights-mode link say opposite things: codes are computed, and then packed")
    if weights is None and products:
        stop(USAGE, f"--target {products[0]} needs a model with weights: give them with --weights PATH")
    if ep is not None and cache is not None:
        stop(USAGE, "--cache is for portable ONNX: a provider's own attention takes either")
    if ep is not None and opset is not None:
        stop(USAGE, "--opset is for portable ONNX: remove it, or --ep")
    if ep is None and padding == "right":
        stop(USAGE, "--padding right is for a provider's attention: give --ep")
    if no_verify and require_proof:
        stop(USAGE, "--no-verify and --require-proof say opposite things")
    if assignments and out is None:
        stop(USAGE, "--set makes another model: say where it goes with --out DIR")
    if out == "":
        stop(USAGE, "--out is empty: name a folder, or say . for the one you are in")
    which, last = _parse_logits(logits)
    target = Target(ep, dtype or DEFAULT[ep], which, cache or "joined", padding=padding, opset=opset, last=last)
    model = api.compile(file, assignments)
    target = replace(target, quant=read_recipe(quant, quant_policy, model))
    if weights != file:  # for a folder's own config.json, the build's notes have them
        print_findings(model.warnings)
    try:
        with Progress(quiet) as progress:
            built = api.build(
                model,
                out,
                target=target,
                proof=not no_verify,
                require_proof=require_proof,
                weights=None if weights is None else require_path(weights),
                mode="pack" if pack else weights_mode,
                products=products,
                deep=deep,
                adapters=[require_path(folder) for folder in adapter],
                calibrate=None if calibrate is None else require_path(calibrate),
                dequantise=dequantise,
                step=step_graph,
                force=force,
                progress=progress,
            )
    except api.NotProvedError as error:
        stop(ENVIRONMENT if error.proof.holds else WRONG, f"{error}; nothing was written")
    if quiet:
        return
    for note in built.notes:
        print(plain_line(note))
    for path in built.files:
        print(f"{path}  {path.stat().st_size:,} bytes")
    for line in built.storage.lines if built.storage else ():
        print(line)
    print(built.line)


def _parse_logits(said: str) -> tuple[Logits, int]:
    """(Which logits; of how many last tokens.)"""
    if said == "all" or said == "last":
        return said, 1
    number = said.removeprefix("last:")
    if number.isascii() and number.isdigit() and int(number) > 0:
        return (int(number), 1) if number == said else ("last", int(number))
    return stop(USAGE, f"--logits {said}: expected all, last, last:N for the last N, or how many of the highest")
