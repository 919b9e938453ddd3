import { act, render, screen, waitFor } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, expect, test, vi } from 'vitest';
import { Panel } from '../src/core/components/Panel';
import { Host } from '../src/core/context';
import { Pools } from '../src/core/pools';
import { Store } from '../src/core/store';
import { PoolName, View } from '../src/core/types';
import { FORMS, FakeTransport, job, reservation, view } from './fake';

const KINDS = [
  { value: 'procs', label: 'CPU ranks' },
  { value: 'gpus', label: 'GPUs' }
];
const WAYS = {
  ...FORMS,
  reserve: {
    ...FORMS.reserve,
    fields: [
      {
        name: 'where',
        label: 'Where',
        type: 'choice',
        default: 'here',
        choices: [
          { value: 'here', label: 'this pool, local' },
          { value: 'slurm', label: 'Slurm job' }
        ]
      },
      { name: 'name', label: 'Name', type: 'text', default: 'dev' },
      { name: 'nodes', label: 'Nodes', type: 'integer', default: 1, where: 'here' },
      { name: 'kind', label: 'Kind', type: 'choice', default: 'procs', choices: [KINDS[0]], where: 'here' },
      { name: 'slurm.account', label: 'Account', type: 'text', default: 'lab', where: 'slurm' },
      { name: 'nodes', label: 'Nodes', type: 'integer', default: 4, where: 'slurm' },
      { name: 'kind', label: 'Kind', type: 'choice', default: 'gpus', choices: KINDS, where: 'slurm' }
    ]
  }
};
const LOCAL: PoolName = { name: 'local', what: 'this machine' };
const SLURM: PoolName = { name: 'slurm-dev', what: 'Slurm job 12' };

function viewOf(name: string, pools: PoolName[], more: Partial<View> = {}): View {
  return view({ pool: { name, state: 'up', message: null, nodes: 1 }, pools, ...more });
}

let transport: FakeTransport;
let store: Store;

beforeEach(() => {
  transport = new FakeTransport();
  transport.replies.forms = () => WAYS;
  store = new Store(transport);
});

async function show(shown: View, host: Host = {}): Promise<void> {
  store.start();
  render(<Panel store={store} host={host} />);
  await act(async () => transport.say({ type: 'view', view: shown }));
}

const NOTHING = viewOf('local', [LOCAL], { reservations: {} });
const value = (role: string, name: string): string =>
  (screen.getByRole(role, { name }) as HTMLInputElement).value;

test('each place asks for its own, has its own defaults, and what was entered stays', async () => {
  await show(NOTHING);
  await userEvent.click(screen.getByRole('button', { name: 'Reserve…' }));
  const where = await screen.findByRole('combobox', { name: 'Where' });
  expect(screen.queryByRole('textbox', { name: 'Account' })).toBeNull();
  await userEvent.selectOptions(where, 'slurm');
  expect([value('textbox', 'Account'), value('spinbutton', 'Nodes'), value('combobox', 'Kind')]).toEqual([
    'lab',
    '4',
    'gpus'
  ]);
  const nodes = screen.getByRole('spinbutton', { name: 'Nodes' });
  await userEvent.clear(nodes);
  await userEvent.type(nodes, '3');
  await userEvent.selectOptions(screen.getByRole('combobox', { name: 'Kind' }), 'gpus');
  await userEvent.selectOptions(where, 'here');
  expect([value('spinbutton', 'Nodes'), value('combobox', 'Kind')]).toEqual(['3', 'procs']);
  await waitFor(() =>
    expect(transport.asked('check').at(-1).values).toEqual({
      where: 'here',
      name: 'dev',
      nodes: 3,
      kind: 'procs'
    })
  );
});

test('an engine is not asked again because something happens in the pool', async () => {
  await show(NOTHING);
  await userEvent.click(screen.getByRole('button', { name: 'Reserve…' }));
  await userEvent.selectOptions(await screen.findByRole('combobox', { name: 'Where' }), 'slurm');
  await waitFor(() => expect(transport.asked('check').at(-1)?.values.where).toBe('slurm'));
  const asked = transport.asked('check').length;
  vi.useFakeTimers();
  try {
    await act(async () => transport.change({ reservations: { S: reservation({ id: 'S' }) } }));
    await act(async () => vi.advanceTimersByTimeAsync(5000));
  } finally {
    vi.useRealTimers();
  }
  expect(transport.asked('check')).toHaveLength(asked);
});

test('a form that is closed leaves what waits at the foot, where it can be cancelled and says how it ends', async () => {
  transport.replies.reserve = () => ({ job: job({ message: 'Slurm job 12 waits (Priority)' }) });
  transport.replies.cancel = () => ({});
  await show(NOTHING);
  await userEvent.click(screen.getByRole('button', { name: 'Reserve…' }));
  await userEvent.click(await screen.findByRole('button', { name: 'Reserve' }));
  await screen.findByText('Slurm job 12 waits (Priority)');
  expect(screen.queryByRole('list', { name: 'Work in progress' })).toBeNull();
  await userEvent.click(screen.getByRole('button', { name: 'Close' }));
  expect(screen.getByRole('list', { name: 'Work in progress' }).textContent).toContain('waits (Priority)');
  await userEvent.click(screen.getByRole('button', { name: 'Cancel' }));
  expect(transport.asked('cancel')).toEqual([{ job: 'J' }]);
  await act(async () =>
    transport.say({ type: 'job', job: job({ state: 'failed', error: 'Slurm job 12 was preempted' }) })
  );
  screen.getByText('Slurm job 12 was preempted');
});

test('a form that is done leads to the pool where its reservation is', async () => {
  const showPool = vi.fn();
  transport.replies.reserve = () => ({ job: job() });
  await show(NOTHING, { showPool });
  await userEvent.click(screen.getByRole('button', { name: 'Reserve…' }));
  await userEvent.click(await screen.findByRole('button', { name: 'Reserve' }));
  const done = job({ state: 'done', result: { reservation: 'R', pool: 'slurm-dev' } });
  await act(async () => transport.say({ type: 'job', job: done }));
  expect(showPool).toHaveBeenCalledWith('slurm-dev');
});

test('of several pools the one that is shown is chosen; of one there is nothing to choose', async () => {
  const showPool = vi.fn();
  await show(viewOf('local', [LOCAL]), { showPool });
  expect(screen.queryByRole('combobox', { name: 'Pool' })).toBeNull();
  await act(async () => transport.change({ pools: [LOCAL, SLURM] }));
  const chooser = screen.getByRole('combobox', { name: 'Pool' });
  expect([...chooser.children].map(each => each.textContent)).toEqual([
    'local (this machine)',
    'slurm-dev (Slurm job 12)'
  ]);
  await userEvent.selectOptions(chooser, 'slurm-dev');
  expect(showPool).toHaveBeenCalledWith('slurm-dev');
});

test('a price stands on the card where it is known', async () => {
  await show(viewOf('local', [LOCAL], { reservations: { R: reservation({ price_per_hour: 12.4 }) } }));
  screen.getByText(/· \$12\.40\/h/);
});

test('each pool has a store as long as the server knows it, and one that is wanted is shown when it is there', () => {
  const made = new Map<string | undefined, FakeTransport>();
  const pools = new Pools(name => {
    made.set(name, new FakeTransport());
    return new Store(made.get(name)!);
  });
  pools.start();
  const home = made.get(undefined)!;
  pools.show('slurm-dev');
  home.say({ type: 'view', view: viewOf('local', [LOCAL]) });
  expect(pools.shown).toBe(pools.home);
  home.change({ pools: [LOCAL, SLURM] });
  const there = pools.shown;
  expect(there).not.toBe(pools.home);
  const held = reservation({ id: 'S', name: 'slurm' });
  made
    .get('slurm-dev')!
    .say({ type: 'view', view: viewOf('slurm-dev', [SLURM, LOCAL], { reservations: { S: held } }) });
  expect(pools.storeOf('S')).toBe(there);
  expect(pools.held().map(each => each.reservation.id)).toEqual(['R', 'S']);
  pools.show('local');
  expect(pools.shown).toBe(pools.home);
  pools.showStore(there);
  home.change({ pools: [LOCAL] });
  expect(pools.shown).toBe(pools.home);
  expect(pools.all).toEqual([pools.home]);
});
