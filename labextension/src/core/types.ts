import type { Curves } from './curves';

/** What panel, widget and server say to each other. All sizes in bytes, all times in seconds; null: unknown. */

/** What counts on by itself. */
export interface Counting {
  /** The server's clock when its times were true. */
  at_s: number;
}

export interface Memory {
  used: number | null;
  total: number;
}

export interface Slot {
  kind: 'gpu' | 'cpu';
  index: number;
  name: string;
  utilisation: number | null;
  memory: Memory | null;
  temperature_c: number | null;
  power_w: number | null;
  power_limit_w: number | null;
  reservation: string | null;
  rank: number | null;
  /** Why it can not be read. */
  error?: string | null;
  /** Who else on the machine holds or uses it. */
  note?: string;
}

export type NodeState = 'ok' | 'starting' | 'silent' | 'dead';

export interface PoolNode {
  id: string;
  hostname: string;
  state: NodeState;
  /** What there is to say besides. */
  message: string | null;
  /** When it began not to answer: "14:02". */
  since?: string | null;
  /** Its allocator died: starting the pool again starts it. */
  startable?: boolean;
  procs: { total: number; free: number };
  gpus: { total: number; free: number };
  memory: Memory | null;
  cpu: number | null;
  slots: Slot[];
}

export type RankState = 'starting' | 'idle' | 'running' | 'waiting' | 'failed' | 'dead' | 'unreachable';

export interface Rank extends Counting {
  rank: number;
  node: string;
  state: RankState;
  detail: string;
  /** What is wrong with its GPU. */
  trouble: string;
  pid: number | null;
  run: string | null;
  running_s: number | null;
  memory: number | null;
  cpu: number | null;
  gpu: number | null;
  stderr_tail: string[];
}

export interface Run extends Counting {
  id: string;
  number: number;
  title: string;
  /** Who submitted it, where that is not whose reservation it is. */
  owner?: string;
  cell_number: number;
  state: 'queued' | 'running' | 'finished';
  /** Of a finished one, in words: "finished", "failed on 3, interrupted on 0-2". */
  outcome: string;
  ranks: string;
  running_s: number | null;
  finished: string;
  failed: string;
}

/** Ranks that wait for others that will not come. */
export interface Hang {
  text: string;
  ranks: string;
}

export interface Mesh {
  id: string;
  name: string;
  extent: Record<string, number>;
  ranks: Rank[];
  runs: Run[];
  /** When its ranks save by themselves, and where. */
  saves?: Saves | null;
  hang: Hang | null;
}

export interface Saves {
  when: string;
  directory: string;
}

/** What some ranks of an actor do; those that do the same are one. */
export interface Doing extends Counting {
  state: 'failed' | 'waiting' | 'running' | 'idle';
  ranks: string;
  /** The endpoint that is executed. */
  running: string;
  running_s: number | null;
  /** Who called it; "": not the same on all ranks. */
  caller: string;
  /** The line where it is, or what it waits in; "": not the same on all ranks. */
  where: string;
  /** So many messages wait on the rank where most do. */
  waiting: number;
  failure: string;
}

/** Actors that were spawned together, one on each of these ranks. */
export interface Actor {
  id: string;
  name: string;
  class: string;
  mesh_id: string;
  mesh: string;
  /** Of the mesh: those that have the actor. */
  ranks: string;
  /** Of the actors among those of their name: others where a rank has several, as of Monarch's own engine. */
  actor_ranks: string;
  doings: Doing[];
  /** So many doings are left out. */
  more: number;
}

export interface Actors {
  shown: Actor[];
  /** So many actors, each rank's counted, are left out. */
  more: number;
}

export interface Reservation extends Counting {
  id: string;
  name: string;
  owner: string;
  mine: boolean;
  /** What we may do with it; "" is nothing but know of it. */
  right: 'own' | 'run' | 'read' | '';
  nodes: number;
  procs: number;
  gpus: number;
  node_ids: string[];
  nodes_answering: number;
  notebook: string;
  /** What the contents API calls the notebook; "": none, or not below the server's root. */
  notebook_path?: string;
  /** The notebooks that use it now, as the contents API calls them. */
  used_by: string[];
  /** Those that would with a kernel that loads the extension. */
  remembered_by: string[];
  created_at: number;
  time_s: number | null;
  time_left_s: number | null;
  idle_s: number | null;
  idle_left_s: number | null;
  nearly_up: boolean;
  /** In US dollars, of all its nodes; null where nobody knows. */
  price_per_hour: number | null;
  meshes: Mesh[];
  actors: Actors;
  /** Why an action would be refused as it is now; what is missing can be done. */
  refusals: { attach?: string; restart?: string; resize?: string };
}

export interface Ended {
  id: string;
  name: string;
  ended_at: number;
  why: string;
  /** Where a person released it, or with what; "": it ended by itself. */
  by: string;
  text: string;
}

export interface Pool {
  name: string;
  state: 'up' | 'down' | 'silent';
  message: string | null;
  nodes: number;
}

/** A pool that can be shown. */
export interface PoolName {
  name: string;
  /** "this machine", "hosts", "Slurm job 12". */
  what: string;
}

export interface View {
  pool: Pool;
  /** All that there are from here, this one first. */
  pools: PoolName[];
  owner: string;
  now: number;
  nodes: Record<string, PoolNode>;
  reservations: Record<string, Reservation>;
  ended: Ended[];
}

export interface Job {
  id: string;
  action: string;
  title: string;
  state: 'running' | 'done' | 'failed' | 'cancelled';
  message: string;
  cancellable: boolean;
  result: unknown;
  error: string | null;
}

export interface Notice {
  type: 'notice';
  level: 'warning' | 'error';
  id: string;
  text: string;
  reservation: string;
}

/** How much of a log there is, and of whom. */
export interface LogExtent {
  /** Rows: of lines, and of those that say what the runs are and how they failed. */
  total: number;
  lines: number;
  complete: boolean;
  /** Whose lines are not here, and why. */
  missing: string;
  /** Paths of all notebooks that its runs come from. */
  notebooks: string[];
}

export interface LogGrown extends LogExtent {
  type: 'log';
  log: string;
  error?: string | null;
}

export type Message = { type: 'view'; view: View } | { type: 'job'; job: Job } | LogGrown | Notice;

export type Value = string | number | boolean;
export type Values = Record<string, Value | null>;

export interface Field {
  name: string;
  label: string;
  type: 'integer' | 'text' | 'duration' | 'choice' | 'boolean';
  default?: Value | null;
  minimum?: number | null;
  maximum?: number | null;
  choices?: { value: Value; label: string }[] | null;
  placeholder?: string | null;
  help?: string | null;
  required?: boolean;
  /** It is asked for only when this is the value of the field "where". */
  where?: string;
}

export interface Form {
  action: string;
  title: string;
  submit: string;
  fields: Field[];
}

export type Forms = Record<string, Form>;

export interface Check {
  ok: boolean;
  message: string;
  errors?: Record<string, string>;
}

export interface StackGroup {
  ranks: string;
  stack: string;
}

export type Streams = 'both' | 'stdout' | 'stderr';

export interface LogRun {
  number: number;
  title: string;
  /** Who submitted it, where that is not whose reservation it is. */
  owner?: string;
  cell_number: number;
  /** Path of the notebook that it comes from; "": not known. */
  notebook: string;
  /** What the contents API calls it; "": it is not below the server's root. */
  notebook_path: string;
  first_row: number;
}

/** In what lines of one row may differ: in numbers and times, in times, in nothing; or no two lines share a row. */
export type Fold = 'numbers' | 'times' | 'equal' | 'off';

export interface OpenedLog extends LogExtent {
  log: string;
  runs: LogRun[];
  /** As asked, or what is usual for so many ranks. */
  fold: Fold;
  /** So many rows are to be asked for at a time. */
  page: number;
}

export interface LogRow {
  row: number;
  run: number;
  /** Of a row that is no line: the name of its run, or how the run ended on some ranks. */
  kind?: 'run' | 'end';
  ranks: string;
  stream?: 'out' | 'err';
  text: string;
  /** Of the whole line, in bytes, when the text is not all of it. */
  size?: number;
  /** No node that has it answers. */
  away?: boolean;
  /** The line's number on the first of the ranks. */
  line?: number;
  /** The text stands for lines that differ. */
  folded?: boolean;
  /** What must not be overlooked: numbers of some ranks, with their names, that the text does not have. */
  apart?: { ranks: string; text: string }[];
  /** Ranks of it whose nodes do not answer: what the text says is without them. */
  lacking?: string;
}

/** Each rank's own line of a row. */
export interface OwnLines {
  row: number;
  run: number;
  line?: number;
  lines: LogRow[];
}

export interface LogRows extends LogExtent {
  first: number;
  rows: LogRow[];
  /** The runs that these rows belong to. */
  runs: LogRun[];
  /** So many rows, from the first on, stay as they are, whatever comes. */
  settled: number;
}

/** Which numbers can be drawn of a run, and which runs there are. */
export interface CurvesFound {
  /** The one that was named, or the newest that has numbers. */
  run: number;
  /** The newest first. */
  runs: { number: number; name: string; title: string; is_over: boolean }[];
  names: { name: string; unit: string; lines: number; is_step: boolean }[];
  /** Names that are drawn when nobody says. */
  suggested: string[];
  /** Everything that was printed is counted, and the run is over. */
  is_all: boolean;
}

export interface ReadCurves {
  version: string;
  /** How soon to ask again; null: nothing more will come. */
  again_s: number | null;
  /** Absent: as in the version that was named. */
  curves?: Curves;
}

/** Where the ranks of a mesh were in the last seconds. */
export interface Top {
  /** Who is waited for, or why nobody is. */
  sentence: string;
  is_late: boolean;
  /** How soon to ask again. */
  again_s: number;
  rows: TopRow[];
}

/** Ranks that do the same. Absent figures are "". */
export interface TopRow {
  ranks: string;
  /** They are waited for. */
  is_late: boolean;
  node: string;
  steps_per_s: string;
  /** What they did, with shares from 0 to 1. */
  parts: { kind: string; share: number; words: string }[];
  memory: string;
  cpu: string;
  gpu: string;
  where: string;
}

/** Which log to show, or of which ranks and run the curves. */
export interface LogTarget {
  reservation: string;
  mesh: string;
  ranks: string | null;
  run: number | null;
  /** Of another pool than the first one. */
  pool?: string;
}
