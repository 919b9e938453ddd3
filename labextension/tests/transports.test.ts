import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { ServerTransport } from '../src/lab/transport';
import { Model, WidgetTransport } from '../src/widget/transport';

class FakeSocket {
  static all: FakeSocket[] = [];
  readyState = 0;
  sent: unknown[] = [];
  onopen: () => void = () => undefined;
  onclose: () => void = () => undefined;
  onmessage: (event: { data: string }) => void = () => undefined;

  constructor(readonly url: string) {
    FakeSocket.all.push(this);
  }

  send(text: string): void {
    this.sent.push(JSON.parse(text));
  }

  close(): void {
    this.onclose();
  }

  open(): void {
    this.readyState = 1;
    this.onopen();
  }
}

function server(answer: () => Response | Promise<Response>): {
  transport: ServerTransport;
  fetched: Request[];
} {
  const fetched: Request[] = [];
  const settings = {
    baseUrl: 'http://h/user/me/',
    wsUrl: 'ws://h/user/me/',
    token: 'T&T',
    appendToken: true,
    init: {},
    fetch: async (request: Request) => {
      fetched.push(request);
      return answer();
    },
    Request,
    Headers,
    WebSocket: FakeSocket,
    serializer: {}
  };
  return { transport: new ServerTransport(settings as never), fetched };
}

const json = (status: number, body: object): Response => new Response(JSON.stringify(body), { status });

beforeEach(() => {
  FakeSocket.all = [];
  vi.useFakeTimers();
});
afterEach(() => void vi.useRealTimers());

test('requests go below the base URL, with the token', async () => {
  const { transport, fetched } = server(() => json(200, { result: { ok: true } }));
  expect(await transport.request('check', { action: 'reserve' })).toEqual({ ok: true });
  expect(fetched[0].url).toBe('http://h/user/me/monarch-nb/api/check');
  expect(fetched[0].headers.get('Authorization')).toBe('token T&T');
  expect(await fetched[0].json()).toEqual({ action: 'reserve' });
});

test('a refusal comes with its message and what is wrong with each field', async () => {
  const { transport } = server(() => json(400, { message: 'no', errors: { nodes: 'at most 2' } }));
  await expect(transport.request('reserve')).rejects.toMatchObject({
    message: 'no',
    status: 400,
    errors: { nodes: 'at most 2' }
  });
});

test('a server without the extension and a server that is away are told apart', async () => {
  const without = server(() => new Response('<html>', { status: 404 })).transport;
  await expect(without.request('view')).rejects.toThrow('has no monarch_nb extension');
  const away = server(() => Promise.reject(new TypeError('Failed to fetch'))).transport;
  await expect(away.request('view')).rejects.toThrow('does not answer');
});

test('the socket connects again, ever more patiently, and says whether anybody looks', () => {
  const { transport } = server(() => json(200, {}));
  const states: string[] = [];
  const messages: unknown[] = [];
  const stop = transport.listen(
    message => messages.push(message),
    state => states.push(state)
  );
  const [first] = FakeSocket.all;
  expect(first.url).toBe('ws://h/user/me/monarch-nb/events?token=T%26T');
  first.open();
  transport.look(true);
  expect(first.sent).toEqual([
    { type: 'look', looking: false },
    { type: 'look', looking: true }
  ]);
  first.onmessage({ data: '{"type":"notice","id":1}' });
  expect(messages).toEqual([{ type: 'notice', id: 1 }]);
  first.close();
  expect(states).toEqual(['live', 'lost']);
  vi.advanceTimersByTime(500);
  FakeSocket.all[1].close();
  vi.advanceTimersByTime(500);
  expect(FakeSocket.all).toHaveLength(2);
  vi.advanceTimersByTime(500);
  FakeSocket.all[2].open();
  expect(FakeSocket.all[2].sent).toEqual([{ type: 'look', looking: true }]);
  stop();
  vi.advanceTimersByTime(60_000);
  expect(FakeSocket.all).toHaveLength(3);
});

function widget(pool?: string) {
  const sent: any[] = [];
  const listeners: [string, (content: never) => void][] = [];
  const model: Model = {
    get: () => '',
    send: content => void sent.push(content),
    on: (event, callback) => void listeners.push([event, callback]),
    off: (_, callback) =>
      void listeners.splice(
        listeners.findIndex(([, other]) => other === callback),
        1
      )
  };
  const transport = new WidgetTransport(model, pool);
  const trigger = (event: string, content: object = {}): void =>
    listeners.filter(([name]) => name === event).forEach(([, listener]) => listener(content as never));
  const states: string[] = [];
  const heard: unknown[] = [];
  const listen = (): (() => void) =>
    transport.listen(
      message => heard.push(message),
      state => states.push(state)
    );
  return {
    transport,
    sent,
    heard,
    states,
    listen,
    trigger,
    say: (content: object) => trigger('msg:custom', content)
  };
}

test('a widget asks by messages and hears the answer to its own question', async () => {
  const { transport, sent, say, listen } = widget();
  listen();
  const one = transport.request('check', { action: 'reserve' });
  const two = transport.request('lost');
  const [first, second] = sent.filter(message => 'request' in message);
  expect(first).toEqual({ id: first.id, request: 'check', body: { action: 'reserve' } });
  say({ id: second.id + 1, result: 'of another view' });
  say({ id: second.id, error: { status: 404, message: 'gone' } });
  say({ id: first.id, result: 7 });
  expect(await one).toBe(7);
  await expect(two).rejects.toMatchObject({ status: 404, message: 'gone' });
});

test('a kernel that runs a cell is said to be busy while the widget is still live', async () => {
  const { transport, sent, states, say, listen } = widget();
  listen();
  say({ event: { type: 'notice', id: 1 } });
  const asked = transport.request('view');
  vi.advanceTimersByTime(60_000);
  say({ event: { type: 'notice', id: 2 } });
  expect(states).toEqual(['live', 'busy', 'busy']);
  say({ id: sent[0].id, result: 7 });
  expect(await asked).toBe(7);
  expect(states.at(-1)).toBe('live');
});

test('a kernel of which nothing is heard while somebody looks is said to be silent, until it is heard', () => {
  const { transport, states, say, listen } = widget();
  listen();
  transport.look(true);
  say({ event: { type: 'notice', id: 1 } });
  for (let word = 0; word < 10; word += 1) {
    vi.advanceTimersByTime(5_000);
    say({ alive: true });
  }
  expect(states).toEqual(['live']);
  vi.advanceTimersByTime(20_000);
  expect(states).toEqual(['live', 'silent']);
  say({ alive: true });
  expect(states).toEqual(['live', 'silent', 'live']);
  transport.look(false);
  vi.advanceTimersByTime(60_000);
  expect(states).toHaveLength(3);
});

test('a kernel that has ended is said at once, and what was asked is answered', async () => {
  const { transport, states, trigger, listen } = widget();
  listen();
  const asked = expect(transport.request('view')).rejects.toThrow('The kernel of this panel has ended');
  trigger('comm_live_update');
  await asked;
  expect(states).toEqual(['lost']);
});

test('a widget says when it is seen, now and then that it still is, and that it is gone', () => {
  const { transport, sent, heard, say, listen } = widget();
  const stop = listen();
  transport.look(true);
  transport.look(true);
  say({ event: { type: 'notice', id: 2 } });
  vi.advanceTimersByTime(30_000);
  transport.look(false);
  vi.advanceTimersByTime(30_000);
  stop();
  say({ event: { type: 'notice', id: 3 } });
  expect(heard).toEqual([{ type: 'notice', id: 2 }]);
  const { view } = sent[0];
  expect(sent).toEqual([
    { type: 'look', view, looking: true },
    { type: 'look', view, looking: true },
    { type: 'look', view, looking: false },
    { type: 'leave', view }
  ]);
});

test('what is said of another pool is not for this one, and what is asked names it', async () => {
  const { transport, sent, heard, say, listen } = widget('lab');
  const stop = listen();
  const asked = transport.request('view');
  transport.look(true);
  say({ event: { type: 'notice', id: 1 } });
  say({ event: { type: 'notice', id: 2 }, pool: 'slurm-dev' });
  say({ event: { type: 'notice', id: 3 }, pool: 'lab' });
  say({ id: sent[0].id, result: 7, pool: 'lab' });
  expect(await asked).toBe(7);
  stop();
  expect(heard).toEqual([{ type: 'notice', id: 3 }]);
  expect(sent.map(message => message.pool)).toEqual(['lab', 'lab', 'lab']);
});

test('a pool that nobody has looked at is not left either: its kernel need not know of it', () => {
  const { sent, listen } = widget('lab');
  listen()();
  expect(sent).toEqual([]);
});
