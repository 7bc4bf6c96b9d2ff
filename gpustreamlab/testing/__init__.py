"""The pytest plugin, `gpustreamlab.testing.plugin`."""
