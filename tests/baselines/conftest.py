"""Set before any test imports JAX: CPU only, whatever this machine has."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
