import { act, fireEvent, render, screen } from '@testing-library/react';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { CurvesViewer } from '../src/core/components/CurvesViewer';
import { LogViewer } from '../src/core/components/logs/LogViewer';
import { Host, SurroundingsProvider } from '../src/core/context';
import { Store } from '../src/core/store';
import { RequestError } from '../src/core/transport';
import { CurvesFound, Run } from '../src/core/types';
import { FakeTransport, mesh, rank, reservation, view } from './fake';

const drawn = vi.hoisted(() => ({ updates: [] as unknown[], destroyed: 0 }));
vi.mock('../src/core/curves', () => ({
  // jsdom has no canvas
  CurvesView: class {
    update(curves: unknown): void {
      drawn.updates.push(curves);
    }
    destroy(): void {
      drawn.destroyed += 1;
    }
  }
}));

const NAMES = ['step', 'loss', 'tps', ...Array.from({ length: 12 }, (_, place) => `more${place}`)];
const FOUND: CurvesFound = {
  run: 7,
  runs: [
    { number: 7, name: 'run 7, cell [4]', title: 'train()', is_over: false },
    { number: 5, name: 'run 5, cell [3]', title: 'train()', is_over: true }
  ],
  names: NAMES.map(name => ({ name, unit: '', lines: 1200, is_step: name === 'step' })),
  suggested: ['loss'],
  is_all: false
};
let transport: FakeTransport;
let store: Store;
let isHidden = false;

beforeEach(() => {
  vi.useFakeTimers();
  drawn.updates = [];
  isHidden = false;
  Object.defineProperty(document, 'hidden', { configurable: true, get: () => isHidden });
  transport = new FakeTransport();
  store = new Store(transport);
  store.start();
  transport.say({ type: 'view', view: view() });
  transport.replies.curves_found = () => FOUND;
  let version = 0;
  transport.replies.curves_read = () => ({
    version: `v${++version}`,
    again_s: 1,
    curves: { runs: [], charts: [], version }
  });
});
afterEach(() => vi.useRealTimers());

const settle = (): Promise<void> => act(async () => void (await vi.advanceTimersByTimeAsync(0)));
const wait = (ms: number): Promise<void> => act(async () => void (await vi.advanceTimersByTimeAsync(ms)));
const lastRead = (): any => transport.asked('curves_read').pop();

async function show(host: Host = {}): Promise<void> {
  render(
    <SurroundingsProvider value={{ store, host }}>
      <CurvesViewer target={{ reservation: 'R', mesh: 'M', ranks: null, run: null }} />
    </SurroundingsProvider>
  );
  await settle();
  await vi.dynamicImportSettled();
  await settle();
}

test('what is usual is drawn of the newest run, and what is chosen is drawn besides', async () => {
  await show();
  expect(transport.asked('curves_found')).toEqual([{ mesh: 'M', ranks: null, run: null }]);
  expect(lastRead()).toEqual({ mesh: 'M', ranks: null, runs: [7], names: ['loss'], x: '', since: '' });
  expect(drawn.updates).toHaveLength(1);
  const names = screen.getByRole('group', { name: 'What is drawn' });
  expect([...names.children].slice(0, 2).map(each => each.textContent)).toEqual(['loss', 'tps']);
  expect(screen.getByRole('button', { name: 'loss' }).getAttribute('aria-pressed')).toBe('true');

  fireEvent.click(screen.getByRole('button', { name: 'tps' }));
  fireEvent.change(screen.getByLabelText('Compare with'), { target: { value: '5' } });
  fireEvent.change(screen.getByLabelText('Against'), { target: { value: 'tps' } });
  await settle();
  expect(lastRead()).toMatchObject({ runs: [7, 5], names: ['loss', 'tps'], x: 'tps', since: '' });

  for (let place = 0; place < 10; place += 1) {
    fireEvent.click(screen.getByRole('button', { name: `more${place}` }));
  }
  const beyond = screen.getByRole('button', { name: 'more10' });
  expect([beyond.getAttribute('aria-disabled'), beyond.title]).toEqual([
    'true',
    'At most 12 are drawn at once'
  ]);
});

test('it is read on while somebody looks, until nothing more will come', async () => {
  await show();
  await wait(1000);
  expect(lastRead().since).toBe('v1');
  transport.replies.curves_read = () => ({ version: 'v2', again_s: 1 });
  await wait(1000);
  expect(drawn.updates).toHaveLength(2); // unchanged: not drawn again

  isHidden = true;
  document.dispatchEvent(new Event('visibilitychange'));
  const asked = transport.requests.length;
  await wait(60_000);
  expect(transport.requests).toHaveLength(asked);
  isHidden = false;
  document.dispatchEvent(new Event('visibilitychange'));
  await settle();
  expect(lastRead().since).toBe('v2');

  transport.replies.curves_found = () => ({ ...FOUND, is_all: true });
  transport.replies.curves_read = () => ({ version: 'v3', again_s: null });
  await wait(6000);
  const over = transport.requests.length;
  await wait(60_000);
  expect(transport.requests).toHaveLength(over);
});

test('a run that begins is shown; names that it has not are left out', async () => {
  await show();
  fireEvent.click(screen.getByRole('button', { name: 'tps' }));
  await settle();
  const silent = { number: 8, name: 'run 8', title: 'eval()', is_over: false };
  const still = { ...FOUND, runs: [silent, ...FOUND.runs], is_all: true };
  transport.replies.curves_found = () => still;
  const begun = { ...mesh([rank(0)]), runs: [{ id: 'run', number: 8 } as Run] };
  const reservations = { R: reservation({ meshes: [begun] }) };
  act(() => transport.say({ type: 'view', view: view({ reservations }) }));
  await settle();
  expect(screen.getAllByRole('option', { name: 'run 8 · eval()' })).toHaveLength(2);
  expect(lastRead()).toMatchObject({ runs: [7], names: ['loss', 'tps'] });

  const names = [{ name: 'tps', unit: '', lines: 2, is_step: false }];
  transport.replies.curves_found = () => ({ ...still, run: 8, names, suggested: ['tps'] });
  await wait(5000);
  expect(lastRead()).toMatchObject({ runs: [8], names: ['tps'] });
});

test('why there is nothing to see, and that it is tried again', async () => {
  transport.replies.curves_found = () => {
    throw new RequestError('nothing has run here yet: there are no numbers to draw', 404);
  };
  await show();
  expect(screen.getByRole('alert').textContent).toContain('nothing has run here yet');
  transport.replies.curves_found = () => ({ ...FOUND, names: [], suggested: [] });
  await wait(5000);
  expect(screen.queryByRole('alert')).toBeNull();
  expect(screen.getByRole('status').textContent).toContain('No line of this run has a number');
  transport.replies.curves_found = () => FOUND;
  transport.replies.curves_read = () => {
    throw new RequestError('no line of run 7 has it', 400);
  };
  await wait(5000);
  expect(screen.getByRole('alert').textContent).toContain('no line of run 7 has it');
});

test('the log of a run leads to its curves', async () => {
  const openCurves = vi.fn();
  transport.replies.log_open = () => ({
    ...{ total: 1, lines: 1, complete: true, missing: '', notebooks: [], log: 'L', fold: 'times', page: 256 },
    runs: [{ number: 7, title: 'train()', cell_number: 4, first_row: 0, notebook: '', notebook_path: '' }]
  });
  transport.replies.log_rows = () => ({
    ...{ total: 1, lines: 1, complete: true, missing: '', notebooks: [], first: 0, runs: [], settled: 1 },
    rows: [{ row: 0, run: 7, ranks: '0-3', stream: 'out', text: 'loss: 2' }]
  });
  transport.replies.log_close = () => ({});
  Object.defineProperty(HTMLElement.prototype, 'clientHeight', { configurable: true, value: 360 });
  render(
    <SurroundingsProvider value={{ store, host: { openCurves } }}>
      <LogViewer target={{ reservation: 'R', mesh: 'M', ranks: null, run: null }} />
    </SurroundingsProvider>
  );
  await wait(100);
  fireEvent.click(screen.getByRole('button', { name: 'Curves' }));
  expect(openCurves).toHaveBeenCalledWith({ reservation: 'R', mesh: 'M', ranks: null, run: 7 });
});
