"""safetensors files: tensors by name, and metadata that says what they are, each entry as text."""

import hashlib
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer._util.files import replacing
from laplacianformer._util.settings import SUFFIX, entries, tensor_differences

# As safetensors names them. Others hold no numbers of a model.
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "C64": torch.complex64,
}
_CHECKSUM = "sha256"  # the entry of the metadata that has one
_LONG = {  # entries that are JSON or a recipe
    *("model_args", "classes", "input", "metrics", "labels", "category_ids", "converted", "converted_from", "recipe"),
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file, whole or not at all. The tensors may be on any device, and share memory.

    The metadata gets a checksum of the tensors: damage is found before they are used.
    """
    _check_texts(path, metadata)
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    data = safetensors.torch.save(copies, {**metadata, _CHECKSUM: _checksum(sorted(copies.items()))})
    with replacing(path) as file:
        file.write(data)


def state_dict(model: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The tensors of a model, with its parameters in another dtype if one is given."""
    tensors: dict[str, Tensor] = model.state_dict()
    if dtype is not None:
        for name, parameter in model.named_parameters():
            tensors[name] = parameter.detach().to(dtype)
            if not torch.equal(tensors[name].isfinite(), parameter.isfinite()):
                raise InputError(f"{name} has values too large for {dtype}: save it without dtype")
    return tensors


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file whose header was checked: it may claim more than memory holds."""
    with _opened(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118  no iterator


def read_header(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file on the meta device, without their numbers, and its metadata: a file of any size costs
    nothing."""
    with _opened(path, "np") as file:  # for torch, safetensors would reserve memory for all of it
        names = list(file.keys())
        if len(names) > limits.MOST_TENSORS:
            raise InputError(f"{path} has {len(names)} tensors: at most {limits.MOST_TENSORS} are possible")
        slices = {name: file.get_slice(name) for name in names}
        shapes = {name: part.get_shape() for name, part in slices.items()}
        dtypes = {name: _DTYPES.get(part.get_dtype(), torch.bool) for name, part in slices.items()}
        metadata = file.metadata() or {}
    _check_texts(path, metadata)
    count = sum(math.prod(shape) for shape in shapes.values())
    if count > limits.MOST_PARAMETERS:
        raise InputError(f"{path} has {count} numbers in its tensors: at most {limits.MOST_PARAMETERS} are possible")
    tensors = {name: torch.empty(shape, dtype=dtypes[name], device="meta") for name, shape in shapes.items()}
    return tensors, metadata


def _check_texts(path: Path, metadata: Mapping[str, str]) -> None:
    """Refuse a file that says more than anybody reads, beside what is JSON or a recipe, which have limits of theirs."""
    if len(metadata) > limits.MOST_ENTRIES:
        found, most = len(metadata), limits.MOST_ENTRIES
        raise InputError(f"{path} has {found} entries in its metadata: at most {most} are possible")
    for key, text in metadata.items():
        most = limits.MOST_JSON if key in _LONG else limits.MOST_TEXT
        if (length := max(len(key), len(text))) > most:
            what = f"{limits.one_line(key)} in the metadata of {path}"
            raise InputError(f"{what} has {length} characters: at most {most} are possible")


def _checksum(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of the names, types, shapes and bytes of tensors on the CPU, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_undamaged(path: Path, metadata: Mapping[str, str], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise unless these, all of a file in the order of their names, are what was written. Old files can't tell."""
    if _CHECKSUM in metadata and _checksum(tensors) != metadata[_CHECKSUM]:
        raise InputError(
            f"{path} is damaged, or was changed: its tensors do not have the checksum that was written with them"
        )


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[Any]:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not a regular file" if path.exists() else "is not there"
        raise InputError(f"{path} {what}: expected a weights file (.safetensors)")
    try:
        with _utf8(path) as readable, safe_open(readable, framework=framework) as file:
            yield file
    except SafetensorError as error:
        raise InputError(
            f"{path} is not a complete safetensors file ({limits.reason(error)}): copy or export it again"
        ) from None
    except MemoryError:  # also of addresses alone, where a process may only have so many
        raise InputError(f"{path} is larger than the memory that this process may use") from None


@contextmanager
def _utf8(path: Path) -> Iterator[Path]:
    """The path, or a link to it: safetensors opens no path that is not UTF-8."""
    try:
        path.as_posix().encode()
    except UnicodeEncodeError:
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / "weights.safetensors"
            link.symlink_to(path.absolute())
            yield link
    else:
        yield path


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata alone; empty for what is not a safetensors file."""
    if not path.is_file():
        return {}
    try:
        with _utf8(path) as readable, safe_open(readable, framework="np") as file:
            return file.metadata() or {}
    except SafetensorError:
        return {}


def json_entry(path: Path, metadata: Mapping[str, str], key: str) -> Any:
    """The value of a key of the metadata that is JSON."""
    what = f"{key} in the metadata of {path}"
    if len(metadata[key]) > limits.MOST_JSON:
        raise InputError(f"{what} has {len(metadata[key])} characters: at most {limits.MOST_JSON} are possible")
    return limits.parse_json(metadata[key], what)


def _same_kind(given: Tensor, expected: Tensor) -> bool:
    """Whether both hold real floating-point numbers of any width, or else numbers of one type."""
    floating = given.is_floating_point(), expected.is_floating_point()
    return given.dtype == expected.dtype if not all(floating) else True


def expected_tensors(build: Callable[[], nn.Module], what: str) -> dict[str, Tensor]:
    """The tensors of a model on the meta device, before there is memory for what a file may only claim.

    Buffers that are not in files, such as tables of positions, are counted, too; `what` names the model in messages.
    """
    with torch.device("meta"):
        model = build()
    count = sum(buffer.numel() for buffer in model.buffers())
    if count > limits.MOST_BUFFERED:
        raise InputError(f"{what} has {count} numbers in its buffers: at most {limits.MOST_BUFFERED} are possible")
    tensors: dict[str, Tensor] = model.state_dict()
    return tensors


def check_tensors(path: Path, architecture: str, expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Raise unless a file has the tensors of a model, in their shapes and kinds of numbers, and no others.

    Settings in the state of layers may be missing, as in files of earlier versions, but not different; tensors on the
    meta device, of a header alone, have none to compare.
    """
    stated = entries(expected)
    different = [
        *(
            f"{limits.one_line(name).removesuffix(SUFFIX).removesuffix('.')} was made with {said}"
            for name in expected
            if name in stated and name in tensors and not tensors[name].is_meta
            for said in tensor_differences(tensors[name], expected[name])
        ),
        *(f"{limits.one_line(name)} is missing" for name in expected if name not in tensors and name not in stated),
        *(f"{limits.one_line(name)} is unknown" for name in tensors if name not in expected),
        *(
            f"{name} has shape {tuple(tensors[name].shape)} instead of {tuple(tensor.shape)}"
            for name, tensor in expected.items()
            if name in tensors and name not in stated and tensors[name].shape != tensor.shape
        ),
        *(
            f"{name} has the type {tensors[name].dtype} instead of {tensor.dtype}"
            for name, tensor in expected.items()
            if name in tensors and name not in stated and not _same_kind(tensors[name], tensor)
        ),
        *(f"{limits.one_line(name)} is sparse" for name in tensors if tensors[name].layout != torch.strided),
    ]
    if different:
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        raise InputError(f"{path} does not hold the {architecture} that it names: {'; '.join(different[:3])}{more}")


def load_described(model: nn.Module, path: Path, architecture: str) -> None:
    """Load the tensors of a file, whose header was checked, into the model that its metadata describes.

    Settings that a file of an earlier version does not state are those of the model.
    """
    tensors, metadata = read_tensors(path)
    _check_undamaged(path, metadata, sorted(tensors.items()))
    own = model.state_dict()
    check_tensors(path, architecture, own, tensors)  # the settings in them, too
    model.load_state_dict({**entries(own), **tensors})


def load_tensors(
    model: nn.Module,
    path: Path,
    architecture: str,
    names: Mapping[str, str] | None = None,
    kept: Collection[str] = (),
) -> None:
    """Load the tensors of a file into a model. The header is checked first, and only what is loaded is kept.

    Args:
        architecture: what the file should hold, for messages.
        names: of tensors in the model, each with its name in the file; without them, all of the file under their own.
        kept: names of tensors that the model keeps, which are not loaded.
    """
    header, metadata = read_header(path)
    names = {name: name for name in header} if names is None else names
    expected = model.state_dict()
    own = {name: expected[name] for name in kept}
    chosen = {name: stored for name, stored in names.items() if name not in own}
    check_tensors(path, architecture, expected, {**{name: header[stored] for name, stored in chosen.items()}, **own})
    with _opened(path, "pt") as file:
        _check_undamaged(path, metadata, ((name, file.get_tensor(name)) for name in sorted(header)))
        tensors = {**{name: file.get_tensor(stored) for name, stored in chosen.items()}, **own}
    check_tensors(path, architecture, expected, tensors)  # the settings in them, too
    model.load_state_dict(tensors)
