import { Store } from './store';
import { Reservation } from './types';

/** A reservation, and the store of its pool. */
export interface Held {
  store: Store;
  reservation: Reservation;
}

/** A store for each pool that there is, and which of them the panel shows. */
export class Pools {
  /** Of the pool that is shown at first; its view says which others there are. */
  readonly home: Store;
  private readonly _others = new Map<string, Store>();
  private readonly _listeners = new Set<() => void>();
  private _shown: Store;
  /** To be shown as soon as it is there. */
  private _wanted: string | null = null;

  constructor(private readonly _make: (pool?: string) => Store) {
    this.home = this._shown = _make();
    this.home.subscribe(() => this._follow());
  }

  start(): void {
    this.home.start();
  }

  stop(): void {
    this.all.forEach(store => store.stop());
  }

  get shown(): Store {
    return this._shown;
  }

  get all(): Store[] {
    return [this.home, ...this._others.values()];
  }

  /** Hear of every change in any pool, and of which is shown; returns what ends that. */
  subscribe = (listener: () => void): (() => void) => {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  };

  /** The store of a pool; without a name that of the first one. */
  named(name?: string): Store {
    if (!name || name === this.home.state.view?.pool.name) {
      return this.home;
    }
    let store = this._others.get(name);
    if (!store) {
      store = this._make(name);
      this._others.set(name, store);
      store.subscribe(() => this._changed());
      store.start();
    }
    return store;
  }

  /** Show a pool, as soon as the server knows it. */
  show(name: string): void {
    this._wanted = name;
    this._follow();
  }

  showStore(store: Store): void {
    this._wanted = null;
    if (store !== this._shown) {
      this._shown.intend(null);
      this._shown = store;
      this._changed();
    }
  }

  /** All that is held, in all pools. */
  held(): Held[] {
    return this.all.flatMap(store =>
      Object.values(store.state.view?.reservations ?? {}).map(reservation => ({ store, reservation }))
    );
  }

  /** The store that knows a reservation. */
  storeOf(reservation: string): Store {
    return this.all.find(store => store.state.view?.reservations[reservation]) ?? this._shown;
  }

  /** The store that knows a mesh. */
  storeOfMesh(mesh: string): Store {
    const held = this.held().find(({ reservation }) => reservation.meshes.some(each => each.id === mesh));
    return held?.store ?? this._shown;
  }

  /** Have a store for each pool that the server knows. */
  private _follow(): void {
    const names = this.home.state.view?.pools.map(pool => pool.name);
    if (names) {
      for (const [name, store] of this._others) {
        if (!names.includes(name)) {
          this._others.delete(name);
          store.stop();
          if (store === this._shown) {
            this._shown = this.home;
          }
        }
      }
      names.forEach(name => this.named(name));
      if (this._wanted && names.includes(this._wanted)) {
        this.showStore(this.named(this._wanted));
      }
    }
    this._changed();
  }

  private _changed(): void {
    for (const listener of [...this._listeners]) {
      listener();
    }
  }
}
