/** The panel as a widget of a notebook (anywidget): requests and events are messages of the widget. */

import { createRoot } from 'react-dom/client';
import { Host, Panel, Reservation, Store, Transport } from '../core';
import { css } from './styles';
import { GONE, Model, WidgetTransport } from './transport';

const STYLE = 'monarch-nb-style';

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  addStyle(el.getRootNode());
  el.classList.add('mnb-widget');
  const transport = new WidgetTransport(model);
  const store = new Store(transport);
  const root = createRoot(el);
  const only = String(model.get('reservation') ?? '') || null;
  root.render(<Panel store={store} host={hostOf(transport, only)} only={only} />);
  store.start();
  const stop = watch(el, seen => transport.look(seen));
  return () => {
    stop();
    store.stop();
    root.unmount();
  };
}

/** What the kernel of a notebook can do: attach itself. */
function hostOf(transport: Transport, only: string | null): Host {
  const attach = async (reservation: Reservation): Promise<string> =>
    (await transport.request<{ text: string }>('attach', { name: reservation.name })).text;
  return { away: GONE, ...(only ? {} : { attach }) };
}

/** Say when a person begins and ends to see an element: it is scrolled into view, in a page that is shown. */
function watch(element: HTMLElement, onSeen: (seen: boolean) => void): () => void {
  let isNear = true;
  const tell = (): void => onSeen(isNear && !document.hidden);
  const observer = new IntersectionObserver(
    entries => {
      isNear = entries[entries.length - 1].isIntersecting;
      tell();
    },
    { rootMargin: '200px' }
  );
  observer.observe(element);
  document.addEventListener('visibilitychange', tell);
  tell();
  return () => {
    observer.disconnect();
    document.removeEventListener('visibilitychange', tell);
  };
}

function addStyle(root: Node): void {
  const place = root instanceof ShadowRoot ? root : document.head;
  if (!place.querySelector(`#${STYLE}`)) {
    const style = document.createElement('style');
    style.id = STYLE;
    style.textContent = css;
    place.append(style);
  }
}

export default { render };
