/** Whether code attaches to a reservation: by the very line, or because it reserves that name; null: somebody else's. */
export function attaches(source: string, line: string, name: string | null): boolean {
  return source.split('\n').some(each => {
    const words = each.trim().split(/\s+/);
    return (
      each.trim() === line ||
      (name !== null && words[0] === '%mesh' && words[1] === 'reserve' && words[2] === name)
    );
  });
}

/** Code with `%%mesh` before it, unless it begins so or has lines that only the kernel understands. */
export function onMesh(source: string): string {
  return /^\s*(%%?mesh|%(load|reload)_ext)\b/m.test(source) ? source : `%%mesh\n${source}`;
}

/** Whether a cell's code begins with a run's title: its first line that is no comment, perhaps cut short. */
export function beginsWith(source: string, title: string): boolean {
  const lines = source.split('\n').filter(line => line.trim() && !/^\s*(#|%%mesh\b)/.test(line));
  const words = title.replace(/(…|\.\.\.)$/, '').trim();
  return words !== '' && (lines[0] ?? '').trim().startsWith(words);
}

/** Code without the lines that load the extension. */
export function withoutLoad(source: string): string {
  return source
    .split('\n')
    .filter(line => !/^\s*%load_ext\s+monarch_nb\s*$/.test(line))
    .join('\n');
}

interface Cell {
  /** Null while it runs. */
  number: number | null;
  source: string;
}

/** The place of the cell that a run came from: its number and how its code begins are as the run's; else null. */
export function cellOf(run: { cell_number: number; title: string }, cells: (Cell | null)[]): number | null {
  const fits = (cell: Cell | null, number: number | null): boolean =>
    cell !== null && cell.number === number && beginsWith(cell.source, run.title);
  let place = cells.findIndex(cell => fits(cell, run.cell_number));
  if (place < 0) {
    const running = cells.flatMap((cell, index) => (fits(cell, null) ? [index] : [])); // its number comes when it ends
    place = running.length === 1 ? running[0] : -1;
  }
  return place < 0 ? null : place;
}
