import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { OwnLine, RowRequest, openRows } from '../src/lab/rows';

const gutter = (label: string): string => `<span style="margin-left:-7ch">${label}</span>`;
const folded = (lines: string, label: string, text: string): string =>
  `<span data-monarch-row="${lines}" title="%mesh logs --run 3 has each rank's line">${gutter(label)} ${text}</span>`;
const output = (...rows: string[]): string =>
  `<div data-monarch-log="M/3"><pre style="padding:0 0 0 7ch">${rows.join('\n')}</pre></div>`;

const BEGIN = `${gutter('[0-3]')} begin`;
const END = `${gutter('[0-3]')} end`;
let node: HTMLElement;
let stop: () => void;
const ask = vi.fn<(request: RowRequest) => Promise<OwnLine[]>>();

beforeEach(() => {
  ask.mockReset();
  ask.mockImplementation(async () => [
    { ranks: '0', text: 'loss: \x1b[31m7.80\x1b[0m' },
    { ranks: '1', absent: 'its node does not answer' }
  ]);
  node = document.body.appendChild(document.createElement('div'));
  node.innerHTML = output(BEGIN, folded('7:0-3', '[0-3]', 'loss: 7.80–7.83'), END);
  stop = openRows(node, ask);
});

afterEach(() => {
  stop();
  node.remove();
});

const row = (): HTMLElement => node.querySelector('[data-monarch-row]')!;
const own = (): string[] => [...node.querySelectorAll('.mnb-own-line')].map(line => line.textContent ?? '');
const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve));

async function press(key: string): Promise<void> {
  row().dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
  await settle();
}

test('a click shows the own lines below the row, a second one takes them away', async () => {
  expect([row().getAttribute('role'), row().tabIndex, row().title]).toEqual([
    'button',
    0,
    'Show the line of each rank'
  ]);
  row().click();
  await settle();
  expect(ask).toHaveBeenCalledWith({ mesh: 'M', run: 3, lines: '7:0-3', text: 'loss: 7.80–7.83' });
  expect(own()).toEqual(['[0] loss: 7.80', '[1] its node does not answer']);
  expect(node.querySelector('pre')!.textContent).toBe(
    '[0-3] begin\n[0-3] loss: 7.80–7.83\n[0] loss: 7.80[1] its node does not answer[0-3] end'
  );
  expect(row().getAttribute('aria-expanded')).toBe('true');
  row().click();
  expect(own()).toEqual([]);
  expect(row().getAttribute('aria-expanded')).toBe('false');
});

test('Enter does so too, and is not the notebook’s', async () => {
  const heard = vi.fn();
  document.addEventListener('keydown', heard, true);
  await press('Enter');
  expect(own()).toHaveLength(2);
  await press('Enter');
  expect(own()).toHaveLength(0);
  expect(heard).not.toHaveBeenCalled();
  row().dispatchEvent(new KeyboardEvent('keydown', { key: 's', ctrlKey: true, bubbles: true }));
  expect(heard).toHaveBeenCalledTimes(1); // other keys are
  document.removeEventListener('keydown', heard, true);
});

test('what is open stays open when the output is rendered anew, and is read again when more ranks have come', async () => {
  row().click();
  await settle();
  node.innerHTML = output(BEGIN, folded('7:0-3', '[0-3]', 'loss: 7.80–7.83'), END);
  await settle();
  expect(own()).toHaveLength(2);
  expect(ask).toHaveBeenCalledTimes(1);
  node.innerHTML = output(BEGIN, folded('7:0-5', '[0-5]', 'loss: 7.80–7.99'));
  await settle();
  expect(own()).toHaveLength(2);
  expect(ask).toHaveBeenLastCalledWith({ mesh: 'M', run: 3, lines: '7:0-5', text: 'loss: 7.80–7.99' });
  row().click();
  node.innerHTML = output(BEGIN, folded('7:0-5', '[0-5]', 'loss: 7.80–7.99'));
  await settle();
  expect(own()).toHaveLength(0);
});

test('why lines can not be read is said in their place', async () => {
  ask.mockRejectedValue(new Error('there is no such mesh (any more)'));
  row().click();
  await settle();
  expect(own()).toEqual([' there is no such mesh (any more)']);
});

test('marking text opens nothing', async () => {
  window.getSelection()!.selectAllChildren(row());
  row().click();
  window.getSelection()!.removeAllRanges();
  expect(ask).not.toHaveBeenCalled();
});

test('an output that does not say what it is of opens nothing', async () => {
  node.innerHTML = `<pre>${folded('7:0-3', '[0-3]', 'x')}</pre>`;
  await settle();
  row().click();
  expect(ask).not.toHaveBeenCalled();
});
