import { ILabShell, ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, InputDialog, Notification, WidgetTracker } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';
import { Token } from '@lumino/coreutils';
import { Held, Host, Intent, LogTarget, Pools, Store, explain, mainMesh } from '../core';
import { meshIcon } from './icon';
import { Notebooks } from './notebooks';
import { leaveAnsweredPrompts } from './prompts';
import { OwnLine, openRows } from './rows';
import { showSavedPanels } from './saved';
import { ServerTransport } from './transport';
import { SidePanel, StatusItem, ViewerKind, ViewerWidget } from './widgets';

const CATEGORY = 'Monarch';

namespace CommandIDs {
  export const open = 'monarch-nb:open';
  export const reserve = 'monarch-nb:reserve';
  export const up = 'monarch-nb:up';
  export const attach = 'monarch-nb:attach';
  export const runCell = 'monarch-nb:run-cell';
  export const log = 'monarch-nb:log';
  export const openLog = 'monarch-nb:open-log';
  export const curves = 'monarch-nb:curves';
  export const openCurves = 'monarch-nb:open-curves';
  export const top = 'monarch-nb:top';
  export const openTop = 'monarch-nb:open-top';
  export const interrupt = 'monarch-nb:interrupt';
  export const restart = 'monarch-nb:restart';
  export const stacks = 'monarch-nb:stacks';
  export const resize = 'monarch-nb:resize';
  export const extend = 'monarch-nb:extend';
  export const release = 'monarch-nb:release';
}

interface Mesh {
  pools: Pools;
  host: Host;
  notebooks: Notebooks;
  /** The reservation that the current notebook uses, or would if it were attached; or none. */
  current(): Held | undefined;
  /** Whether the current notebook's kernel uses a reservation. */
  isAttached(): boolean;
}

const IMesh = new Token<Mesh>(
  'monarch-nb:IMesh',
  'What is known of the pool, and what can be done with notebooks.'
);

/** Listens to the server for as long as the page lives. */
const meshPlugin: JupyterFrontEndPlugin<Mesh> = {
  id: 'monarch-nb:mesh',
  description: 'Listens to the pool of nodes.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ILabShell],
  provides: IMesh,
  activate: (app: JupyterFrontEnd, tracker: INotebookTracker, shell: ILabShell | null): Mesh => {
    const { serverSettings } = app.serviceManager;
    const pools = new Pools(pool => new Store(new ServerTransport(serverSettings, pool)));
    const notebooks = new Notebooks(app, tracker, pools);
    const host: Host = {
      // Notebook 7 has one document a page: there the panel shows logs, curves and where ranks are in itself.
      openLog: shell ? target => void app.commands.execute(CommandIDs.openLog, { ...target }) : undefined,
      openCurves: shell
        ? target => void app.commands.execute(CommandIDs.openCurves, { ...target })
        : undefined,
      openTop: shell ? target => void app.commands.execute(CommandIDs.openTop, { ...target }) : undefined,
      showPool: name => pools.show(name),
      attach: reservation => notebooks.attach(reservation),
      revealCell: run => notebooks.reveal(run),
      notebook: () => notebooks.currentPath()
    };
    pools.start();
    const find = (of: 'used_by' | 'remembered_by'): Held | undefined => {
      const path = notebooks.currentPath();
      return path === null
        ? undefined
        : pools.held().find(({ reservation }) => reservation[of].includes(path));
    };
    return {
      pools,
      host,
      notebooks,
      current: () => find('used_by') ?? find('remembered_by'),
      isAttached: () => find('used_by') !== undefined
    };
  }
};

const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:panel',
  description: 'The panel: reserve nodes and watch them.',
  autoStart: true,
  requires: [IMesh, INotebookTracker],
  optional: [ILabShell, ILayoutRestorer, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    mesh: Mesh,
    tracker: INotebookTracker,
    shell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null
  ) => {
    const { pools } = mesh;
    const panel = new SidePanel(pools, mesh.host);
    panel.toggleClass('mnb-in-lab', shell !== null);
    app.shell.add(panel, 'left', { rank: 700, type: 'Monarch' });
    restorer?.add(panel, panel.id);
    const follow = (): void => panel.setNotebook(mesh.notebooks.currentPath());
    let followed: Store | undefined;
    const followPool = (): void => {
      const store = mesh.isAttached() ? mesh.current()?.store : undefined;
      if (store !== followed) {
        followed = store;
        if (store) {
          pools.showStore(store);
        }
      }
    };
    pools.subscribe(followPool);
    tracker.currentChanged.connect(followPool);
    tracker.currentChanged.connect((_, current) => {
      follow();
      current?.context.pathChanged.connect(follow);
    });

    const intend = async (intent: Intent | null, store = pools.shown): Promise<void> => {
      app.shell.activateById(panel.id);
      pools.showStore(store);
      store.intend(intent);
    };
    const onMine = (action: Intent['action']) => async (): Promise<void> => {
      const held = await chooseReservation(mesh);
      await intend(held ? { action, reservation: held.reservation.id } : null, held?.store);
    };
    const commands: [string, string, string, () => Promise<void>][] = [
      [CommandIDs.open, 'Show Pool and Reservations', 'Show the panel', () => intend(null)],
      [
        CommandIDs.reserve,
        'Reserve Nodes…',
        'Reserve nodes and start ranks on them',
        () => intend({ action: 'reserve' })
      ],
      [
        CommandIDs.up,
        'Start a Local Pool…',
        'Start allocators on this machine',
        () => intend({ action: 'up' })
      ],
      [CommandIDs.restart, 'Restart Ranks…', 'Start all ranks anew; asks first', onMine('restart')],
      [CommandIDs.stacks, 'Show Stacks of Ranks', 'Where each rank is now', onMine('stacks')],
      [CommandIDs.resize, 'Resize Reservation…', 'Hold more nodes, or fewer; asks first', onMine('resize')],
      [CommandIDs.extend, 'Extend Reservation…', 'Hold nodes for longer', onMine('extend')],
      [CommandIDs.release, 'Release Reservation…', 'Give nodes back; asks first', onMine('release')],
      [
        CommandIDs.interrupt,
        'Interrupt Ranks',
        'Interrupt what the ranks run, and drop what waits',
        async () => {
          const held = await chooseReservation(mesh);
          const main = held && mainMesh(held.reservation);
          if (main) {
            const body = { reservation: held.reservation.id, mesh: main.id, ranks: null };
            await held.store.act('interrupt', body);
          }
        }
      ]
    ];
    for (const [id, label, caption, perform] of commands) {
      app.commands.addCommand(id, {
        label,
        caption,
        icon: id === CommandIDs.open ? meshIcon : undefined,
        execute: () => perform().catch(reason => void Notification.error(explain(reason)))
      });
      palette?.addItem({ command: id, category: CATEGORY });
    }
  }
};

const logPlugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:logs',
  description: 'Logs of ranks, curves of what they print, and where they are, as tabs.',
  autoStart: true,
  requires: [IMesh],
  optional: [ILabShell, ILayoutRestorer, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    mesh: Mesh,
    shell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null
  ) => {
    if (!shell) {
      return; // Notebook 7: the panel shows all of them in itself
    }
    const trackers = {
      log: new WidgetTracker<ViewerWidget>({ namespace: 'monarch-nb-log' }),
      curves: new WidgetTracker<ViewerWidget>({ namespace: 'monarch-nb-curves' }),
      top: new WidgetTracker<ViewerWidget>({ namespace: 'monarch-nb-top' })
    };
    const open = (kind: ViewerKind, target: LogTarget): void => {
      const store = target.pool ? mesh.pools.named(target.pool) : mesh.pools.storeOf(target.reservation);
      const pool = store === mesh.pools.home ? undefined : store.state.view?.pool.name;
      const { [kind]: tracker } = trackers;
      let widget = tracker.find(each => each.id === ViewerWidget.idOf(kind, target));
      if (!widget) {
        widget = new ViewerWidget(store, mesh.host, kind, { pool, ...target });
        // The first takes half of the place, others are tabs there.
        const beside =
          tracker.currentWidget ??
          trackers.log.currentWidget ??
          trackers.curves.currentWidget ??
          trackers.top.currentWidget;
        const place = beside
          ? ({ mode: 'tab-after', ref: beside.id } as const)
          : ({ mode: 'split-bottom' } as const);
        app.shell.add(widget, 'main', { ...place, type: 'Monarch' });
        void tracker.add(widget);
      }
      app.shell.activateById(widget.id);
    };
    const kinds: [ViewerKind, string, string, string, string][] = [
      ['log', CommandIDs.openLog, CommandIDs.log, 'Open Log of Ranks', 'What the ranks have printed'],
      [
        'curves',
        CommandIDs.openCurves,
        CommandIDs.curves,
        'Open Curves of Ranks',
        'Curves of the numbers that the ranks print'
      ],
      [
        'top',
        CommandIDs.openTop,
        CommandIDs.top,
        'Open Top of Ranks',
        'Where ranks spend their time, and who is waited for'
      ]
    ];
    for (const [kind, ofTarget, ofMine, label, caption] of kinds) {
      app.commands.addCommand(ofTarget, {
        label: { log: 'Open a Log', curves: 'Open Curves', top: 'Open Top' }[kind],
        execute: args => open(kind, args as unknown as LogTarget)
      });
      app.commands.addCommand(ofMine, {
        label,
        caption,
        execute: async () => {
          const held = await chooseReservation(mesh);
          const main = held && mainMesh(held.reservation);
          if (main) {
            open(kind, { reservation: held.reservation.id, mesh: main.id, ranks: null, run: null });
          }
        }
      });
      palette?.addItem({ command: ofMine, category: CATEGORY });
      void restorer?.restore(trackers[kind], {
        command: ofTarget,
        args: widget => ({ ...widget.target }),
        name: widget => ViewerWidget.idOf(kind, widget.target)
      });
    }
  }
};

const notebookPlugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:notebooks',
  description: 'Runs the current cell on the mesh; attaches notebooks.',
  autoStart: true,
  requires: [IMesh, INotebookTracker],
  optional: [ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    mesh: Mesh,
    tracker: INotebookTracker,
    palette: ICommandPalette | null
  ) => {
    const say = (reason: unknown): void => void Notification.error(explain(reason), { autoClose: 8000 });
    app.commands.addCommand(CommandIDs.runCell, {
      label: 'Run Cell on the Mesh',
      caption: 'Run the current cell on all ranks, as %%mesh does',
      icon: meshIcon,
      isEnabled: () => tracker.currentWidget !== null,
      execute: () => mesh.notebooks.runCell().catch(say)
    });
    app.commands.addCommand(CommandIDs.attach, {
      label: 'Attach This Notebook…',
      caption: 'Have the current notebook use a reservation',
      isEnabled: () => tracker.currentWidget !== null,
      execute: async () => {
        const held = await chooseReservation(mesh);
        if (held) {
          await mesh.notebooks.attach(held.reservation).then(text => void Notification.success(text), say);
        }
      }
    });
    palette?.addItem({ command: CommandIDs.runCell, category: CATEGORY });
    palette?.addItem({ command: CommandIDs.attach, category: CATEGORY });
  }
};

const savedPlugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:saved',
  description: 'Shows panels in notebooks whose kernel has ended as they were.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker) => {
    tracker.forEach(showSavedPanels);
    tracker.widgetAdded.connect((_, panel) => showSavedPanels(panel));
  }
};

const rowsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:rows',
  description: "Opens rows of cells' outputs: each rank's own line comes from the logs.",
  autoStart: true,
  requires: [IMesh, INotebookTracker],
  activate: (_: JupyterFrontEnd, { pools }: Mesh, tracker: INotebookTracker) => {
    const follow = (panel: NotebookPanel): void => {
      const stop = openRows(panel.content.node, async request => {
        const { transport } = pools.storeOfMesh(request.mesh);
        return (await transport.request<{ lines: OwnLine[] }>('own_lines', request)).lines;
      });
      panel.disposed.connect(stop);
    };
    tracker.forEach(follow);
    tracker.widgetAdded.connect((_, panel) => follow(panel));
  }
};

const promptsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:prompts',
  description: 'Leaves prompts of the debugger that somebody else has answered.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker) => {
    tracker.forEach(leaveAnsweredPrompts);
    tracker.widgetAdded.connect((_, panel) => leaveAnsweredPrompts(panel));
  }
};

const statusPlugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:status',
  description: 'Says in the status bar what the current notebook holds.',
  autoStart: true,
  requires: [IMesh, INotebookTracker],
  optional: [IStatusBar],
  activate: (app: JupyterFrontEnd, mesh: Mesh, tracker: INotebookTracker, statusBar: IStatusBar | null) => {
    if (!statusBar) {
      return; // Notebook 7 has none
    }
    const open = (): void => {
      mesh.pools.showStore(mesh.current()?.store ?? mesh.pools.shown);
      void app.commands.execute(CommandIDs.open);
    };
    const item = new StatusItem(mesh.pools, mesh.current, mesh.isAttached, open);
    tracker.currentChanged.connect(() => item.look());
    statusBar.registerStatusItem('monarch-nb:status', {
      item,
      align: 'left',
      rank: 50,
      isActive: () => item.isActive,
      activeStateChanged: item.activeChanged
    });
  }
};

const notificationPlugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:notifications',
  description: 'Notifies of ranks that died and of reservations whose time is nearly up.',
  autoStart: true,
  requires: [IMesh],
  activate: (app: JupyterFrontEnd, { pools }: Mesh) => {
    const shown = new Map<string, string>();
    pools.subscribe(() => {
      const notices = pools.all.flatMap(store => store.state.notices);
      for (const [id, notification] of shown) {
        if (notification && !notices.some(notice => notice.id === id)) {
          shown.set(id, ''); // closed, or it holds no more; never shown again
          Notification.dismiss(notification);
        }
      }
      for (const notice of notices) {
        if (!shown.has(notice.id)) {
          const show = { label: 'Show', callback: () => void app.commands.execute(CommandIDs.open) };
          shown.set(
            notice.id,
            Notification.emit(notice.text, notice.level, { autoClose: 10_000, actions: [show] })
          );
        }
      }
    });
  }
};

/** The current notebook's reservation, the only one, or the one that the person chooses. */
async function chooseReservation(mesh: Mesh): Promise<Held | undefined> {
  const mine = mesh.pools.held().filter(each => each.reservation.mine);
  const current = mesh.current();
  const known = current?.reservation.mine ? current : mine.length === 1 ? mine[0] : undefined;
  if (known || !mine.length) {
    if (!known) {
      Notification.info('You hold no reservation.', { autoClose: 4000 });
    }
    return known;
  }
  const answer = await InputDialog.getItem({
    title: 'Which reservation?',
    items: mine.map(nameOf)
  });
  return mine.find(each => nameOf(each) === answer.value);
}

function nameOf({ reservation, store }: Held): string {
  return `${reservation.name} (${store.state.view?.pool.name})`;
}

export default [
  meshPlugin,
  panelPlugin,
  logPlugin,
  notebookPlugin,
  rowsPlugin,
  savedPlugin,
  promptsPlugin,
  statusPlugin,
  notificationPlugin
];
