import { Store } from './store';
import { explain } from './transport';
import { Top } from './types';

const AGAIN_AFTER_ERROR_MS = 5000;

/** Where ranks are, asked for as often as the server says while somebody sees it: ranks look only that long. */
export class TopSource {
  top: Top | null = null;
  /** Why there is nothing new to see, or "". */
  error = '';
  private _mesh = '';
  private _ranks: string | null = null;
  private _isSeen = false;
  /** Answers to what was asked before do not count. */
  private _asked = 0;
  private _again: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly _store: Store,
    private readonly _onChange: () => void
  ) {}

  /** Show these from now on. */
  open(mesh: string, ranks: string | null): void {
    this._mesh = mesh;
    this._ranks = ranks;
    this.top = null;
    void this._ask();
  }

  /** Say whether a person sees it. */
  look(isSeen: boolean): void {
    if (isSeen === this._isSeen) {
      return;
    }
    this._isSeen = isSeen;
    if (isSeen) {
      void this._ask();
    } else {
      this._asked += 1;
      clearTimeout(this._again);
    }
  }

  private async _ask(): Promise<void> {
    clearTimeout(this._again);
    if (!this._mesh || !this._isSeen) {
      return;
    }
    const asked = ++this._asked;
    let again_ms = AGAIN_AFTER_ERROR_MS;
    try {
      const top = await this._store.transport.request<Top>('top', { mesh: this._mesh, ranks: this._ranks });
      if (asked !== this._asked) {
        return;
      }
      this.top = top;
      this.error = '';
      again_ms = top.again_s * 1000;
    } catch (reason) {
      if (asked !== this._asked) {
        return;
      }
      this.error = explain(reason);
    }
    this._again = setTimeout(() => void this._ask(), again_ms);
    this._onChange();
  }
}
