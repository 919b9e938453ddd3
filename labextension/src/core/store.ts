import { useCallback, useSyncExternalStore } from 'react';
import { Connection, Transport, explain } from './transport';
import { Forms, Job, LogGrown, Message, Notice, Reservation, View } from './types';

/** A question about what a person wants, asked by a command and answered by the panel. */
export interface Intent {
  action: 'reserve' | 'up' | 'extend' | 'resize' | 'release' | 'restart' | 'stacks' | 'show';
  reservation?: string;
}

export interface State {
  connection: Connection;
  view: View | null;
  /** The browser's clock in seconds when `view.now` was read. */
  viewAt_s: number;
  jobs: Record<string, Job>;
  notices: Notice[];
  forms: Forms | null;
  intent: Intent | null;
}

type LogListener = (grown: LogGrown) => void;

const NOTICES = 20;
const DONE_JOBS = 8;

/** All that is shown. Whatever did not change keeps its identity, so that memoised components rest. */
export class Store {
  state: State = {
    connection: 'connecting',
    view: null,
    viewAt_s: 0,
    jobs: {},
    notices: [],
    forms: null,
    intent: null
  };
  private readonly _listeners = new Set<() => void>();
  private readonly _logListeners = new Map<string, LogListener>();
  private _dismissed = new Set<string>();
  private _stop: (() => void) | null = null;

  constructor(
    readonly transport: Transport,
    private readonly _clock_s: () => number = () => Date.now() / 1000
  ) {}

  /** Begin to listen. */
  start(): void {
    this._stop ??= this.transport.listen(
      message => this.receive(message),
      connection => this._set({ connection })
    );
  }

  stop(): void {
    this._stop?.();
    this._stop = null;
  }

  subscribe = (listener: () => void): (() => void) => {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  };

  receive(message: Message): void {
    switch (message.type) {
      case 'view':
        this._setView(share(this.state.view, message.view));
        break;
      case 'job':
        this._setJob(message.job);
        break;
      case 'log':
        this._logListeners.get(message.log)?.(message);
        break;
      case 'notice':
        if (!this._dismissed.has(message.id) && !this.state.notices.some(known => known.id === message.id)) {
          this._set({ notices: [...this.state.notices, message].slice(-NOTICES) });
        }
        break;
    }
  }

  /** Ask for something that may become a job; the job is shown until it ends. */
  async act<T = unknown>(name: string, body: object): Promise<Job | T> {
    const result = await this.transport.request<{ job?: Job } & T>(name, body);
    if (result?.job) {
      if (!this.state.jobs[result.job.id]) {
        this._setJob(result.job); // else events came before this answer, and know more
      }
      return this.state.jobs[result.job.id] ?? result.job;
    }
    return result;
  }

  /** Wait until a job ends, however it ends. */
  ended(job: Job): Promise<Job> {
    return new Promise(resolve => {
      const look = (): boolean => {
        const newest = this.state.jobs[job.id] ?? job;
        if (newest.state !== 'running') {
          stop();
          resolve(newest);
          return true;
        }
        return false;
      };
      const stop = this.subscribe(look);
      look();
    });
  }

  async cancel(job: Job): Promise<void> {
    try {
      await this.transport.request('cancel', { job: job.id });
    } catch (reason) {
      this.say('error', explain(reason));
    }
  }

  dismissJob(id: string): void {
    const { [id]: _, ...jobs } = this.state.jobs;
    this._set({ jobs });
  }

  dismissNotice(id: string): void {
    this._dismissed.add(id);
    this._set({ notices: this.state.notices.filter(notice => notice.id !== id) });
  }

  /** Show a message of our own. */
  say(level: Notice['level'], text: string, reservation = ''): void {
    this.receive({ type: 'notice', level, text, reservation, id: `own-${this._clock_s()}-${Math.random()}` });
  }

  intend(intent: Intent | null): void {
    this._set({ intent });
  }

  async loadForms(): Promise<void> {
    this._set({ forms: await this.transport.request<Forms>('forms') });
  }

  onLog(log: string, listener: LogListener): () => void {
    this._logListeners.set(log, listener);
    return () => this._logListeners.delete(log);
  }

  /** The server's clock now. */
  now_s(): number {
    const { view, viewAt_s } = this.state;
    return view ? view.now + (this._clock_s() - viewAt_s) : this._clock_s();
  }

  private _setView(view: View): void {
    const { notices } = this.state;
    const held = notices.filter(notice => holds(notice, view));
    this._set({
      view,
      viewAt_s: this._clock_s(),
      notices: held.length < notices.length ? held : notices
    });
  }

  private _setJob(job: Job): void {
    const jobs = { ...this.state.jobs, [job.id]: job };
    const ended = Object.values(jobs).filter(other => other.state !== 'running');
    for (const old of ended.slice(0, Math.max(0, ended.length - DONE_JOBS))) {
      delete jobs[old.id];
    }
    this._set({ jobs });
  }

  private _set(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    for (const listener of [...this._listeners]) {
      listener();
    }
  }
}

/** Whether a notice still holds. Its id says what it is about, as panel/shown/changes.py writes it. */
function holds({ id, reservation }: Notice, view: View): boolean {
  if (view.pool.state === 'silent') {
    return true; // nothing is known of it
  }
  const about = view.reservations[reservation];
  if (id.startsWith('nearly-up-')) {
    return about?.nearly_up ?? false;
  }
  if (id.startsWith('dead-')) {
    const mesh = about?.meshes.find(each => id.startsWith(`dead-${each.id}-`));
    const pids = mesh ? id.slice(`dead-${mesh.id}-`.length).split('-') : [];
    // A rank that is started again has another pid; one that can not be reached does not live again.
    return (mesh?.ranks ?? []).some(
      rank => rank.state === 'unreachable' || (rank.state === 'dead' && pids.includes(String(rank.pid)))
    );
  }
  return true;
}

/** Show what `select` takes from the state; renders again only when that is another value. */
export function useStore<T>(store: Store, select: (state: State) => T): T {
  return useSyncExternalStore(
    store.subscribe,
    useCallback(() => select(store.state), [store, select])
  );
}

/** A reservation as it is now; undefined when it is gone. */
export function useReservation(store: Store, id: string): Reservation | undefined {
  return useStore(
    store,
    useCallback((state: State) => state.view?.reservations[id], [id])
  );
}

/** `fresh`, with every part that is equal in `old` replaced by the old part. */
export function share<T>(old: unknown, fresh: T): T {
  if (Object.is(old, fresh) || typeof old !== 'object' || typeof fresh !== 'object' || !old || !fresh) {
    return fresh;
  }
  if (Array.isArray(old) !== Array.isArray(fresh)) {
    return fresh;
  }
  const before = old as Record<string, unknown>;
  const after = fresh as Record<string, unknown>;
  const keys = Object.keys(after);
  let isEqual = keys.length === Object.keys(before).length;
  const result: Record<string, unknown> | unknown[] = Array.isArray(fresh) ? new Array(fresh.length) : {};
  for (const key of keys) {
    const part = share(before[key], after[key]);
    (result as Record<string, unknown>)[key] = part;
    isEqual &&= Object.is(part, before[key]) && key in before;
  }
  return (isEqual ? old : result) as T;
}
