"""Dtypes by all the names they have in traces, in one short form, and the size of their elements."""

_DTYPES = {
    "fp64": "double",
    "fp32": "float float32_t",
    "fp16": "c10::Half at::Half Half __half half half_t cutlass::half_t",
    "bf16": "c10::BFloat16 at::BFloat16 BFloat16 __nv_bfloat16 nv_bfloat16 __hip_bfloat16 hip_bfloat16 "
    "bfloat16_t cutlass::bfloat16_t",
    "fp8_e4m3": "c10::Float8_e4m3fn Float8_e4m3fn __nv_fp8_e4m3 __nv_fp8x2_e4m3 float_e4m3_t",
    "fp8_e5m2": "c10::Float8_e5m2 Float8_e5m2 __nv_fp8_e5m2 __nv_fp8x2_e5m2 float_e5m2_t",
    "fp8_e4m3fnuz": "c10::Float8_e4m3fnuz Float8_e4m3fnuz __hip_fp8_e4m3_fnuz",
    "fp8_e5m2fnuz": "c10::Float8_e5m2fnuz Float8_e5m2fnuz __hip_fp8_e5m2_fnuz",
    "fp8_e8m0": "c10::Float8_e8m0fnu Float8_e8m0fnu float_ue8m0_t",
    "fp4_e2m1": "c10::Float4_e2m1fn_x2 Float4_e2m1fn_x2 float_e2m1_t",
    "int64": "long|long int|long long|long long int|int64_t",
    "int32": "int int32_t",
    "int16": "short|short int|int16_t",
    "int8": "signed char|char|int8_t|c10::qint8",
    "uint64": "unsigned long|unsigned long int|unsigned long long|uint64_t",
    "uint32": "unsigned int|unsigned|uint32_t",
    "uint16": "unsigned short|unsigned short int|uint16_t",
    "uint8": "unsigned char|uint8_t|c10::quint8",
    "bool": "bool",
    "complex32": "c10::complex<c10::Half>",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}
DTYPE_OF = {
    spelling: dtype
    for dtype, spellings in _DTYPES.items()
    for spelling in (spellings.split("|") if "|" in spellings else spellings.split())
}
"""The short form (bf16, fp8_e4m3, int64...) by each spelling."""


def torch_dtype(recorded: str) -> str | None:
    """The short form (bf16, fp8_e4m3, int64...) of a dtype as Kineto or a demangler spells it; else null."""
    return DTYPE_OF.get(recorded.strip())


_DTYPES_BY_BYTES = {
    1: "bool int8 uint8 fp8_e4m3 fp8_e5m2 fp8_e4m3fnuz fp8_e5m2fnuz fp8_e8m0 fp4_e2m1",
    2: "fp16 bf16 int16 uint16",
    4: "fp32 int32 uint32 complex32",
    8: "fp64 int64 uint64 complex64",
    16: "complex128",
}
ITEM_BYTES = {dtype: n_bytes for n_bytes, dtypes in _DTYPES_BY_BYTES.items() for dtype in dtypes.split()}
"""Bytes of one element of each dtype in its short form; a pair of FP4 counts as one."""
