"""Set before jax is first used: eight virtual devices, quick compiling."""

import os
import pathlib

# Tests compile much and run little, and many compile the same: what one process
# has compiled, the others (also those that tests start) read.
CACHE = pathlib.Path(__file__).parents[1] / '.pytest_cache' / 'compiled'
FLAGS = os.environ.get('XLA_FLAGS', '')
os.environ |= {
  'JAX_COMPILATION_CACHE_DIR': str(CACHE),
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '0',
  'JAX_DISABLE_MOST_OPTIMIZATIONS': '1',
  # Halves the time that compiling for the CPU takes.
  'XLA_FLAGS': f'{FLAGS} --xla_cpu_use_fusion_emitters=false',
}

import jax  # noqa: E402

jax.config.update('jax_num_cpu_devices', 8)
