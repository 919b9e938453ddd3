import { MainAreaWidget, ReactWidget } from '@jupyterlab/apputils';
import { Message } from '@lumino/messaging';
import { ISignal, Signal } from '@lumino/signaling';
import { useSyncExternalStore } from 'react';
import {
  CurvesViewer,
  Held,
  Host,
  LogTarget,
  LogViewer,
  Pools,
  ShownPool,
  Store,
  SurroundingsProvider,
  TopViewer,
  summary,
  useTick
} from '../core';
import { meshIcon } from './icon';

/** The panel at the side. While it can not be seen, the server need not ask the pool often. */
export class SidePanel extends ReactWidget {
  private _notebook: string | null = null;
  private _isSeen = false;
  private readonly _stop: () => void;

  constructor(
    private readonly _pools: Pools,
    private readonly _host: Host
  ) {
    super();
    this.id = 'monarch-nb-panel';
    this.addClass('mnb-side');
    this.title.icon = meshIcon;
    this.title.caption = 'GPU nodes and reservations';
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'GPU nodes and reservations');
    this._stop = _pools.subscribe(() => this._look());
  }

  setNotebook(path: string | null): void {
    if (path !== this._notebook) {
      this._notebook = path;
      this.update();
    }
  }

  override dispose(): void {
    this._stop();
    super.dispose();
  }

  protected override onAfterShow(): void {
    this._isSeen = true;
    this._look();
  }

  protected override onAfterHide(): void {
    this._isSeen = false;
    this._look();
  }

  protected override render(): JSX.Element {
    return <ShownPool pools={this._pools} host={this._host} notebook={this._notebook} />;
  }

  private _look(): void {
    for (const store of this._pools.all) {
      looking(store, this, this._isSeen && store === this._pools.shown);
    }
  }
}

/** What is shown of a mesh in a tab. */
export type ViewerKind = 'log' | 'curves' | 'top';

const VIEWERS = {
  log: { Viewer: LogViewer, focused: '.mnb-lines' },
  curves: { Viewer: CurvesViewer, focused: '.mnb-curves-names button, select' },
  top: { Viewer: TopViewer, focused: 'select, input' }
};

/** A log, curves, or where ranks are, as a tab. */
export class ViewerWidget extends MainAreaWidget<ReactWidget> {
  static idOf(kind: ViewerKind, target: LogTarget): string {
    return `monarch-nb-${kind}:${target.mesh}:${target.ranks ?? 'all'}:${target.run ?? 'all'}`;
  }

  constructor(
    store: Store,
    host: Host,
    private readonly _kind: ViewerKind,
    readonly target: LogTarget
  ) {
    const { Viewer } = VIEWERS[_kind];
    super({
      content: ReactWidget.create(
        <SurroundingsProvider value={{ store, host }}>
          <Viewer target={target} />
        </SurroundingsProvider>
      )
    });
    this.id = ViewerWidget.idOf(_kind, target);
    this.title.icon = meshIcon;
    this.title.closable = true;
    let name = 'mesh';
    const entitle = (): void => {
      name = store.state.view?.reservations[target.reservation]?.name ?? name; // its log stays open when it is gone
      this.title.label = `${name} ${_kind}${target.ranks === null ? '' : ` ${target.ranks}`}`;
    };
    entitle();
    const stop = store.subscribe(entitle);
    this.disposed.connect(stop);
  }

  /** Keys are for the lines from the start, unless something else in here has them. */
  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    const { node, renderPromise } = this.content;
    void renderPromise?.then(() => {
      if (document.activeElement === node) {
        node.querySelector<HTMLElement>(VIEWERS[this._kind].focused)?.focus({ preventScroll: true });
      }
    });
  }
}

/** What the current notebook holds, in one line. */
export class StatusItem extends ReactWidget {
  private readonly _activeChanged = new Signal<this, void>(this);
  private readonly _stop: () => void;
  isActive = false;

  constructor(
    private readonly _pools: Pools,
    private readonly _current: () => Held | undefined,
    private readonly _isAttached: () => boolean,
    private readonly _open: () => void
  ) {
    super();
    this._stop = _pools.subscribe(() => this.look());
  }

  get activeChanged(): ISignal<this, void> {
    return this._activeChanged;
  }

  /** Look whether the current notebook holds something. */
  look(): void {
    const current = this._current();
    for (const store of this._pools.all) {
      looking(store, this, store === current?.store);
    }
    const isActive = current !== undefined;
    if (isActive !== this.isActive) {
      this.isActive = isActive;
      this._activeChanged.emit();
      this.update();
    }
  }

  override dispose(): void {
    this._stop();
    super.dispose();
  }

  protected override render(): JSX.Element {
    return (
      <StatusText
        pools={this._pools}
        current={this._current}
        isAttached={this._isAttached}
        open={this._open}
      />
    );
  }
}

function StatusText(props: {
  pools: Pools;
  current: () => Held | undefined;
  isAttached: () => boolean;
  open: () => void;
}) {
  const { pools, current, isAttached } = props;
  const reservation = useSyncExternalStore(pools.subscribe, () => current()?.reservation);
  const store = useSyncExternalStore(pools.subscribe, () => current()?.store);
  const attached = useSyncExternalStore(pools.subscribe, isAttached);
  useTick();
  if (!reservation || !store) {
    return <></>;
  }
  const { time_left_s, at_s } = reservation;
  const left_s = time_left_s === null ? null : at_s + time_left_s - store.now_s();
  return (
    <button
      type="button"
      className="mnb-status jp-StatusBar-TextItem"
      title="Show the reservation in the panel"
      onClick={props.open}
    >
      {summary(reservation, left_s, attached)}
    </button>
  );
}

const lookers = new WeakMap<Store, Set<object>>();

/** Figures come every second as long as one of us can be seen. */
function looking(store: Store, who: object, isLooking: boolean): void {
  const all = lookers.get(store) ?? new Set();
  lookers.set(store, all);
  if (all.has(who) === isLooking) {
    return;
  }
  if (isLooking) {
    all.add(who);
  } else {
    all.delete(who);
  }
  store.transport.look(all.size > 0);
}
