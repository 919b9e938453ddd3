import { act, render, screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, expect, test } from 'vitest';
import { Panel } from '../src/core/components/Panel';
import { Store } from '../src/core/store';
import { Actors } from '../src/core/types';
import { FakeTransport, actor, doing, mesh, rank, reservation, view } from './fake';

let transport: FakeTransport;

beforeEach(() => {
  transport = new FakeTransport();
});

/** Show `dev` with some actors; it has a mesh `evaluators` of two ranks, too. */
async function show(actors: Actors): Promise<void> {
  const store = new Store(transport, () => 5000);
  store.start();
  render(<Panel store={store} host={{ openLog: () => undefined }} notebook="x.ipynb" />);
  const beside = { ...mesh([rank(0), rank(1)]), id: 'E', name: 'evaluators' };
  const dev = reservation({ meshes: [mesh([0, 1, 2, 3].map(each => rank(each))), beside], actors });
  await act(async () => transport.say({ type: 'view', view: view({ reservations: { R: dev } }) }));
}

const list = (): HTMLElement => screen.getByRole('region', { name: 'Actors of dev' });
const lines = (name: string): string[] =>
  [...list().querySelectorAll(`[data-actor='${name}'] .mnb-detail`)].map(each => each.textContent ?? '');

test('without actors nothing is said of them', async () => {
  await show({ shown: [], more: 0 });
  expect(screen.queryByRole('region', { name: 'Actors of dev' })).toBeNull();
});

test('what ranks do is said for those that do the same', async () => {
  const doings = [
    doing({ state: 'failed', ranks: '3', failure: 'ValueError: no model' }),
    doing({ state: 'waiting', ranks: '2', running: 'step', running_s: 3, where: 'all_reduce at t.py:4' }),
    doing({
      state: 'running',
      ranks: '0-1',
      running: 'step',
      running_s: 72,
      caller: 'the notebook',
      where: 't.py:5',
      waiting: 3
    })
  ];
  await show({ shown: [actor({ doings, more: 2 }), actor({ id: 'idle', name: 'readers' })], more: 7 });
  expect(lines('trainers')).toEqual([
    'rank 3: failed: ValueError: no model',
    'rank 2: step waits in all_reduce at t.py:4 · 3 s',
    'ranks 0-1: runs step for the notebook · 1 min 12 s · 3 messages wait · at t.py:5'
  ]);
  expect(lines('readers')).toEqual(['idle']);
  expect(list().textContent).toContain('and 2 more');
  expect(list().textContent).toContain('and 7 actors more');
  expect(within(list()).getByRole('button', { name: /^Actors/ }).textContent).toBe('Actors2 · 1 failed');
});

test('a click on one chooses its mesh and its ranks, another none', async () => {
  const beside = actor({
    id: 'E/judges',
    name: 'judges',
    mesh_id: 'E',
    mesh: 'evaluators',
    ranks: '0-1',
    actor_ranks: '0-3'
  });
  await show({ shown: [actor({ ranks: '1-2' }), beside], more: 0 });
  const judges = within(list()).getByRole('button', { name: /judges/ });
  expect(judges.textContent).toContain('evaluators 0-3');
  await userEvent.click(judges);
  expect(judges.getAttribute('aria-pressed')).toBe('true');
  expect(screen.getByRole('button', { name: 'evaluators' }).getAttribute('aria-pressed')).toBe('true');
  transport.replies.stacks = () => ({});
  await userEvent.click(screen.getByRole('button', { name: 'Stacks ranks 0-1' }));
  expect(transport.asked('stacks')).toEqual([{ reservation: 'R', mesh: 'E', ranks: '0-1' }]);
  await userEvent.click(judges);
  expect(judges.getAttribute('aria-pressed')).toBe('false');
  expect(screen.queryByRole('button', { name: 'Stacks ranks 0-1' })).toBeNull();
});

test('the list folds, by keyboard too', async () => {
  await show({ shown: [actor()], more: 0 });
  const head = within(list()).getByRole('button', { name: /^Actors/ });
  head.focus();
  await userEvent.keyboard('{Enter}');
  expect(head.getAttribute('aria-expanded')).toBe('false');
  expect(lines('trainers')).toEqual([]);
});
