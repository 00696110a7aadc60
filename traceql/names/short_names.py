"""Kernel names in a readable short form."""

import re
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from traceql.names.dtypes import DTYPE_OF
from traceql.names.limits import MAX_READ, MAX_SHORT


def short_name(name: str) -> str:
    """A readable form of a kernel's name, one line of 1 to 60 characters: `function<functor, dtypes>`.

    Dropped: return type, namespaces, argument list, and template arguments that are neither functor nor
    dtype; GEMMs keep their first numbers, which are their shape or tile.
    Kernels of a launcher (`cutlass::device_kernel<...>`, `ck_tile::kentry<...>`) go by the kernel inside.
    Names that are no C++ (Triton, nvjet, NCCL, memcpy) stay as they are, cut in the middle where too long.
    """
    text = _one_line(name[:MAX_READ])
    if not text:
        return "(unnamed)"
    if text.startswith(("Memcpy", "Memset")):
        return _cut(text)
    text = _TRITON_SPECIALISATION.sub("", text)
    if text.startswith("Cijk_"):
        return _cut(_tensile(text))
    if text.startswith("_Z"):
        return _mangled(text).text() or _cut(text)
    return _demangled(text).text() or _cut(text)


def _one_line(name: str) -> str:
    """The name with control characters and runs of space made one space."""
    return " ".join("".join(c if c.isprintable() else " " for c in name).split())


def _cut(text: str, width: int = MAX_SHORT) -> str:
    """The text, or its beginning and end around an ellipsis when it is longer than `width`."""
    tail = width // 3
    return text if len(text) <= width else f"{text[: width - tail - 1]}…{text[-tail:]}"


_TRITON_SPECIALISATION = re.compile(r"(?<=[a-z])_0d[0-9dec]+$")
"""Properties of the arguments in old Triton, `_fwd_kernel_0d1d2de`; `triton__0d1d2de` is nothing but them."""


def _tensile(name: str) -> str:
    """A Tensile GEMM by layout, dtypes and macro tile: `Cijk_Alik_Bljk_BBS_BH_Bias_MT128x256x32`."""
    parts = name.split("_")
    dtypes = takewhile(re.compile(r"[BDFHISX8]{1,4}").fullmatch, parts[3:])
    bias = [part for part in parts[3:8] if part == "Bias"]
    tile = [part for part in parts if re.match(r"MT\d", part)][:1]
    return "_".join([*parts[:3], *dtypes, *bias, *tile])


_GENERIC = frozenset(["GemmKernel", "kernel", "Kernel"])
_NO_NAMESPACE = frozenset(
    ["at", "native", "cuda", "detail", "impl", "kernels", "kernel", "std", "cub", "device", "internal"]
)
_LAUNCHERS = frozenset(["device_kernel", "Kernel", "Kernel2", "kentry", "device_kernel_wrapper"])
_WRAPPED = re.compile(r"enable_\w+|gpu_kernel_impl\w*|gpu_index_kernel|type_specialized_broadcast_kernel_launcher")
_BOILERPLATE = re.compile(
    r"const|volatile|operator|lambda|instance|decltype|nullptr|true|false|typename|struct|enum|void|type"
    r"|[AB]?UnaryFunctor|BinaryFunctor|UnaryOpFunctor|ReduceOp|func_wrapper_t|[aA]rray|tuple|pair|C|T\d*|apply"
    r"|\w*OffsetCalculator|(?:Load|Store)With(?:out)?Cast|TensorIterator(?:Base)?|ArrayRef|NullType|cublas\w+|Sm\d+|Swizzle|Collective\w+|Dispatch\w+"
    r"|MatrixShape|Tuple|PassThrough|RowMajor|ColumnMajor|LinearCombination|ComposedAttention|MemBoundScaling|InputValue|adamMode_t|ScalarType|\w+_config"
    r"|\w*(?:[tT]raits\w*|Scheduler|[pP]arams?|[pP]olicy|Policy\d+|policy_hub|State|Metadata|Info|Accessor|Layout|Iterator)"
)
_AFFIX = re.compile(
    r"^(?:CUDAFunctor(?:OnSelf|OnOther)?_|launch_)"
    r"|(?:_cuda_kernel|_kernel_cuda|_kernel_impl|_cuda_out|_cuda|CUDAKernelImpl|_kernel|_?[fF]unctor|Ops)$"
)


@dataclass
class _Parts:
    """What is kept of a name: the function, then functors, dtypes and numbers of its template arguments."""

    namespace: str = ""
    function: str = ""
    words: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    dtypes: list[str] = field(default_factory=list[str])
    numbers: list[str] = field(default_factory=list[str])

    def text(self) -> str:
        """`function<functor, dtypes>`, with as many arguments as fit; empty when no function was found."""
        namespace, function, words = self.namespace, self.function, self.words
        if function in _LAUNCHERS and words:
            (namespace, function), words = words[0], words[1:]
        base = _qualified(namespace, function)
        return _with_arguments(base, self._arguments(function, words)) if base else ""

    def _arguments(self, function: str, words: list[tuple[str, str]]) -> list[str]:
        functors = [word for word in dict.fromkeys(_functor(word) for _, word in words) if word != function]
        dtypes = list(dict.fromkeys(self.dtypes))
        if functors or len(dtypes) > 1:
            dtypes = [dtype for dtype in dtypes if dtype not in {"uint32", "uint64"}]  # they index
        shape = self.numbers[:4] if "gemm" in function.lower() else []
        return [*functors[:2], *dtypes[:3], *shape]


def _qualified(namespace: str, function: str) -> str:
    """The function, after its namespace where it says little alone: `internode::combine`."""
    is_vague = function in _GENERIC or ("_" not in function and len(function) <= 10)
    return f"{namespace}::{function}" if namespace and is_vague and namespace not in _NO_NAMESPACE else function


def _functor(word: str) -> str:
    """A functor's name without affixes that every functor has: MulFunctor is Mul, silu_kernel is silu."""
    return _AFFIX.sub("", word) or word


def _with_arguments(base: str, arguments: list[str]) -> str:
    base = _cut(base)
    text = ""
    for argument in arguments:
        longer = f"{text}, {argument}" if text else argument
        if len(base) + len(longer) + 2 > MAX_SHORT:
            continue
        text = longer
    return f"{base}<{text}>" if text else base


_NAMELESS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\(anonymous namespace\)|<unnamed>")
_OPERATOR = re.compile(r"\boperator ?(?:<<|>>|->|<=|>=|<|>)")
_SUFFIX = re.compile(r"(?: \[clone [^\]]*\]|\.kd)+$")
_PIECE = re.compile(
    r"c10::complex<(?:float|double|c10::Half)>"
    r"|(?:unsigned|signed) (?:long long|long|int|short|char)(?: int)?\b|(?:long long|long|short)(?: int)?\b"
    r"|[A-Za-z_$][\w$]*|\d\w*|::|\S"
)


def _demangled(name: str) -> _Parts:
    """The parts of a demangled name; any text is accepted."""
    text = _OPERATOR.sub("operator", _NAMELESS.sub("", _SUFFIX.sub("", name)))
    scan = _Scan()
    pieces = ["", *_PIECE.findall(text), ""]
    for before, (piece, after) in zip(pieces, pairwise(pieces[1:]), strict=False):
        if scan.is_over(before, piece):
            break
        scan.take(before, piece, after)
    return scan.parts


class _Scan:
    """One pass over the pieces of a demangled name, with a stack of open brackets."""

    def __init__(self) -> None:
        self.parts = _Parts()
        self._open: list[str] = []
        self._namespace = ""
        self._quiet = 0
        """Depth of the argument list being skipped; 0 outside of any."""
        self._wrapped = 0
        """Depth of a loop wrapper (`gpu_kernel_impl<...>`) whose lambda takes indices, not elements."""
        self._opaque = False
        """In `OpaqueType<2>`, elements of 2 bytes."""
        self._lambda: tuple[int, int] | None = None
        """Depth of the lambda's argument list being read, and the number of dtypes before it."""

    def is_over(self, before: str, piece: str) -> bool:
        """Whether the function's own argument list begins."""
        return piece == "(" and not self._open and bool(self.parts.function) and before != "operator"

    def take(self, before: str, piece: str, after: str) -> None:
        if piece in {"(", "<"}:
            self._enter(before, piece)
        elif piece in {")", ">"}:
            self._leave(piece)
        elif self._quiet:
            return
        elif piece == "*":
            self._pointer(before)
        elif piece == ",":
            self._wrapped = 0 if len(self._open) <= self._wrapped else self._wrapped
        elif piece[0].isalpha() or piece[0] in "_$":
            self._word(before, piece, after)
        elif piece[0].isdigit():
            self._number(piece)

    def _enter(self, before: str, piece: str) -> None:
        self._open.append(piece)
        if piece == "<" or self._quiet:
            return
        if before == "lambda" and len(self._open) - 1 > self._wrapped:
            self._lambda = len(self._open), len(self.parts.dtypes)
        else:
            self._quiet = len(self._open)

    def _leave(self, piece: str) -> None:
        if piece == ">":
            if self._open and self._open[-1] == "<":  # else it is a comparison
                self._open.pop()
            self._opaque = False
            return
        while self._open and self._open.pop() != "(":
            pass
        if len(self._open) < self._quiet:
            self._quiet = 0
        if self._lambda and len(self._open) < self._lambda[0]:
            self._lambda = None

    def _word(self, before: str, piece: str, after: str) -> None:
        if not self._open:
            self._head(before, piece)
        elif piece in DTYPE_OF:
            self.parts.dtypes.append(DTYPE_OF[piece])
        elif _WRAPPED.fullmatch(piece):
            self._wrapped = max(self._wrapped, len(self._open))
        elif after == "::":
            self._namespace = piece
        elif piece == "OpaqueType":
            self._opaque = True
        elif not self._lambda and not _BOILERPLATE.fullmatch(piece):
            self.parts.words.append((self._namespace if before == "::" else "", piece))

    def _head(self, before: str, piece: str) -> None:
        """A word outside of all brackets: of the function's qualified name, or of a return type before it."""
        if piece == "const":
            return
        if before == "::":
            self.parts.namespace = self.parts.function
            self.parts.function = piece
        else:
            self.parts = _Parts(function=piece)

    def _pointer(self, before: str) -> None:
        """A pointer is no element type; a lambda of one reads raw memory, its other arguments are sizes."""
        if self._lambda:
            del self.parts.dtypes[self._lambda[1] :]
            self._quiet = self._lambda[0]
        elif self._open and before in DTYPE_OF:
            self.parts.dtypes.pop()

    def _number(self, piece: str) -> None:
        if self._opaque:
            self.parts.words.append(("", f"{piece.rstrip('uUlL')}B"))
        if len(self._open) == 1:
            self.parts.numbers.append(piece.rstrip("uUlL"))


_SKIP = r"L[a-zA-Z]n?\d+E|[ST][0-9A-Z]*_|D[a-eg-z]"
_MANGLED = re.compile(rf"{_SKIP}|(?P<dtype>DF16b|DF16_)|(?P<length>[1-9]\d{{0,3}})|(?P<mark>L_Z|Xad|.)", re.DOTALL)
_BUILTIN = {"f": "fp32", "d": "fp64"}
_MANGLED_DTYPES = {"DF16b": "bf16", "DF16_": "fp16"}


def _mangled(name: str) -> _Parts:
    """The parts of an Itanium-mangled name, as far as its identifiers tell; any text is accepted."""
    parts, depth, at = _Parts(), 0, 2
    while at < len(name) and (found := _MANGLED.match(name, at)):
        at = found.end()
        if found["length"]:
            word, at = name[at : at + int(found["length"])], at + int(found["length"])
            if not depth or not name[at : at + 1].isdigit():  # else a namespace
                _mangled_word(parts, word, depth)
        elif found["dtype"] and depth:
            parts.dtypes.append(_MANGLED_DTYPES[found["dtype"]])
        elif found["mark"] == "I" or (depth and found["mark"] in {"N", "X", "Xad", "J", "F", "L_Z"}):
            depth += 1
        elif found["mark"] == "E" and depth:
            depth -= 1
            if not depth:
                break
        elif depth and (dtype := _BUILTIN.get(found["mark"] or "")):
            parts.dtypes.append(dtype)
    return parts


def _mangled_word(parts: _Parts, word: str, depth: int) -> None:
    if word.startswith("_GLOBAL_"):
        return
    if not depth:
        parts.namespace, parts.function = parts.function, word
    elif word in DTYPE_OF:
        parts.dtypes.append(DTYPE_OF[word])
    elif not _BOILERPLATE.fullmatch(word):
        parts.words.append(("", word))
