import { act, render, screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, expect, test, vi } from 'vitest';
import { Panel } from '../src/core/components/Panel';
import { Store } from '../src/core/store';
import { Rank } from '../src/core/types';
import { FakeTransport, mesh, node, rank, reservation, slot, view } from './fake';

const RANKS = 2048;
const DEAD = [17, 803];
const openLog = vi.fn();
let transport: FakeTransport;
let box: HTMLElement;

beforeEach(async () => {
  transport = new FakeTransport();
  const store = new Store(transport);
  store.start();
  box = render(<Panel store={store} host={{ openLog }} notebook={null} />).container;
  const ranks = Array.from({ length: RANKS }, (_, place): Rank => {
    const isDead = DEAD.includes(place);
    const more = isDead ? ({ state: 'dead', detail: 'likely out of memory' } as const) : {};
    return rank(place, { node: `node${Math.floor(place / 8)}`, ...more });
  });
  const nodes = Array.from({ length: RANKS / 8 }, (_, place) =>
    node(
      `node${place}`,
      Array.from({ length: 8 }, (_, index) => slot(index, { rank: 8 * place + index })),
      place === 9 ? { state: 'silent', message: 'it does not answer' } : {}
    )
  );
  const held = reservation({ nodes: 256, procs: 0, gpus: 8, nodes_answering: 256, meshes: [mesh(ranks)] });
  await act(async () =>
    transport.say({
      type: 'view',
      view: view({ nodes: Object.fromEntries(nodes.map(each => [each.id, each])), reservations: { R: held } })
    })
  );
});

const heads = (label: string): HTMLElement[] =>
  within(screen.getByRole('list', { name: label })).getAllByRole('button');
const RANK_GROUPS = 'Ranks of dev by what they do';
const NODE_GROUPS = 'Nodes by how they are';
const shown = (): number[] =>
  [...box.querySelectorAll<HTMLElement>('.mnb-rank')].map(each => Number(each.dataset.cell));

test('2,048 ranks on 256 nodes are a few rows, the troubled ones first', () => {
  expect(heads(RANK_GROUPS).map(each => each.textContent)).toEqual([
    '2 dead17,803likely out of memory',
    '2,046 idle0-16,18-802,804-2047'
  ]);
  expect(heads(NODE_GROUPS).map(each => each.textContent)).toEqual([
    '1 silentnode9it does not answer',
    '255 oknode0, node1, node2 and 252 more'
  ]);
  expect(box.querySelectorAll('.mnb-map-node')).toHaveLength(256);
  expect(screen.getByText('256 · 1 in trouble')).toBeTruthy();
  expect(box.querySelectorAll('*').length).toBeLessThan(700);
});

test('an open group shows a page of its ranks, another one closes it', async () => {
  await userEvent.click(heads(RANK_GROUPS)[1]);
  expect(shown()).toEqual([...Array(65).keys()].filter(each => each !== 17));
  await userEvent.click(screen.getByRole('button', { name: 'Next page' }));
  expect(shown()[0]).toBe(65);
  expect(screen.getByText('65–128 of 2,046')).toBeTruthy();
  expect(box.querySelectorAll('*').length).toBeLessThan(1100);
  await userEvent.click(heads(RANK_GROUPS)[0]);
  expect(shown()).toEqual(DEAD);
  await userEvent.click(heads(RANK_GROUPS)[0]);
  expect(shown()).toEqual([]);
});

test('all of a group are chosen at once, and the buttons mean them', async () => {
  await userEvent.click(heads(RANK_GROUPS)[0]);
  await userEvent.click(screen.getByRole('button', { name: 'Choose all 2 ranks' }));
  await userEvent.click(screen.getByRole('button', { name: 'Log ranks 17,803' }));
  expect(openLog).toHaveBeenCalledWith({ reservation: 'R', mesh: 'M', ranks: '17,803', run: null });
  await userEvent.click(screen.getByRole('button', { name: 'Choose all 2 ranks' }));
  expect(screen.getByRole('button', { name: 'Log' })).toBeTruthy();
});

test('Ctrl+A chooses all ranks, not the page that is shown', async () => {
  await userEvent.click(heads(RANK_GROUPS)[0]);
  box.querySelector<HTMLElement>('[data-cell="17"]')!.focus();
  await userEvent.keyboard('{Control>}a{/Control}');
  expect(screen.getByRole('button', { name: 'Restart… ranks 0-2047' })).toBeTruthy();
});

test('a rank is found by its number, and one that is none is said', async () => {
  const field = screen.getByRole('textbox', { name: 'Go to rank' });
  await userEvent.type(field, '1500{Enter}');
  expect(shown()).toContain(1500);
  expect(screen.getByRole('option', { selected: true }).dataset.cell).toBe('1500');
  expect(screen.getByText(/^node187 · /)).toBeTruthy();
  await userEvent.clear(field);
  await userEvent.type(field, 'ranks 802-803{Enter}');
  expect(screen.getByRole('button', { name: 'Restart… ranks 802-803' })).toBeTruthy();
  await userEvent.clear(field);
  await userEvent.type(field, '2048{Enter}');
  expect(screen.getByText('there is no rank 2048')).toBeTruthy();
  expect(field.getAttribute('aria-invalid')).toBe('true');
});

test('what a chosen rank died of is said', async () => {
  await userEvent.type(screen.getByRole('textbox', { name: 'Go to rank' }), '803{Enter}');
  expect(screen.getByText('dead · likely out of memory')).toBeTruthy();
});

test('a node is found on the map and by its name', async () => {
  const seen = vi.spyOn(Element.prototype, 'scrollIntoView');
  await userEvent.click(screen.getByRole('button', { name: 'node200: ok, yours, 50 %' }));
  expect(seen.mock.contexts).toEqual([box.querySelector('[data-node-row="node200"]')]);
  expect(box.querySelectorAll('.mnb-node')).toHaveLength(8);
  expect(box.querySelector('.mnb-slot[data-node="node200"]')).toBeTruthy();
  await userEvent.type(screen.getByRole('textbox', { name: 'Go to node' }), 'node9{Enter}');
  expect([...box.querySelectorAll<HTMLElement>('.mnb-node')].map(each => each.dataset.nodeState)).toEqual([
    'silent'
  ]);
  await userEvent.type(screen.getByRole('textbox', { name: 'Go to node' }), '99{Enter}');
  expect(screen.getByText('there is no node node999')).toBeTruthy();
});
