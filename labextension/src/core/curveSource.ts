import type { Curves } from './curves';
import { Store } from './store';
import { RequestError, explain } from './transport';
import { CurvesFound, LogTarget, ReadCurves } from './types';

export const MOST_NAMES = 12;
const FIND_AGAIN_MS = 5000;
const AGAIN_AFTER_ERROR_MS = 5000;

/** What a person has chosen. */
export interface CurvesQuery {
  mesh: string;
  ranks: string | null;
  /** Null: the newest that has numbers. */
  run: number | null;
  /** Over it. */
  other: number | null;
  /** Null: what is usual. */
  names: string[] | null;
  /** Against what; "": the step of a line. */
  x: string;
}

export function curvesQueryOf({ mesh, ranks, run }: LogTarget): CurvesQuery {
  return { mesh, ranks, run, other: null, names: null, x: '' };
}

/**
 * Curves that are read on as often as the server says, while somebody sees them.
 *
 * Everything is asked for: what nobody looks at, nobody reads.
 */
export class CurvesSource {
  found: CurvesFound | null = null;
  curves: Curves | null = null;
  /** Names that are drawn. */
  names: string[] = [];
  /** Why there is nothing new to see, or "". */
  error = '';
  private _query: CurvesQuery | null = null;
  private _version = '';
  private _isSeen = false;
  /** Until nobody looks, also when nothing more will come. */
  private _isReading = false;
  /** Answers to what was asked before do not count. */
  private _finding = 0;
  private _reading = 0;
  private _find: ReturnType<typeof setTimeout> | undefined;
  private _read: ReturnType<typeof setTimeout> | undefined;
  private _newestRun = 0;
  private _stopWatching: (() => void) | null = null;

  constructor(
    private readonly _store: Store,
    private readonly _onChange: () => void
  ) {}

  /** Show others from now on. */
  open(query: CurvesQuery): void {
    const before = this._query;
    this._query = query;
    this._newestRun = this._newest();
    this._stopWatching ??= this._store.subscribe(() => this._noteRuns());
    const { mesh, ranks, run } = query;
    if (before && before.mesh === mesh && before.ranks === ranks && before.run === run && this.found) {
      this._choose();
      this._readAnew();
    } else {
      this.found = this.curves = null;
      void this._lookForNames();
    }
    this._onChange();
  }

  close(): void {
    this._stopWatching?.();
    this._stopWatching = this._query = null;
    this._stop();
  }

  /** Say whether a person sees them. */
  look(isSeen: boolean): void {
    if (isSeen === this._isSeen) {
      return;
    }
    this._isSeen = isSeen;
    if (!isSeen) {
      this._stop();
    } else if (this._query) {
      void this._lookForNames();
    }
  }

  again(): void {
    void this._lookForNames();
  }

  private _stop(): void {
    this._isReading = false;
    this._finding += 1;
    this._reading += 1;
    clearTimeout(this._find);
    clearTimeout(this._read);
  }

  /** When a run has begun it is among the choices soon, and is shown when the newest one is. */
  private _noteRuns(): void {
    const newest = this._newest();
    if (newest > this._newestRun) {
      this._newestRun = newest;
      void this._lookForNames();
    }
  }

  /** The number of the newest run that the view knows of. */
  private _newest(): number {
    const reservations = Object.values(this._store.state.view?.reservations ?? {});
    const mesh = reservations.flatMap(each => each.meshes).find(each => each.id === this._query?.mesh);
    return Math.max(0, ...(mesh?.runs ?? []).map(run => run.number));
  }

  private async _lookForNames(): Promise<void> {
    clearTimeout(this._find);
    if (!this._query || !this._isSeen) {
      return;
    }
    const asked = ++this._finding;
    const { mesh, ranks, run } = this._query;
    try {
      const found = await this._store.transport.request<CurvesFound>('curves_found', { mesh, ranks, run });
      if (asked !== this._finding) {
        return;
      }
      const before = JSON.stringify([this.found?.run, this.names]);
      this.found = found;
      this._choose();
      if (JSON.stringify([found.run, this.names]) !== before || this.error) {
        this._readAnew();
      } else if (!this._isReading) {
        void this._readOn();
      }
      // A run that has just begun may print numbers soon: then it is the newest one.
      const mayFollow = run === null && found.runs.some(each => each.number > found.run && !each.is_over);
      if (!found.is_all || mayFollow) {
        this._find = setTimeout(() => void this._lookForNames(), FIND_AGAIN_MS);
      }
    } catch (reason) {
      if (asked === this._finding) {
        this.error = explain(reason);
        this._find = setTimeout(() => void this._lookForNames(), AGAIN_AFTER_ERROR_MS);
      }
    }
    this._onChange();
  }

  /** Take the names that were chosen, as far as the run has them. */
  private _choose(): void {
    const known = new Set(this.found?.names.map(each => each.name));
    const wanted = this._query?.names;
    const chosen = wanted?.filter(name => known.has(name)) ?? [];
    this.names = chosen.length || wanted?.length === 0 ? chosen : (this.found?.suggested ?? []);
  }

  private _readAnew(): void {
    this._version = '';
    this.error = '';
    if (!this.names.length) {
      this._reading += 1;
      clearTimeout(this._read);
      this.curves = null;
      return;
    }
    void this._readOn();
  }

  private async _readOn(): Promise<void> {
    clearTimeout(this._read);
    if (!this._query || !this.found || !this.names.length || !this._isSeen) {
      return;
    }
    this._isReading = true;
    const asked = ++this._reading;
    const { mesh, ranks, other, x } = this._query;
    const runs = other === null ? [this.found.run] : [this.found.run, other];
    const body = { mesh, ranks, runs, names: this.names, x, since: this._version };
    let again_ms: number | null;
    try {
      const told = await this._store.transport.request<ReadCurves>('curves_read', body);
      if (asked !== this._reading) {
        return;
      }
      this.curves = told.curves ?? this.curves;
      this._version = told.version;
      this.error = '';
      again_ms = told.again_s === null ? null : told.again_s * 1000;
    } catch (reason) {
      if (asked !== this._reading) {
        return;
      }
      this.error = explain(reason);
      again_ms = reason instanceof RequestError && reason.status === 400 ? null : AGAIN_AFTER_ERROR_MS;
    }
    if (again_ms !== null) {
      this._read = setTimeout(() => void this._readOn(), again_ms);
    }
    this._onChange();
  }
}
