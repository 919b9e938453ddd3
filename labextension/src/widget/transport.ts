import { Connection, Message, RequestError, Transport } from '../core';

/** A widget's model as anywidget hands it over. */
export interface Model {
  get(name: string): unknown;
  send(content: unknown): void;
  on(event: string, callback: (content: never) => void): void;
  off(event: string, callback: (content: never) => void): void;
}

/** What the kernel says, of a pool; without a name of the one that is shown at first. */
type Incoming = { pool?: string } & (
  | { id: number; result: unknown }
  | { id: number; error: { status: number; message: string; errors?: Record<string, string> } }
  | { event: Message }
  | { alive: true }
);

interface Pending {
  resolve: (value: never) => void;
  reject: (reason: RequestError) => void;
  /** Runs until it is late. */
  timer: ReturnType<typeof setTimeout>;
}

const BUSY_AFTER_MS = 1500;
/** The kernel forgets views that it has not heard of for some time: their browser has gone. */
const WORD_EVERY_MS = 30_000;
/** Of a kernel that lives and can be reached a word comes every 5 s while somebody looks. */
const SILENT_AFTER_MS = 20_000;
export const GONE = 'The kernel of this panel has ended. Run the cell again.';

/** Of one view. All views of a widget hear all messages: requests and views have numbers that are theirs alone. */
export class WidgetTransport implements Transport {
  private readonly _view = String(Math.random()).slice(2);
  private _next = Math.floor(Math.random() * 2 ** 32) * 2 ** 16;
  private readonly _pending = new Map<number, Pending>();
  private readonly _late = new Set<number>();
  private _deliver: ((message: Message) => void) | null = null;
  private _onConnection: ((state: Connection) => void) | null = null;
  private _looking = false;
  private _isSilent = false;
  private _isLost = false;
  private _hasLooked = false;
  private _silence: ReturnType<typeof setTimeout> | undefined;
  private _word: ReturnType<typeof setInterval> | undefined;

  /** @param _pool that is meant; without one the one that is shown at first. */
  constructor(
    private readonly _model: Model,
    private readonly _pool?: string
  ) {}

  request<T>(name: string, body: object = {}): Promise<T> {
    const id = ++this._next;
    return new Promise<T>((resolve, reject) => {
      // It is not given up: a kernel that runs a cell reads what came meanwhile afterwards.
      const timer = setTimeout(() => {
        this._late.add(id);
        this._onConnection?.('busy');
      }, BUSY_AFTER_MS);
      this._pending.set(id, { resolve: resolve as (value: never) => void, reject, timer });
      this._model.send({ id, request: name, body, pool: this._pool });
    });
  }

  listen(onMessage: (message: Message) => void, onConnection: (state: Connection) => void): () => void {
    this._deliver = onMessage;
    this._onConnection = onConnection;
    this._model.on('msg:custom', this._receive as (content: never) => void);
    this._model.on('comm_live_update', this._lose);
    this._word = setInterval(() => this._looking && this._say(), WORD_EVERY_MS);
    return () => {
      clearInterval(this._word);
      clearTimeout(this._silence);
      if (this._hasLooked) {
        this._model.send({ type: 'leave', view: this._view, pool: this._pool });
      }
      this._model.off('msg:custom', this._receive as (content: never) => void);
      this._model.off('comm_live_update', this._lose);
      this._deliver = this._onConnection = null;
    };
  }

  look(looking: boolean): void {
    if (looking !== this._looking) {
      this._looking = looking;
      this._say();
      this._listenForSilence();
    }
  }

  private _listenForSilence(): void {
    clearTimeout(this._silence);
    if (this._looking && !this._isLost) {
      this._silence = setTimeout(() => {
        this._isSilent = true;
        this._onConnection?.('silent');
      }, SILENT_AFTER_MS);
    }
  }

  private _say(): void {
    this._hasLooked = true;
    this._model.send({ type: 'look', view: this._view, looking: this._looking, pool: this._pool });
  }

  private readonly _receive = (content: Incoming): void => {
    if (content.pool !== this._pool) {
      return;
    }
    this._isLost = false;
    this._listenForSilence();
    if ('event' in content || this._isSilent) {
      this._isSilent = false;
      this._onConnection?.(this._late.size ? 'busy' : 'live');
    }
    if ('event' in content) {
      this._deliver?.(content.event);
      return;
    }
    if ('alive' in content) {
      return;
    }
    const pending = this._pending.get(content.id);
    if (!pending) {
      return;
    }
    this._forget(content.id, pending);
    if ('error' in content) {
      const { message, status, errors } = content.error;
      pending.reject(new RequestError(message, status, errors));
    } else {
      pending.resolve(content.result as never);
    }
  };

  private _forget(id: number, pending: Pending): void {
    clearTimeout(pending.timer);
    this._pending.delete(id);
    if (this._late.delete(id) && !this._late.size) {
      this._onConnection?.('live');
    }
  }

  /** Widget managers say so when a kernel is gone; what had been said before is answered no more. */
  private readonly _lose = (): void => {
    this._isLost = true;
    clearTimeout(this._silence);
    for (const [id, pending] of this._pending) {
      this._forget(id, pending);
      pending.reject(new RequestError(GONE, 0));
    }
    this._onConnection?.('lost');
  };
}
