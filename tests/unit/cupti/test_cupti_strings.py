"""Strings behind addresses, and kernel names that can be read."""

from __future__ import annotations

import ctypes
import mmap
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab._util.kernel_names import SHORT_LIMIT, short_name
from gpustreamlab.backends.cuda.cupti import _work
from gpustreamlab.backends.cuda.cupti._work import StringReader, demangle

KERNELS = {
    # torch
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_": (
        "vectorized_elementwise_kernel<4>"
    ),
    "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_14func_wrapper_tIfZNS0_11sum_functorIfffEclERNS_14Tensor"
    "IteratorEEUlffE_EEjfLi4EEEEEvT1_": "reduce_kernel<512, 1>",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, "
    "at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(float*, float const*, int)": (
        "cunn_SoftMaxForward<4, float, float, float>"
    ),
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4>"
    "(int, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const)": (
        "unrolled_elementwise_kernel<...>"
    ),
    "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&)::"
    "{lambda()#1}>(int)": "elementwise_kernel_with_index<int>",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false>, false, true>"
    "(pytorch_flash::Flash_fwd_params)": "flash_fwd_kernel<...>",
    # cutlass, cuBLAS
    "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_f16_128x128_32x5_nn_align8>"
    "(cutlass_80_tensorop_s16816gemm_f16_128x128_32x5_nn_align8::Params)": (
        "Kernel2<cutlass_80_tensorop_s16816gemm_f16_128x128_32x5_nn_align8>"
    ),
    "_ZN7cutlass6KernelI68cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8xxEEvNT_6ParamsE": (
        "Kernel<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8>"
    ),
    "void gemm_kernel<cutlass::half_t, (cutlass::Layout)1>(Params)": "gemm_kernel<...>",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn": "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas": (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_…"
    ),
    "void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024, cublasGemvParamsEx<int> >(cublasGemvParamsEx<int>)": (
        "gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024>"
    ),
    # cub, thrust
    "void cub::CUB_200200_800_NS::DeviceReduceSingleTileKernel<cub::CUB_200200_800_NS::DeviceReducePolicy<float, int, "
    "cub::CUB_200200_800_NS::Sum>::Policy600, float*, float*, int>(float*, float*, int)": "DeviceReduceSingleTileKernel<...>",
    "_ZN3cub16DeviceScanKernelINS_16DeviceScanPolicyIiE9Policy600EPiS4_NS_13ScanTileStateIiLb1EEENS_3SumEiEEvT0_T1_": (
        "DeviceScanKernel<...>"
    ),
    # CuPy, Triton, cuFFT, runtime-compiled
    "cupy_add__float32_float32_float32": "cupy_add__float32_float32_float32",
    "triton_poi_fused__to_copy_add_mul_0": "triton_poi_fused__to_copy_add_mul_0",
    "_attn_fwd_0d1d2d3d": "_attn_fwd_0d1d2d3d",
    "void vector_fft<64u, EPT<4u>, 8u, 4u>(kernel_arguments_t<unsigned int>)": "vector_fft<64>",
    "void regular_fft<2048u, 8u, 256u, (padding_t)1, (twiddle_t)0>(kernel_arguments_t<unsigned int>)": (
        "regular_fft<2048, 8, 256, 1, 0>"
    ),
    "void saxpy<double>(int, double, double const*, double*)": "saxpy<double>",
    "spin": "spin",
    "unsigned long long const* ns::next(int)": "next",
    "void k<(a > b), 3>(int)": "k<...>",
    "void k<(int)4, (bool)1, -3l>(int)": "k<4, 1, -3>",
    "helper(int) [clone .constprop.0]": "helper",
    "name with spaces": "name with spaces",
    # what does not fit together
    "<<<": "<<<",
    "(((": "(((",
    "a::": "a::",
    "::": "::",
    "(int)": "(int)",
    "k<int": "k<...>",
    "k)>}<int>(x)": "k)>}<int>",
    " ": " ",
    "_Z": "_Z",
    "_ZN": "_ZN",
    "_Z99999spin": "spin",
    "": "",
}

LONG = 65_536
HOSTILE = {
    "open angles": "<" * LONG,
    "mixed": "(" * (LONG // 2) + ">" * (LONG // 2),
    "crossed": "<" * (LONG // 2) + ")" * (LONG // 2),
    "inside one": "(" + "<" * (LONG // 2) + ")" * (LONG // 2),
    "scopes": "a::" * (LONG // 3),
    "templates": "a<" * (LONG // 4) + ">" * (LONG // 4) + "(int)",
    "arguments": "x<" + "1," * (LONG // 2),
    "anonymous": "(anonymous namespace)::" * (LONG // 23) + "f()",
    "plain": "x" * LONG,
    "linker name": "_ZN" + "1a" * (LONG // 2) + "E",
    "linker number": "_Z" + "9" * LONG,
    "linker back references": "_Z1f1AIiiE" + "S_IS0_S0_E" * (LONG // 10),
}


@pytest.mark.parametrize(("full", "short"), KERNELS.items(), ids=range(len(KERNELS)))
def test_kernels_get_short_names(full, short):
    assert short_name(demangle(full)) == short


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_names_of_64_kb_take_linear_time(name):
    began = time.thread_time()
    short = short_name(demangle(name))
    # The slowest takes 25 ms; work that grows with the square would take minutes.
    assert time.thread_time() - began < 2.0
    assert 0 < len(short) <= SHORT_LIMIT


@given(st.lists(st.sampled_from([*"<>(){}[],:* ~_Z9", "::", "->", "operator", "lambda", "(anonymous namespace)", "a", "I"])))
def test_any_name_gets_a_short_one(parts):
    full = "".join(parts)
    short = short_name(full)
    assert bool(short) == bool(full)
    assert len(short) <= SHORT_LIMIT


REFUSED = {
    "too long for libstdc++": (
        "_ZN7cutlass13device_kernelIN5flash11enable_sm90I" + "N3abc1fE" * 200 + "EEEEvv",
        "device_kernel<...>",
    ),
    "would fill the memory": (
        "_Z4boom1AIiiE" + "".join(f"S_IS{digit}_S{digit}_E" for digit in string.ascii_uppercase * 2),
        "boom",
    ),
    **{name: (name, None) for name in ("_Znotaname", "_Z", "spin", "_ZÄ", "", "_Z1f\n")},
}


@pytest.mark.parametrize(("name", "short"), REFUSED.values(), ids=REFUSED)
def test_name_that_is_no_linker_name_or_is_refused_is_kept(name, short):
    assert demangle(name) == name
    assert short is None or short_name(name) == short


@pytest.mark.parametrize("library", ["lib-not-there.so", "libc.so.6"])
def test_names_are_shortened_without_a_demangler(monkeypatch, library):
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: load(library if name else None))
    monkeypatch.setattr(_work, "_load_demangler", _work._load_demangler.__wrapped__)
    name = "_ZN2at6native12_GLOBAL__N_119cunn_SoftMaxForwardILi4EEEvi"
    assert demangle(name) == name
    assert short_name(name) == "cunn_SoftMaxForward<...>"
    assert short_name("_ZL4spinl") == "spin"


def read_text(address, *limit):
    return StringReader().read(address, *limit)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 10_000, 65_535, 65_536, 70_000])
def test_string_is_read_up_to_the_limit(size):
    text = ctypes.create_string_buffer(b"k" * size)
    assert read_text(ctypes.addressof(text)) == "k" * min(size, 65_536)
    assert read_text(ctypes.addressof(text), 5) == "k" * min(size, 5)


@pytest.mark.parametrize("address", [0, 1, 4096, 2**47, 2**63 - 1, 2**63, 2**64 - 1, 0xDEADBEEFDEADBEEF])
def test_bad_address_is_none(address):
    assert read_text(address) is None


def test_string_at_the_end_of_the_mapped_memory_is_read():
    # GIVEN two pages, of which the second may not be read
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[page - 8 : page] = b"last one"
    end = ctypes.c_void_p(begin + page)
    assert libc.munmap(end, ctypes.c_size_t(page)) == 0

    # WHEN strings before it are read THEN one without an end is none, and one with an end is whole
    assert read_text(begin + page - 8) is None
    memory_bytes = (ctypes.c_char * page).from_address(begin)
    memory_bytes[page - 1] = b"\0"
    assert read_text(begin + page - 8) == "last on"
    # Map it again, so that closing unmaps what is ours.
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap(end, ctypes.c_size_t(page), 3, 0x32, -1, ctypes.c_long(0))


def test_reader_reads_each_address_once():
    text = ctypes.create_string_buffer(b"a\xff\xc3\xa9")
    strings = StringReader()
    assert strings.read(ctypes.addressof(text)) == "a\ufffdé"  # bytes that are no text are replaced
    text.value = b"b"
    assert strings.read(ctypes.addressof(text)) == "a\ufffdé"
    assert read_text(ctypes.addressof(text)) == "b"


def test_reader_that_may_not_read_gives_none(monkeypatch):
    monkeypatch.setattr(_work, "_MEMORY", "/proc/self/not-there")
    text = ctypes.create_string_buffer(b"first")
    assert read_text(ctypes.addressof(text)) is None
