import { LogRow } from './types';

/** A row that shows each rank's own line; none yet while they are on their way. */
export interface Opened {
  row: number;
  run: number;
  line: number | undefined;
  lines: LogRow[];
}

export interface Item {
  row: LogRow;
  /** A rank's own line, which is shown below the row; absent: the row itself. */
  own?: LogRow;
}

/** Where rows are, and the lines that are shown below some of them: each takes one place. */
export class Layout {
  /** @param _opened in the order of their rows. */
  constructor(
    private readonly _rows: number,
    private readonly _opened: readonly Opened[]
  ) {}

  get total(): number {
    return this._rows + this._opened.reduce((sum, { lines }) => sum + lines.length, 0);
  }

  placeOf(row: number): number {
    return this._opened.reduce((place, each) => place + (each.row < row ? each.lines.length : 0), row);
  }

  /** The row at a place, or the one below which a line is shown there. */
  rowAt(place: number): number {
    let above = 0;
    for (const { row, lines } of this._opened) {
      if (place <= row + above) {
        break;
      }
      if (place <= row + above + lines.length) {
        return row;
      }
      above += lines.length;
    }
    return place - above;
  }

  /** What is at `first` and after it: of these rows, and of the lines below them. */
  items(first: number, count: number, rows: readonly LogRow[]): Item[] {
    return rows.flatMap(row => {
      const place = this.placeOf(row.row);
      const lines = this._opened.find(each => each.row === row.row)?.lines ?? [];
      const items: Item[] = [{ row }, ...lines.map(own => ({ row, own }))];
      return items.slice(Math.max(0, first - place), Math.max(0, first + count - place));
    });
  }
}
