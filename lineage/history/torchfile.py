"""The tensors of a `.pt` file, read without running a line of it.

`torch.save` writes a zip: a pickle that describes the objects, and one member per storage. Unpickling runs code, so
the pickle is not unpickled. A small machine steps through its opcodes on plain values; classes and functions are
never looked up but stay names, and of all calls only the few that rebuild tensors mean anything. What comes out is
names, types, shapes and byte ranges. Hostile input can at worst be refused.
"""

from __future__ import annotations

import pickletools
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lineage.errors import FormatError

MAX_PICKLE_BYTES: Final = 256 << 20
_MAX_OPCODES: Final = 20_000_000
_MAX_DEPTH: Final = 64
_MAX_OVERLAP: Final = 8

_STORAGES: Final = {
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64",
}
_DTYPES: Final = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
_ITEM_BYTES: Final = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor: where it hangs in the saved object, and its bytes in row-major order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True)
class _Name:
    """A class or function the pickle names; never looked up."""

    module: str
    name: str


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: str | None
    num_items: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Opaque:
    """The result of a call that means nothing to us; items set on it are kept, since modules hang below."""

    def __init__(self) -> None:
        self.items: dict[Any, Any] = {}


class _Mark:
    pass


def is_torch_file(path: Path) -> bool:
    """Whether a file is a zip with a pickle in it, as `torch.save` writes."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return _pickle_member(archive) is not None
    except (zipfile.BadZipFile, OSError, ValueError):
        return False


def read_torch_file(path: Path) -> Iterator[StoredTensor]:
    """Every dense tensor of a file that `torch.save` wrote; runs nothing.

    Raises:
        FormatError: not such a file, damaged, or something in it that an honest one does not have.
    """
    where = str(path)
    if not stat.S_ISREG(path.lstat().st_mode) and not path.is_file():
        raise FormatError("this is not a plain file", where)
    try:
        with zipfile.ZipFile(path) as archive:
            member = _pickle_member(archive)
            if member is None:
                raise FormatError("there is no data.pkl in this zip", where, "only files of torch.save are read")
            prefix = member.filename.removesuffix("data.pkl")
            _check_byteorder(archive, prefix, where)
            root = _run(_stored(archive, member, MAX_PICKLE_BYTES, where), where)
            yield from _tensors(archive, prefix, root, where)
    except (zipfile.BadZipFile, EOFError, OverflowError, UnicodeDecodeError, NotImplementedError) as error:
        raise FormatError(f"the file is damaged: {error}", where) from error


def _pickle_member(archive: zipfile.ZipFile) -> zipfile.ZipInfo | None:
    for info in archive.infolist():
        if info.filename == "data.pkl" or (info.filename.endswith("/data.pkl") and info.filename.count("/") == 1):
            return info
    return None


def _stored(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int, where: str) -> bytes:
    """A member's bytes; torch never compresses, so a compressed member is a bomb or not torch's."""
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise FormatError(f"{info.filename[:100]!r} is compressed, which torch.save never does", where)
    if info.file_size > limit:
        raise FormatError(f"{info.filename[:100]!r} has {info.file_size} bytes, more than {limit}", where)
    data = archive.read(info)
    if len(data) != info.file_size:
        raise FormatError(f"{info.filename[:100]!r} ends early", where)
    return data


def _check_byteorder(archive: zipfile.ZipFile, prefix: str, where: str) -> None:
    try:
        info = archive.getinfo(f"{prefix}byteorder")
    except KeyError:
        return  # older files have none, and are little-endian
    if _stored(archive, info, 16, where).strip() != b"little":
        raise FormatError("the file was written on a big-endian machine", where)


def _run(data: bytes, where: str) -> Any:
    """Step through a pickle on plain values; the object at its end."""

    def wrong(what: str) -> FormatError:
        return FormatError(f"the pickle {what}", where, "it is not what torch.save writes; nothing in it was run")

    stack: list[Any] = []
    memo: dict[int, Any] = {}
    mark = _Mark

    def popped_to_mark() -> list[Any]:
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is mark:
                items = stack[at + 1 :]
                del stack[at:]
                return items
        raise wrong("has a mark missing")

    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > _MAX_OPCODES:
                raise wrong("is too long")
            match opcode.name:
                case "PROTO" | "FRAME":
                    pass
                case "STOP":
                    return stack.pop()
                case "MARK":
                    stack.append(mark)
                case "POP":
                    stack.pop()
                case "POP_MARK":
                    popped_to_mark()
                case "DUP":
                    stack.append(stack[-1])
                case "NONE":
                    stack.append(None)
                case "NEWTRUE" | "NEWFALSE":
                    stack.append(opcode.name == "NEWTRUE")
                case (
                    "INT"
                    | "BININT"
                    | "BININT1"
                    | "BININT2"
                    | "LONG"
                    | "LONG1"
                    | "LONG4"
                    | "FLOAT"
                    | "BINFLOAT"
                    | "STRING"
                    | "BINSTRING"
                    | "SHORT_BINSTRING"
                    | "BINBYTES"
                    | "SHORT_BINBYTES"
                    | "BINBYTES8"
                    | "BYTEARRAY8"
                    | "UNICODE"
                    | "BINUNICODE"
                    | "SHORT_BINUNICODE"
                    | "BINUNICODE8"
                ):
                    stack.append(argument)
                case "EMPTY_DICT":
                    stack.append({})
                case "EMPTY_LIST":
                    stack.append([])
                case "EMPTY_TUPLE":
                    stack.append(())
                case "EMPTY_SET":
                    stack.append([])
                case "TUPLE":
                    stack.append(tuple(popped_to_mark()))
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    size = int(opcode.name[-1])
                    items = tuple(stack[-size:])
                    del stack[-size:]
                    stack.append(items)
                case "LIST" | "FROZENSET":
                    stack.append(popped_to_mark())
                case "DICT":
                    stack.append(_pairs(popped_to_mark()))
                case "APPEND":
                    item = stack.pop()
                    _extend(stack[-1], [item])
                case "APPENDS" | "ADDITEMS":
                    new = popped_to_mark()
                    _extend(stack[-1], new)
                case "SETITEM":
                    value, key = stack.pop(), stack.pop()
                    _update(stack[-1], [key, value])
                case "SETITEMS":
                    new = popped_to_mark()
                    _update(stack[-1], new)
                case "PUT" | "BINPUT" | "LONG_BINPUT":
                    memo[int(argument)] = stack[-1]  # type: ignore[arg-type]  # these opcodes carry a number
                case "MEMOIZE":
                    memo[len(memo)] = stack[-1]
                case "GET" | "BINGET" | "LONG_BINGET":
                    stack.append(memo[int(argument)])  # type: ignore[arg-type]  # these opcodes carry a number
                case "GLOBAL":
                    module, _, name = str(argument).partition(" ")
                    stack.append(_Name(module, name))
                case "STACK_GLOBAL":
                    name, module = stack.pop(), stack.pop()
                    stack.append(_Name(str(module), str(name)))
                case "BINPERSID":
                    stack.append(_storage(stack.pop()))
                case "REDUCE":
                    arguments, function = stack.pop(), stack.pop()
                    stack.append(_call(function, arguments))
                case "NEWOBJ":
                    stack.pop()
                    stack.pop()
                    stack.append(_Opaque())
                case "NEWOBJ_EX":
                    del stack[-3:]
                    stack.append(_Opaque())
                case "OBJ" | "INST":
                    popped_to_mark()
                    stack.append(_Opaque())
                case "BUILD":
                    state = stack.pop()
                    if isinstance(stack[-1], _Opaque) and isinstance(state, dict):
                        stack[-1].items.update({k: v for k, v in state.items() if isinstance(k, str)})
                case other:
                    raise wrong(f"has an opcode {other}")
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise wrong(f"is malformed: {type(error).__name__}: {error}") from error
    raise wrong("has no end")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    _update(table, items)
    return table


def _update(target: Any, items: list[Any]) -> None:
    table = target.items if isinstance(target, _Opaque) else target
    if isinstance(table, dict):
        for key, value in zip(items[::2], items[1::2], strict=True):
            if isinstance(key, str | int | float | bytes | bool | tuple | None):
                table[key] = value


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(items)


def _storage(identity: Any) -> Any:
    match identity:
        case ("storage", _Name() as kind, str(key), _, int(num_items)) if num_items >= 0:
            return _Storage(key, _STORAGES.get(kind.name), num_items)
        case _:
            return _Opaque()


def _call(function: Any, arguments: Any) -> Any:
    """The few calls that mean something; every other gives an opaque object."""
    match function, arguments:
        case _Name("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor"), (
            _Storage() as storage,
            int(offset),
            tuple(shape),
            tuple(strides),
            *_,
        ) if storage.dtype is not None:
            return _make(storage, storage.dtype, offset, shape, strides)
        case _Name("torch._utils", "_rebuild_tensor_v3"), (
            _Storage() as storage,
            int(offset),
            tuple(shape),
            tuple(strides),
            _,
            _,
            _Name("torch", dtype),
            *_,
        ) if dtype in _DTYPES:
            return _make(storage, _DTYPES[dtype], offset, shape, strides)
        case _Name("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state"), (_Tensor() as tensor, *_):
            return tensor
        case _Name("collections", "OrderedDict"), _:
            return _Opaque()
        case _:
            return _Opaque()


def _make(storage: _Storage, dtype: str, offset: int, shape: tuple[Any, ...], strides: tuple[Any, ...]) -> Any:
    numbers = (*shape, *strides)
    if len(shape) != len(strides) or len(shape) > _MAX_DEPTH or not all(type(n) is int and n >= 0 for n in numbers):
        return _Opaque()
    return _Tensor(storage, dtype, offset, shape, strides)


def _tensors(archive: zipfile.ZipFile, prefix: str, root: Any, where: str) -> Iterator[StoredTensor]:
    cached: tuple[str, bytes] | None = None
    # Views may overlap, but no honest file has many times its own size in tensors.
    left = _MAX_OVERLAP * sum(info.file_size for info in archive.infolist()) + (1 << 20)
    for name, tensor in _walk(root):
        num_items = 1
        for size in tensor.shape:
            num_items *= size
        item = _ITEM_BYTES.get(tensor.dtype, 1)
        if num_items == 0:
            yield StoredTensor(name, tensor.dtype, tensor.shape, memoryview(b""))
            continue
        last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
        if cached is None or cached[0] != tensor.storage.key:
            cached = (tensor.storage.key, _member(archive, f"{prefix}data/{tensor.storage.key}", where))
        data = cached[1]
        if tensor.offset < 0 or (last + 1) * item > len(data):
            raise FormatError(f"tensor {name[:100]!r} lies outside of its storage", where)
        if num_items * item > len(data):
            continue  # an expanded view: more values than bytes, and nothing a checkpoint would hold
        left -= num_items * item
        if left < 0:
            raise FormatError("its tensors overlap too often to be what torch.save writes", where)
        yield StoredTensor(name, tensor.dtype, tensor.shape, _row_major(data, tensor, item, num_items))


def _member(archive: zipfile.ZipFile, name: str, where: str) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError as error:
        raise FormatError(f"the storage {name[:100]!r} is missing", where) from error
    return _stored(archive, info, 1 << 40, where)


def _row_major(data: bytes, tensor: _Tensor, item: int, num_items: int) -> memoryview:
    contiguous, expected = True, 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        contiguous &= size == 1 or stride == expected
        expected *= size
    start = tensor.offset * item
    if contiguous:
        return memoryview(data)[start : start + num_items * item]
    import numpy as np

    raw = np.frombuffer(data, dtype=np.dtype((np.void, item)), offset=start)
    strides = tuple(stride * item for stride in tensor.strides)
    view = np.lib.stride_tricks.as_strided(raw, tensor.shape, strides, writeable=False)
    return memoryview(view.tobytes())


def _walk(root: Any) -> Iterator[tuple[str, _Tensor]]:
    """Tensors by dotted path; shared and circular parts once, so that nothing multiplies."""
    seen: set[int] = set()
    stack: list[tuple[str, Any, int]] = [("", root, 0)]
    while stack:
        path, item, depth = stack.pop()
        if isinstance(item, _Tensor):
            yield path, item
            continue
        if id(item) in seen or depth > _MAX_DEPTH:
            continue
        seen.add(id(item))
        children: list[tuple[Any, Any]] = []
        if isinstance(item, _Opaque):
            children = list(item.items.items())
        elif isinstance(item, dict):
            children = list(item.items())
        elif isinstance(item, list | tuple):
            children = list(enumerate(item))
        stack.extend(
            (f"{path}.{key}" if path else str(key), value, depth + 1)
            for key, value in reversed(children)
            if isinstance(value, _Tensor | _Opaque | dict | list | tuple)
        )
