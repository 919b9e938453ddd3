import { Connection, Message, RequestError, Transport } from '../core';

/** A widget's model as anywidget hands it over. */
export interface Model {
  get(name: string): unknown;
  send(content: unknown): void;
  on(event: string, callback: (content: never) => void): void;
  off(event: string, callback: (content: never) => void): void;
}

type Incoming =
  | { id: number; result: unknown }
  | { id: number; error: { status: number; message: string; errors?: Record<string, string> } }
  | { event: Message };

interface Pending {
  resolve: (value: never) => void;
  reject: (reason: RequestError) => void;
  timer: ReturnType<typeof setTimeout>;
}

const ANSWER_WITHIN_MS = 20_000;

/** Requests and answers as messages of a widget. */
export class WidgetTransport implements Transport {
  private _next = 0;
  private readonly _pending = new Map<number, Pending>();
  private _deliver: ((message: Message) => void) | null = null;

  constructor(private readonly _model: Model) {}

  request<T>(name: string, body: object = {}): Promise<T> {
    const id = ++this._next;
    return new Promise<T>((resolve, reject) => {
      const timer = setTimeout(() => {
        this._pending.delete(id);
        reject(new RequestError('The kernel does not answer: it may be busy with a cell, or gone.', 0));
      }, ANSWER_WITHIN_MS);
      this._pending.set(id, { resolve: resolve as (value: never) => void, reject, timer });
      this._model.send({ id, request: name, body });
    });
  }

  listen(onMessage: (message: Message) => void, onConnection: (state: Connection) => void): () => void {
    this._deliver = message => {
      onConnection('live');
      onMessage(message);
    };
    this._model.on('msg:custom', this._receive as (content: never) => void);
    this.look(true);
    return () => {
      this.look(false);
      this._model.off('msg:custom', this._receive as (content: never) => void);
    };
  }

  look(looking: boolean): void {
    this._model.send({ type: 'look', looking });
  }

  private readonly _receive = (content: Incoming): void => {
    if ('event' in content) {
      this._deliver?.(content.event);
      return;
    }
    const pending = this._pending.get(content.id);
    if (!pending) {
      return;
    }
    this._pending.delete(content.id);
    clearTimeout(pending.timer);
    if ('error' in content) {
      const { message, status, errors } = content.error;
      pending.reject(new RequestError(message, status, errors));
    } else {
      pending.resolve(content.result as never);
    }
  };
}
