"""Set before jax is first used: eight virtual devices, quick compiling."""

import jax

jax.config.update('jax_num_cpu_devices', 8)
# Tests compile much and run little.
jax.config.update('jax_disable_most_optimizations', True)
