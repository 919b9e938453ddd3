import { beforeEach, expect, test } from 'vitest';
import { Store, share } from '../src/core/store';
import { Rank, Reservation } from '../src/core/types';
import { FakeTransport, job, mesh, node, rank, reservation, slot, view } from './fake';

let transport: FakeTransport;
let store: Store;
let clock_s = 50;

beforeEach(() => {
  clock_s = 50;
  transport = new FakeTransport();
  store = new Store(transport, () => clock_s);
  store.start();
  transport.say({ type: 'view', view: view() });
});

test('what did not change keeps its identity', () => {
  const before = store.state.view!;
  transport.change({ nodes: { node0: node('node0', [slot(0, { utilisation: 0.9 }), slot(1)]) } });
  const after = store.state.view!;
  expect(after.reservations).toBe(before.reservations);
  expect(after.nodes.node0).not.toBe(before.nodes.node0);
  expect(after.nodes.node0.slots[0]).not.toBe(before.nodes.node0.slots[0]);
  expect(after.nodes.node0.slots[1]).toBe(before.nodes.node0.slots[1]);
});

test('of a large mesh what did not change keeps its identity', () => {
  const before = store.state.view!.reservations.R;
  const ranks = before.meshes[0].ranks.map(each =>
    each.rank === 2 ? { ...each, state: 'dead' as const } : each
  );
  transport.change({ reservations: { R: reservation({ meshes: [mesh(ranks)] }) } });
  const after = store.state.view!.reservations.R;
  expect(after.meshes[0].ranks.map(each => each.state)).toEqual(['idle', 'idle', 'dead', 'idle']);
  expect(after.meshes[0].ranks[1]).toBe(before.meshes[0].ranks[1]);
  expect(after.actors).toBe(before.actors);
  expect(before.meshes[0].ranks[2].state).toBe('idle');
});

test('what is gone is removed, what is new is there', () => {
  transport.change({ reservations: { S: reservation({ id: 'S', name: 'other' }) } });
  expect(Object.keys(store.state.view!.reservations)).toEqual(['S']);
});

test('parts are shared only where keys agree', () => {
  const old = { a: 1, b: [1, 2] };
  expect(share(old, { a: 1, b: [1, 2] })).toBe(old);
  expect(share(old, { a: 1 })).toEqual({ a: 1 });
  expect(share({ a: undefined }, { b: undefined })).toEqual({ b: undefined });
  expect(share([1], { 0: 1 })).toEqual({ 0: 1 });
});

test('times left count from when they were said, also when other things change', () => {
  transport.change({ now: 1000, reservations: { R: reservation({ time_left_s: 100 }) } });
  clock_s += 30;
  transport.change({ now: 1030, nodes: { node0: node('node0', []) } });
  const held = store.state.view!.reservations.R;
  expect(held.at_s + held.time_left_s! - store.now_s()).toBe(70);
});

test('a late answer does not revive a job that has ended', async () => {
  transport.replies.reserve = () => {
    transport.say({ type: 'job', job: job({ state: 'done' }) });
    return { job: job() };
  };
  const answer = await store.act('reserve', {});
  expect(answer).toMatchObject({ state: 'done' });
  expect((await store.ended(job())).state).toBe('done');
});

test('a late answer does not take back what a job has said', async () => {
  transport.replies.reserve = () => {
    transport.say({ type: 'job', job: job({ message: 'queued job 7 waits' }) });
    return { job: job() };
  };
  expect(await store.act('reserve', {})).toMatchObject({ message: 'queued job 7 waits' });
});

test('a job is awaited until it ends', async () => {
  transport.replies.reserve = () => ({ job: job() });
  const started = (await store.act('reserve', {})) as ReturnType<typeof job>;
  const ended = store.ended(started);
  transport.say({ type: 'job', job: job({ message: 'starting 8 ranks' }) });
  transport.say({ type: 'job', job: job({ state: 'failed', error: 'no' }) });
  expect(await ended).toMatchObject({ state: 'failed', error: 'no' });
});

test('a notice is shown once, and never again when it was dismissed', () => {
  const notice = { type: 'notice', level: 'error', id: 'n', text: 'rank 3 died', reservation: 'R' } as const;
  transport.say(notice);
  transport.say(notice);
  expect(store.state.notices).toHaveLength(1);
  store.dismissNotice('n');
  transport.say(notice);
  expect(store.state.notices).toHaveLength(0);
});

test('a notice of time that is nearly up goes when the reservation is extended, or gone', () => {
  const about = { type: 'notice', level: 'warning', text: 'soon', reservation: 'R' } as const;
  const change = (R: Reservation): void => transport.change({ reservations: { R } });
  change(reservation({ nearly_up: true }));
  transport.say({ ...about, id: 'nearly-up-R-600' });
  change(reservation({ nearly_up: true, time_left_s: 9 }));
  expect(store.state.notices).toHaveLength(1);
  change(reservation({ nearly_up: false }));
  expect(store.state.notices).toHaveLength(0);
  change(reservation({ nearly_up: true }));
  transport.say({ ...about, id: 'nearly-up-R-900' });
  transport.say({ ...about, id: 'ended-R' });
  transport.change({ reservations: {} });
  expect(store.state.notices.map(notice => notice.id)).toEqual(['ended-R']);
});

test('a notice of dead ranks goes when the last of them lives again', () => {
  const change = (...ranks: Rank[]): void =>
    transport.change({ reservations: { R: reservation({ meshes: [mesh(ranks)] }) } });
  const dead = (number: number): Rank => rank(number, { state: 'dead' });
  change(dead(0), dead(1), rank(2));
  transport.say({ type: 'notice', level: 'error', id: 'dead-M-100-101', text: 'died', reservation: 'R' });
  change(rank(0, { pid: 200 }), dead(1), rank(2));
  expect(store.state.notices).toHaveLength(1);
  change(rank(0, { pid: 200 }), rank(1, { pid: 201 }), dead(2));
  expect(store.state.notices).toHaveLength(0);
});

test('a cancel that fails is said', async () => {
  transport.replies.cancel = () => {
    throw new Error('too late');
  };
  await store.cancel(job());
  expect(store.state.notices[0].text).toBe('too late');
});
