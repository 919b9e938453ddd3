import { JupyterFrontEnd } from '@jupyterlab/application';
import { CodeCell } from '@jupyterlab/cells';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { OutputArea } from '@jupyterlab/outputarea';
import { LogRun, Reservation, Store } from '../core';
import { attaches, beginsWith, onMesh } from './lines';

const LOAD = '%load_ext monarch_nb';
const ATTACHES = 'monarch_nb_attaches';

/** What the panel does with notebooks. Refusals are errors that say what to do. */
export class Notebooks {
  private readonly _attaching = new Set<NotebookPanel>();

  constructor(
    private readonly _app: JupyterFrontEnd,
    private readonly _tracker: INotebookTracker,
    private readonly _store: Store
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
      const { code } = await this._store.transport.request<{ code: string }>('attach_lines', {
        reservation: reservation.id
      });
      const cell = findAttachCell(panel, reservation, code) ?? insertAtTop(panel, code);
      if (cell.model.getMetadata(ATTACHES) !== undefined && cell.model.sharedModel.getSource() !== code) {
        cell.model.sharedModel.setSource(code); // ours, for another reservation
      }
      panel.content.activeCellIndex = panel.content.widgets.indexOf(cell);
      const reply = await CodeCell.execute(cell, panel.sessionContext);
      if (reply && reply.content.status !== 'ok') {
        throw new Error(`${name} was not attached: its cell says why.`);
      }
      return `${name} is attached: %%mesh runs cells on ${reservation.name}.`;
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
    const { sessionContext } = panel;
    const load = sessionContext.session!.kernel!.requestExecute({
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

  /** Show the cell that a run came from, if its notebook still has it; else say why not. */
  async reveal(reservation: Reservation, run: LogRun): Promise<string | null> {
    const path = reservation.notebook_path;
    if (!path) {
      return 'This reservation belongs to no notebook that JupyterLab can open.';
    }
    const { contents } = this._app.serviceManager;
    let panel = this._tracker.find(each => contents.localPath(each.context.path) === path);
    if (!panel) {
      panel = (await this._app.commands.execute('docmanager:open', { path })) as NotebookPanel | undefined;
    }
    if (!panel?.content?.widgets) {
      return `${path} can not be opened.`;
    }
    this._app.shell.activateById(panel.id);
    await panel.context.ready;
    const { content } = panel;
    const cells = content.widgets.map(cell => (cell instanceof CodeCell ? cell.model : null));
    let place = cells.findIndex(cell => cell?.executionCount === run.cell_number);
    if (place < 0) {
      // A cell gets its number when it ends.
      place = cells.findIndex(
        cell => cell?.executionCount === null && beginsWith(cell.sharedModel.getSource(), run.title)
      );
    }
    if (place < 0) {
      return `No cell of ${panel.title.label} has the number [${run.cell_number}] any more.`;
    }
    content.activeCellIndex = place;
    await content.scrollToItem(place, 'center');
    return null;
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
    const kernel = sessionContext.session?.kernel;
    if (!kernel) {
      throw new Error(`${panel.title.label} has no kernel: choose one with Kernel → Change Kernel…`);
    }
    const { language_info } = await kernel.info;
    if (language_info.name !== 'python') {
      throw new Error(
        `${panel.title.label} has a kernel for ${language_info.name}: ` +
          'ranks run Python, so choose a Python kernel (Kernel → Change Kernel…).'
      );
    }
    return panel;
  }
}

function findAttachCell(panel: NotebookPanel, reservation: Reservation, code: string): CodeCell | undefined {
  const cells = panel.content.widgets.filter((cell): cell is CodeCell => cell instanceof CodeCell);
  const last = code.trim().split('\n').pop()!;
  return (
    cells.find(cell => cell.model.getMetadata(ATTACHES) !== undefined) ??
    cells.find(cell => attaches(cell.model.sharedModel.getSource(), last, reservation.name))
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

/** As CodeCell.execute, with other code than the cell has. */
async function execute(cell: CodeCell, panel: NotebookPanel, code: string): Promise<void> {
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
  } catch (reason) {
    if (!cell.isDisposed && mine && mine === future()) {
      cell.setPrompt('');
    }
    throw reason;
  }
}
