"""Print the extras that suit this machine's driver, with that for every kernel, or nothing where there is no driver."""

from __future__ import annotations

import sys

from gpustreamlab.backends.cuda._libcuda import cuda_extra, cupti_extra, read_driver


def main() -> int:
    """Print the extras' names on standard output and the reason on standard error."""
    driver = read_driver()
    extra = cuda_extra(driver.version)
    extras = "" if extra is None else f"{extra},{cupti_extra(driver.version)}"
    if driver.version is None:
        reason = "no NVIDIA driver: the demo runs on the simulated device"
    elif extra is None:
        reason = (
            f"the NVIDIA driver supports CUDA {driver.version_text}, older than 12.0: the demo runs on the simulated device"
        )
    else:
        reason = f"the NVIDIA driver supports CUDA {driver.version_text}: installing the extras {extras}"
    print(reason, file=sys.stderr)
    print(extras)
    return 0


if __name__ == "__main__":
    sys.exit(main())
