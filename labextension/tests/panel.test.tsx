import { act, fireEvent, render, screen, waitFor, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, expect, test, vi } from 'vitest';
import { Panel } from '../src/core/components/Panel';
import { Host } from '../src/core/context';
import { Store } from '../src/core/store';
import { RequestError } from '../src/core/transport';
import { Run, Slot, View } from '../src/core/types';
import { FakeTransport, job, mesh, node, rank, reservation, slot, view } from './fake';

let transport: FakeTransport;
let store: Store;

beforeEach(() => {
  transport = new FakeTransport();
  store = new Store(transport);
});

async function show(
  shown: View = view(),
  host: Host = { openLog: () => undefined },
  only: string | null = null
): Promise<HTMLElement> {
  store.start();
  const { container } = render(<Panel store={store} host={host} only={only} notebook="x.ipynb" />);
  await act(async () => transport.say({ type: 'view', view: shown }));
  return container;
}

const say = (message: Parameters<FakeTransport['say']>[0]): Promise<void> =>
  act(async () => transport.say(message));
const changed = (parts: Partial<View>): Promise<void> => act(async () => transport.change(parts));
const button = (name: string | RegExp): HTMLElement => screen.getByRole('button', { name });
const EMPTY = view({ reservations: {} });

test('without a pool it says how to get one', async () => {
  await show(
    view({
      pool: { name: 'local', state: 'down', message: 'No pool is up.', nodes: 0 },
      nodes: {},
      reservations: {}
    })
  );
  expect(screen.getByText('No pool is up.')).toBeTruthy();
  transport.replies.up = () => ({ job: job({ action: 'up', title: 'Starting the pool' }) });
  await userEvent.click(button('Start a local pool…'));
  await userEvent.click(await screen.findByRole('button', { name: 'Start' }));
  expect(transport.asked('up')).toEqual([{ values: {} }]);
  expect(screen.getByRole('progressbar', { name: 'Starting the pool' })).toBeTruthy();
});

test.each(['down', 'silent'] as const)('where a pool is %s, engines can be asked for nodes', async state => {
  transport.replies.reserve = () => ({ job: job() });
  await show(
    view({ pool: { name: 'local', state, message: 'None.', nodes: 0 }, nodes: {}, reservations: {} })
  );
  await userEvent.click(button('Reserve…'));
  await userEvent.click(await screen.findByRole('button', { name: 'Reserve' }));
  expect(transport.asked('reserve')).toHaveLength(1);
});

test('the form says at once whether it fits, and why not at the field', async () => {
  transport.replies.check = ({ values }) =>
    values.nodes > 2
      ? { ok: false, message: 'too many', errors: { nodes: 'there are 2 nodes' } }
      : { ok: true, message: 'fits: node0, node1' };
  await show(EMPTY);
  await userEvent.click(button('Reserve…'));
  await screen.findByText('fits: node0, node1');
  const field = screen.getByRole('spinbutton', { name: 'Nodes' });
  await userEvent.clear(field);
  await userEvent.type(field, '3');
  await screen.findByText('there are 2 nodes');
  expect(field.getAttribute('aria-invalid')).toBe('true');
  expect((screen.getByRole('button', { name: 'Reserve' }) as HTMLButtonElement).disabled).toBe(true);
});

test('reserving shows its progress, can be cancelled, and keeps what was entered', async () => {
  transport.replies.reserve = () => ({ job: job() });
  transport.replies.cancel = () => ({});
  await show(EMPTY, { notebook: () => 'x.ipynb' });
  await userEvent.click(button('Reserve…'));
  const name = await screen.findByRole('textbox', { name: 'Name' });
  await userEvent.clear(name);
  await userEvent.type(name, 'big{Enter}');
  expect(transport.asked('reserve')).toEqual([
    { notebook: 'x.ipynb', values: { name: 'big', nodes: 2, kind: 'procs' } }
  ]);
  await screen.findByText('starting 4 ranks');
  await userEvent.click(button('Cancel'));
  expect(transport.asked('cancel')).toEqual([{ job: 'J' }]);
  await say({ type: 'job', job: job({ state: 'cancelled' }) });
  const verdict = (await screen.findByText('Cancelled.')).closest('.mnb-verdict')!;
  expect([verdict.className, verdict.querySelector('.mnb-mark')]).toEqual(['mnb-verdict', null]);
  expect((screen.getByRole('textbox', { name: 'Name' }) as HTMLInputElement).value).toBe('big');
});

test('a form closes when it is done', async () => {
  transport.replies.reserve = () => ({ job: job() });
  await show(EMPTY);
  await userEvent.click(button('Reserve…'));
  await userEvent.click(await screen.findByRole('button', { name: 'Reserve' }));
  await say({ type: 'job', job: job({ state: 'done' }) });
  await waitFor(() => expect(screen.queryByRole('form')).toBeNull());
});

test('an open form asks again when places become free, and not for each figure of a busy rank', async () => {
  const nodes = { node0: node('node0', [slot(0)]) };
  await show(view({ nodes, reservations: { R: reservation({ meshes: [mesh([rank(0)])] }) } }));
  await userEvent.click(button('Reserve…'));
  await screen.findByText('fits: node0');
  const asked = transport.asked('check').length;
  const busy = reservation({ meshes: [mesh([rank(0, { state: 'running' })])] });
  const freed = { node0: node('node0', [slot(0), slot(1, { reservation: null })]) };
  vi.useFakeTimers();
  try {
    await changed({ reservations: { R: busy } });
    await act(async () => vi.advanceTimersByTime(1000));
    expect(transport.asked('check')).toHaveLength(asked);
    await changed({ nodes: freed });
    await act(async () => vi.advanceTimersByTime(1000));
    expect(transport.asked('check')).toHaveLength(asked + 1);
  } finally {
    vi.useRealTimers();
  }
});

test('a pool that vanishes while the form is open is said in the form', async () => {
  await show(EMPTY);
  await userEvent.click(button('Reserve…'));
  await screen.findByText('fits: node0');
  transport.replies.check = () => {
    throw new RequestError('no pool is up', 503);
  };
  await changed({ pool: { name: 'local', state: 'silent', message: 'it does not answer', nodes: 1 } });
  await screen.findByText('no pool is up');
  expect(screen.getByRole('form', { name: 'Reserve' })).toBeTruthy();
});

test('a refused reservation is said where it was asked for', async () => {
  transport.replies.reserve = () => {
    throw new RequestError('names have no blanks', 400, { name: 'no blanks, please' });
  };
  await show(EMPTY);
  await userEvent.click(button('Reserve…'));
  await userEvent.click(await screen.findByRole('button', { name: 'Reserve' }));
  await screen.findByText('no blanks, please');
});

test('release asks first and says what would be lost', async () => {
  transport.replies.lost = () => ({ text: '4 ranks with their variables' });
  transport.replies.release = () => ({ job: job({ action: 'release', title: 'Releasing dev' }) });
  await show();
  await userEvent.click(button('Release…'));
  const question = await screen.findByRole('alertdialog', { name: 'Release dev?' });
  await within(question).findByText('4 ranks with their variables');
  expect(document.activeElement?.textContent).toBe('Keep');
  await userEvent.keyboard('{Escape}');
  expect(screen.queryByRole('alertdialog')).toBeNull();
  expect(transport.asked('release')).toEqual([]);
  await userEvent.click(button('Release…'));
  await userEvent.click(
    within(await screen.findByRole('alertdialog')).getByRole('button', { name: 'Release' })
  );
  expect(transport.asked('release')).toEqual([{ reservation: 'R', mesh: 'M', ranks: null }]);
});

test('what is held is shown and can be released while no node answers, and what that left is said', async () => {
  transport.replies.lost = () => ({ text: 'all' });
  transport.replies.release = () => ({ job: job({ action: 'release', title: 'Releasing dev' }) });
  await show();
  await changed({
    pool: { name: 'lab', nodes: 2, state: 'silent', message: "no node of the pool 'lab' answers" }
  });
  screen.getByText("no node of the pool 'lab' answers");
  await userEvent.click(button('Release…'));
  await userEvent.click(
    within(await screen.findByRole('alertdialog')).getByRole('button', { name: 'Release' })
  );
  const text = 'node0 does not answer: its ranks go on until it does';
  await changed({ reservations: {} });
  await say({ type: 'job', job: job({ state: 'done', action: 'release', result: { text } }) });
  await screen.findByText(/^dev is released\s+node0 does not answer/);
  expect(screen.queryByText(/You hold nothing yet/)).toBeNull();
});

test('a reservation that is released elsewhere goes, also while a question is open', async () => {
  transport.replies.lost = () => ({ text: 'all' });
  await show();
  await userEvent.click(button('Release…'));
  await changed({
    reservations: {},
    ended: [{ id: 'R', name: 'dev', ended_at: 1001, why: 'its time was up', by: '', text: '' }]
  });
  expect(screen.queryByRole('article')).toBeNull();
  expect(screen.getByText(/dev: its time was up/)).toBeTruthy();
});

test('what can not be done says why, can be come to by the keyboard, and is back when it can', async () => {
  const why = 'no node of dev answers: this can be done again as soon as one does';
  const refusals = { attach: why, restart: why, resize: why };
  const asked = vi.fn();
  transport.replies.lost = asked;
  await show(view({ reservations: { R: reservation({ nodes_answering: 0, refusals }) } }));
  for (const name of ['Restart…', 'Resize…']) {
    const one = button(name) as HTMLButtonElement;
    expect(one.getAttribute('aria-disabled')).toBe('true');
    expect(one.title).toBe(why);
    one.focus();
    expect(document.activeElement).toBe(one);
    await userEvent.keyboard('{Enter}');
  }
  expect(asked).not.toHaveBeenCalled();
  expect(screen.queryByRole('form')).toBeNull();
  expect(button('Release…').getAttribute('aria-disabled')).toBeNull();
  await changed({ reservations: { R: reservation() } });
  expect(button('Restart…').getAttribute('aria-disabled')).toBeNull();
});

test('a command says why it can not be done now', async () => {
  const refusals = { restart: 'no node of dev answers' };
  await show(view({ reservations: { R: reservation({ refusals }) } }));
  await act(async () => store.intend({ action: 'restart', reservation: 'R' }));
  expect(screen.getByText('no node of dev answers')).toBeTruthy();
  await changed({ reservations: { R: reservation() } });
  expect(screen.queryByText('no node of dev answers')).toBeNull();
});

test('the widget of a reservation says where it was released, also while no node answers', async () => {
  const text = 'dev was released at 14:03 in the panel';
  const ended = [{ id: 'R', name: 'dev', ended_at: 1000, why: '', by: 'in the panel', text }];
  const pool = { name: 'lab', state: 'silent' as const, message: 'no node answers', nodes: 1 };
  await show(view({ pool, reservations: {}, ended }), undefined, 'R');
  expect(screen.getByText(text)).toBeTruthy();
});

test('chosen ranks are restarted, by keyboard alone', async () => {
  transport.replies.lost = () => ({ text: '2 ranks' });
  transport.replies.restart = () => ({ job: job({ action: 'restart' }) });
  await show();
  const user = userEvent.setup();
  screen.getByRole('option', { name: /rank 1/ }).focus();
  await user.keyboard(' {ArrowRight} ');
  expect(screen.getAllByRole('option', { selected: true })).toHaveLength(2);
  await user.click(button('Restart… ranks 1-2'));
  await user.click(within(await screen.findByRole('alertdialog')).getByRole('button', { name: 'Restart' }));
  expect(transport.asked('restart')).toEqual([{ reservation: 'R', mesh: 'M', ranks: '1-2' }]);
});

test('a question stays open when what was begun before it ends', async () => {
  const interrupt = { action: 'interrupt', title: 'Interrupting dev' };
  transport.replies.interrupt = () => ({ job: job(interrupt) });
  transport.replies.lost = () => ({ text: 'the variables of 4 ranks' });
  await show();
  await userEvent.click(button('Interrupt'));
  await userEvent.click(button('Restart…'));
  await screen.findByRole('alertdialog');
  await say({ type: 'job', job: job({ ...interrupt, state: 'done', result: { text: 'interrupted' } }) });
  expect(within(screen.getByRole('alertdialog')).getByText('the variables of 4 ranks')).toBeTruthy();
});

test('free nodes take the places of those that do not answer, when that is what one wants', async () => {
  transport.replies.lost = () => ({ text: 'the variables of 2 ranks' });
  transport.replies.replace = () => ({ job: job({ action: 'replace' }) });
  await show(view({ reservations: { R: reservation({ nodes: 2, nodes_answering: 1 }) } }));
  await userEvent.click(button('Replace nodes…'));
  const question = within(await screen.findByRole('alertdialog'));
  expect(await question.findByText('the variables of 2 ranks')).toBeTruthy();
  await userEvent.click(question.getByRole('button', { name: 'Replace' }));
  expect(transport.asked('lost')).toEqual([{ action: 'replace', reservation: 'R', mesh: 'M', ranks: null }]);
  expect(transport.asked('replace')).toEqual([{ reservation: 'R', mesh: 'M', ranks: null }]);
});

const ON_TWO = [rank(0), rank(1), rank(2, { node: 'node1' }), rank(3, { node: 'node1' })];

test('more nodes are had at once, with a mesh of their own; fewer are asked before', async () => {
  transport.replies.check = () => ({
    ok: true,
    message: 'node2 besides; grown-2 has 6 ranks then, others stay'
  });
  transport.replies.resize = () => ({ job: job({ action: 'resize', title: 'Growing dev to 3 nodes' }) });
  transport.replies.lost = () => ({ text: 'all' });
  const grown = { ...mesh(ON_TWO), id: 'G', name: 'grown' };
  await show(view({ reservations: { R: reservation({ meshes: [mesh([rank(0), rank(1)]), grown] }) } }));
  await userEvent.click(button('Resize…'));
  const form = within(screen.getByRole('form', { name: 'Resize' }));
  expect((form.getByRole('spinbutton', { name: 'Nodes' }) as HTMLInputElement).value).toBe('3');
  expect((form.getByRole('textbox', { name: 'Mesh' }) as HTMLInputElement).value).toBe('grown-2');
  await form.findByText('node2 besides; grown-2 has 6 ranks then, others stay');
  await userEvent.click(button('Resize'));
  const about = { reservation: 'R', mesh: 'M', ranks: null };
  expect(transport.asked('resize')).toEqual([{ ...about, values: { nodes: 3, mesh: 'grown-2' } }]);
  await say({ type: 'job', job: job({ state: 'failed', action: 'resize', error: 'no free node for dev' }) });
  screen.getByText('no free node for dev');
  await userEvent.click(button('Resize…'));
  const nodes = screen.getByRole('spinbutton', { name: 'Nodes' });
  await userEvent.clear(nodes);
  await userEvent.type(nodes, '1');
  await userEvent.click(button('Resize'));
  const question = await screen.findByRole('alertdialog', { name: 'Have dev on 1 node instead of 2?' });
  await within(question).findByText('all');
  expect(document.activeElement?.textContent).toBe('Keep');
  expect(transport.asked('resize')).toHaveLength(1);
  await userEvent.click(within(question).getByRole('button', { name: 'Shrink' }));
  expect(transport.asked('resize')).toHaveLength(2);
});

test('a node that is held without ranks is named', async () => {
  const nodes = { nodes: 3, node_ids: ['node0', 'node1', 'node2'] };
  await show(view({ reservations: { R: reservation({ ...nodes, meshes: [mesh(ON_TWO)] }) } }));
  screen.getByText('node2: held, no ranks');
});

test('ranks that are no more are not chosen any more', async () => {
  transport.replies.interrupt = () => ({ job: job({ action: 'interrupt' }) });
  await show();
  await userEvent.click(screen.getByRole('option', { name: /rank 3/ }));
  const fewer = reservation({ nodes: 1, node_ids: ['node0'], meshes: [mesh([rank(0), rank(1)])] });
  await changed({ reservations: { R: fewer } });
  await userEvent.click(button('Interrupt'));
  expect(transport.asked('interrupt')).toEqual([{ reservation: 'R', mesh: 'M', ranks: null }]);
});

test('one rank at a time is reached by Tab; Enter opens its log', async () => {
  const openLog = vi.fn();
  const box = await show(view(), { openLog });
  const reachable = box.querySelectorAll('.mnb-ranks [tabindex="0"]');
  expect(reachable).toHaveLength(1);
  screen.getByRole('option', { name: /rank 2/ }).focus();
  expect(box.querySelectorAll('.mnb-ranks [tabindex="0"]')).toHaveLength(1);
  await userEvent.keyboard('{Enter}');
  expect(openLog).toHaveBeenCalledWith({ reservation: 'R', mesh: 'M', ranks: '2', run: null });
});

test('states have a name and a shape beside their colour', async () => {
  const ranks = [
    rank(0, { state: 'dead', detail: 'killed by SIGKILL' }),
    rank(1, { state: 'waiting', detail: 'waits in all_reduce (train.py:41)' }),
    rank(2, { state: 'failed', detail: 'ValueError: no' }),
    rank(3, { trouble: 'GPU 3 has fallen off the bus' })
  ];
  const box = await show(view({ reservations: { R: reservation({ meshes: [mesh(ranks)] }) } }));
  expect(screen.getByRole('option', { name: 'rank 0: dead, killed by SIGKILL' })).toBeTruthy();
  const shapes = [...box.querySelectorAll('.mnb-rank .mnb-mark')].map(mark => mark.innerHTML);
  expect(new Set(shapes).size).toBe(4);
  expect(screen.getByText(/waits in all_reduce/)).toBeTruthy();
  expect(screen.getByText(/rank 3: GPU 3 has fallen off the bus/)).toBeTruthy();
});

test('ranks that failed are said to be idle where nothing runs', async () => {
  const failed = rank(0, { state: 'failed', detail: 'ValueError: no' });
  const box = await show(view({ reservations: { R: reservation({ meshes: [mesh([failed, rank(1)])] }) } }));
  const tally = (): string | null => box.querySelector('.mnb-tally')!.textContent;
  expect(tally()).toBe('1 idle, last cell failed1 idle');
  const going = reservation({ meshes: [mesh([failed, rank(1, { state: 'running' })])] });
  await changed({ reservations: { R: going } });
  expect(tally()).toBe('1 failed1 running');
});

test('what others compute on is said below the name of the node, and since when it does not answer', async () => {
  const busy = (index: number): Slot =>
    slot(index, { reservation: null, note: `GPU ${index} is busy: pid ${index} (sim, bob)` });
  const slots = [slot(0), busy(1), slot(2, { note: 'mine' })];
  const nodes = {
    node0: node('node0', slots),
    node1: node('node1', [3, 4, 5, 6, 7].map(busy)),
    node2: node('node2', [], { state: 'silent', since: '14:02' })
  };
  const box = await show(view({ nodes }));
  const notes = (id: string): string[] =>
    [...box.querySelectorAll(`[data-node-row='${id}'] .mnb-note`)].map(note => note.textContent ?? '');
  expect(notes('node0')).toEqual(['GPU 1 is busy: pid 1 (sim, bob)']);
  expect(notes('node1')).toEqual([
    'GPU 3 is busy: pid 3 (sim, bob)',
    'GPU 4 is busy: pid 4 (sim, bob)',
    'GPU 5 is busy: pid 5 (sim, bob)',
    '2 more GPUs are not free'
  ]);
  screen.getByText('unreachable since 14:02');
});

test('a hang says who waits for whom, with the button that frees them', async () => {
  transport.replies.interrupt = () => ({ job: job({ action: 'interrupt' }) });
  const hung = {
    ...mesh([0, 1, 2, 3].map(each => rank(each, { state: each ? 'waiting' : 'failed' }))),
    hang: { text: 'ranks 1-3 wait in all_reduce (train.py:41); rank 0 raised ValueError', ranks: '1-3' }
  };
  await show(view({ reservations: { R: reservation({ meshes: [hung] }) } }));
  const alert = screen.getByRole('alert');
  expect(alert.textContent).toContain(
    'rank 0 raised ValueError. Interrupt frees them; nothing in memory is lost.'
  );
  await userEvent.click(within(alert).getByRole('button', { name: 'Interrupt the hung ranks 1-3' }));
  expect(transport.asked('interrupt')).toEqual([{ reservation: 'R', mesh: 'M', ranks: '1-3' }]);
});

test('a card says when its ranks save by themselves, and where', async () => {
  const saves = { when: 'every 10 min', directory: '/home/ada/checkpoints' };
  await show(view({ reservations: { R: reservation({ meshes: [{ ...mesh([rank(0)]), saves }] }) } }));
  expect(screen.getByText('Saves every 10 min').title).toBe('Into /home/ada/checkpoints');
  await changed({ reservations: { R: reservation({ meshes: [mesh([rank(0)])] }) } });
  expect(screen.queryByText(/^Saves/)).toBeNull();
});

test('ranks of a node are together, with its name', async () => {
  const ranks = [0, 1, 2, 3].map(each => rank(each, { node: each < 2 ? 'node0' : 'node1' }));
  const box = await show(view({ reservations: { R: reservation({ meshes: [mesh(ranks)] }) } }));
  const groups = [...box.querySelectorAll('.mnb-ranks [role="group"]')];
  expect(groups.map(each => [each.getAttribute('aria-label'), each.textContent])).toEqual([
    ['node0', '01node0'],
    ['node1', '23node1']
  ]);
});

test('what became of the last run is said as the server says it', async () => {
  const run = { id: 'X', number: 3, title: 'train()', cell_number: 7, state: 'finished' };
  const over = { ...run, outcome: 'interrupted', ranks: '0-3', running_s: 2, finished: '0-3', failed: '' };
  const meshes = [{ ...mesh([rank(0)]), runs: [over as Run] }];
  await show(view({ reservations: { R: reservation({ meshes }) } }));
  expect(screen.getByText('interrupted').className).toContain('mnb-dim');
});

test('of two reservations that a notebook has made, the one that it uses is marked', async () => {
  const reservations = { R: reservation({ used_by: [] }), S: reservation({ id: 'S', name: 'other' }) };
  const box = await show(view({ reservations }));
  const marked = [...box.querySelectorAll('.mnb-card-current')].map(each => each.getAttribute('aria-label'));
  expect(marked).toEqual(['Reservation other']);
});

test('a node whose allocator died is started again from its row', async () => {
  await show(
    view({ nodes: { node0: node('node0', [], { state: 'dead', message: 'it died', startable: true }) } })
  );
  await userEvent.click(await screen.findByRole('button', { name: 'Start again…' }));
  expect(await screen.findByRole('form', { name: 'Start a local pool' })).toBeTruthy();
});

test('a change of one slot touches that slot only', async () => {
  const slots = (level: number): ReturnType<typeof slot>[] => [slot(0, { utilisation: level }), slot(1)];
  const box = await show(
    view({ nodes: { node0: node('node0', slots(0.5)), node1: node('node1', slots(0.5)) } })
  );
  const touched = new Set<Node>();
  const observer = new MutationObserver(records => records.forEach(record => touched.add(record.target)));
  observer.observe(box, { subtree: true, childList: true, characterData: true, attributes: true });
  await changed({ nodes: { node0: node('node0', slots(0.75)), node1: node('node1', slots(0.5)) } });
  observer.takeRecords().forEach(record => touched.add(record.target));
  const cell = box.querySelector('[data-node="node0"][data-cell="0"]')!;
  expect(cell.textContent).toBe('75');
  expect([...touched].filter(target => !cell.contains(target))).toEqual([]);
});

test('work elsewhere shows with its progress and can be cancelled; a failure stays until it is closed', async () => {
  transport.replies.cancel = () => ({});
  await show();
  await say({ type: 'job', job: job({ action: 'restart', title: 'Restarting dev' }) });
  await userEvent.click(button('Cancel'));
  expect(transport.asked('cancel')).toEqual([{ job: 'J' }]);
  await say({
    type: 'job',
    job: job({ action: 'restart', title: 'Restarting dev', state: 'failed', error: 'rank 3 did not end' })
  });
  await userEvent.click(button('Close: Restarting dev'));
  expect(screen.queryByText('rank 3 did not end')).toBeNull();
});

test('a place in line that was taken before the page was loaded anew is shown, and can be given up', async () => {
  transport.replies.cancel = () => ({});
  await show();
  await say({
    type: 'job',
    job: job({ action: 'reserve', title: 'Reserving big', message: '2nd in line: dev (bob) holds 8 gpus' })
  });
  await screen.findByText('2nd in line: dev (bob) holds 8 gpus');
  await userEvent.click(button('Cancel'));
  expect(transport.asked('cancel')).toEqual([{ job: 'J' }]);
});

test('stacks are shown in the card', async () => {
  transport.replies.stacks = () => ({ job: job({ action: 'stacks' }) });
  await show();
  await userEvent.click(button('Stacks'));
  await say({
    type: 'job',
    job: job({
      action: 'stacks',
      state: 'done',
      result: {
        groups: [
          { ranks: '0-1,3', stack: 'train.py:41' },
          { ranks: '2', stack: 'train.py:7' }
        ]
      }
    })
  });
  expect((await screen.findByText('train.py:41')).previousSibling?.textContent).toBe('ranks 0-1,3');
  expect(screen.getByText('train.py:7').previousSibling?.textContent).toBe('rank 2');
});

test('why a notebook could not be attached is said in place', async () => {
  await show(view(), { attach: () => Promise.reject(new Error('x.ipynb has no kernel')) });
  await userEvent.click(button('Attach notebook'));
  await screen.findByText('x.ipynb has no kernel');
});

test('a server that is away is said, and what was known stays', async () => {
  await show();
  await act(async () => transport.connection('lost'));
  expect(screen.getByText(/does not answer: this is how it was/)).toBeTruthy();
  expect(screen.getByRole('article', { name: 'Reservation dev' })).toBeTruthy();
});

test('a widget for one reservation shows nothing else', async () => {
  store.start();
  render(<Panel store={store} host={{}} only="S" />);
  const shown = view({ reservations: { R: reservation(), S: reservation({ id: 'S', name: 'other' }) } });
  await act(async () => transport.say({ type: 'view', view: shown }));
  expect(screen.getAllByRole('article').map(each => each.getAttribute('aria-label'))).toEqual([
    'Reservation other'
  ]);
  expect(screen.queryByText('Nodes')).toBeNull();
});

test('a reservation without a limit can not be extended, and says why', async () => {
  await show();
  expect((button('Extend…') as HTMLButtonElement).disabled).toBe(true);
  expect(button('Extend…').title).toBe('It has no time limit: there is nothing to extend.');
  await say({
    type: 'view',
    view: view({ reservations: { R: reservation({ time_s: 60, time_left_s: 9 }) } })
  });
  expect((button('Extend…') as HTMLButtonElement).disabled).toBe(false);
});

test('that a notebook is attached is said until it is not any more', async () => {
  const attach = vi.fn(async () => 'x.ipynb is attached');
  const held = (more: object): Promise<void> =>
    say({ type: 'view', view: view({ reservations: { R: reservation({ used_by: [], ...more }) } }) });
  await show(view(), { attach, notebook: () => 'x.ipynb' });
  await held({});
  await userEvent.click(button('Attach notebook'));
  expect(screen.getByText('x.ipynb is attached')).toBeTruthy();
  await held({ time_s: 60, time_left_s: 9 }); // the server has not heard of it yet
  expect(screen.getByText('x.ipynb is attached')).toBeTruthy();
  await held({ used_by: ['x.ipynb'] });
  expect(screen.getByText('x.ipynb is attached')).toBeTruthy();
  await held({ remembered_by: ['x.ipynb'] });
  expect(screen.queryByText('x.ipynb is attached')).toBeNull();
});

test('what comes by itself is below the buttons', async () => {
  await show();
  await say({ type: 'notice', level: 'error', id: 'ended-x', text: 'rank 2 died', reservation: 'R' });
  const notice = screen.getByText('rank 2 died');
  const follows = Node.DOCUMENT_POSITION_FOLLOWING;
  expect(button('Release…').compareDocumentPosition(notice) & follows).toBeTruthy();
  const what = screen.getByText('No cell is running');
  expect(button('Release…').compareDocumentPosition(what) & follows).toBeTruthy();
});

test('without a place of its own a log opens in the panel', async () => {
  transport.replies.log_open = () => ({
    log: 'L',
    fold: 'times',
    page: 256,
    total: 0,
    lines: 0,
    complete: true,
    missing: '',
    notebooks: [],
    runs: []
  });
  transport.replies.log_close = () => ({});
  await show(view(), {});
  fireEvent.click(button('Log'));
  expect(await screen.findByRole('toolbar', { name: 'Log' })).toBeTruthy();
  fireEvent.click(button('Close log'));
  expect(screen.queryByRole('toolbar', { name: 'Log' })).toBeNull();
  fireEvent.click(button('Curves'));
  expect(await screen.findByRole('toolbar', { name: 'Curves' })).toBeTruthy();
  fireEvent.click(button('Close curves'));
  expect(screen.queryByRole('toolbar', { name: 'Curves' })).toBeNull();
});

test('what somebody shares with us can be looked at, and only its owner changes it', async () => {
  const refusals = { restart: 'dev is held by alice' };
  const theirs = { owner: 'alice', mine: false, right: 'read' as const, meshes: [mesh([rank(0)])] };
  await show(view({ reservations: { R: reservation({ ...theirs, refusals }) } }));
  expect(screen.getByText(/alice’s, shared to read/)).toBeTruthy();
  expect(screen.getByRole('button', { name: 'Restart…', description: 'dev is held by alice' })).toBeTruthy();
  expect(button('Log')).toBeTruthy();
  expect(button('Stacks')).toBeTruthy();
  for (const name of ['Interrupt', 'Extend…', 'Release…']) {
    expect(screen.queryByRole('button', { name })).toBeNull();
  }
});

test('who may run cells on what is shared may interrupt', async () => {
  transport.replies.interrupt = () => ({ job: job({ action: 'interrupt', title: 'Interrupting dev' }) });
  const theirs = { owner: 'alice', mine: false, right: 'run' as const, meshes: [mesh([rank(0)])] };
  await show(view({ reservations: { R: reservation(theirs) } }));
  await userEvent.click(button('Interrupt'));
  expect(transport.asked('interrupt')).toHaveLength(1);
  expect(screen.queryByRole('button', { name: 'Release…' })).toBeNull();
});

test('of what others hold it says whose it is and how much', async () => {
  const theirs = { owner: 'alice', mine: false, right: '' as const, meshes: [] };
  await show(view({ reservations: { R: reservation(theirs) } }));
  const item = screen.getByText('alice').closest('li')!;
  expect(item.textContent).toContain('dev');
  expect(item.textContent).toContain('2 nodes × 2 procs');
  expect(screen.queryByRole('button', { name: 'Log' })).toBeNull();
});

test('a run of somebody else says whose it is', async () => {
  const run: Run = {
    id: 'run',
    number: 3,
    title: 'train()',
    owner: 'bob',
    cell_number: 7,
    state: 'queued',
    outcome: '',
    ranks: '0',
    running_s: null,
    at_s: 1000,
    finished: '',
    failed: ''
  };
  const shared = { ...mesh([rank(0)]), runs: [run, { ...run, id: 'own', number: 4, owner: '' }] };
  await show(view({ reservations: { R: reservation({ meshes: [shared] }) } }));
  expect(screen.getByText('bob’s [7]')).toBeTruthy();
  expect(screen.getByText('[7]')).toBeTruthy();
});
