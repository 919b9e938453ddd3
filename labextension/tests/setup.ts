import { cleanup } from '@testing-library/react';
import { afterEach } from 'vitest';

/** What jsdom lacks. */
class Observer {
  observe(): void {}
  disconnect(): void {}
  unobserve(): void {}
}
globalThis.ResizeObserver = Observer as unknown as typeof ResizeObserver;
globalThis.IntersectionObserver = Observer as unknown as typeof IntersectionObserver;
globalThis.CSS = { escape: (text: string) => text } as unknown as typeof CSS;
Element.prototype.scrollIntoView = () => undefined;

afterEach(cleanup);

// jsdom has none, and uPlot asks for one when it is imported.
globalThis.matchMedia ??= (query: string) =>
  Object.assign(new EventTarget(), { matches: false, media: query }) as unknown as MediaQueryList;
