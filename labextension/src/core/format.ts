import { Mesh, Rank, RankState, Reservation } from './types';

/** "45 s", "12 min", "3 h 20 min", "2 d 4 h": the two largest units that say something. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) {
    return `${whole} s`;
  }
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) {
    return minutes < 10 && whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 24) {
    return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  }
  const days = Math.floor(hours / 24);
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** A time that is left: minutes until the last ten, so that it changes seldom. */
export function timeLeft(seconds: number): string {
  return duration(seconds >= 600 ? Math.ceil(seconds / 60) * 60 : seconds);
}

/** "18:20", or "Mon 18:20" when that is another day. */
export function clock(epoch_s: number, now_s: number): string {
  const date = new Date(epoch_s * 1000);
  const time = date.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  const isToday = date.toDateString() === new Date(now_s * 1000).toDateString();
  return isToday ? time : `${date.toLocaleDateString([], { weekday: 'short' })} ${time}`;
}

const UNITS = ['B', 'kB', 'MB', 'GB', 'TB'];

/** "18 MB", "1.4 GB": three digits are enough. */
export function bytes(size: number): string {
  let value = size;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = value < 9.95 && unit > 0 ? 1 : 0;
  return `${value.toFixed(digits).replace('.0', '')} ${UNITS[unit]}`;
}

/** "5.3/25 GB", "800 MB/2 TB". */
export function bytesOf(used: number, total: number): string {
  const [size, unit] = bytes(used).split(' ');
  const whole = bytes(total);
  return whole.endsWith(` ${unit}`) ? `${size}/${whole}` : `${size} ${unit}/${whole}`;
}

export function percent(share: number): string {
  return `${Math.round(share * 100)} %`;
}

export function count(number: number, noun: string): string {
  return `${number.toLocaleString('en')} ${noun}${number === 1 ? '' : 's'}`;
}

/** [0, 1, 2, 5] as "0-2,5". */
export function rankSet(ranks: Iterable<number>): string {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let start = 0; start < sorted.length;) {
    let end = start;
    while (sorted[end + 1] === sorted[end] + 1) {
      end += 1;
    }
    parts.push(start === end ? `${sorted[start]}` : `${sorted[start]}-${sorted[end]}`);
    start = end + 1;
  }
  return parts.join(',');
}

/** Of more, the first are named. */
const MAX_NAMED = 8;

/** As `rankSet`, but never long: "3,17,40,64,71,80,96,101,… (212)". */
export function shortRankSet(ranks: Iterable<number>): string {
  const all = [...ranks];
  const parts = rankSet(all).split(',');
  return parts.length > MAX_NAMED
    ? `${parts.slice(0, MAX_NAMED).join(',')},… (${all.length.toLocaleString('en')})`
    : parts.join(',');
}

/** "rank 3", "ranks 0-2,5". */
export function rankNames(ranks: Iterable<number>): string {
  const all = [...ranks];
  return `rank${all.length === 1 ? '' : 's'} ${shortRankSet(all)}`;
}

/** "0-2,5" as [0, 1, 2, 5]; null when it is not a set of ranks. */
export function parseRanks(text: string): number[] | null {
  const ranks: number[] = [];
  for (const part of text.split(',')) {
    const match = /^\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*$/.exec(part);
    if (!match) {
      return null;
    }
    const first = Number(match[1]);
    const last = match[2] === undefined ? first : Number(match[2]);
    if (last < first || last - first > 100_000) {
      return null;
    }
    for (let rank = first; rank <= last; rank += 1) {
      ranks.push(rank);
    }
  }
  return ranks;
}

/** "2 nodes × 4 GPUs". */
export function shape(reservation: Reservation): string {
  const each = reservation.gpus ? count(reservation.gpus, 'GPU') : count(reservation.procs, 'proc');
  return `${count(reservation.nodes, 'node')} × ${each}`;
}

/** US dollars per hour: "$12.40/h". */
export function price(per_hour: number): string {
  return `$${per_hour.toLocaleString('en', { minimumFractionDigits: 2, maximumFractionDigits: 2 })}/h`;
}

/** What the worst state is called, in the order in which a person wants to know of them. */
export const STATES: readonly RankState[] = [
  'dead',
  'unreachable',
  'failed',
  'waiting',
  'running',
  'starting',
  'idle'
];

export const STATE_LABELS: Record<RankState, string> = {
  starting: 'starting',
  idle: 'idle',
  running: 'running',
  waiting: 'waiting',
  failed: 'failed',
  dead: 'dead',
  unreachable: 'unreachable'
};

/** How many ranks there are in each state that there is, in the order of `STATES`. Where nothing runs, those that
 * failed are idle, too: what failed is over. */
export function tally(ranks: readonly Rank[]): { state: RankState; number: number; label: string }[] {
  const isOver = ranks.every(rank => rank.state === 'failed' || rank.state === 'idle');
  return STATES.map(state => {
    const number = ranks.filter(rank => rank.state === state).length;
    const label = isOver && state === 'failed' ? 'idle, last cell failed' : STATE_LABELS[state];
    return { state, number, label };
  }).filter(({ number }) => number > 0);
}

export function mainMesh(reservation: Reservation): Mesh | undefined {
  return reservation.meshes.find(mesh => mesh.name === 'main') ?? reservation.meshes[0];
}

/** What a reservation is called here: somebody else's with its owner, as `%mesh attach` takes it. */
export function fullName({ mine, owner, name }: Reservation): string {
  return mine ? name : `${owner}/${name}`;
}

/** "dev · 16 ranks · 3 waiting · 13 running · 3 h left": a reservation in one line. */
export function summary(reservation: Reservation, timeLeft_s: number | null, isAttached = true): string {
  const ranks = mainMesh(reservation)?.ranks ?? [];
  const parts = [fullName(reservation), count(ranks.length, 'rank')];
  for (const { state, number, label } of tally(ranks)) {
    if (state !== 'idle') {
      parts.push(`${number} ${label}`);
    }
  }
  if (timeLeft_s !== null) {
    parts.push(timeLeft_s > 0 ? `${timeLeft(timeLeft_s)} left` : 'time is up');
  }
  if (!isAttached) {
    parts.push('not attached');
  }
  return parts.join(' · ');
}
