"""Every kernel, copy and call of a device, as CUPTI tells of them."""
