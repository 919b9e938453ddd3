import { MainAreaWidget, ReactWidget } from '@jupyterlab/apputils';
import { Message } from '@lumino/messaging';
import { ISignal, Signal } from '@lumino/signaling';
import { useCallback } from 'react';
import {
  Host,
  LogTarget,
  LogViewer,
  Panel,
  Reservation,
  Store,
  SurroundingsProvider,
  summary,
  useStore,
  useTick
} from '../core';
import { meshIcon } from './icon';

/** The panel at the side. While it can not be seen, the server need not ask the pool often. */
export class SidePanel extends ReactWidget {
  private _notebook: string | null = null;

  constructor(
    private readonly _store: Store,
    private readonly _host: Host
  ) {
    super();
    this.id = 'monarch-nb-panel';
    this.addClass('mnb-side');
    this.title.icon = meshIcon;
    this.title.caption = 'GPU nodes and reservations';
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'GPU nodes and reservations');
  }

  setNotebook(path: string | null): void {
    if (path !== this._notebook) {
      this._notebook = path;
      this.update();
    }
  }

  protected override onAfterShow(): void {
    looking(this._store, this, true);
  }

  protected override onAfterHide(): void {
    looking(this._store, this, false);
  }

  protected override render(): JSX.Element {
    return <Panel store={this._store} host={this._host} notebook={this._notebook} />;
  }
}

/** A log as a tab. */
export class LogWidget extends MainAreaWidget<ReactWidget> {
  static idOf(target: LogTarget): string {
    return `monarch-nb-log:${target.mesh}:${target.ranks ?? 'all'}:${target.run ?? 'all'}`;
  }

  constructor(
    store: Store,
    host: Host,
    readonly target: LogTarget
  ) {
    super({
      content: ReactWidget.create(
        <SurroundingsProvider value={{ store, host }}>
          <LogViewer target={target} />
        </SurroundingsProvider>
      )
    });
    this.id = LogWidget.idOf(target);
    this.title.icon = meshIcon;
    this.title.closable = true;
    let name = 'mesh';
    const entitle = (): void => {
      name = store.state.view?.reservations[target.reservation]?.name ?? name; // its log stays open when it is gone
      this.title.label = `${name} log${target.ranks === null ? '' : ` ${target.ranks}`}`;
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
        node.querySelector<HTMLElement>('.mnb-lines')?.focus({ preventScroll: true });
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
    private readonly _store: Store,
    private readonly _current: () => Reservation | undefined,
    private readonly _isAttached: () => boolean,
    private readonly _open: () => void
  ) {
    super();
    this._stop = _store.subscribe(() => this.look());
  }

  get activeChanged(): ISignal<this, void> {
    return this._activeChanged;
  }

  /** Look whether the current notebook holds something. */
  look(): void {
    const isActive = this._current() !== undefined;
    if (isActive !== this.isActive) {
      this.isActive = isActive;
      looking(this._store, this, isActive);
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
        store={this._store}
        current={this._current}
        isAttached={this._isAttached}
        open={this._open}
      />
    );
  }
}

function StatusText(props: {
  store: Store;
  current: () => Reservation | undefined;
  isAttached: () => boolean;
  open: () => void;
}) {
  const { store, current, isAttached } = props;
  const reservation = useStore(
    store,
    useCallback(() => current(), [current])
  );
  const attached = useStore(
    store,
    useCallback(() => isAttached(), [isAttached])
  );
  useTick();
  if (!reservation) {
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
  if (isLooking) {
    all.add(who);
  } else {
    all.delete(who);
  }
  store.transport.look(all.size > 0);
}
