/** Whether code attaches to a reservation: by the very line, or because it reserves that name. */
export function attaches(source: string, line: string, name: string): boolean {
  return source.split('\n').some(each => {
    const words = each.trim().split(/\s+/);
    return each.trim() === line || (words[0] === '%mesh' && words[1] === 'reserve' && words[2] === name);
  });
}

/** Code with `%%mesh` before it, unless it begins so or has lines that only the kernel understands. */
export function onMesh(source: string): string {
  return /^\s*(%%?mesh|%(load|reload)_ext)\b/m.test(source) ? source : `%%mesh\n${source}`;
}

/** Whether a cell's code begins with a run's title: its first line, perhaps cut short. */
export function beginsWith(source: string, title: string): boolean {
  const lines = source.split('\n').filter(line => line.trim() && !/^\s*%%mesh\b/.test(line));
  const words = title.replace(/(…|\.\.\.)$/, '').trim();
  return words !== '' && (lines[0] ?? '').trim().startsWith(words);
}
