"""Eight virtual devices for every test, asked for before jax is first used."""

import jax

jax.config.update('jax_num_cpu_devices', 8)
