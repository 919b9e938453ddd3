/** The panel as a widget of a notebook (anywidget): requests and events are messages of the widget. */

import { createRoot } from 'react-dom/client';
import { Host, Panel, Store } from '../core';
import { css } from './styles';
import { Model, WidgetTransport } from './transport';

const STYLE = 'monarch-nb-style';
const host: Host = {};

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  addStyle(el.getRootNode());
  el.classList.add('mnb-widget');
  const transport = new WidgetTransport(model);
  const store = new Store(transport);
  const root = createRoot(el);
  const only = model.get('reservation');
  root.render(<Panel store={store} host={host} only={typeof only === 'string' && only ? only : null} />);
  store.start();
  const onVisible = (): void => transport.look(!document.hidden);
  document.addEventListener('visibilitychange', onVisible);
  return () => {
    document.removeEventListener('visibilitychange', onVisible);
    store.stop();
    root.unmount();
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
