import { STATES, STATE_LABELS } from './format';
import { NodeState, PoolNode, Rank, RankState } from './types';

/** More ranks or nodes than these fill a screen and are folded: those that do the same are one row. */
export const MOST_RANKS_UNFOLDED = 128;
export const MOST_NODES_UNFOLDED = 16;
/** So many reasons of one state have rows of their own. */
const MAX_REASONS = 4;

/** Ranks or nodes that do the same. */
export interface Group<T> {
  key: string;
  /** Its shape and colour. */
  state: RankState | NodeState | 'warning';
  /** "dead", "does not answer". */
  label: string;
  /** Why, or where; "": nothing more is to be said. */
  reason: string;
  members: readonly T[];
}

type Kind = Pick<Group<unknown>, 'state' | 'label'>;

const TROUBLED_GPU: Kind = { state: 'warning', label: 'with a troubled GPU' };
const RANK_KINDS: readonly Kind[] = STATES.flatMap(state => {
  const kind = { state, label: STATE_LABELS[state] };
  return state === 'failed' ? [TROUBLED_GPU, kind] : [kind];
});

export const NODE_STATES: Record<NodeState, string> = {
  ok: 'ok',
  starting: 'starting',
  silent: 'does not answer',
  dead: 'gone'
};

/** How a node is, in a word or two. */
export function nodeWord(node: PoolNode): string {
  return node.state === 'silent' && node.since ? `unreachable since ${node.since}` : NODE_STATES[node.state];
}

const NODE_KINDS: readonly Kind[] = [
  { state: 'dead', label: NODE_STATES.dead },
  { state: 'silent', label: 'silent' },
  TROUBLED_GPU,
  { state: 'starting', label: NODE_STATES.starting },
  { state: 'ok', label: NODE_STATES.ok }
];

/** Ranks folded by what they do, the troubled ones first. */
export function rankGroups(ranks: readonly Rank[]): Group<Rank>[] {
  return fold(ranks, RANK_KINDS, rank =>
    rank.trouble && rank.state !== 'dead' && rank.state !== 'unreachable'
      ? [TROUBLED_GPU.state, rank.trouble]
      : [rank.state, rank.detail.replace(/^waits /, '')]
  );
}

/** Nodes folded by how they are, the troubled ones first. */
export function nodeGroups(nodes: readonly PoolNode[]): Group<PoolNode>[] {
  return fold(nodes, NODE_KINDS, node => {
    const lost = node.state === 'ok' && node.slots.find(slot => slot.error);
    return lost ? [TROUBLED_GPU.state, lost.error ?? ''] : [node.state, node.message ?? ''];
  });
}

/** How many nodes are not as they should be. */
export function troubled(nodes: readonly PoolNode[]): number {
  return nodes.filter(node => node.state === 'dead' || node.state === 'silent' || hasLost(node)).length;
}

/** Whether a slot of a node can not be used. */
export function hasLost(node: PoolNode): boolean {
  return node.slots.some(slot => slot.error);
}

function fold<T>(
  all: readonly T[],
  kinds: readonly Kind[],
  tell: (one: T) => [Group<T>['state'], string]
): Group<T>[] {
  const told = new Map<Group<T>['state'], [T, string][]>();
  for (const one of all) {
    const [state, reason] = tell(one);
    const alike = told.get(state) ?? [];
    alike.push([one, reason]);
    told.set(state, alike);
  }
  return kinds.flatMap(kind =>
    byReason(told.get(kind.state) ?? []).map(({ reason, members }) => ({
      ...kind,
      key: `${kind.state} ${reason}`,
      reason,
      members
    }))
  );
}

/** Those with one reason together, the most first; where there are many, those whose reasons differ by numbers only. */
function byReason<T>(told: [T, string][]): { reason: string; members: T[] }[] {
  let groups = grouped(told);
  if (groups.length > MAX_REASONS) {
    groups = grouped(told.map(([one, reason]) => [one, reason.replace(/\d+(\.\d+)?/g, '…')]));
  }
  if (groups.length > MAX_REASONS) {
    const others = new Set(groups.slice(MAX_REASONS - 1).flatMap(({ members }) => members));
    const members = told.map(([one]) => one).filter(one => others.has(one));
    groups = [...groups.slice(0, MAX_REASONS - 1), { reason: 'for other reasons', members }];
  }
  return groups;
}

function grouped<T>(told: [T, string][]): { reason: string; members: T[] }[] {
  const groups = new Map<string, T[]>();
  for (const [one, reason] of told) {
    const members = groups.get(reason) ?? [];
    members.push(one);
    groups.set(reason, members);
  }
  return [...groups]
    .map(([reason, members]) => ({ reason, members }))
    .sort((one, other) => other.members.length - one.members.length);
}
