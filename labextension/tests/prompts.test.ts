import { expect, test } from 'vitest';
import { leave } from '../src/lab/prompts';

const SAID = 'answered elsewhere: nothing waits here any more (Enter leaves this prompt)\n';

/** Return the keys that come to a prompt below some output. */
function pressed(above: string, asks = 'monarch_dbg> ', typed = ''): string[] {
  document.body.innerHTML =
    '<div><div class="jp-OutputArea-child"><pre></pre></div>' +
    '<div class="jp-OutputArea-child"><div class="jp-Stdin"><pre class="jp-Stdin-prompt"></pre>' +
    '<input class="jp-Stdin-input"></div></div></div>';
  document.querySelector('pre')!.textContent = above;
  document.querySelector('.jp-Stdin-prompt')!.textContent = asks;
  const field = document.querySelector('input')!;
  field.value = typed;
  const keys: string[] = [];
  field.addEventListener('keydown', event => keys.push(event.key));
  leave(document.querySelector<HTMLElement>('.jp-Stdin')!);
  return keys;
}

test('Enter is pressed at a prompt of the debugger that was answered elsewhere, and at no other', () => {
  expect(pressed(SAID)).toEqual(['Enter']);
  expect(pressed('Actor Name  Rank\n')).toEqual([]);
  expect(pressed(`${SAID}Actor Name  Rank\n`)).toEqual([]); // of the next breakpoint
  expect(pressed(SAID, 'name: ')).toEqual([]);
});

test('what somebody types is left alone', () => {
  expect(pressed(SAID, 'monarch_dbg> ', 'cont')).toEqual([]);
});
