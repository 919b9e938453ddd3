import { explain, finalText, parseAnsi } from '../core';

/** What a row in a cell's output asks for: the lines that it stands for. */
export interface RowRequest {
  mesh: string;
  run: number;
  /** As in `120:0-6;1120:7`: line 120 of ranks 0 to 6, line 1120 of rank 7. */
  lines: string;
  /** What the row shows. */
  text: string;
}

export interface OwnLine {
  ranks: string;
  text?: string;
  /** Why it is not here. */
  absent?: string;
}

interface Opened {
  request: RowRequest;
  block: HTMLElement;
}

const ROW = '[data-monarch-row]';
const CLOSED = 'Show the line of each rank';
const OPEN = 'Hide the lines of each rank';

/**
 * Let folded rows in outputs below a node open: a click, or Enter, shows each rank's own line below the row.
 *
 * Outputs are rendered anew while a cell runs: what is open is put back below its row. Nothing goes into the notebook.
 * Returns what ends it.
 */
export function openRows(node: HTMLElement, ask: (request: RowRequest) => Promise<OwnLine[]>): () => void {
  const opened = new Map<string, Opened>();

  const read = async (entry: Opened): Promise<void> => {
    let lines: OwnLine[];
    try {
      lines = await ask(entry.request);
    } catch (reason) {
      lines = [{ ranks: '', absent: explain(reason) }];
    }
    entry.block.replaceChildren(...lines.map(lineOf));
  };
  const show = (row: HTMLElement, { block }: Opened): void => {
    const after = row.nextSibling;
    const isLineEnd = after?.nodeType === Node.TEXT_NODE && after.textContent === '\n';
    (isLineEnd ? after : row).after(block);
    block.style.setProperty('--mnb-gutter', row.closest('pre')?.style.paddingLeft || '8ch');
    row.setAttribute('aria-expanded', 'true');
    row.title = OPEN;
  };
  const toggle = (row: HTMLElement): void => {
    const request = requestOf(row);
    if (!request) {
      return;
    }
    const key = keyOf(request);
    const entry = opened.get(key);
    if (entry) {
      opened.delete(key);
      entry.block.remove();
      row.setAttribute('aria-expanded', 'false');
      row.title = CLOSED;
      return;
    }
    opened.forEach(({ block }, other) => block.isConnected || opened.delete(other)); // their outputs are gone
    const block = document.createElement('span');
    block.className = 'mnb-own';
    block.setAttribute('role', 'group');
    block.setAttribute('aria-label', 'Lines of each rank');
    block.textContent = 'Reading…';
    opened.set(key, { request, block });
    show(row, opened.get(key)!);
    void read(opened.get(key)!);
  };
  const dress = (row: HTMLElement): void => {
    if (row.hasAttribute('role')) {
      return;
    }
    row.setAttribute('role', 'button');
    row.setAttribute('tabindex', '0');
    row.setAttribute('aria-expanded', 'false');
    row.title = CLOSED;
    const request = requestOf(row);
    const entry = request && opened.get(keyOf(request));
    if (request && entry) {
      show(row, entry);
      if (request.lines !== entry.request.lines || request.text !== entry.request.text) {
        entry.request = request; // more ranks have come to it
        void read(entry);
      }
    }
  };
  const rowOf = (event: Event): HTMLElement | null =>
    event.target instanceof Element ? event.target.closest<HTMLElement>(ROW) : null;
  const onClick = (event: MouseEvent): void => {
    const row = rowOf(event);
    if (row && window.getSelection()?.isCollapsed !== false) {
      toggle(row); // else somebody marks text
    }
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const row = rowOf(event);
    const isPlain = !(event.ctrlKey || event.metaKey || event.altKey || event.shiftKey);
    if (row && node.contains(row) && isPlain && (event.key === 'Enter' || event.key === ' ')) {
      event.preventDefault();
      event.stopPropagation();
      toggle(row);
    }
  };

  const observer = new MutationObserver(records => {
    for (const { addedNodes } of records) {
      addedNodes.forEach(added => {
        if (added instanceof HTMLElement) {
          added.querySelectorAll<HTMLElement>(ROW).forEach(dress);
        }
      });
    }
  });
  observer.observe(node, { subtree: true, childList: true });
  node.addEventListener('click', onClick);
  window.addEventListener('keydown', onKeyDown, true); // before JupyterLab, whose Enter edits the cell
  node.querySelectorAll<HTMLElement>(ROW).forEach(dress);
  return () => {
    observer.disconnect();
    node.removeEventListener('click', onClick);
    window.removeEventListener('keydown', onKeyDown, true);
  };
}

/** What a row says of itself, and the output that it is in; null when that is nothing. */
function requestOf(row: HTMLElement): RowRequest | null {
  const [mesh, run] = row.closest<HTMLElement>('[data-monarch-log]')?.dataset.monarchLog?.split('/') ?? [];
  const gutter = row.firstElementChild?.textContent?.length ?? 0;
  const text = row.textContent?.slice(gutter + 1) ?? ''; // after the ranks there is a space, or a bar on stderr
  return mesh && run ? { mesh, run: Number(run), lines: row.dataset.monarchRow!, text } : null;
}

/** Which row it is, also when more ranks have come to it. */
function keyOf({ mesh, run, lines }: RowRequest): string {
  return `${mesh}/${run}/${/^\d+:\d+/.exec(lines)?.[0]}`;
}

function lineOf({ ranks, text, absent }: OwnLine): HTMLElement {
  const line = document.createElement('span');
  line.className = 'mnb-own-line';
  const label = document.createElement('span');
  label.className = 'mnb-own-rank';
  label.textContent = ranks && `[${ranks}]`;
  line.append(label, ' ');
  const pieces = absent ? [{ text: absent, className: 'mnb-dim' }] : parseAnsi(finalText(text ?? ''));
  for (const piece of pieces) {
    const part = document.createElement('span');
    part.className = piece.className;
    part.textContent = piece.text;
    line.append(part);
  }
  return line;
}
