"""The real device. Only this package imports cupy, cuda and nvtx, and only when a session starts on CUDA."""

from gpustreamlab.backends.cuda._backend import CudaBackend

__all__ = ["CudaBackend"]
