'use strict';
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId('data').textContent);
const { schemes, scales, palette, nodes, edges, steps, attempts } = data;
const graph = byId('graph');
const nodeMarks = new Map(data.shown.map((n) => [n, byId('n' + n)]));
const edgeMarks = edges.from.map((_, i) => byId('e' + i));
const current = { scheme: 0, attempt: -1, pinned: false, redraw: null };

// An element with its children: texts stay texts, whatever they hold.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function printable(text) {
  return text
    .replace(/[\0-\x08\x0b-\x1f]/g,
      (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '\ufffd');
}

function oneLine(text, limit) {
  const letters = Array.from(text.slice(0, 4 * limit).replace(/\s+/g, ' '));
  const cut = letters.length > limit || text.length > 4 * limit;
  return printable(letters.slice(0, limit).join('')) + (cut ? '\u2026' : '');
}

function whole(texts, i) {
  const length = texts.whole[i];
  const end = length ? `\n[cut: the whole has ${length} characters]` : '';
  return printable(texts.text[i]) + end;
}

// Node 0 is the goal, which has no text; the others are numbered from 1.
const nodeText = (n) => n ? whole(nodes, n - 1)
  : 'The goal. Every attempt that succeeded ends here.';
const nodeName = (n) => n ? 'state ' + n : 'goal';
const brief = (n, limit) => n ? oneLine(nodes.text[n - 1], limit) : '';

function distance(n) {
  const known = nodes.distance[n];
  return known === null ? `no path (counts as ${nodes.filled})` : String(known);
}

function signed(value) {
  const text = String(Number(value.toPrecision(3)));
  return value > 0 ? '+' + text : text;
}

function level(value, scale) {
  const size = Math.min(1, Math.abs(value) / scale) ** data.power;
  return value < 0 ? -size : size;
}

function colour(value, scheme) {
  const share = (level(value, scales[scheme]) + 1) / 2;
  return palette[Math.round(share * (palette.length - 1))];
}

// To 1e-4 of the scale, as in the pictures.
function sign(value, scheme) {
  return Math.sign(Math.round(value / scales[scheme] * 1e4));
}

function advantageCell(value, scheme) {
  const swatch = make('span', { class: 'swatch' });
  swatch.style.background = colour(value, scheme);
  const chosen = scheme === current.scheme ? ' chosen' : '';
  return make('td', { class: 'number' + chosen }, swatch, signed(value));
}

function headings(names) {
  const row = make('tr', {});
  names.forEach((name, i) => {
    const chosen = i - names.length + schemes.length === current.scheme;
    row.append(make('th', { scope: 'col', class: chosen ? 'chosen' : '' },
      printable(name)));
  });
  return row;
}

function stateCell(n, limit = 60) {
  const button = make('button',
    { type: 'button', 'data-node': n, title: nodeText(n) },
    n ? `${n}: ${brief(n, limit)}` : 'goal');
  return make('td', {}, button);
}

function actionCell(i) {
  return make('td', { title: whole(data.actions, i) },
    oneLine(data.actions.text[i], 60));
}

function showNode(n) {
  current.redraw = () => showNode(n);
  const facts = `visits: ${nodes.visits[n]}; distance to the goal: `
    + distance(n) + (nodeMarks.has(n) ? '' : '; not drawn');
  const body = make('tbody', {});
  edges.from.forEach((from, i) => {
    if (from === n) body.append(edgeRow(i, stateCell(edges.to[i], 30)));
  });
  const head = headings(['action', 'next state', 'steps', ...schemes]);
  byId('details').replaceChildren(
    make('h2', {}, nodeName(n)), make('p', {}, facts),
    make('pre', { dir: 'auto' }, nodeText(n)),
    ...(body.firstChild ? [table(head, body)] : []));
  mark([n], []);
}

function showEdge(i) {
  current.redraw = () => showEdge(i);
  const head = headings(['action', 'next state', 'steps', ...schemes]);
  const [from, to] = [edges.from[i], edges.to[i]].map(nodeName);
  byId('details').replaceChildren(
    make('h2', {}, `${from} \u2192 ${to}`),
    make('pre', { dir: 'auto' }, whole(data.actions, edges.action[i])),
    table(head, make('tbody', {}, edgeRow(i, stateCell(edges.to[i], 30)))));
  mark([], [i]);
}

function table(head, body) {
  return make('div', { class: 'scroll' }, make('p', { class: 'faint' },
    'Mean advantages of the drawn edges:'),
    make('table', {}, make('thead', {}, head), body));
}

function edgeRow(i, next) {
  return make('tr', {}, actionCell(edges.action[i]), next,
    make('td', { class: 'number' }, String(edges.count[i])),
    ...schemes.map((_, s) => advantageCell(edges.mean[s][i], s)));
}

// Thick outlines for what the details or the table speak of.
function mark(nodeList, edgeList) {
  nodeMarks.forEach((element, n) =>
    element.classList.toggle('now', nodeList.includes(n)));
  edgeMarks.forEach((element, i) =>
    element.classList.toggle('now', edgeList.includes(i)));
}

// Steps of the attempt that was picked, as numbers into the columns of steps.
function pickedSteps() {
  const a = current.attempt;
  if (a < 0) return [];
  const length = attempts.stop[a] - attempts.start[a];
  return Array.from({ length }, (_, t) => attempts.start[a] + t);
}

function paint() {
  const s = current.scheme, own = new Map(), visited = new Set();
  for (const i of pickedSteps()) {
    const e = steps.edge[i];
    if (!own.has(e)) own.set(e, []);
    own.get(e).push(steps.advantage[s][i]);
    visited.add(steps.state[i]).add(steps.next[i]);
  }
  edgeMarks.forEach((element, e) => {
    const values = own.get(e) || [edges.mean[s][e]];
    const value = values.reduce((a, b) => a + b) / values.length;
    element.style.color = colour(value, s);
    element.classList.toggle('on', own.has(e));
    element.classList.toggle('negative', sign(value, s) < 0);
    element.classList.toggle('zero', sign(value, s) === 0);
  });
  nodeMarks.forEach((element, n) =>
    element.classList.toggle('on', visited.has(n)));
  graph.classList.toggle('picked', current.attempt >= 0);
  byId('bar').style.background = `linear-gradient(90deg, ${palette.join()})`;
  byId('ticks').replaceChildren(...[-1, -0.25, 0, 0.25, 1].map((part) => {
    const tick = make('span', {}, signed(part * scales[s]));
    tick.style.left = `${50 + 50 * level(part, 1)}%`;
    return tick;
  }));
  byId('caption').textContent = current.attempt < 0
    ? 'Colour of an edge: mean advantage of the steps on it.'
    : 'Colour of an edge: mean advantage of this attempt\u2019s steps on it.'
      + (own.has(-1) ? ` Not drawn: ${own.get(-1).length} of its steps.` : '');
}

function fillTable() {
  const head = headings(['step', 'state', 'action', 'next state',
    'distance before', 'distance after', ...schemes]);
  const rows = pickedSteps().map((i, t) => make('tr', { 'data-step': i },
    make('td', { class: 'number' }, String(t)), stateCell(steps.state[i]),
    actionCell(steps.action[i]), stateCell(steps.next[i]),
    make('td', {}, distance(steps.state[i])),
    make('td', {}, distance(steps.next[i])),
    ...schemes.map((_, s) => advantageCell(steps.advantage[s][i], s))));
  const [thead, tbody] = byId('table').children;
  thead.replaceChildren(...(rows.length ? [head] : []));
  tbody.replaceChildren(...rows);
  byId('chosen').textContent = rows.length
    ? `Steps of attempt ${attemptName(current.attempt)}`
    : 'Steps: pick an attempt to see them';
}

function attemptName(a) {
  const length = attempts.stop[a] - attempts.start[a];
  const end = attempts.success[a] ? '\u2713 reached the goal'
    : attempts.truncated[a] ? '\u2717 cut off' : '\u2717 failed';
  return `${attempts.name[a]}: ${length} step${length === 1 ? '' : 's'}, `
    + end + (attempts.credited[a] ? '' : ', of an earlier visit');
}

// Radio buttons: the keyboard reaches them and the arrow keys change them.
function choices(id, names, first, picked, change) {
  names.forEach((name, i) => {
    const input = make('input', { type: 'radio', name: id, value: i + first });
    input.checked = i + first === picked;
    input.addEventListener('change', () => change(i + first));
    byId(id).append(make('label', {}, input, ' ' + printable(name)));
  });
}

choices('schemes', schemes, 0, 0, (s) => {
  current.scheme = s;
  paint();
  fillTable();
  current.redraw();
});
const attemptNames = attempts.name.map((_, a) => attemptName(a));
choices('attempts', ['none', ...attemptNames], -1, -1, (a) => {
  current.attempt = a;
  paint();
  fillTable();
});

// What is pointed at or has the focus is shown, unless something is kept.
function show(event) {
  const element = event.target.closest('.node, .edge');
  if (!element || current.pinned) return;
  const number = Number(element.id.slice(1));
  if (element.id[0] === 'n') showNode(number);
  else showEdge(number);
}

function keep(pinned) {
  current.pinned = pinned;
  byId('details').classList.toggle('kept', pinned);
}

function pin(event) {
  if (event.type === 'click' && moved) return;
  keep(false);
  show(event);
  keep(event.target.closest('.node, .edge') !== null);
}

graph.addEventListener('pointerover', show);
graph.addEventListener('focusin', show);
graph.addEventListener('click', pin);
graph.addEventListener('keydown', (event) => {
  if (event.key === 'Enter' || event.key === ' ') pin(event);
  else if (event.key === 'Escape') keep(false);
  else if (/^Arrow/.test(event.key)) walk(event);
  else return;
  event.preventDefault();
});
nodeMarks.forEach((element, n) => element.setAttribute('aria-label',
  `${nodeName(n)}: ${brief(n, 80)}; distance ${distance(n)}`));

// One node is in the tab order; the arrow keys go on from it, left to right.
function walk(event) {
  const from = event.target.closest('.node');
  if (!from) return;
  const ahead = event.key === 'ArrowRight' || event.key === 'ArrowDown';
  const place = data.shown.indexOf(Number(from.id.slice(1)));
  const next = nodeMarks.get(data.shown[place + (ahead ? 1 : -1)]);
  if (!next) return;
  keep(false);
  from.setAttribute('tabindex', '-1');
  next.setAttribute('tabindex', '0');
  next.focus();
}

for (const id of ['table', 'details']) {
  byId(id).addEventListener('click', (event) => {
    const button = event.target.closest('[data-node]');
    if (!button) return;
    showNode(Number(button.getAttribute('data-node')));
    keep(true);
  });
}
for (const name of ['pointerover', 'focusin']) {
  byId('table').addEventListener(name, (event) => {
    const row = event.target.closest('[data-step]');
    if (!row) return;
    const i = Number(row.getAttribute('data-step'));
    mark([steps.state[i], steps.next[i]], [steps.edge[i]]);
  });
}

// Zoom and move: the part of the drawing that is seen.
const home = graph.getAttribute('viewBox').split(' ').map(Number);
let view = home, grip = null, moved = false;

function look(x, y, width) {
  width = Math.min(home[2], Math.max(home[2] / 40, width));
  const height = home[3] * width / home[2];
  view = [Math.min(Math.max(x, 0), home[2] - width),
    Math.min(Math.max(y, 0), home[3] - height), width, height];
  graph.setAttribute('viewBox', view.join(' '));
  graph.classList.toggle('zoomed', width < home[2]);
}

function zoom(factor, shareX = 0.5, shareY = 0.5) {
  const width = Math.min(home[2], view[2] * factor);
  const height = home[3] * width / home[2];
  look(view[0] + (view[2] - width) * shareX,
    view[1] + (view[3] - height) * shareY, width);
}

byId('closer').addEventListener('click', () => zoom(1 / 1.5));
byId('farther').addEventListener('click', () => zoom(1.5));
byId('whole').addEventListener('click', () => look(0, 0, home[2]));
graph.addEventListener('wheel', (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  const box = graph.getBoundingClientRect();
  zoom(event.deltaY < 0 ? 1 / 1.2 : 1.2,
    (event.clientX - box.left) / box.width,
    (event.clientY - box.top) / box.height);
}, { passive: false });
graph.addEventListener('pointerdown', (event) => {
  grip = { x: event.clientX, y: event.clientY, view };
  moved = false;
});
addEventListener('pointermove', (event) => {
  if (!grip || !graph.classList.contains('zoomed')) return;
  const box = graph.getBoundingClientRect();
  const scale = Math.max(view[2] / box.width, view[3] / box.height);
  const x = event.clientX - grip.x, y = event.clientY - grip.y;
  if (Math.abs(x) + Math.abs(y) > 4) moved = true;
  if (moved) look(grip.view[0] - x * scale, grip.view[1] - y * scale, view[2]);
});
addEventListener('pointerup', () => { grip = null; });

paint();
fillTable();
showNode(nodeMarks.has(steps.state[0]) ? steps.state[0] : data.shown[0]);
