import { expect, test } from 'vitest';
import { parseAnsi, plain } from '../src/core/ansi';
import { bytes, duration, parseRanks, rankSet, shape, summary, timeLeft } from '../src/core/format';
import { finalText, pattern } from '../src/core/logs';
import { attaches, beginsWith, cellOf, onMesh, withoutLoad } from '../src/lab/lines';
import { mesh, rank, reservation } from './fake';

test('durations say their two largest units', () => {
  expect([0, 59, 61, 600, 3600, 12_000, 90_000, 86_400 * 3].map(duration)).toEqual([
    '0 s',
    '59 s',
    '1 min 1 s',
    '10 min',
    '1 h',
    '3 h 20 min',
    '1 d 1 h',
    '3 d'
  ]);
  expect(duration(-3)).toBe('0 s');
});

test('what is left changes by minutes until the last ten, then by seconds', () => {
  expect(timeLeft(3599)).toBe('1 h');
  expect(timeLeft(601)).toBe('11 min');
  expect(timeLeft(599)).toBe('9 min 59 s');
});

test('sizes have three digits at most', () => {
  expect([0, 999, 18e6, 1.44e9, 141e9, 2e12, 999.6e6].map(bytes)).toEqual([
    '0 B',
    '999 B',
    '18 MB',
    '1.4 GB',
    '141 GB',
    '2 TB',
    '1 GB'
  ]);
});

test('rank sets are written and read', () => {
  expect(rankSet([5, 0, 1, 2, 2])).toBe('0-2,5');
  expect(rankSet([])).toBe('');
  expect(parseRanks('0-2, 5')).toEqual([0, 1, 2, 5]);
  for (const bad of ['', '1-', '3-1', 'x', '1;2', '0-9999999']) {
    expect(parseRanks(bad)).toBeNull();
  }
});

test('a reservation in one line', () => {
  const ranks = [
    rank(0, { state: 'running' }),
    rank(1, { state: 'waiting' }),
    rank(2, { state: 'dead' }),
    rank(3)
  ];
  expect(summary(reservation({ meshes: [mesh(ranks)] }), 10_800)).toBe(
    'dev · 4 ranks · 1 dead · 1 waiting · 1 running · 3 h left'
  );
  const over = [rank(0, { state: 'failed' }), rank(1, { state: 'failed' }), rank(2)];
  expect(summary(reservation({ meshes: [mesh(over)] }), null)).toBe(
    'dev · 3 ranks · 2 idle, last cell failed'
  );
  const going = [...over, rank(3, { state: 'waiting' })];
  expect(summary(reservation({ meshes: [mesh(going)] }), null)).toBe('dev · 4 ranks · 2 failed · 1 waiting');
  expect(summary(reservation(), null)).toBe('dev · 4 ranks');
  expect(summary(reservation(), null, false)).toBe('dev · 4 ranks · not attached');
  expect(summary(reservation(), -1)).toBe('dev · 4 ranks · time is up');
  expect(summary(reservation({ mine: false, owner: 'anna' }), null)).toBe('anna/dev · 4 ranks');
  expect(shape(reservation({ nodes: 1, gpus: 1 }))).toBe('1 node × 1 GPU');
});

test('colours become classes, everything else that escapes goes', () => {
  expect(parseAnsi('a \x1b[1;32mok\x1b[0m b')).toEqual([
    { text: 'a ', className: '' },
    { text: 'ok', className: 'mnb-ansi-bold mnb-ansi-green' },
    { text: ' b', className: '' }
  ]);
  expect(parseAnsi('\x1b[38;5;9mred\x1b[39m \x1b[38;2;0;0;255mblue')).toEqual([
    { text: 'red', className: 'mnb-ansi-red' },
    { text: ' ', className: '' },
    { text: 'blue', className: 'mnb-ansi-blue' }
  ]);
  expect(plain('\x1b]0;title\x07x\x1b[2K\x1b[1Ay\x08')).toBe('xy');
  expect(parseAnsi('')).toEqual([]);
});

test('a progress bar shows its last state', () => {
  expect(finalText(' 10%\r 50%\r100%\r')).toBe('100%');
  expect(finalText('plain')).toBe('plain');
});

test('what is searched is text unless it is said to be an expression', () => {
  expect(pattern('a.b', false)!.test('axb')).toBe(false);
  expect(pattern('a.b', true)!.test('AXB')).toBe(true);
  expect(pattern('(', true)).toBeNull();
  expect(pattern('', true)).toBeNull();
});

test('a cell that attaches is known by its line, or because it reserves that name', () => {
  const line = '%mesh attach dev';
  expect(attaches('%load_ext monarch_nb\n%mesh attach dev', line, 'dev')).toBe(true);
  expect(attaches('%mesh  reserve dev --nodes 2', line, 'dev')).toBe(true);
  expect(attaches('%mesh attach dev2', line, 'dev')).toBe(false);
  expect(attaches('# %mesh attach dev', line, 'dev')).toBe(false);
  expect(attaches('%mesh reserve other', line, 'dev')).toBe(false);
  expect(attaches('%mesh reserve dev', '%mesh attach anna/dev', null)).toBe(false);
});

test('a cell gets %%mesh once', () => {
  expect(onMesh('x = 1')).toBe('%%mesh\nx = 1');
  expect(onMesh('%%mesh -t 0\nx = 1')).toBe('%%mesh -t 0\nx = 1');
  expect(onMesh('%%meshy\nx')).toBe('%%mesh\n%%meshy\nx');
});

test.each(['%mesh attach dev', '%load_ext monarch_nb', '%reload_ext monarch_nb', '%%mesh -t 0'])(
  'a cell with the line %s is the kernel’s as it is',
  line => {
    expect(onMesh(`# first\n  ${line}\nx = 1`)).toBe(`# first\n  ${line}\nx = 1`);
    expect(onMesh(`x = 1  # ${line}`)).toBe(`%%mesh\nx = 1  # ${line}`);
  }
);

test('a running cell is known by its first line', () => {
  expect(beginsWith('\n%%mesh -t 0\ntrain(model)\n', 'train(model)')).toBe(true);
  expect(beginsWith('train(model, 10)', 'train(mod…')).toBe(true);
  expect(beginsWith('%%mesh\n# first\nx = 1', 'x = 1')).toBe(true);
  expect(beginsWith('x = 1', 'train()')).toBe(false);
  expect(beginsWith('x = 1', '')).toBe(false);
});

test('the cell of a run has its number and begins as it does', () => {
  const cells = [null, { number: 3, source: '%%mesh\nprint(1)' }, { number: 5, source: 'x = 1' }];
  expect(cellOf({ cell_number: 3, title: 'print(1)' }, cells)).toBe(1);
  expect(cellOf({ cell_number: 5, title: 'print(1)' }, cells)).toBe(null);
  expect(cellOf({ cell_number: 3, title: '' }, cells)).toBe(null);
  const running = { number: null, source: 'train()' };
  expect(cellOf({ cell_number: 7, title: 'train()' }, [...cells, running])).toBe(3);
  expect(cellOf({ cell_number: 7, title: 'train()' }, [running, ...cells, running])).toBe(null);
});

test('code without what loads the extension', () => {
  expect(withoutLoad('%load_ext monarch_nb\n%mesh attach dev')).toBe('%mesh attach dev');
  expect(withoutLoad('%load_ext other\nx = 1')).toBe('%load_ext other\nx = 1');
});
