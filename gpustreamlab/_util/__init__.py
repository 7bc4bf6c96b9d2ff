"""What the rest of the house stands on: nothing here knows of devices, streams or traces."""
