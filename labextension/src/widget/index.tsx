/** The panel as a widget of a notebook (anywidget): requests and events are messages of the widget. */

import { Root, createRoot } from 'react-dom/client';
import { Host, Panel, Pools, Reservation, ShownPool, Store, fullName } from '../core';
import { Curves, CurvesView } from '../core/curves';
import { watchSeen } from '../core/seen';
import { css } from './styles';
import { GONE, Model, WidgetTransport } from './transport';

const STYLE = 'monarch-nb-style';

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  addStyle(el.getRootNode());
  el.classList.add('mnb-widget');
  if (model.get('curves')) {
    return showCurves(model, el);
  }
  const root = createRoot(el);
  const only = String(model.get('reservation') ?? '');
  const end = only ? showReservation(model, el, root, only) : showPools(model, el, root);
  return () => {
    end();
    root.unmount();
  };
}

/** Show curves, and how they grow; returns what ends that. */
function showCurves(model: Model, el: HTMLElement): () => void {
  const view = new CurvesView(el);
  const update = (): void => view.update(model.get('curves') as Curves);
  model.on('change:curves', update);
  update();
  return () => {
    model.off('change:curves', update);
    view.destroy();
  };
}

/** Show one reservation, whatever else there is; returns what ends that. */
function showReservation(model: Model, el: HTMLElement, root: Root, only: string): () => void {
  const store = new Store(new WidgetTransport(model));
  root.render(<Panel store={store} host={{ away: GONE }} only={only} />);
  store.start();
  const stop = watchSeen(el, seen => store.transport.look(seen));
  return () => {
    stop();
    store.stop();
  };
}

/** Show a pool, at first the one that the notebook uses; returns what ends that. */
function showPools(model: Model, el: HTMLElement, root: Root): () => void {
  const pools = new Pools(pool => new Store(new WidgetTransport(model, pool)));
  let isSeen = false;
  // The first one is looked at as well: it says which others there are.
  const look = (): void =>
    pools.all.forEach(store =>
      store.transport.look(isSeen && (store === pools.shown || store === pools.home))
    );
  root.render(<ShownPool pools={pools} host={hostOf(pools)} />);
  pools.start();
  const forget = pools.subscribe(look);
  const stop = watchSeen(el, seen => {
    isSeen = seen;
    look();
  });
  return () => {
    stop();
    forget();
    pools.stop();
  };
}

/** What the kernel of a notebook can do: attach itself. */
function hostOf(pools: Pools): Host {
  const attach = async (reservation: Reservation): Promise<string> => {
    const { state, transport } = pools.storeOf(reservation.id);
    const { id } = reservation;
    const body = { name: fullName(reservation), reservation: id, pool: state.view!.pool.name };
    return (await transport.request<{ text: string }>('attach', body)).text;
  };
  return { away: GONE, attach, showPool: name => pools.show(name) };
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
