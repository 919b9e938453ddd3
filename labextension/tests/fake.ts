import { Connection, RequestError, Transport } from '../src/core/transport';
import { Actor, Doing, Job, Mesh, Message, PoolNode, Rank, Reservation, Slot, View } from '../src/core/types';

type Reply = (body: any) => unknown;

/** A server in memory: answers are given by a test, and it says when they come. */
export class FakeTransport implements Transport {
  readonly requests: [string, any][] = [];
  readonly replies: Record<string, Reply> = {
    forms: () => FORMS,
    check: () => ({ ok: true, message: 'fits: node0' })
  };
  looking: boolean | null = null;
  private _view = view();
  private _onMessage: (message: Message) => void = () => undefined;
  private _onConnection: (state: Connection) => void = () => undefined;

  async request<T>(name: string, body: object = {}): Promise<T> {
    this.requests.push([name, structuredClone(body)]);
    const reply = this.replies[name];
    if (!reply) {
      throw new RequestError(`no ${name}`, 404);
    }
    return structuredClone(await reply(body)) as T;
  }

  listen(onMessage: (message: Message) => void, onConnection: (state: Connection) => void): () => void {
    this._onMessage = onMessage;
    this._onConnection = onConnection;
    onConnection('live');
    return () => (this._onMessage = () => undefined);
  }

  look(looking: boolean): void {
    this.looking = looking;
  }

  say(message: Message): void {
    if (message.type === 'view') {
      this._view = message.view;
    }
    this._onMessage(structuredClone(message));
  }

  /** Say the last view again, a second later, with some parts that are others. */
  change(parts: Partial<View>): void {
    this.say({ type: 'view', view: { ...this._view, now: this._view.now + 1, ...parts } });
  }

  connection(state: Connection): void {
    this._onConnection(state);
  }

  asked(name: string): any[] {
    return this.requests.filter(([each]) => each === name).map(([, body]) => body);
  }
}

export const FORMS = {
  reserve: {
    action: 'reserve',
    title: 'Reserve',
    submit: 'Reserve',
    fields: [
      { name: 'name', label: 'Name', type: 'text', default: 'dev' },
      { name: 'nodes', label: 'Nodes', type: 'integer', default: 2, minimum: 1, maximum: 2 },
      {
        name: 'kind',
        label: 'Kind',
        type: 'choice',
        default: 'procs',
        choices: [
          { value: 'procs', label: 'CPU ranks' },
          { value: 'gpus', label: 'GPUs' }
        ]
      }
    ]
  },
  up: { action: 'up', title: 'Start a local pool', submit: 'Start', fields: [] },
  extend: {
    action: 'extend',
    title: 'Extend dev',
    submit: 'Extend',
    fields: [{ name: 'by', label: 'By', type: 'duration', default: '2h' }]
  },
  resize: {
    action: 'resize',
    title: 'Resize',
    submit: 'Resize',
    fields: [
      { name: 'nodes', label: 'Nodes', type: 'integer', default: 1, minimum: 1 },
      { name: 'mesh', label: 'Mesh', type: 'text', default: 'grown' }
    ]
  }
};

export function slot(index: number, more: Partial<Slot> = {}): Slot {
  return {
    kind: 'gpu',
    index,
    name: 'NVIDIA H200',
    utilisation: 0.5,
    memory: { used: 40e9, total: 141e9 },
    temperature_c: 54,
    power_w: 312,
    power_limit_w: 700,
    reservation: 'R',
    rank: index,
    ...more
  };
}

export function node(id: string, slots: Slot[] = [slot(0), slot(1)], more: Partial<PoolNode> = {}): PoolNode {
  return {
    id,
    hostname: 'h',
    state: 'ok',
    message: null,
    procs: { total: 0, free: 0 },
    gpus: { total: slots.length, free: slots.filter(each => each.reservation === null).length },
    memory: { used: 1e9, total: 2e9 },
    cpu: 0.4,
    slots,
    ...more
  };
}

export function rank(number: number, more: Partial<Rank> = {}): Rank {
  return {
    rank: number,
    node: 'node0',
    state: 'idle',
    detail: '',
    trouble: '',
    pid: 100 + number,
    run: null,
    running_s: null,
    at_s: 1000,
    memory: 18e6,
    cpu: 0,
    gpu: null,
    stderr_tail: [],
    ...more
  };
}

export function mesh(ranks: Rank[]): Mesh {
  return { id: 'M', name: 'main', extent: { hosts: 2, procs: 2 }, ranks, runs: [], hang: null };
}

export function doing(more: Partial<Doing> = {}): Doing {
  return {
    state: 'idle',
    ranks: '0-3',
    running: '',
    running_s: null,
    at_s: 1000,
    caller: '',
    where: '',
    waiting: 0,
    failure: '',
    ...more
  };
}

export function actor(more: Partial<Actor> = {}): Actor {
  return {
    id: 'M/trainers',
    name: 'trainers',
    class: 'Trainer',
    mesh_id: 'M',
    mesh: 'main',
    ranks: '0-3',
    actor_ranks: more.ranks ?? '0-3',
    doings: [doing()],
    more: 0,
    ...more
  };
}

export function reservation(more: Partial<Reservation> = {}): Reservation {
  return {
    id: 'R',
    name: 'dev',
    owner: 'root',
    mine: true,
    right: 'own',
    nodes: 2,
    procs: 2,
    gpus: 0,
    node_ids: ['node0', 'node1'],
    nodes_answering: 2,
    notebook: '/home/u/x.ipynb',
    notebook_path: 'x.ipynb',
    used_by: ['x.ipynb'],
    remembered_by: [],
    created_at: 1000,
    time_s: null,
    time_left_s: null,
    at_s: 1000,
    idle_s: null,
    idle_left_s: null,
    nearly_up: false,
    price_per_hour: null,
    meshes: [mesh([0, 1, 2, 3].map(each => rank(each)))],
    actors: { shown: [], more: 0 },
    refusals: {},
    ...more
  };
}

export function view(more: Partial<View> = {}): View {
  return {
    pool: { name: 'local', state: 'up', message: null, nodes: 1 },
    pools: [{ name: 'local', what: 'this machine' }],
    owner: 'root',
    now: 1000,
    nodes: { node0: node('node0') },
    reservations: { R: reservation() },
    ended: [],
    ...more
  };
}

export function job(more: Partial<Job> = {}): Job {
  return {
    id: 'J',
    action: 'reserve',
    title: 'Reserving dev',
    state: 'running',
    message: 'starting 4 ranks',
    cancellable: true,
    result: null,
    error: null,
    ...more
  };
}
