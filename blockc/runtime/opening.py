"""Opens a build's folder: reads its manifest, checks its weights, and loads its model into onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from blockc.basics.distribution import WITH_CUDA, pip_command
from blockc.basics.errors import BlockcError, CheckpointError
from blockc.basics.floats import FLOATS, INTEGERS, format_of
from blockc.graph.contract import Contract, Port
from blockc.graph.target import Provider, Target
from blockc.ir import Dtype
from blockc.language.spec import load
from blockc.ort.kernels import COMPUTES, NEWER, oldest_release, opset_for, parse_release
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.products.manifest import (
    MANIFEST,
    MODEL,
    SPEC,
    STEP,
    FolderError,
    Manifest,
    digest_of,
    find_misstated,
    is_linked_file,
    read_manifest,
)
from blockc.weights.checkpoint import linked_checkpoint

PROVIDERS: dict[Provider, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
# TF32 keeps ten of fp32's twenty-three bits; without the other option the skip norm accumulates in fp16.
_CUDA = {"use_tf32": "0", "enable_skip_layer_norm_strict_mode": "1"}
_QUIET = 4
INT64 = INTEGERS["int"].onnx
ONNX_FLOATS = {one.onnxruntime: one.onnx for one in FLOATS.values()}
ONNX_TYPES = ONNX_FLOATS | {one.onnxruntime: one.onnx for one in INTEGERS.values()}
# With older kernels of GatherND and Concat, each replay of a graph copies from host memory that has been freed.
CAPTURES = "1.31.1"
# The tokens of a row from which the graph of one new token is faster, measured by benchmarks/long.py: with matrices in
# floats, and in codes, whose products take less of a step.
LONG_FLOATS, LONG_CODES = 2048, 1024


class SessionError(BlockcError):
    """A folder that cannot be run, or a request that its model cannot serve."""


class ProviderError(SessionError):
    """onnxruntime does not have the provider that was asked for."""


@dataclass(frozen=True)
class OpenModel:
    """A model in onnxruntime, and its contract. `captured`: decode steps are replayed as a CUDA graph.

    `rounds`: products of codes round what they multiply, which makes several tokens of a call differ from one.
    `step`: opens the graph of one new token, which is faster once a row has `long` tokens.
    """

    name: str
    context: int
    vocab: int
    provider: Provider
    contract: Contract
    element: int  # onnx's number of the float type
    session: Any
    captured: bool = False
    rounds: bool = False
    step: Callable[[], OpenModel] | None = None
    long: int = 0

    @property
    def binds_steps(self) -> bool:
        """Whether decode steps are bound once. On the CPU that saves nothing, and the full-length mask costs time."""
        return self.contract.fixed and (self.captured or self.provider != "cpu")

    def type_of(self, dtype: Dtype) -> int:
        """onnx's number of a dtype; that of float is the model's own type."""
        return self.element if dtype == "float" else format_of(dtype, "fp32").onnx

    def width(self, port: Port) -> int:
        """The size of an output's last axis."""
        size = port.shape[-1]
        assert isinstance(size, int)
        return size

    def options(self, graph: int) -> Any:
        """The run options of a call. `graph` is the number of its capture, -1 for a call that is not captured."""
        if not self.captured:
            return None
        import onnxruntime

        options: Any = onnxruntime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(graph))
        return options


def open_model(
    folder: Path, provider: Provider, threads: int | None, prepack: bool | None, capture: bool = False
) -> OpenModel:
    """Opens a build that generates; with `capture` its decode steps are CUDA graphs. Raises SessionError."""
    model = _open(folder, provider, threads, prepack, capture)
    if not model.contract.held:
        raise SessionError(
            f"{folder}: the model has no cache, for instance because it attends both ways, so it cannot generate: run "
            "it with --embed or --rerank, in Python with blockc.runtime.Encoder"
        )
    if capture and not model.contract.fixed:
        raise SessionError(
            f"{folder}: a layer's cache is a new tensor at each step, or changes as a whole: a CUDA graph needs a "
            "cache into which a step writes its token"
        )
    return model


def open_encoder(folder: Path, provider: Provider, threads: int | None, prepack: bool | None) -> OpenModel:
    """Opens a build that reads whole texts, and keeps nothing between calls. Raises SessionError."""
    model = _open(folder, provider, threads, prepack)
    if model.contract.held:
        raise SessionError(
            f"{folder}: the model writes text, token by token: run it with --prompt. One that gives vectors of texts "
            "has in its spec `head: none`, and `pool`"
        )
    return model


def _open(
    folder: Path, provider: Provider, threads: int | None, prepack: bool | None, capture: bool = False
) -> OpenModel:
    """Opens a build. Raises SessionError.

    `prepack` is None for what the build needs: codes are always prepacked, other matrices stay in their files' order.

    Statements of the manifest are not trusted: they are compared with the spec and with the graph itself.
    """
    manifest = manifest_of(folder)
    target = manifest.target
    if manifest.weights is None:
        raise SessionError(_no_weights_message(folder))
    _refuse_changed(folder, manifest)
    made = compile_spec(load(folder / SPEC))
    _refuse(folder, target, provider)
    _refuse_old(folder, target)
    if capture:
        _refuse_capture(folder, target, provider)
    packs = target.quant is not None if prepack is None else prepack
    if target.quant is not None and not packs:
        raise SessionError(
            f"{folder}: its matrices are in codes ({target.quant.name}), which onnxruntime multiplies some 40 times "
            "slower without prepacking: open it with prepack"
        )
    session = session_at(folder / MODEL, provider, threads, packs, capture)
    if found := find_misstated(manifest, made):
        raise SessionError(f"{folder / MANIFEST}: {found[0]} differs from the spec: build the folder again")
    contract = manifest.contract
    model = OpenModel(
        name=made.spec.name,
        context=made.spec.top.context,
        vocab=made.spec.top.vocab,
        provider=provider,
        contract=contract,
        element=FLOATS[target.dtype].onnx,
        session=session,
        captured=capture,
        rounds=target.quant is not None and target.quant.level > 0,
    )
    if STEP in manifest.files and provider == "cpu":
        step = partial(_open_step, model, folder, made, threads, packs)
        model = replace(model, step=step, long=LONG_FLOATS if target.quant is None else LONG_CODES)
    _refuse_ports(folder, model)
    return model


def _open_step(model: OpenModel, folder: Path, made: Compiled, threads: int | None, prepack: bool) -> OpenModel:
    """Opens the graph of one new token beside the model's own. It packs its matrices for itself."""
    contract = made.contract(manifest_of(folder).graphs[STEP])
    opened = replace(model, contract=contract, session=session_at(folder / STEP, "cpu", threads, prepack))
    _refuse_ports(folder, opened, STEP)
    return opened


def manifest_of(folder: Path) -> Manifest:
    try:
        return read_manifest(folder)
    except FolderError as error:
        raise SessionError(str(error)) from None


def _refuse_ports(folder: Path, model: OpenModel, name: str = MODEL) -> None:
    """Raises SessionError unless a graph has the inputs and outputs of the contract, by which they are bound."""
    contract = model.contract
    given = [*contract.inputs, *(Port(held.past, held.dtype, held.shape) for held in contract.held)]
    made = [*contract.outputs, *(Port(held.present, held.dtype, held.shape) for held in contract.held)]
    for wanted, found in ((given, model.session.get_inputs()), (made, model.session.get_outputs())):
        says = {port.name: (model.type_of(port.dtype), _fixed_sizes(port.shape)) for port in wanted}
        has = {v.name: (ONNX_TYPES.get(v.type), _fixed_sizes(v.shape)) for v in found}
        if says != has:
            raise SessionError(f"{folder / MANIFEST}: contract differs from {name}: build the folder again")


def _fixed_sizes(shape: Sequence[int | str | None]) -> tuple[int | None, ...]:
    """A shape with None for each size that is not a number."""
    return tuple(size if isinstance(size, int) else None for size in shape)


def _no_weights_message(folder: Path) -> str:
    spec = folder / SPEC
    layout = load(spec).top.checkpoint
    named = f"tensors under the names of the layout {layout}" if layout else "tensors under the names of the parameters"
    return (
        f"{folder} has no weights: build it with `blockc build {spec} --weights PATH --out DIR`, "
        f"where PATH is a .safetensors or .gguf file, or a folder of the former, with {named}"
    )


def _refuse_changed(folder: Path, manifest: Manifest) -> None:
    """Raises SessionError for files that changed since the build.

    The spec and the graph are compared by digest, linked files by size and header, packed data by size.
    """
    for name in (SPEC, *manifest.graph_names):
        if digest_of(folder / name) != manifest.files[name]:
            raise SessionError(f"{folder / name}: changed since it was built: build the folder again")
    for source in manifest.sources:
        try:
            linked_checkpoint(folder, [source.name])
        except CheckpointError as error:
            raise SessionError(str(error)) from None
        if not is_linked_file(folder, source):
            why = "changed since the model was built on it: build the folder again, or with --pack"
            raise SessionError(f"{folder / source.name}: {why}")
    if (data := manifest.data) is not None:
        path = folder / data.name
        if not path.is_file() or path.stat().st_size != data.size:
            raise SessionError(f"{path}: not the weights that were packed: build the folder again")


def _refuse(folder: Path, target: Target, provider: Provider) -> None:
    """Raises SessionError for a graph whose kernels the provider lacks."""
    if provider == "cpu" and target.dtype not in COMPUTES["cpu"]:
        raise SessionError(
            f"{folder}: computes in {target.dtype}, which onnxruntime's CPU kernels do not: run it with cuda"
        )
    if provider == "cuda" and target.provider == "cpu":
        raise SessionError(f"{folder}: was built for the CPU: build it with --ep cuda")


def _refuse_old(folder: Path, target: Target) -> None:
    """Raises SessionError for an onnxruntime too old to open the graph or to compute it right."""
    import onnxruntime

    graph = (folder / MODEL).read_bytes()
    wanted = oldest_release(target, (name for name in NEWER if name.encode() in graph))
    if parse_release(onnxruntime.__version__) < parse_release(wanted):
        package = WITH_CUDA if target.provider == "cuda" else "onnxruntime"
        fit = opset_for(target, onnxruntime.__version__)
        raise SessionError(
            f"{folder}: this onnxruntime is {onnxruntime.__version__}, and its graph needs {wanted} or later: "
            f"{pip_command('-U', f'{package}>={wanted}')}" + (f", or build it with --opset {fit}" if fit else "")
        )


def _refuse_capture(folder: Path, target: Target, provider: Provider) -> None:
    """Raises SessionError where no CUDA graph can be made: nodes run elsewhere, or all logits would be copied out."""
    if provider != "cuda" or target.provider != "cuda":
        raise SessionError(f"{folder}: a CUDA graph needs --ep cuda, both for the build and for the run")
    if not target.top:
        raise SessionError(
            f"{folder}: gives all logits of a token, which a CUDA graph would leave on the device: build it with "
            "--logits K, for the K highest"
        )
    import onnxruntime

    if parse_release(onnxruntime.__version__) < parse_release(CAPTURES):
        raise ProviderError(
            f"this onnxruntime is {onnxruntime.__version__}, and from {CAPTURES} on a CUDA graph can be replayed: "
            f"{pip_command(f'{WITH_CUDA}>={CAPTURES}')}"
        )


def session_at(
    path: Path,
    provider: Provider,
    threads: int | None,
    prepack: bool,
    capture: bool = False,
    profile: Path | None = None,
) -> Any:
    """Opens a model in onnxruntime; without `prepack` matrices stay in their files' order. Raises SessionError.

    `profile` is what the name of onnxruntime's profile begins with; `end_profiling()` of the session writes it.
    """
    import onnxruntime

    failed = _load_cuda(onnxruntime) if provider == "cuda" else ""
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    if threads is not None:
        options.intra_op_num_threads = threads
    # Threads that wait for the next run would take the cores from another session; while a run lasts they still spin.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    settings = _CUDA | ({"enable_cuda_graph": "1"} if capture else {})
    wanted = [(PROVIDERS["cuda"], settings)] if provider == "cuda" else []
    try:
        session: Any = onnxruntime.InferenceSession(path, options, providers=[*wanted, PROVIDERS["cpu"]])
    except Exception as error:  # onnxruntime's errors have no common base
        raise SessionError(f"{path}: onnxruntime does not open it: {str(error).splitlines()[0][:300]}") from None
    if session.get_providers()[0] != PROVIDERS[provider]:  # it falls back in silence
        raise ProviderError(
            f"cuda was asked for, and onnxruntime would run on {', '.join(session.get_providers())}: its CUDA provider "
            f"did not start{failed}. It needs an NVIDIA driver (see nvidia-smi), and CUDA and cuDNN, which "
            f"{pip_command(WITH_CUDA)} brings"
        )
    return session


def _load_cuda(onnxruntime: Any) -> str:
    """Loads CUDA's libraries as installed by pip. (The first failure, which onnxruntime prints.)"""
    found = onnxruntime.get_available_providers()
    if PROVIDERS["cuda"] not in found:
        raise ProviderError(
            f"cuda was asked for, and this onnxruntime has {', '.join(found)}: `pip uninstall onnxruntime`, then "
            f"{pip_command(WITH_CUDA)}, on a machine with an NVIDIA driver"
        )
    with redirect_stdout(StringIO()) as printed:
        onnxruntime.preload_dlls()
    return "".join(f" ({line})" for line in printed.getvalue().splitlines()[:1])
