import { JupyterFrontEnd } from '@jupyterlab/application';
import { CodeCell } from '@jupyterlab/cells';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { OutputArea } from '@jupyterlab/outputarea';
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { LogRun, Pools, Reservation, fullName } from '../core';
import { attaches, cellOf, onMesh, withoutLoad } from './lines';

const LOAD = '%load_ext monarch_nb';
const ATTACHES = 'monarch_nb_attaches';

/** What the panel does with notebooks. Refusals are errors that say what to do. */
export class Notebooks {
  private readonly _attaching = new Set<NotebookPanel>();

  constructor(
    private readonly _app: JupyterFrontEnd,
    private readonly _tracker: INotebookTracker,
    private readonly _pools: Pools
  ) {}

  /** The current notebook's path as the contents API has it. */
  currentPath(): string | null {
    const panel = this._tracker.currentWidget;
    return panel ? this._app.serviceManager.contents.localPath(panel.context.path) : null;
  }

  /**
   * Have the current notebook attach to a reservation.
   *
   * A cell that does so is run; only a notebook without one gets one, at its top.
   */
  async attach(reservation: Reservation): Promise<string> {
    const panel = await this._ready();
    const name = panel.title.label;
    if (this._attaching.has(panel)) {
      throw new Error(`${name} is being attached already.`);
    }
    this._attaching.add(panel);
    try {
      const { transport } = this._pools.storeOf(reservation.id);
      const { code } = await transport.request<{ code: string }>('attach_lines', {
        reservation: reservation.id
      });
      const loaded = await hasLoaded(panel); // before a cell is inserted: the kernel can have ended meanwhile
      const cell = findAttachCell(panel, reservation, code) ?? insertAtTop(panel, code);
      if (cell.model.getMetadata(ATTACHES) !== undefined && cell.model.sharedModel.getSource() !== code) {
        cell.model.sharedModel.setSource(code); // ours, for another reservation
      }
      panel.content.activeCellIndex = panel.content.widgets.indexOf(cell);
      // Loaded twice, it would only say so.
      const source = cell.model.sharedModel.getSource();
      const reply = await execute(cell, panel, loaded ? withoutLoad(source) : source);
      if (reply && reply.content.status !== 'ok') {
        throw new Error(`${name} was not attached: its cell says why.`);
      }
      return `${name} is attached: %%mesh runs cells on ${fullName(reservation)}.`;
    } finally {
      this._attaching.delete(panel);
    }
  }

  /** Run the current cell on the mesh: as if it began with `%%mesh`, but nothing is written into it. */
  async runCell(): Promise<void> {
    const panel = await this._ready();
    const cell = panel.content.activeCell;
    if (!(cell instanceof CodeCell)) {
      throw new Error('Choose a code cell: only code can run on the mesh.');
    }
    const source = cell.model.sharedModel.getSource();
    if (!source.trim()) {
      return;
    }
    const load = kernelOf(panel).requestExecute({
      code: LOAD,
      silent: true,
      store_history: false,
      allow_stdin: false
    });
    const run = execute(cell, panel, onMesh(source));
    const loaded = await load.done;
    if (loaded.content.status === 'error') {
      throw new Error(`The kernel's Python can not load monarch_nb: ${loaded.content.evalue}`);
    }
    await run;
  }

  /**
   * Show the cell that a run came from; else say why not.
   *
   * Its number and the first line of its code have to fit: cells are run again, and changed. Where the run's notebook is
   * not there any more it may have another name by now: the one that is open and has the cell is meant.
   */
  async reveal(run: LogRun): Promise<string | null> {
    const name = `[${run.cell_number}] ${run.title}`.trim();
    const own = run.notebook_path && (await this._opened(run.notebook_path));
    const found: { panel: NotebookPanel; place: number }[] = [];
    for (const panel of own ? [own] : this._all()) {
      await panel.context.ready;
      const cells = panel.content.widgets.map(cell =>
        cell instanceof CodeCell
          ? { number: cell.model.executionCount, source: cell.model.sharedModel.getSource() }
          : null
      );
      const place = cellOf(run, cells);
      if (place !== null) {
        found.push({ panel, place });
      }
    }
    if (found.length > 1) {
      const names = found.map(({ panel }) => panel.title.label).join(' and ');
      return `${names} both have a cell ${name}: which of them it was is not known.`;
    }
    if (!found.length) {
      return own
        ? `${own.title.label} does not have the cell ${name} any more.`
        : `No notebook that is open has the cell ${name}${run.notebook && ` of ${run.notebook}`} any more.`;
    }
    const [{ panel, place }] = found;
    this._app.shell.activateById(panel.id);
    panel.content.activeCellIndex = place;
    await panel.content.scrollToItem(place, 'center');
    return null;
  }

  private _all(): NotebookPanel[] {
    const panels: NotebookPanel[] = [];
    this._tracker.forEach(each => panels.push(each));
    return panels;
  }

  /** A notebook, which is opened if need be. */
  private async _opened(path: string): Promise<NotebookPanel | undefined> {
    const { contents } = this._app.serviceManager;
    const open = this._all().find(each => contents.localPath(each.context.path) === path);
    if (open) {
      return open;
    }
    const opened: unknown = await this._app.commands
      .execute('docmanager:open', { path })
      .catch(() => undefined);
    return opened instanceof NotebookPanel ? opened : undefined;
  }

  /** The current notebook with its Python kernel. */
  private async _ready(): Promise<NotebookPanel> {
    const panel = this._tracker.currentWidget;
    if (!panel) {
      throw new Error('Open a notebook first.');
    }
    await panel.context.ready;
    const { sessionContext } = panel;
    await sessionContext.initialize(); // has begun long ago
    if (!sessionContext.hasNoKernel) {
      await sessionContext.ready; // with "No Kernel" it never would be
    }
    const { language_info } = await kernelOf(panel).info;
    if (language_info.name !== 'python') {
      throw new Error(
        `${panel.title.label} has a kernel for ${language_info.name}: ` +
          'ranks run Python, so choose a Python kernel (Kernel → Change Kernel…).'
      );
    }
    kernelOf(panel); // it can have ended meanwhile
    return panel;
  }
}

/** The notebook's kernel; an error that says what to do when it has none. */
function kernelOf(panel: NotebookPanel): Kernel.IKernelConnection {
  const kernel = panel.sessionContext.session?.kernel;
  if (!kernel || kernel.isDisposed) {
    throw new Error(`${panel.title.label} has no kernel: choose one with Kernel → Change Kernel…`);
  }
  return kernel;
}

function findAttachCell(panel: NotebookPanel, reservation: Reservation, code: string): CodeCell | undefined {
  const cells = panel.content.widgets.filter((cell): cell is CodeCell => cell instanceof CodeCell);
  const last = code.trim().split('\n').pop()!;
  const name = reservation.mine ? reservation.name : null;
  return (
    cells.find(cell => cell.model.getMetadata(ATTACHES) !== undefined) ??
    cells.find(cell => attaches(cell.model.sharedModel.getSource(), last, name))
  );
}

function insertAtTop(panel: NotebookPanel, code: string): CodeCell {
  panel.content.model!.sharedModel.insertCell(0, {
    cell_type: 'code',
    source: code,
    metadata: { [ATTACHES]: true, trusted: true },
    outputs: []
  });
  return panel.content.widgets[0] as CodeCell;
}

/** Whether a notebook's kernel has the extension; asked without leaving anything behind. */
async function hasLoaded(panel: NotebookPanel): Promise<boolean> {
  const asked = kernelOf(panel).requestExecute({
    code: '',
    silent: true,
    store_history: false,
    allow_stdin: false,
    user_expressions: { loaded: "'monarch_nb' in get_ipython().extension_manager.loaded" }
  });
  const reply = await asked.done.catch((reason: unknown) => {
    kernelOf(panel); // a kernel that ended meanwhile takes its requests with it
    throw reason;
  });
  const { content } = reply as { content: { user_expressions?: Record<string, any> } };
  return content.user_expressions?.loaded?.data?.['text/plain'] === 'True';
}

/** As CodeCell.execute, with other code than the cell has. */
async function execute(
  cell: CodeCell,
  panel: NotebookPanel,
  code: string
): Promise<KernelMessage.IExecuteReplyMsg | undefined> {
  const { model } = cell;
  model.sharedModel.transact(() => {
    model.clearExecution();
    cell.outputHidden = false;
  }, false);
  cell.setPrompt('*');
  model.trusted = true;
  const future = (): unknown => cell.outputArea.future;
  let mine: unknown;
  try {
    const reply = OutputArea.execute(code, cell.outputArea, panel.sessionContext, {
      cellId: model.sharedModel.getId()
    });
    mine = future();
    const message = await reply;
    model.executionCount = message?.content.execution_count ?? null;
    return message;
  } catch (reason) {
    if (!cell.isDisposed && mine && mine === future()) {
      cell.setPrompt('');
    }
    throw reason;
  }
}
