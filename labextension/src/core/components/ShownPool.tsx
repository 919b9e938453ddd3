import { useSyncExternalStore } from 'react';
import { Host } from '../context';
import { Pools } from '../pools';
import { Store } from '../store';
import { Panel } from './Panel';

const numbers = new WeakMap<Store, number>();
let last = 0;

/** The panel of the pool that is shown; each has its own folds, choices and questions. */
export function ShownPool(props: { pools: Pools; host: Host; notebook?: string | null }) {
  const { pools, host, notebook } = props;
  const store = useSyncExternalStore(pools.subscribe, () => pools.shown);
  const number = numbers.get(store) ?? ++last;
  numbers.set(store, number);
  return <Panel key={number} store={store} host={host} notebook={notebook} />;
}
