/** Whether code attaches to a reservation: by the very line, or because it reserves that name. */
export function attaches(source: string, line: string, name: string): boolean {
  return source.split('\n').some(each => {
    const words = each.trim().split(/\s+/);
    return each.trim() === line || (words[0] === '%mesh' && words[1] === 'reserve' && words[2] === name);
  });
}

/** Code with `%%mesh` before it, unless it begins so. */
export function onMesh(source: string): string {
  return /^\s*%%mesh\b/.test(source) ? source : `%%mesh\n${source}`;
}
