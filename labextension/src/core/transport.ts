import { Message } from './types';

/**
 * busy: what is shown is live, and requests wait for the kernel of the widget, which runs a cell. silent: nothing is
 * heard, and nobody knows why. lost: it has ended, or does not answer.
 */
export type Connection = 'connecting' | 'live' | 'busy' | 'silent' | 'lost';

/** How requests reach the server and its messages come back: HTTP and a WebSocket, or messages of a widget. */
export interface Transport {
  /** Ask for something; rejects with a RequestError. */
  request<T>(name: string, body?: object): Promise<T>;
  /** Hear messages from now on, a whole view first; returns what ends that. */
  listen(onMessage: (message: Message) => void, onConnection: (state: Connection) => void): () => void;
  /** Say whether a person sees any of it: while nobody does, figures come seldom. */
  look(looking: boolean): void;
}

/** A request that was refused or did not get through. `status` 0: nobody answered. */
export class RequestError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly errors: Record<string, string> = {}
  ) {
    super(message);
    this.name = 'RequestError';
  }
}

/** What to tell a person about something that was thrown. */
export function explain(reason: unknown): string {
  return reason instanceof Error ? reason.message : String(reason);
}
