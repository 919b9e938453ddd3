import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { Connection, Message, RequestError, Transport } from '../core';

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8000;

/** Requests by HTTP, messages by one WebSocket that connects again for as long as the page lives. */
export class ServerTransport implements Transport {
  private _socket: WebSocket | null = null;
  private _looking = false;

  /** @param _pool that is asked; without one the first. */
  constructor(
    private readonly _settings: ServerConnection.ISettings,
    private readonly _pool?: string
  ) {}

  async request<T>(name: string, body: object = {}): Promise<T> {
    const url = URLExt.join(this._settings.baseUrl, 'monarch-nb/api', name);
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(
        url,
        { method: 'POST', body: JSON.stringify({ ...body, pool: this._pool }) },
        this._settings
      );
    } catch {
      throw new RequestError('The Jupyter server does not answer.', 0);
    }
    const answer = (await response.json().catch(() => null)) as {
      result?: T;
      message?: string;
      errors?: Record<string, string>;
    } | null;
    if (!response.ok) {
      throw new RequestError(answer?.message || missing(response), response.status, answer?.errors);
    }
    return answer?.result as T;
  }

  listen(onMessage: (message: Message) => void, onConnection: (state: Connection) => void): () => void {
    let isStopped = false;
    let retry_ms = FIRST_RETRY_MS;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const connect = (): void => {
      const { WebSocket, wsUrl, token, appendToken } = this._settings;
      const query = URLExt.objectToQueryString({
        ...(appendToken && token ? { token } : {}),
        ...(this._pool ? { pool: this._pool } : {})
      });
      const socket = new WebSocket(URLExt.join(wsUrl, 'monarch-nb/events') + query);
      this._socket = socket;
      socket.onopen = () => {
        retry_ms = FIRST_RETRY_MS;
        onConnection('live');
        this._sayLook();
      };
      socket.onmessage = event => onMessage(JSON.parse(String(event.data)) as Message);
      socket.onclose = () => {
        if (isStopped || socket !== this._socket) {
          return;
        }
        this._socket = null;
        onConnection('lost');
        timer = setTimeout(connect, retry_ms);
        retry_ms = Math.min(retry_ms * 2, LAST_RETRY_MS);
      };
    };
    const onVisible = (): void => this._sayLook();
    document.addEventListener('visibilitychange', onVisible);
    connect();
    return () => {
      isStopped = true;
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', onVisible);
      this._socket?.close();
      this._socket = null;
    };
  }

  look(looking: boolean): void {
    if (looking !== this._looking) {
      this._looking = looking;
      this._sayLook();
    }
  }

  private _sayLook(): void {
    if (this._socket?.readyState === 1) {
      this._socket.send(JSON.stringify({ type: 'look', looking: this._looking && !document.hidden }));
    }
  }
}

function missing(response: Response): string {
  return response.status === 404
    ? 'The Jupyter server has no monarch_nb extension: see `jupyter server extension list`.'
    : `The Jupyter server answered ${response.status} ${response.statusText}.`;
}
