import { beforeEach, expect, test } from 'vitest';
import { Geometry, LogSource, runName } from '../src/core/logs';
import { Store } from '../src/core/store';
import { RequestError } from '../src/core/transport';
import { LogExtent } from '../src/core/types';
import { FakeTransport, reservation, view } from './fake';

const QUERY = {
  mesh: 'M',
  ranks: null,
  streams: 'both',
  run: null,
  search: '',
  regex: false,
  fold: null
} as const;

let transport: FakeTransport;
let store: Store;
let source: LogSource;
let total: number;
let opened: number;

beforeEach(() => {
  transport = new FakeTransport();
  store = new Store(transport);
  store.start();
  source = new LogSource(store, () => undefined);
  total = 1_000_000;
  opened = 0;
  transport.replies.log_open = () => ({
    ...extent(),
    log: `L${++opened}`,
    fold: 'times',
    page: 256,
    runs: []
  });
  transport.replies.log_close = () => ({});
  transport.replies.log_rows = ({ first, count }) => ({
    ...extent(),
    first,
    runs: [],
    settled: 0,
    rows: Array.from({ length: Math.max(0, Math.min(count, total - first)) }, (_, place) => ({
      row: first + place,
      run: 1,
      ranks: '0-3',
      stream: 'out',
      text: `line ${first + place}`
    }))
  });
});

const extent = (): LogExtent => ({ total, lines: total, complete: true, missing: '', notebooks: [] });

/** Let everything that was asked for come. */
async function settle(): Promise<void> {
  for (let turn = 0; turn < 50; turn += 1) {
    await Promise.resolve();
  }
}

test('rows come when they are wanted, and then at once', async () => {
  await source.open(QUERY);
  expect(source.rows(500_000, 40)).toBeNull();
  await settle();
  const rows = source.rows(500_000, 40)!;
  expect(rows.map(row => row.row)).toEqual(Array.from({ length: 40 }, (_, place) => 500_000 + place));
});

test('of a scroll through a million lines only what is wanted in the end is asked for', async () => {
  const waiting: (() => void)[] = [];
  const answer = transport.replies.log_rows;
  transport.replies.log_rows = body => new Promise(resolve => waiting.push(() => resolve(answer(body))));
  await source.open(QUERY);
  for (let first = 0; first < 900_000; first += 3000) {
    source.rows(first, 40);
  }
  expect(waiting.length).toBeLessThanOrEqual(2);
  while (waiting.length) {
    waiting.shift()!();
    await settle();
  }
  expect(transport.asked('log_rows').length).toBeLessThan(8);
  expect(source.rows(897_000, 40)).toHaveLength(40);
});

test('the last page is asked for again when the log has grown', async () => {
  total = 10;
  await source.open(QUERY);
  source.rows(0, 40);
  await settle();
  expect(source.rows(0, 40)).toHaveLength(10);
  total = 30;
  transport.say({ ...extent(), type: 'log', log: 'L1' });
  await settle();
  expect(source.rows(0, 40)).toHaveLength(30);
});

test('what grew before anybody listened is there', async () => {
  const answer = transport.replies.log_rows;
  transport.replies.log_rows = body => ({ ...(answer(body) as object), complete: true });
  transport.replies.log_open = () => {
    total = 30;
    transport.say({ ...extent(), type: 'log', log: 'L1' }); // its event overtakes the answer
    return { ...extent(), log: 'L1', fold: 'times', page: 256, total: 0, complete: false, runs: [] };
  };
  await source.open(QUERY);
  await settle();
  expect([source.total, source.complete]).toEqual([30, true]);
  expect(source.rows(0, 40)).toHaveLength(30);
});

test('rows that changed while they were asked for are asked for again', async () => {
  total = 1;
  const answer = transport.replies.log_rows;
  let ranks = '0-1';
  await source.open(QUERY);
  await settle();
  transport.replies.log_rows = body => {
    const said = answer(body) as { rows: { ranks: string }[] };
    said.rows.forEach(row => (row.ranks = ranks));
    if (ranks === '0-1') {
      ranks = '0-3';
      transport.say({ ...extent(), type: 'log', log: 'L1' }); // it overtakes the answer
    }
    return said;
  };
  transport.say({ ...extent(), type: 'log', log: 'L1' });
  source.rows(0, 40);
  await settle();
  expect(source.rows(0, 40)![0].ranks).toBe('0-3');
});

test('a log that the server has forgotten is opened again', async () => {
  const answer = transport.replies.log_rows;
  transport.replies.log_rows = body => {
    if (body.log === 'L1') {
      throw new RequestError('no such log', 404);
    }
    return answer(body);
  };
  await source.open(QUERY);
  source.rows(0, 40);
  await settle();
  source.rows(0, 40);
  await settle();
  expect(opened).toBe(2);
  expect(source.rows(0, 40)).toHaveLength(40);
});

test('after a gap the log goes on, also when the server has forgotten it', async () => {
  total = 10;
  await source.open(QUERY);
  transport.connection('lost');
  total = 12;
  transport.connection('live');
  await settle();
  expect([source.total, opened]).toEqual([12, 1]);
  transport.connection('lost');
  transport.replies.log_rows = () => {
    throw new RequestError('no such log', 404);
  };
  total = 14;
  transport.connection('live');
  await settle();
  expect([source.total, opened]).toEqual([14, 2]);
  source.close();
  transport.connection('lost');
  transport.connection('live');
  await settle();
  expect(opened).toBe(2);
});

test('a mesh that is gone is said', async () => {
  transport.replies.log_open = () => {
    throw new RequestError('dev has been released', 404);
  };
  await source.open(QUERY);
  expect(source.error).toBe('dev has been released');
});

test('a search goes around the end', async () => {
  await source.open(QUERY);
  transport.replies.log_find = ({ from }) => ({ row: from === 0 ? 7 : null });
  expect(await source.find('x', false, 500, false)).toBe(7);
  expect(transport.asked('log_find').map(body => body.from)).toEqual([500, 0]);
});

test('the scroll bar reaches every line of any log', () => {
  for (const lines of [0, 10, 1000, 444_444, 1_000_000, 50_000_000]) {
    const geometry = new Geometry(lines, 600, 18);
    expect(geometry.height).toBeLessThanOrEqual(8_000_000);
    expect(geometry.toTop(0)).toBe(0);
    expect(geometry.toTop(geometry.height - 600)).toBeCloseTo(geometry.lastTop);
    const top = geometry.lastTop / 3;
    expect(geometry.toTop(geometry.toScroll(top))).toBeCloseTo(top, 3);
  }
  expect(new Geometry(1000, 600, 18).isExact).toBe(true);
  expect(new Geometry(1_000_000, 600, 18).isExact).toBe(false);
});

const RUN = {
  number: 1,
  title: 'train()',
  cell_number: 4,
  notebook: '/home/u/a.ipynb',
  notebook_path: 'a.ipynb',
  first_row: 0
};

test('runs that print later are learnt from their rows, and where they begin by now', async () => {
  const answer = transport.replies.log_rows;
  let first_row = 0;
  transport.replies.log_rows = body => ({ ...(answer(body) as object), runs: [{ ...RUN, first_row }] });
  await source.open(QUERY);
  source.rows(0, 40);
  await settle();
  expect(source.runs).toEqual([RUN]);
  first_row = 7; // a run before it has gone on
  transport.say({ ...extent(), type: 'log', log: 'L1' });
  await settle();
  expect(source.runs).toEqual([{ ...RUN, first_row: 7 }]);
});

test('only rows that may have changed are asked for again when the log has grown', async () => {
  const answer = transport.replies.log_rows;
  transport.replies.log_rows = body => ({ ...(answer(body) as object), settled: 1000 });
  await source.open(QUERY);
  source.rows(300, 40);
  await settle();
  const asked = transport.asked('log_rows').length;
  transport.say({ ...extent(), type: 'log', log: 'L1' });
  await settle();
  expect(transport.asked('log_rows')).toHaveLength(asked);
  source.rows(2000, 40);
  await settle();
  transport.say({ ...extent(), type: 'log', log: 'L1' });
  await settle();
  expect(transport.asked('log_rows').length).toBeGreaterThan(asked + 2);
});

test('a run has its notebook in its name where runs come from several', () => {
  expect(runName(RUN, ['/home/u/a.ipynb'])).toBe('run 1, cell [4] (train())');
  expect(runName(RUN, ['/home/u/a.ipynb', '/home/u/b.ipynb'])).toBe('run 1, cell [4] of a.ipynb (train())');
  expect(runName(RUN, ['/home/u/a.ipynb', '/home/u/old/a.ipynb'])).toBe(
    'run 1, cell [4] of /home/u/a.ipynb (train())'
  );
  expect(runName({ ...RUN, cell_number: 0, notebook: '', title: 'x'.repeat(50) }, [])).toBe(
    `run 1 (${'x'.repeat(47)}…)`
  );
});

test('a log is opened again when its reservation has other nodes, and only then', async () => {
  transport.say({ type: 'view', view: view() });
  await source.open(QUERY);
  transport.say({ type: 'view', view: view({ reservations: { R: reservation({ nearly_up: true }) } }) });
  await settle();
  expect(opened).toBe(1);
  const grown = reservation({ nodes: 3, node_ids: ['node0', 'node1', 'node2'] });
  transport.change({ reservations: { R: grown } });
  await settle();
  expect(opened).toBe(2);
  transport.change({ reservations: {} });
  await settle();
  expect([opened, source.isOpen]).toEqual([2, true]);
});
