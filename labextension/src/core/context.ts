import { createContext, useContext, useEffect, useReducer } from 'react';
import { Store } from './store';
import { LogRun, LogTarget, Reservation } from './types';

/** What surrounds the components: JupyterLab, or a cell's output. What it can not do is absent. */
export interface Host {
  /** Show a log in a place of its own. Absent: the panel shows it in itself. */
  openLog?(target: LogTarget): void;
  /** Show curves of what a mesh prints in a place of their own. Absent: as openLog. */
  openCurves?(target: LogTarget): void;
  /** Show where the ranks of a mesh are in a place of its own. Absent: as openLog. */
  openTop?(target: LogTarget): void;
  /** Put the two lines into the current notebook and run them; resolves to what to tell the person. */
  attach?(reservation: Reservation): Promise<string>;
  /** Show the cell that a run came from; resolves to why not, or null. */
  revealCell?(run: LogRun): Promise<string | null>;
  /** What to say when nobody answers any more. Absent: the Jupyter server is asked again and again. */
  away?: string;
  /** Show another pool, as soon as it is there. Absent: only one reservation is shown. */
  showPool?(name: string): void;
  /** The current notebook's path, for a new reservation. */
  notebook?(): string | null;
}

export interface Surroundings {
  store: Store;
  host: Host;
}

const Context = createContext<Surroundings | null>(null);
export const SurroundingsProvider = Context.Provider;

export function useSurroundings(): Surroundings {
  const surroundings = useContext(Context);
  if (!surroundings) {
    throw new Error('these components need a SurroundingsProvider');
  }
  return surroundings;
}

const tickers = new Set<() => void>();
let interval: ReturnType<typeof setInterval> | undefined;

/** Render again once a second. For leaves only. */
export function useTick(): void {
  const [, tick] = useReducer((ticks: number) => ticks + 1, 0);
  useEffect(() => {
    tickers.add(tick);
    interval ??= setInterval(() => tickers.forEach(each => each()), 1000);
    return () => {
      tickers.delete(tick);
      if (!tickers.size) {
        clearInterval(interval);
        interval = undefined;
      }
    };
  }, []);
}
