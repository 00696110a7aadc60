# ruff: noqa: E501  (kernel names are long)
"""Short names of kernels, and what the names of copy kernels prove."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceql.names import MAX_SHORT, CopyDtypes, copy_dtypes, short_name, torch_dtype

SHORT = [
    (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul>, TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>)",
        "unrolled_elementwise_kernel<direct_copy, bf16>",
    ),
    (
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&, at::native::float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1} const&)::{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<at::native::float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&, at::native::float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1} const&)::{lambda(int)#1})",
        "elementwise_kernel<float8_copy, bf16>",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul>)",
        "vectorized_elementwise_kernel<bfloat16_copy, fp32>",
    ),
    (
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> > const&)::{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> > const&)::{lambda(int)#1})",
        "elementwise_kernel<Mul, bf16, fp32>",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
        "vectorized_elementwise_kernel<add, bf16>",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<8, at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#6}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#6}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul>)",
        "vectorized_elementwise_kernel<silu, bf16>",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
        "vectorized_elementwise_kernel<Fill, fp32>",
    ),
    (
        "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, c10::BFloat16, 4> >(at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, c10::BFloat16, 4>)",
        "reduce_kernel<sum, bf16, fp32>",
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4> >(at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4>)",
        "reduce_kernel<ArgMax, fp32, int64>",
    ),
    (
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_put_kernel_impl<at::native::OpaqueType<1> >(at::TensorIterator&, c10::ArrayRef<long>, c10::ArrayRef<long>)::{lambda(char*, char const*, long)#1}>(at::TensorIteratorBase&, c10::ArrayRef<long>, c10::ArrayRef<long>, at::native::index_put_kernel_impl<at::native::OpaqueType<1> >(at::TensorIterator&, c10::ArrayRef<long>, c10::ArrayRef<long>)::{lambda(char*, char const*, long)#1} const&, bool)::{lambda(int)#1}>(long, at::native::gpu_index_kernel<at::native::index_put_kernel_impl<at::native::OpaqueType<1> >(at::TensorIterator&, c10::ArrayRef<long>, c10::ArrayRef<long>)::{lambda(char*, char const*, long)#1}>(at::TensorIteratorBase&, c10::ArrayRef<long>, c10::ArrayRef<long>, at::native::index_put_kernel_impl<at::native::OpaqueType<1> >(at::TensorIterator&, c10::ArrayRef<long>, c10::ArrayRef<long>)::{lambda(char*, char const*, long)#1} const&, bool)::{lambda(int)#1})",
        "index_elementwise_kernel<index_put, 1B>",
    ),
    (
        "void at::native::vectorized_gather_kernel<16, int>(char*, char*, int*, int, long, long, long, long, bool)",
        "vectorized_gather_kernel<int32>",
    ),
    (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 2, 128, 1, 16, 8>(char*, at::native::(anonymous namespace)::CatArrInputTensorMetadata<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 128, 1>, at::native::(anonymous namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)",
        "CatArrayBatchedCopy_vectorized<2B>",
    ),
    (
        "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)::{lambda()#1}::operator()() const::{lambda()#3}::operator()() const::{lambda(long)#1}>(int, at::native::arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)::{lambda()#1}::operator()() const::{lambda()#3}::operator()() const::{lambda(long)#1}, function_traits<{lambda(long)#1}>::result_type*)",
        "elementwise_kernel_with_index<arange, int32, int64>",
    ),
    (
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*, float const*, int, int, int, bool const*, int, bool)",
        "softmax_warp_forward<fp32>",
    ),
    (
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 1, false>(at::cuda::detail::TensorInfo<float const, unsigned int>, unsigned int, unsigned int, bool, unsigned int, unsigned int, at::cuda::detail::TensorInfo<float, unsigned int>, unsigned int, at::cuda::detail::TensorInfo<long, unsigned int>, unsigned int, float*)",
        "sbtopk::gatherTopK<fp32>",
    ),
    (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<int, long, 2, 1, 1>, at::native::Copy<int, long> >(at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<int, long, 2, 1, 1>, at::native::Copy<int, long>)",
        "multi_tensor_apply_kernel<Copy, int32, int64>",
    ),
    (
        "void at_cuda_detail::cub::detail::scan::DeviceScanKernel<at_cuda_detail::cub::detail::scan::policy_hub<long, long, long, unsigned int, std::plus<long> >::Policy1000, long const*, long*, at_cuda_detail::cub::ScanTileState<long, true>, std::plus<long>, at_cuda_detail::cub::NullType, unsigned int, long, false, at_cuda_detail::cub::NullType>(long const*, long*, at_cuda_detail::cub::ScanTileState<long, true>, int, std::plus<long>, at_cuda_detail::cub::NullType, unsigned int)",
        "DeviceScanKernel<plus, int64>",
    ),
    (
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, unsigned int, unsigned int, unsigned int, float, float)",
        "FusedAddRMSNormKernel<bf16>",
    ),
    (
        "void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<flashinfer::mla::hopper::HopperKernelTraits<false, 2u, 512u, 64u, 64u, 64u, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, int>, flashinfer::MLAParams<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, int> >(flashinfer::MLAParams<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, int>)",
        "BatchMLAPageAttentionHopperKernel<bf16, int32>",
    ),
    (
        "void (anonymous namespace)::act_and_mul_kernel<__nv_bfloat16, ((anonymous namespace)::ActivationKind)0, true, false>((anonymous namespace)::ActivationParams)",
        "act_and_mul_kernel<bf16>",
    ),
    (
        "void moe_fused_gate_kernel_dynamic<float>(void*, void*, float*, int*, long, long, long, long, long, long, double, bool)",
        "moe_fused_gate_kernel_dynamic<fp32>",
    ),
    (
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>(cublasLt::cublasSplitKParams<float>, float const*, float const*, float*, float const*, float const*, float const*, float const*, float*, void*, long, float*, int*)",
        "splitKreduce_kernel<int32, fp32>",
    ),
    (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    ),
    ("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT", "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT"),
    ("triton_per_fused_copy__mul_sum_0", "triton_per_fused_copy__mul_sum_0"),
    (
        "triton_red_fused_add_addmm_cat_mul_native_layer_norm_slice_split_unsqueeze_36",
        "triton_red_fused_add_addmm_cat_mul_nati…e_split_unsqueeze_36",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x256_32x3_nn_align8>(cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x256_32x3_nn_align8::Params)",
        "cutlass_80_tensorop_f16_s16816gemm_relu…8x256_32x3_nn_align8",
    ),
    (
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel>(dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel::Params)",
        "m_grouped_fp8_ptp128c::GemmKernel",
    ),
    (
        "void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<64>, cute::C<192> >, cute::tuple<cute::C<64>, cute::C<128> >, cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, true> >(flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<64>, cute::C<192> >, cute::tuple<cute::C<64>, cute::C<128> >, cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, true>::Params)",
        "FlashAttnBwdPreprocess<bf16, fp32>",
    ),
    (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, true, false, false, false, true, false>(pytorch_flash::Flash_fwd_params)",
        "flash_fwd_kernel<bf16>",
    ),
    (
        "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*, bool const*, int4 const*, float const*, int4 const*, int4 const*, int const*, int const*, dpsk::ep::internode::SourceMeta const*, int const*, int const*, int const*, int, int, int, int, void*, int, int, void**, int, int, int, int, int*)",
        "internode::combine<bf16>",
    ),
    (
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*, c10::BFloat16 const*, float, int, int)",
        "fused_add_rms_norm_kernel<bf16>",
    ),
    (
        "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*, c10::BFloat16 const*, float const*, int, long, long)",
        "scaled_fp8_quant_kernel_strided<bf16, fp8_e4m3>",
    ),
    (
        "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t, cutlass::bfloat16_t, 4, true> >(moe::dev::finalize::KernelParams<cutlass::bfloat16_t, cutlass::bfloat16_t, 4, true>)",
        "finalizeKernelVecLoad<bf16>",
    ),
    (
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float, false, true, true, false, 7, cublasGemvParams<cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float>, float> >(cublasGemvParams<cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float>, float>)",
        "gemvx::kernel<int32, fp32>",
    ),
    (
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x48x64_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_DTVA0_DTVB0_EPS0_FDSI0_GRPM1_GRVWA8_GRVWB4_GSUAMB_GLS0_ISA942_IU1_K1_LBSPPA512_LBSPPB128_LBSPPM0_LPA16_LPB16_LPM0_LRVW8_LWPMn1_MIAV0_MIWT4_3_MO40_NTn1_NTA4_NTB0_NTC0_NTD4_NTM0_NEPBS16_NLCA1_NLCB1_ONLL1_PGR2_PLR1_PKA1_SIA3_SS1_SPO0_SRVW0_SSO0_SVW4_SK0_SKXCCM0_TLDS1_ULSGRO0_USL1_UIOFGRO0_USFGROn1_VSn1_VWA4_VWB1_WSGRA0_WSGRB0_WS64_WG64_4_1",
        "Cijk_Alik_Bljk_BBS_BH_Bias_MT256x48x64",
    ),
    (
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib",
        "add_rmsnorm_quant_kernel<bf16>",
    ),
    (
        "_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_40BlockFmhaBatchPrefillPipelineQRKSVSAsyncINS_36BlockFmhaBatchPrefillPipelineProblemIDF16bDF16bDF16bffDF16bhfDF16bfDF16bNS_13TileFmhaShapeINS_8sequenceIJLi128ELi128ELi32ELi128ELi32ELi128EEEENS5_IJLi4ELi1ELi1EEEENS5_IJLi32ELi32ELi16EEEES7_S8_Lb1EEELb1ENS_17ComposedAttentionILj0ELb1EEENS_30SimplifiedGenericAttentionMaskILb1EEELb0ELi1ENS_26TileFmhaBatchPrefillTraitsILb1ELb1ELb1ELb1ELb0ELNS_22BlockAttentionBiasEnumE0ELb0ELb0ELb0ELNS_28BlockAttentionQuantScaleEnumE0ELin1ELb0ELb0ELi1ELNS_37BlockAttentionKVCacheMemoryLayoutEnumE1ELNS_36BlockAttentionKVCacheLookupTableEnumE1ELNS_33BlockAttentionKVCacheLoadModeEnumE0EEEEENS_53BlockFmhaBatchPrefillPipelineQRKSVSAsyncDefaultPolicyEEENS_17Default2DEpilogueINS_24Default2DEpilogueProblemIfDF16bLb1ELb1ELb1EEEvEEEEJNSS_21FmhaFwdGroupModeKargsEEEEvDpT1_",
        "FmhaBatchPrefillWithPagedKVCacheKernel<bf16, fp32>",
    ),
    (
        "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i",
        "act_and_mul_kernel<silu, bf16>",
    ),
    (
        "_ZN2ck16tensor_operation6device12_GLOBAL__N_149kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffleINS_34GridwiseGemmMultipleD_xdl_cshuffleItttftNS_5TupleIJEEEtNS0_12element_wise11PassThroughES8_S8_LNS_25InMemoryDataOperationEnumE0ELi1ELi256ELi128ELi64ELi32ELi8ELi8ELi32ELi32ELi2ELi1ENS_8SequenceIJLi4ELi64ELi1EEEENSA_IJLi1ELi0ELi2EEEESC_Li2ELi8ELi8ELb0ELi1ESB_SC_SC_Li2ELi8ELi8ELb0ELi1ELi1ELi1ENSA_IJLi1ELi32ELi1ELi8EEEELi8ELNS_13LoopSchedulerE0ELNS_15PipelineVersionE0EtEEPKtSI_S6_tS8_S8_S8_NS_16TensorDescriptorINS5_IJNS_5EmbedINS5_IJiiiiEEESL_Lb0EEENS_11PassThroughIiEENS_3PadIiiiLb0EEESQ_SO_SO_NSK_INS5_IJiiEEESR_Lb0EEESS_SO_NS_23Merge_v2_magic_divisionINS5_IJiiiEEEEESV_NS_8RightPadIiiLb0EEESX_NS_7UnMergeINS5_IJiNS_17integral_constantIiLi8EEEEEELb0EEESO_EEENS5_IJNSA_IJLi0EEEENSA_IJLi1EEEENSA_IJLi2EEEENSA_IJLi3EEEENSA_IJLi4EEEENSA_IJLi5EEEENSA_IJLi6EEEENSA_IJLi7EEEENSA_IJLi8EEEENSA_IJLi9ELi11ELi13EEEENSA_IJLi10ELi12ELi14EEEENSA_IJLi15EEEENSA_IJLi16EEEENSA_IJLi18EEEENSA_IJLi17EEEEEEENS5_IJNSA_IJLi1ELi2ELi3ELi4EEEES19_S1A_S1B_S1C_NSA_IJLi9EEEENSA_IJLi10ELi11EEEENSA_IJLi12ELi13EEEENSA_IJLi14EEEES1F_S1G_S1I_S1H_NSA_IJLi19ELi20EEEENSA_IJLi21EEEEEEENSA_IJLi19ELi21ELi20EEEElEENSJ_INS5_IJNSY_ISR_Lb0EEESX_SX_S12_SO_EEENS5_IJS14_S15_S16_S18_S17_EEENS5_IJNSA_IJLi1ELi2EEEES17_S18_NSA_IJLi5ELi6EEEES1B_EEENSA_IJLi5ELi7ELi6EEEElEES6_NSJ_INS5_IJSS_SX_SX_NSY_INS5_IJiNSZ_IiLi128EEEEEELb0EEENSY_INS5_IJiNSZ_IiLi64EEEEEELb0EEEEEENS5_IJS14_S15_S16_S17_S18_EEENS5_IJS1X_S17_S18_S1Y_NSA_IJLi7ELi8EEEEEEENSA_IJLi5ELi6ELi7ELi8EEEElEENS_31BlockToCTileMap_M00_N0_M01AdaptILi128ELi64ENSJ_INS5_IJSS_SX_SX_EEENS5_IJS14_S15_S16_EEENS5_IJS1X_S17_S18_EEENSA_IJLi3ELi4EEEElEEEENS1_30ComputePtrOffsetOfStridedBatchILi1ELi1ELi0EvEES2M_Lb1ELb0ELb0EEEvT0_T1_T2_PT3_T4_T5_T6_T7_T8_T9_T10_T11_T12_T13_",
        "kernel_grouped_conv_fwd_multiple_abd_xdl_cshuffle<fp32>",
    ),
    (
        "_fwd_kernel_aligned_0d1d2d3d45d6de7de8c9de10de11c12de13de14c15de16de17c18de19de20c21de22de23de",
        "_fwd_kernel_aligned",
    ),
    ("triton__0d1d2d3de", "triton__0d1d2d3de"),
    ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
]


@pytest.mark.parametrize(("name", "expected"), SHORT)
def test_recorded_names_become_readable(name: str, expected: str) -> None:
    assert short_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # nsys prints other lambdas, operators, casts and namespaces
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 12)]::operator ()() const::[lambda(c10::BFloat16) (instance 1)], std::array<char *, (unsigned long)2>, (int)4, TrivialOffsetCalculator<(int)1, unsigned int>>(int, T1, T2)",
            "unrolled_elementwise_kernel<direct_copy, bf16>",
        ),
        ("void <unnamed>::softmax_warp_forward<float, float, float, (int)9, (bool)0>(T2 *, const T1 *, int)", "softmax_warp_forward<fp32>"),
        # a shape is what tells two GEMMs apart
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 2112u, 7168u, 1u, 64u>(float*, int*)", "sm90_fp8_gemm_1d2d_impl<0, 2112, 7168, 1>"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>, cutlass::bfloat16_t> >(int)", "GemmUniversal<GroupProblemShape, int32, bf16>"),
        ("topk_kernel.kd", "topk_kernel"),
        ("void f<bool operator<(int)>::g<float>(int)", "f::g<bool, fp32>"),
        ("a\tb\n\x00c", "c"),
    ],
)  # fmt: skip
def test_other_spellings_become_readable(name: str, expected: str) -> None:
    assert short_name(name) == expected


def _assert_is_a_short_name(short: str) -> None:
    assert 1 <= len(short) <= MAX_SHORT
    assert short.isprintable()


@pytest.mark.parametrize(
    "name",
    ["", " ", "\x00", "<", ">", "(", ")", "::", "<>", "void", "a<", "a>b", "(((((", "{lambda(", "_Z", "_ZN", "_ZN9", "_ZN9999a",
     "_ZN1aI", "Cijk_", "Cijk_MT", "\ud800", "a<b(c>d)e", "operator", "operator()", "OpaqueType<2>", "f<OpaqueType<2", "f<g<OpaqueType"],
)  # fmt: skip
def test_hostile_names_have_a_short_name(name: str) -> None:
    _assert_is_a_short_name(short_name(name))


PIECES = ["<", ">", "(", ")", "{", "}", "[", "]", "::", ",", "*", " ", "lambda", "operator", "float", "void ", "_Z", "N", "I",
          "E", "12", "a", "gpu_kernel_impl<", "OpaqueType<", "(anonymous namespace)::", "at::native::", "Cijk_", "\n"]  # fmt: skip


@given(st.text(st.characters(exclude_categories=())) | st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_any_text_has_a_short_name(name: str) -> None:
    _assert_is_a_short_name(short_name(name))
    copy_dtypes(name)


@pytest.mark.parametrize(
    "piece",
    ["<", "f<", "(", "a::", "::{lambda()#1}", "9", "_Z1a", "b<c>(", " [clone ", "x_", "LoadWithCast<"],
)
def test_time_does_not_grow_with_the_square_of_the_length(piece: str) -> None:
    name = "void direct_copy_kernel_cuda" + piece * (5000 // len(piece))
    start = time.process_time()
    for text in (name, "_Z" + name, name * 100):
        _assert_is_a_short_name(short_name(text))
        copy_dtypes(text)
    assert time.process_time() - start < 0.5  # about 5 ms


# --- copy_dtypes ------------------------------------------------------------------------------------------

CHAIN = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#{outer}}}::operator()() const::{{lambda()#7}}::operator()() const::{{lambda({dtype})#1}}"


def _direct(dtype: str, outer: int = 3) -> str:
    return CHAIN.format(dtype=dtype, outer=outer)


def _own(family: str, source: str, overload: int = 1) -> str:
    return f"void at::native::vectorized_elementwise_kernel<4, at::native::{family}_copy_kernel_cuda(at::TensorIteratorBase&)::{{lambda({source})#{overload}}}, std::array<char*, 2ul> >(int)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"void at::native::unrolled_elementwise_kernel<{_direct('c10::BFloat16')}, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int)", CopyDtypes(True, None, "bf16")),
        (f"void at::native::unrolled_elementwise_kernel<{_direct('float')}, at::native::memory::LoadWithoutCast, at::native::memory::StoreWithoutCast>(int)", CopyDtypes(False, "fp32", "fp32")),
        (f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<{_direct('float')}>(int)::{{lambda(int)#1}}>(int)", CopyDtypes(True, None, "fp32")),
        (f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{_direct('c10::Half')}>(int)::{{lambda(int)#1}}>(int)", CopyDtypes(False, "fp16", "fp16")),
        (f"void at::native::elementwise_kernel<512, 1, at::native::gpu_kernel_impl<{_direct('long')}>(int)::{{lambda(int)#1}}>(int)", CopyDtypes(True, None, "int64")),
        # PyTorch before 2.0: gpu_kernel_impl held the same-dtype loop too (497 recorded launches of it copy float to float)
        (f"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<{_direct('float', 2)}>(int)::{{lambda(int)#1}}>(int)", CopyDtypes(False, "fp32", "fp32")),
        (f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<{_direct('bool', 2)}>(int)::{{lambda(int)#1}}>(int)", CopyDtypes(None, None, "bool")),
        (f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<{_direct('float', 2)}>(int)::{{lambda(int)#2}}>(int)", CopyDtypes(True, None, "fp32")),
        (_own("bfloat16", "float"), CopyDtypes(True, "fp32", "bf16")),
        (_own("float16", "float"), CopyDtypes(True, "fp32", "fp16")),
        (_own("bfloat16tofloat32", "c10::BFloat16"), CopyDtypes(True, "bf16", "fp32")),
        (_own("float16tofloat32", "c10::Half"), CopyDtypes(True, "fp16", "fp32")),
        (_own("float8", "c10::BFloat16"), CopyDtypes(True, "bf16", "fp8_e4m3")),
        (_own("float8", "c10::Half", 2), CopyDtypes(True, "fp16", "fp8_e5m2")),
        (_own("float8", "float", 3), CopyDtypes(True, "fp32", "fp8_e4m3fnuz")),
        (_own("float8", "float", 9), CopyDtypes(True, "fp32", None)),
        (_own("float8", "c10::Float8_e4m3fn"), CopyDtypes(False, "fp8_e4m3", "fp8_e4m3")),
        (_own("float8", "c10::Float8_e5m2").replace("vectorized", "unrolled").replace("std::array", "at::native::memory::LoadWithCast<1>, std::array"), CopyDtypes(True, None, "fp8_e5m2")),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 12)]::operator ()() const::[lambda(c10::BFloat16) (instance 1)], at::native::memory::LoadWithCast<(int)1>>(int, T1)",
            CopyDtypes(True, None, "bf16"),
        ),
        ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::float8_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 2)], std::array<char *, (unsigned long)2>>(int, T2, T3)", CopyDtypes(True, "fp32", "fp8_e5m2")),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", CopyDtypes(None, None, None)),
        ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda>::{lambda(int)#1}>(int)", CopyDtypes(False, None, None)),
        ("gather_cast_kernel", None),
        ("Memcpy DtoD (Device -> Device)", None),
        ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<float> > >(int)", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_copy_kernels_name_proves_its_dtypes(name: str, expected: CopyDtypes | None) -> None:
    assert copy_dtypes(name) == expected


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ("c10::BFloat16", "bf16"), ("c10::Half", "fp16"), ("float", "fp32"), ("double", "fp64"), ("long int", "int64"), ("long", "int64"),
        ("int", "int32"), ("short int", "int16"), ("signed char", "int8"), ("unsigned char", "uint8"), ("bool", "bool"),
        ("c10::Float8_e4m3fn", "fp8_e4m3"), ("c10::Float8_e4m3fnuz", "fp8_e4m3fnuz"), ("c10::Float8_e5m2", "fp8_e5m2"),
        ("c10::complex<float>", "complex64"), ("c10::complex<double>", "complex128"), (" float ", "fp32"),
        ("Scalar", None), ("", None), ("GenericList[float]", None),
    ],
)  # fmt: skip
def test_recorded_dtypes_have_a_short_form(recorded: str, expected: str | None) -> None:
    assert torch_dtype(recorded) == expected
