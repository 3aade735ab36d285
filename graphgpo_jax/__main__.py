"""python -m graphgpo_jax: the command line."""

from graphgpo_jax.cli import main

if __name__ == '__main__':
  main()
