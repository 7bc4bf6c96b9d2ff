"""Print the CUDA extra that suits this machine's driver, or nothing where there is no driver."""

from __future__ import annotations

import sys

from gpustreamlab.backends.cuda._libcuda import cuda_extra, read_driver


def main() -> int:
    """Print the extra's name on standard output and the reason on standard error."""
    driver = read_driver()
    extra = cuda_extra(driver.version)
    if driver.version is None:
        reason = "no NVIDIA driver: the demo runs on the simulated device"
    elif extra is None:
        reason = (
            f"the NVIDIA driver supports CUDA {driver.version_text}, older than 12.0: the demo runs on the simulated device"
        )
    else:
        reason = f"the NVIDIA driver supports CUDA {driver.version_text}: installing the extra {extra}"
    print(reason, file=sys.stderr)
    print(extra or "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
