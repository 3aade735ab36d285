"""A shopper for WebShop who buys the right thing, as an example to imitate."""

from collections.abc import Iterator

from graphgpo_jax.envs import webshop_goals, webshop_pages, webshop_reward
from graphgpo_jax.envs.webshop_catalogue import Catalogue
from graphgpo_jax.envs.webshop_data import Goal, Product
from graphgpo_jax.envs.webshop_pages import PER_PAGE, Session


def plan(catalogue: Catalogue, goal: Goal, *, max_steps: int) -> list[str]:
  """Actions that end with the purchase of a product of score 1.

  Options cannot be seen on a page of results. So the shopper opens, from the
  top, what has the wanted attributes and price, and goes back where an option
  is missing; as often as the step limit allows. The searches are: attributes
  and kind; then with options; then the title of the product the goal was made
  from. The first that finds a product of score 1 in time is taken.

  Raises:
    ValueError: none of them does.
  """
  for query in _queries(goal):
    session = webshop_pages.search(Session(), query)
    found = session and catalogue.search(session.terms) or []
    offers = [_choose(catalogue.product(number), goal) for number in found]
    complete = [place for place, (_, fits) in enumerate(offers) if fits]
    if not complete:
      continue
    last = complete[0]
    steps = 3 + last // PER_PAGE + len(offers[last][0])
    if steps > max_steps:
      continue
    spare = (max_steps - steps) // 2  # each needs a click and a return
    missing = [i for i in range(last) if offers[i][0] is not None][:spare]
    actions, page = [f'search[{query}]'], 0
    for place in (*missing, last):
      actions += ['click[next >]'] * (place // PER_PAGE - page)
      page = place // PER_PAGE
      asin = catalogue.product(found[place]).asin.lower()
      actions += [f'click[{asin}]', 'click[< prev]']
    options = [f'click[{value}]' for value in offers[last][0]]
    return [*actions[:-1], *options, 'click[buy now]']
  raise ValueError(
    f'no search finds what {goal.product.asin} was asked for by and buys it in '
    f'{max_steps} steps'
  )


def _queries(goal) -> Iterator[str]:
  """Searches for a goal, from what it says to what it was made from."""
  words = [*goal.attributes, goal.product.query]
  for query in (
    words,
    [*words, *(value for _, value in goal.options)],
    [goal.product.title],
    [goal.product.title, *goal.product.bullets[:1], goal.product.description],
  ):
    # Brackets of the query would not matter, other signs might.
    text = ''.join(c if c.isalnum() else ' ' for c in ' '.join(query).lower())
    yield ' '.join(text.split())[: webshop_pages.LONGEST_QUERY]


def _choose(product: Product, goal: Goal) -> tuple[list[str] | None, bool]:
  """(values to choose, whether they score 1).

  The values are None where kind, attributes or price are wrong already.
  """
  if product.price > goal.cap:
    return None, False
  chosen = webshop_goals.choose(product, goal.options)
  score = webshop_reward.score(product, chosen, goal)
  if score.type < 1 or score.attribute_hits < len(goal.attributes):
    return None, False
  return list(chosen.values()), score.is_success
