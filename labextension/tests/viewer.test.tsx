import { act, fireEvent, render, screen, waitFor } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, expect, test, vi } from 'vitest';
import { LogViewer } from '../src/core/components/logs/LogViewer';
import { Host, SurroundingsProvider } from '../src/core/context';
import { Store } from '../src/core/store';
import { LogExtent } from '../src/core/types';
import { FakeTransport, view } from './fake';

const TOTAL = 1_000_000;
const EXTENT: LogExtent = { total: TOTAL, lines: TOTAL, complete: true, missing: '', notebooks: [] };
const RUN = { notebook: '/home/u/x.ipynb', notebook_path: 'x.ipynb' };
let transport: FakeTransport;
let store: Store;

beforeEach(() => {
  transport = new FakeTransport();
  store = new Store(transport);
  store.start();
  transport.say({ type: 'view', view: view() });
  Object.defineProperty(HTMLElement.prototype, 'clientHeight', { configurable: true, value: 360 });
  transport.replies.log_open = () => ({
    ...EXTENT,
    log: 'L',
    fold: 'times',
    page: 256,
    runs: [
      { ...RUN, number: 1, title: 'import torch', cell_number: 3, first_row: 0 },
      { ...RUN, number: 2, title: 'train()', cell_number: 4, first_row: 100 }
    ]
  });
  transport.replies.log_close = () => ({});
  transport.replies.log_rows = ({ first, count }) => ({
    ...EXTENT,
    first,
    runs: [],
    settled: TOTAL,
    rows: Array.from({ length: Math.min(count, TOTAL - first) }, (_, place) => ({
      row: first + place,
      run: first + place < 100 ? 1 : 2,
      ranks: '0-3',
      stream: 'out',
      text: `line ${first + place}`
    }))
  });
});

async function show(host: Host = {}): Promise<HTMLElement> {
  const { container } = render(
    <SurroundingsProvider value={{ store, host }}>
      <LogViewer target={{ reservation: 'R', mesh: 'M', ranks: null, run: null }} />
    </SurroundingsProvider>
  );
  await act(async () => undefined);
  await act(async () => undefined);
  return container;
}

const lines = (box: HTMLElement): string[] =>
  [...box.querySelectorAll('.mnb-line-text')].map(line => line.textContent ?? '');

test('a million lines are open at the newest one, with few of them in the page', async () => {
  const box = await show();
  expect(lines(box).pop()).toBe(`line ${TOTAL - 1}`);
  expect(lines(box).length).toBeLessThan(40);
  expect(screen.getByText('1,000,000 lines')).toBeTruthy();
});

test('while rows are on their way the former ones are shown, never a blank', async () => {
  const box = await show();
  const answer = transport.replies.log_rows;
  const waiting: (() => void)[] = [];
  transport.replies.log_rows = body => new Promise(resolve => waiting.push(() => resolve(answer(body))));
  const area = box.querySelector('.mnb-lines')!;
  for (const place of [1_000_000, 3_000_000, 500_000, 4_000_000]) {
    area.scrollTop = place;
    fireEvent.scroll(area);
    expect(lines(box).length).toBeGreaterThan(10);
  }
  while (waiting.length) {
    await act(async () => waiting.shift()!());
    expect(lines(box).length).toBeGreaterThan(10);
  }
  expect(lines(box)[0]).toMatch(/^line (499|500)\d{3}$/);
});

test('scrolling away ends following, the end begins it again', async () => {
  const box = await show();
  const follow = screen.getByRole('button', { name: 'Follow' });
  expect(follow.getAttribute('aria-pressed')).toBe('true');
  const area = box.querySelector('.mnb-lines')!;
  await act(async () => fireEvent.keyDown(area, { key: 'PageUp' }));
  expect(follow.getAttribute('aria-pressed')).toBe('false');
  await act(async () => fireEvent.keyDown(area, { key: 'End' }));
  expect(follow.getAttribute('aria-pressed')).toBe('true');
});

test('one turn of the wheel is a few lines, also where the scroll bar is coarse', async () => {
  const box = await show();
  const area = box.querySelector('.mnb-lines')!;
  await act(async () => fireEvent.keyDown(area, { key: 'Home' }));
  await act(async () => fireEvent.wheel(area, { deltaY: 90 }));
  expect(lines(box)[0]).toBe('line 5');
});

test('what is found is shown and marked', async () => {
  transport.replies.log_find = () => ({ row: 777 });
  const box = await show();
  await userEvent.type(screen.getByRole('searchbox', { name: 'Find in the log' }), 'line 777{Enter}');
  await act(async () => undefined);
  expect(box.querySelector('.mnb-line-hit')?.textContent).toContain('line 777');
  expect(box.querySelector('.mnb-line-hit mark')?.textContent).toBe('line 777');
});

test('filter, stream and ranks open the log anew', async () => {
  await show();
  await userEvent.selectOptions(screen.getByRole('combobox', { name: 'Streams' }), 'stderr');
  await userEvent.type(screen.getByRole('searchbox'), 'loss');
  await userEvent.click(screen.getByRole('button', { name: 'Only matching lines' }));
  await userEvent.type(screen.getByRole('textbox', { name: 'Ranks' }), '1-2{Enter}');
  expect(transport.asked('log_open').pop()).toEqual({
    mesh: 'M',
    ranks: '1-2',
    run: null,
    streams: 'stderr',
    search: 'loss',
    regex: false,
    fold: null
  });
});

test('a filter follows what is typed', async () => {
  await show();
  await userEvent.type(screen.getByRole('searchbox'), 'loss');
  await userEvent.click(screen.getByRole('button', { name: 'Only matching lines' }));
  await userEvent.type(screen.getByRole('searchbox'), '=.');
  await userEvent.click(screen.getByRole('button', { name: 'Regular expression' }));
  const filters = (): unknown[] => transport.asked('log_open').map(({ search, regex }) => [search, regex]);
  await waitFor(() => expect(filters().pop()).toEqual(['loss=.', true]));
  expect(filters()).toEqual([
    ['', false],
    ['loss', false],
    ['loss=.', true]
  ]);
});

test('a filter that matches nothing does not say that nothing was printed', async () => {
  const answer = transport.replies.log_open;
  transport.replies.log_open = body => ({ ...(answer(body) as object), total: body.search ? 0 : TOTAL });
  await show();
  await userEvent.type(screen.getByRole('searchbox'), 'nowhere');
  transport.replies.log_rows = () => ({ ...EXTENT, first: 0, total: 0, runs: [], rows: [], settled: 0 });
  await userEvent.click(screen.getByRole('button', { name: 'Only matching lines' }));
  expect(await screen.findByText('No line matches')).toBeTruthy();
  expect(screen.queryByText(/Nothing has been printed/)).toBeNull();
});

test('ranks that are none are said at the field, and nothing is asked for', async () => {
  await show();
  const field = screen.getByRole('textbox', { name: 'Ranks' });
  await userEvent.type(field, '9{Enter}');
  expect(field.getAttribute('aria-invalid')).toBe('true');
  expect(field.getAttribute('title')).toBe('There is no rank 9');
  expect(transport.asked('log_open')).toHaveLength(1);
});

test('a run leads to its cell', async () => {
  const revealCell = vi.fn(async () => 'No cell has the number [4] any more.');
  await show({ revealCell });
  await userEvent.click(screen.getByRole('button', { name: 'Show cell' }));
  expect(revealCell).toHaveBeenCalledWith(
    expect.objectContaining({ cell_number: 4, title: 'train()', notebook_path: 'x.ipynb' })
  );
  expect(await screen.findByText(/any more/)).toBeTruthy();
});

test('each run begins with its name and says how it failed; a click on a line leads to its run', async () => {
  const open = transport.replies.log_open;
  const notebooks = ['/home/u/x.ipynb', '/home/u/y.ipynb'];
  const few = { ...EXTENT, total: 5, lines: 2, notebooks };
  transport.replies.log_open = body => ({ ...(open(body) as object), ...few });
  const rows = [
    { row: 0, run: 1, ranks: '', kind: 'run', text: '' },
    { row: 1, run: 1, ranks: '0-3', stream: 'out', text: 'a line' },
    { row: 2, run: 1, ranks: '1', kind: 'end', text: 'failed: ValueError: bad' },
    { row: 3, run: 2, ranks: '', kind: 'run', text: '' },
    { row: 4, run: 2, ranks: '0-3', stream: 'out', text: 'another' }
  ];
  transport.replies.log_rows = () => ({ ...few, first: 0, rows, runs: [], settled: 5 });
  const box = await show();
  expect([...box.querySelectorAll('.mnb-line')].map(line => line.textContent)).toEqual([
    'run 1, cell [3] of x.ipynb (import torch)',
    '0-3a line',
    '1failed: ValueError: bad',
    'run 2, cell [4] of x.ipynb (train())',
    '0-3another'
  ]);
  expect(screen.getByText('2 lines')).toBeTruthy();
  const menu = screen.getByRole('combobox', { name: 'Jump to run' }) as HTMLSelectElement;
  expect(menu.value).toBe('2'); // it follows: the end is read
  await userEvent.click(screen.getByText('a line'));
  expect(menu.value).toBe('1');
  const more = { ...few, total: 6, lines: 3 };
  rows.push({ row: 5, run: 2, ranks: '0-3', stream: 'out', text: 'one more' });
  transport.replies.log_rows = () => ({ ...more, first: 0, rows, runs: [], settled: 6 });
  await act(async () => transport.say({ ...more, type: 'log', log: 'L' }));
  expect(menu.value).toBe('2');
});

test('lines of a node that is away are said to be missing, and come when it is back', async () => {
  const missing = 'ranks 2-3: node1 does not answer';
  const answer = transport.replies.log_rows;
  const open = transport.replies.log_open;
  transport.replies.log_open = body => ({ ...(open(body) as object), total: 1, missing });
  const one = { row: 0, run: 1, ranks: '2', stream: 'out', text: '', away: true };
  transport.replies.log_rows = () => ({
    ...EXTENT,
    first: 0,
    total: 1,
    rows: [one],
    runs: [],
    settled: 0,
    missing
  });
  const box = await show();
  expect(screen.getByRole('alert').textContent).toContain(`Lines are missing of ${missing}`);
  expect(lines(box)).toEqual(['(not here: the node does not answer)']);
  transport.replies.log_rows = body => ({
    ...(answer({ ...body, count: 1 }) as object),
    total: 1,
    missing: ''
  });
  await act(async () => transport.say({ ...EXTENT, type: 'log', log: 'L', total: 1 }));
  expect(screen.queryByRole('alert')).toBeNull();
  expect(lines(box)).toEqual(['line 0']);
});

const STEPS = [
  { row: 0, run: 1, ranks: '', kind: 'run', text: '' },
  { row: 1, run: 1, line: 0, ranks: '0-3', stream: 'out', text: 'begin' },
  { row: 2, run: 1, line: 1, ranks: '0-3', stream: 'out', text: 'step 1 loss: 7.80–7.83', folded: true },
  {
    row: 3,
    run: 1,
    line: 2,
    ranks: '0-3',
    stream: 'out',
    text: 'step 2 loss: 7.70–7.73',
    folded: true,
    apart: [{ ranks: '2', text: 'loss: nan' }]
  },
  { row: 4, run: 1, line: 3, ranks: '0-3', stream: 'out', text: 'end' }
];

/** A log of few rows, some of which stand for lines that differ. */
async function showSteps(rows: unknown[] = STEPS): Promise<HTMLElement> {
  const few = { ...EXTENT, total: rows.length, lines: 4 };
  const open = transport.replies.log_open;
  transport.replies.log_open = body => ({ ...(open(body) as object), ...few });
  transport.replies.log_rows = () => ({ ...few, first: 0, rows, runs: [], settled: 0 });
  transport.replies.log_row = ({ row }) => ({
    row,
    run: 1,
    line: row - 1,
    lines: [0, 1, 2, 3].map(rank => ({
      row,
      run: 1,
      ranks: `${rank}`,
      text: `step ${row - 1} loss: 7.${rank}`
    }))
  });
  return show();
}

test('how lines fold is chosen; at first it is what the server thinks fit', async () => {
  await show();
  const choice = screen.getByRole('combobox', { name: 'Fold' }) as HTMLSelectElement;
  expect(choice.value).toBe('times');
  await userEvent.selectOptions(choice, 'fold numbers');
  expect(transport.asked('log_open').map(({ fold }) => fold)).toEqual([null, 'numbers']);
});

test('a click opens a row and shows the own line of each rank, another one closes it', async () => {
  const box = await showSteps();
  const row = screen.getByText('step 1 loss: 7.80–7.83').closest('.mnb-line') as HTMLElement;
  expect(row.getAttribute('role')).toBe('button');
  await userEvent.click(row);
  const own = [0, 1, 2, 3].map(rank => `step 1 loss: 7.${rank}`);
  expect(lines(box)).toEqual(['begin', STEPS[2]!.text, ...own, STEPS[3]!.text, 'end']);
  expect(row.getAttribute('aria-expanded')).toBe('true');
  expect([...box.querySelectorAll('.mnb-line-own')].map(line => line.textContent)).toContain(
    '2step 1 loss: 7.2'
  );
  await userEvent.click(row);
  expect(lines(box)).toEqual(STEPS.slice(1).map(({ text }) => text));
});

test('Enter opens a row as well, and a row of equal lines is no button', async () => {
  const box = await showSteps();
  const rows = screen.getAllByRole('button', { name: /step/ });
  expect(rows).toHaveLength(2);
  rows[1]!.focus();
  await userEvent.keyboard('{Enter}');
  expect(box.querySelectorAll('.mnb-line-own')).toHaveLength(4);
  await userEvent.keyboard(' ');
  expect(box.querySelectorAll('.mnb-line-own')).toHaveLength(0);
});

test('a rank that is apart is marked in its row', async () => {
  const box = await showSteps();
  expect([...box.querySelectorAll('.mnb-line-apart')].map(each => each.textContent)).toEqual([
    '[2]! loss: nan'
  ]);
  expect(box.querySelector('.mnb-line-marked .mnb-line-stream')?.textContent).toBe('!');
});

test('an open row that has changed is read again, and one that is another by now is closed', async () => {
  const rows: Record<string, unknown>[] = STEPS.map(row => ({ ...row }));
  const box = await showSteps(rows);
  await userEvent.click(screen.getByText('step 1 loss: 7.80–7.83'));
  rows[2] = { ...rows[2], text: 'step 1 loss: 7.80–7.99', ranks: '0-3' };
  await act(async () => transport.say({ ...EXTENT, type: 'log', log: 'L', total: 5 }));
  expect(transport.asked('log_row')).toHaveLength(2);
  expect(box.querySelectorAll('.mnb-line-own')).toHaveLength(4);
  rows[2] = { ...rows[2], line: 7, text: 'another' };
  await act(async () => transport.say({ ...EXTENT, type: 'log', log: 'L', total: 5 }));
  expect(box.querySelectorAll('.mnb-line-own')).toHaveLength(0);
});

test('far away rows are reached also where rows are open', async () => {
  const answer = transport.replies.log_rows;
  transport.replies.log_rows = body => {
    const told = answer(body) as { rows: Record<string, unknown>[] };
    return { ...told, rows: told.rows.map(row => ({ ...row, line: row.row, folded: true })) };
  };
  transport.replies.log_row = ({ row }) => ({
    row,
    run: 1,
    line: row,
    lines: Array.from({ length: 100 }, (_, rank) => ({ row, run: 1, ranks: `${rank}`, text: `own ${rank}` }))
  });
  const box = await show();
  const area = box.querySelector('.mnb-lines')!;
  await act(async () => fireEvent.keyDown(area, { key: 'Home' }));
  await userEvent.click(screen.getByText('line 3'));
  expect(lines(box).slice(0, 6)).toEqual(['line 0', 'line 1', 'line 2', 'line 3', 'own 0', 'own 1']);
  for (let page = 0; page < 3; page += 1) {
    await act(async () => fireEvent.keyDown(area, { key: 'PageDown' }));
  }
  expect(lines(box)[0]).toBe('own 53'); // three pages of 19 places, of which 4 are rows
  await act(async () => fireEvent.keyDown(area, { key: 'End' }));
  expect(lines(box).pop()).toBe('line 999999');
});
