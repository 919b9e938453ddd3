import { expect, test } from 'vitest';
import { Layout, Opened } from '../src/core/openings';
import { LogRow } from '../src/core/types';

const rowOf = (row: number): LogRow => ({ row, run: 1, ranks: '0-3', text: `row ${row}` });
const opened = (row: number, count: number): Opened => ({
  row,
  run: 1,
  line: row,
  lines: Array.from({ length: count }, (_, rank) => ({
    ...rowOf(row),
    ranks: `${rank}`,
    text: `own ${rank}`
  }))
});

test.each([[[]], [[opened(2, 3)]], [[opened(0, 1), opened(2, 4), opened(9, 2)]], [[opened(3, 0)]]])(
  'windows of any place have what is there (%#)',
  all => {
    const rows = Array.from({ length: 10 }, (_, row) => rowOf(row));
    const layout = new Layout(10, all);
    const everything = rows.flatMap(row => [
      row.text,
      ...(all.find(each => each.row === row.row)?.lines ?? []).map(own => own.text)
    ]);
    expect(layout.total).toBe(everything.length);
    for (let first = 0; first < everything.length; first += 1) {
      for (const count of [1, 3, 20]) {
        const begin = layout.rowAt(first);
        const end = Math.min(10, layout.rowAt(first + count) + 1);
        const items = layout.items(first, count, rows.slice(begin, end));
        expect(items.map(({ row, own }) => (own ?? row).text)).toEqual(
          everything.slice(first, first + count)
        );
      }
    }
    rows.forEach(({ row }) => expect(everything[layout.placeOf(row)]).toBe(`row ${row}`));
  }
);
