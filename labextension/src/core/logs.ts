import { Opened } from './openings';
import { Store } from './store';
import { RequestError, explain } from './transport';
import {
  Fold,
  LogExtent,
  LogGrown,
  LogRow,
  LogRows,
  LogRun,
  LogTarget,
  OpenedLog,
  OwnLines,
  Streams
} from './types';

export interface LogQuery {
  mesh: string;
  ranks: string | null;
  streams: Streams;
  run: number | null;
  /** Only lines with this. */
  search: string;
  regex: boolean;
  /** Null: what is usual for so many ranks. */
  fold: Fold | null;
}

export function queryOf(target: LogTarget): LogQuery {
  return {
    mesh: target.mesh,
    ranks: target.ranks,
    run: target.run,
    streams: 'both',
    search: '',
    regex: false,
    fold: null
  };
}

const PAGES = 128;
const IN_FLIGHT = 2;
const AGAIN_MS = 5000;

interface Page {
  rows: LogRow[];
  /** Whether it stays as it is, however the log grows. */
  isSettled: boolean;
  isStale: boolean;
}

/**
 * A log that lies on the server: pages of it come when somebody wants to see them.
 *
 * Of what is wanted only the newest counts: whoever drags the scroll bar through a million lines asks for few pages.
 */
export class LogSource {
  total = 0;
  /** Without the rows that only say what a run is, or how it failed. */
  lines = 0;
  complete = false;
  /** Paths of all notebooks that its runs come from. */
  notebooks: string[] = [];
  runs: LogRun[] = [];
  /** Whose lines are not here, and why. */
  missing = '';
  /** Why there is nothing to see, or "". */
  error = '';
  isOpen = false;
  /** In what lines of one row differ at most. */
  fold: Fold | null = null;
  /** Rows that show each rank's own line, in order. */
  opened: readonly Opened[] = [];
  private _rowsAtOnce = 256;
  private _log: string | null = null;
  private _query: LogQuery | null = null;
  private _pages = new Map<number, Page>();
  /** Pages that were asked for; stale already when what they have has changed since. */
  private _loading = new Map<number, { isStale: boolean }>();
  private _wanted: [number, number] = [0, 0];
  private _generation = 0;
  private _again: ReturnType<typeof setTimeout> | undefined;
  private _stopListening: (() => void) | null = null;
  private _stopWatching: (() => void) | null = null;

  constructor(
    private readonly _store: Store,
    private readonly _onChange: () => void
  ) {}

  /** Show another log from now on. */
  async open(query: LogQuery): Promise<void> {
    this.close();
    const generation = ++this._generation;
    this._query = query;
    this.error = '';
    this._stopWatching = this._watch(query);
    try {
      const opened = await this._store.transport.request<OpenedLog>('log_open', query);
      if (generation !== this._generation) {
        this._forget(opened.log);
        return;
      }
      this._log = opened.log;
      this._pages.clear();
      this._loading.clear();
      this.total = opened.total;
      this.complete = opened.complete;
      this.runs = opened.runs;
      this.missing = opened.missing;
      this.fold = opened.fold;
      this._rowsAtOnce = opened.page;
      this._measure(opened);
      this.isOpen = true;
      this._stopListening = this._store.onLog(opened.log, grown => this._grown(grown));
      this._fetchLast(opened.log, true); // it may have grown before anybody listened: events overtake answers
    } catch (reason) {
      if (generation === this._generation) {
        this.error = explain(reason);
        this.total = 0;
        this._pages.clear();
      }
    }
    this._onChange();
  }

  close(): void {
    this._generation += 1;
    clearTimeout(this._again);
    this._stopWatching?.();
    this._stopListening?.();
    this._stopWatching = this._stopListening = null;
    this.isOpen = false;
    this.opened = [];
    if (this._log !== null) {
      this._forget(this._log);
      this._log = null;
    }
  }

  /** Rows from `first`, or null when they have not come yet; they are asked for. */
  rows(first: number, count: number): LogRow[] | null {
    const end = Math.min(first + count, this.total);
    this._wanted = [
      Math.max(0, first - this._rowsAtOnce / 2),
      Math.min(this.total, end + this._rowsAtOnce / 2)
    ];
    this._load();
    const found: LogRow[] = [];
    for (let page = Math.floor(first / this._rowsAtOnce); page * this._rowsAtOnce < end; page += 1) {
      const known = this._pages.get(page);
      if (!known) {
        return null;
      }
      for (const row of known.rows) {
        if (row.row >= first && row.row < end) {
          found.push(row);
        }
      }
    }
    return found;
  }

  /** Show each rank's own line of a row, or no longer. */
  async toggle({ row, run, line }: LogRow): Promise<void> {
    const known = this.opened.find(each => each.row === row);
    if (known) {
      this._shut(known);
      this._onChange();
      return;
    }
    const opening: Opened = { row, run, line, lines: [] };
    this.opened = [...this.opened, opening].sort((one, other) => one.row - other.row);
    this._onChange();
    await this._readOwn(opening);
  }

  private _shut(opening: Opened): void {
    this.opened = this.opened.filter(each => each !== opening);
  }

  private async _readOwn(opening: Opened): Promise<void> {
    const { row, run, line } = opening;
    let lines: LogRow[] | null;
    try {
      const own = await this._store.transport.request<OwnLines>('log_row', { log: this._log, row });
      lines = own.run === run && own.line === line ? own.lines : null; // else another row is there by now
    } catch (reason) {
      lines = [{ row, run, ranks: '', kind: 'end', text: explain(reason) }];
    }
    if (this.opened.includes(opening)) {
      if (lines) {
        opening.lines = lines;
      } else {
        this._shut(opening);
      }
      this._onChange();
    }
  }

  /** Rows have come: what is open is read again where they have changed, and shut where others are there now. */
  private _recheck(rows: readonly LogRow[], before: readonly LogRow[]): void {
    for (const opening of this.opened) {
      const now = rows.find(each => each.row === opening.row);
      const was = before.find(each => each.row === opening.row);
      if (now && (now.run !== opening.run || now.line !== opening.line)) {
        this._shut(opening);
      } else if (now && was && (now.ranks !== was.ranks || now.text !== was.text || was.lacking)) {
        void this._readOwn(opening);
      }
    }
  }

  /** The next row with `text`, from `from`, around the end if need be. */
  async find(text: string, regex: boolean, from: number, backwards: boolean): Promise<number | null> {
    const ask = async (start: number): Promise<number | null> =>
      (
        await this._store.transport.request<{ row: number | null }>('log_find', {
          log: this._log,
          text,
          regex,
          from: start,
          backwards
        })
      ).row;
    const last = Math.max(0, this.total - 1);
    const start = backwards ? (from < 0 ? last : from) : from > last ? 0 : from;
    return (await ask(start)) ?? (await ask(backwards ? last : 0));
  }

  /** What a run is called. */
  nameOf(run: LogRun): string {
    return runName(run, this.notebooks);
  }

  private _measure({ lines, notebooks }: LogExtent): void {
    this.lines = lines;
    this.notebooks = notebooks;
  }

  private _grown(grown: LogGrown): void {
    const { total, complete, error, missing } = grown;
    // The newest lines may have gone on, other ranks may have said the same, or an earlier run has gone on.
    this._pages.forEach(page => (page.isStale ||= !page.isSettled));
    this._loading.forEach(coming => (coming.isStale = true));
    this.total = total;
    this.complete = complete;
    this._measure(grown);
    this.error = error ?? '';
    if (missing !== this.missing) {
      this.missing = missing;
      this._pages.forEach(page => (page.isStale ||= page.rows.some(row => row.away || row.lacking)));
    }
    this._load();
    this._onChange();
  }

  /**
   * Look again after each gap in which nothing could be heard: the log has grown, or the server has forgotten it. Open it
   * again when the reservation has other nodes: some of its lines are there.
   */
  private _watch(query: LogQuery): () => void {
    let before = this._store.state.connection;
    let nodes = this._nodesOf(query.mesh);
    return this._store.subscribe(() => {
      const now = this._store.state.connection;
      const nodesNow = this._nodesOf(query.mesh);
      if (nodes && nodesNow && nodesNow !== nodes) {
        void this.open(query);
        return;
      }
      nodes = nodesNow ?? nodes;
      if (now === 'live' && before === 'lost') {
        if (this._log !== null) {
          this._fetchLast(this._log);
        } else if (this.error) {
          void this.open(query);
        }
      }
      before = now;
    });
  }

  /** The nodes of a mesh's reservation: the same list as long as nothing has changed. */
  private _nodesOf(mesh: string): string[] | undefined {
    const held = Object.values(this._store.state.view?.reservations ?? {});
    return held.find(({ meshes }) => meshes.some(each => each.id === mesh))?.node_ids;
  }

  private _load(): void {
    const [first, end] = this._wanted;
    for (
      let page = Math.floor(first / this._rowsAtOnce);
      page * this._rowsAtOnce < end && this._loading.size < IN_FLIGHT;
      page += 1
    ) {
      const known = this._pages.get(page);
      if (this._log !== null && (!known || known.isStale) && !this._loading.has(page)) {
        void this._fetch(page, this._log);
      }
    }
  }

  private _fetchLast(log: string, isExtra = false): void {
    void this._fetch(Math.floor(Math.max(0, this.total - 1) / this._rowsAtOnce), log, isExtra);
  }

  private async _fetch(page: number, log: string, isExtra = false): Promise<void> {
    const coming = { isStale: false };
    this._loading.set(page, coming);
    try {
      const body = { log, first: page * this._rowsAtOnce, count: this._rowsAtOnce };
      const answer = await this._store.transport.request<LogRows>('log_rows', body);
      if (log !== this._log) {
        return;
      }
      this.total = Math.max(this.total, answer.total);
      this.complete ||= answer.complete;
      this._measure(answer);
      this._learn(answer.runs);
      this._recheck(answer.rows, this._pages.get(page)?.rows ?? []);
      this._pages.delete(page);
      this.missing = answer.missing;
      if (answer.rows.some(row => row.away)) {
        this._askAgain(page);
      }
      const isWhole =
        answer.rows.length >= this._rowsAtOnce || answer.first + answer.rows.length >= this.total;
      const isSettled = isWhole && answer.first + this._rowsAtOnce <= answer.settled;
      this._pages.set(page, {
        rows: answer.rows,
        isSettled,
        isStale: (coming.isStale && !isSettled) || !isWhole
      });
      this._evict();
      this._loading.delete(page);
      this._load();
    } catch (reason) {
      this._loading.delete(page);
      if (log !== this._log) {
        return;
      }
      if (isExtra) {
        this._onChange(); // who wants to see its rows asks again, and is told
        return;
      }
      if (reason instanceof RequestError && reason.status === 404 && this._query) {
        await this.open(this._query); // the server has been restarted
        return;
      }
      this.error = explain(reason);
    }
    this._onChange();
  }

  /** Lines of a node that does not answer come when it is back. */
  private _askAgain(page: number): void {
    clearTimeout(this._again);
    this._again = setTimeout(() => {
      const known = this._pages.get(page);
      if (known) {
        known.isStale = true;
        this._load();
      }
    }, AGAIN_MS);
  }

  private _learn(runs: readonly LogRun[]): void {
    if (runs.some(run => !this.runs.some(known => isSame(known, run)))) {
      const told = new Map([...this.runs, ...runs].map(run => [run.number, run]));
      this.runs = [...told.values()].sort((one, other) => one.number - other.number);
    }
  }

  private _evict(): void {
    for (const page of this._pages.keys()) {
      if (this._pages.size <= PAGES) {
        break;
      }
      this._pages.delete(page);
    }
  }

  private _forget(log: string): void {
    this._store.transport.request('log_close', { log }).catch(() => undefined); // the server forgets unused ones itself
  }
}

function isSame(one: LogRun, other: LogRun): boolean {
  return one.number === other.number && one.first_row === other.first_row && one.title === other.title;
}

const TITLE = 48;

/** "run 46, cell [12] of eval.ipynb (train())": with its notebook where runs come from several, which number their cells alike. */
export function runName(run: LogRun, notebooks: readonly string[]): string {
  const basename = (path: string): string => path.split('/').pop()!;
  let name = `run ${run.number}`;
  if (run.cell_number) {
    name += `, cell [${run.cell_number}]`;
  }
  if (run.notebook && notebooks.length > 1) {
    const alike = notebooks.filter(path => basename(path) === basename(run.notebook));
    name += ` of ${alike.length > 1 ? run.notebook : basename(run.notebook)}`;
  }
  const title = run.title.length > TITLE ? `${run.title.slice(0, TITLE - 1)}…` : run.title;
  return title ? `${name} (${title})` : name;
}

/** Where a window of rows lies in a scrolled box whose height is bounded: browsers lose count above some 16 million pixels. */
export class Geometry {
  constructor(
    readonly total: number,
    readonly viewport: number,
    readonly row: number,
    readonly maximum = 8_000_000
  ) {}

  get height(): number {
    return Math.min(this.total * this.row, this.maximum);
  }

  /** The last row that can be at the top, with its fraction. */
  get lastTop(): number {
    return Math.max(0, this.total - this.viewport / this.row);
  }

  /** Whether a pixel of the scroll bar is as much as a pixel of text. */
  get isExact(): boolean {
    return this.total * this.row <= this.maximum;
  }

  toTop(scrollTop: number): number {
    const range = this.height - this.viewport;
    return range <= 0 ? 0 : this.clamp((scrollTop / range) * this.lastTop);
  }

  toScroll(top: number): number {
    return this.lastTop === 0 ? 0 : (top / this.lastTop) * (this.height - this.viewport);
  }

  clamp(top: number): number {
    return Math.min(Math.max(0, top), this.lastTop);
  }
}

/** What a terminal would show of a line with carriage returns. */
export function finalText(text: string): string {
  if (!text.includes('\r')) {
    return text;
  }
  const parts = text.split('\r').filter(part => part !== '');
  return parts[parts.length - 1] ?? '';
}

/** A pattern for what a person searches, or null while it is not one. */
export function pattern(text: string, regex: boolean): RegExp | null {
  if (!text) {
    return null;
  }
  try {
    return new RegExp(regex ? text : text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'), 'gi');
  } catch {
    return null;
  }
}
