import { NotebookPanel } from '@jupyterlab/notebook';

const PROMPT = /^monarch_dbg>/;
/** The end of what a cell shows when somebody else has answered (`monarch_nb/client/debug/console.py`). */
const ANSWERED = /\(Enter leaves this prompt\)\s*$/;

/**
 * Leave prompts of the debugger that somebody else has answered.
 *
 * A kernel can not withdraw what it asks: if it stops waiting, JupyterLab runs no other cell while the box is there. So we
 * press Enter, unless something is being typed there.
 */
export function leaveAnsweredPrompts(panel: NotebookPanel): void {
  const { node } = panel.content;
  const observer = new MutationObserver(() => node.querySelectorAll<HTMLElement>('.jp-Stdin').forEach(leave));
  observer.observe(node, { subtree: true, childList: true, characterData: true });
  panel.disposed.connect(() => observer.disconnect());
}

/** Press Enter at a prompt if what is shown above it says that this leaves it. */
export function leave(prompt: HTMLElement): void {
  const asks = prompt.querySelector('.jp-Stdin-prompt')?.textContent ?? '';
  const field = prompt.querySelector<HTMLInputElement>('.jp-Stdin-input');
  const above = prompt.closest('.jp-OutputArea-child')?.previousElementSibling?.textContent ?? '';
  if (field && !field.value && PROMPT.test(asks.trim()) && ANSWERED.test(above)) {
    field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true, cancelable: true }));
  }
}
