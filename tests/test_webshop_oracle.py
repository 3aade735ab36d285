"""The shopper of WebShop, who cannot see options from outside."""

import pytest
import webshops

from graphgpo_jax.envs.webshop_catalogue import open_catalogue
from graphgpo_jax.envs.webshop_oracle import plan

ASIN = webshops.SHIRT['asin']
SEARCH = 'search[cotton shirt]'
BUY = ['click[b000000001]', 'click[red]', 'click[large]', 'click[buy now]']


def small(number, **changes):
  """A shirt that is not made in large, and is found before the right one."""
  sizes = {'color': [{'value': 'red'}], 'size': [{'value': 'small'}]}
  name = {'asin': f'B1{number:02}', 'customization_options': sizes}
  return webshops.SHIRT | name | changes


def solution(folder, others, *, max_steps=15, wanted='cotton'):
  """Of the goal to buy the shirt in red and large."""
  notes = {item['asin']: {'attributes': ['cotton']} for item in others}
  notes[ASIN] = webshops.NOTES[ASIN]
  files = webshops.write(folder, [webshops.SHIRT, *others], notes)
  shop = open_catalogue(files, products=None, seed=0, cache=folder)
  goals = [shop.goal(place) for place in range(len(shop.goals))]
  options = ('color', 'red'), ('size', 'large')
  (goal,) = [goal for goal in goals if goal.options == options]
  goal = goal._replace(attributes=(wanted,))
  return plan(shop, goal, max_steps=max_steps)


@pytest.mark.parametrize(
  'others, max_steps, opened',
  [
    ([], 15, []),
    ([small(1)], 15, ['b101']),
    ([small(1)], 7, ['b101']),
    ([small(1)], 6, []),
    ([small(1)], 5, []),
    ([small(1, pricing='$99.00'), small(2)], 15, ['b102']),
    (
      [small(i) for i in range(9)],
      15,
      ['b100', 'b101', 'b102', 'b103', 'b104'],
    ),
  ],
)
def test_it_goes_back_where_an_option_is_missing(
  tmp_path, others, max_steps, opened
):
  ways = [[f'click[{asin}]', 'click[< prev]'] for asin in opened]
  expected = [SEARCH, *sum(ways, []), *BUY]
  assert solution(tmp_path, others, max_steps=max_steps) == expected


def test_it_turns_pages(tmp_path):
  found = solution(tmp_path, [small(i) for i in range(11)])
  ways = [[f'click[b10{i}]', 'click[< prev]'] for i in range(4)]
  assert found == [SEARCH, *sum(ways, []), 'click[next >]', *BUY]
  assert len(found) <= 15


def test_it_says_where_there_is_nothing_to_buy(tmp_path):
  with pytest.raises(ValueError, match=f'no search finds what {ASIN}'):
    solution(tmp_path, [], wanted='silk')


def test_it_says_where_there_is_no_time(tmp_path):
  with pytest.raises(ValueError, match=f'what {ASIN} .* buys it in 4 steps'):
    solution(tmp_path, [], max_steps=4)


def test_it_buys_only_what_clicks_choose(tmp_path):
  """The size is set by a value that both options share, the color is not."""
  shared = {name: [{'value': 'red'}] for name in ('color', 'size')}
  twin = small(1, customization_options=shared, name='Cotton Shirt')
  found = solution(tmp_path, [twin])
  assert found == [SEARCH, 'click[b101]', 'click[< prev]', *BUY]


def test_it_says_where_no_click_chooses_an_option(tmp_path):
  values = [{'value': x} for x in ('Buy Now', 'red')]
  shirt = webshops.SHIRT | {'customization_options': {'color': values}}
  files = webshops.write(tmp_path, [shirt])
  shop = open_catalogue(files, products=None, seed=0, cache=tmp_path)
  (only,) = shop.goals
  assert only['combination'] == 1
  goal = shop.goal(0)._replace(options=(('color', 'buy now'),))
  with pytest.raises(ValueError, match=f'no search finds what {ASIN}'):
    plan(shop, goal, max_steps=15)
