import { CodeCell } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import { IOutputModel, IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { Widget } from '@lumino/widgets';

const WIDGET = 'application/vnd.jupyter.widget-view+json';
/** The static forms, the best first. */
const FORMS = ['text/html', 'image/svg+xml'];
const GONE = 'As it was: the kernel of this panel has ended. Run the cell again for a live one.';

/**
 * Show panels of kernels that have ended as they were.
 *
 * JupyterLab chooses the best form of an output before anybody knows whether the widget's kernel has it; ipywidgets then
 * says "model not found". The output has the static form as well: it takes the place of these words.
 */
export function showSavedPanels(panel: NotebookPanel): void {
  const look = (): void => {
    for (const node of panel.content.node.querySelectorAll<HTMLElement>('.jupyter-widgets')) {
      if (/^Error displaying widget/.test(node.textContent ?? '')) {
        const output = outputAt(panel, node);
        const form = FORMS.find(each => output?.data[each]);
        if (output?.metadata['monarch_nb'] && output.data[WIDGET] && form) {
          node.textContent = '';
          void show(output, form, node, panel.content.rendermime);
        }
      }
    }
  };
  const observer = new MutationObserver(look);
  observer.observe(panel.content.node, {
    subtree: true,
    childList: true,
    attributes: true,
    attributeFilter: ['class']
  });
  panel.disposed.connect(() => observer.disconnect());
  look();
}

function outputAt(panel: NotebookPanel, node: HTMLElement): IOutputModel | undefined {
  for (const cell of panel.content.widgets) {
    if (cell instanceof CodeCell && cell.node.contains(node)) {
      const place = cell.outputArea.widgets.findIndex(each => each.node.contains(node));
      return place < 0 ? undefined : cell.outputArea.model.get(place);
    }
  }
  return undefined;
}

async function show(
  output: IOutputModel,
  form: string,
  node: HTMLElement,
  rendermime: IRenderMimeRegistry
): Promise<void> {
  const renderer = rendermime.createRenderer(form);
  await renderer.renderModel(output);
  if (node.isConnected) {
    const note = document.createElement('p');
    note.className = 'mnb-saved';
    note.textContent = GONE;
    node.append(note);
    Widget.attach(renderer, node);
  }
}
