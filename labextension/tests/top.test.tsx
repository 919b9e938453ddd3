import { act, render, screen, within } from '@testing-library/react';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Panel } from '../src/core/components/Panel';
import { TopViewer } from '../src/core/components/TopViewer';
import { SurroundingsProvider } from '../src/core/context';
import { Store } from '../src/core/store';
import { RequestError } from '../src/core/transport';
import { Top } from '../src/core/types';
import { FakeTransport, view } from './fake';

const SENTENCE = 'Slow: rank 1 spends 92% of its time in train.py:41 (data loader)';
const TOP: Top = {
  sentence: SENTENCE,
  is_late: true,
  again_s: 1,
  rows: [
    {
      ranks: '0',
      is_late: false,
      node: 'node0',
      steps_per_s: '2.5',
      parts: [
        { kind: 'torch', share: 0.1, words: 'torch 10%' },
        { kind: 'collective', share: 0.9, words: 'all_reduce 90%' }
      ],
      memory: '300 MB',
      cpu: '20%',
      gpu: '',
      where: 'train.py:50'
    },
    {
      ranks: '1',
      is_late: true,
      node: 'node0',
      steps_per_s: '2.5',
      parts: [{ kind: 'loader', share: 0.92, words: 'data loader 92%' }],
      memory: '300 MB',
      cpu: '100%',
      gpu: '',
      where: 'train.py:41'
    }
  ]
};
let transport: FakeTransport;
let store: Store;
let isHidden = false;

beforeEach(() => {
  vi.useFakeTimers();
  isHidden = false;
  Object.defineProperty(document, 'hidden', { configurable: true, get: () => isHidden });
  transport = new FakeTransport();
  store = new Store(transport);
  store.start();
  transport.say({ type: 'view', view: view() });
  transport.replies.top = () => TOP;
});
afterEach(() => vi.useRealTimers());

const wait = (ms: number): Promise<void> => act(async () => void (await vi.advanceTimersByTimeAsync(ms)));

async function show(): Promise<() => void> {
  const { unmount } = render(
    <SurroundingsProvider value={{ store, host: {} }}>
      <TopViewer target={{ reservation: 'R', mesh: 'M', ranks: '0-1', run: null }} />
    </SurroundingsProvider>
  );
  await wait(0);
  return unmount;
}

test('who is waited for is said above the table, and marked in it', async () => {
  await show();
  expect(transport.asked('top')).toEqual([{ mesh: 'M', ranks: '0-1' }]);
  expect(screen.getByRole('status').textContent).toBe(SENTENCE);
  const [, first, late] = screen.getAllByRole('row');
  expect(within(first!).getByText('all_reduce 90%')).toBeTruthy();
  expect(late!.textContent).toBe('1 ←node0data loader 92%2.5300 MB100%train.py:41');
  expect(late!.className).toBe('mnb-top-late');
  const bar = first!.querySelectorAll<HTMLElement>('.mnb-top-bar i');
  expect([...bar].map(each => [each.dataset.kind, each.style.width])).toEqual([
    ['torch', '10%'],
    ['collective', '90%']
  ]);
  const headers = screen.getAllByRole('columnheader').map(each => each.textContent);
  expect(headers, 'no column for what nobody has').not.toContain('GPU');
});

test('ranks are asked again and again while somebody looks, and not otherwise', async () => {
  const unmount = await show();
  await wait(3000);
  expect(transport.asked('top')).toHaveLength(4);
  isHidden = true;
  document.dispatchEvent(new Event('visibilitychange'));
  await wait(60_000);
  expect(transport.asked('top')).toHaveLength(4);
  isHidden = false;
  document.dispatchEvent(new Event('visibilitychange'));
  await wait(0);
  expect(transport.asked('top')).toHaveLength(5);
  unmount();
  await wait(60_000);
  expect(transport.asked('top')).toHaveLength(5);
});

test('what goes wrong is said, and what was seen before stays', async () => {
  await show();
  transport.replies.top = () => {
    throw new RequestError('node0 does not answer', 503);
  };
  await wait(1000);
  expect(screen.getByRole('alert').textContent).toBe('node0 does not answer');
  expect(screen.getAllByRole('row')).toHaveLength(3);
  transport.replies.top = () => ({ ...TOP, is_late: false, sentence: 'no rank is slow' });
  await wait(5000);
  expect(screen.queryByRole('alert')).toBeNull();
  expect(screen.getByRole('status').className).toBe('mnb-top-sentence');
});

test('the panel opens it where its surroundings have no place for it', async () => {
  render(<Panel store={store} host={{}} />);
  await wait(0);
  await act(async () => screen.getByRole('button', { name: 'Top' }).click());
  await wait(0);
  expect(screen.getByText(SENTENCE)).toBeTruthy();
  await act(async () => screen.getByRole('button', { name: 'Close top' }).click());
  expect(screen.queryByText(SENTENCE)).toBeNull();
});
