import {
  Component,
  ReactNode,
  RefObject,
  memo,
  useCallback,
  useEffect,
  useId,
  useLayoutEffect,
  useRef
} from 'react';
import { useSurroundings, useTick } from '../context';
import { duration, timeLeft } from '../format';
import { NodeState, RankState } from '../types';

type Shape =
  RankState | NodeState | 'ok' | 'close' | 'chevron' | 'warning' | 'error' | 'done' | 'up' | 'down';

/** Shapes on a grid of 12 × 12: states are told apart without their colours. */
const SHAPES: Record<Shape, JSX.Element> = {
  idle: <circle cx="6" cy="6" r="3.25" fill="none" stroke="currentColor" strokeWidth="1.5" />,
  ok: <circle cx="6" cy="6" r="3.5" fill="currentColor" />,
  running: <path d="M3.5 2.2v7.6L10 6z" fill="currentColor" />,
  waiting: <path d="M3 2.5h2.2v7H3zm3.8 0H9v7H6.8z" fill="currentColor" />,
  starting: (
    <g fill="currentColor">
      <circle cx="2.4" cy="6" r="1.2" />
      <circle cx="6" cy="6" r="1.2" />
      <circle cx="9.6" cy="6" r="1.2" />
    </g>
  ),
  failed: (
    <path
      d="M6 1.2 11.4 10.6H.6zM5.4 4.6v3h1.2v-3zm0 3.7v1.2h1.2V8.3z"
      fill="currentColor"
      fillRule="evenodd"
    />
  ),
  dead: <path d="M2.6 2.6l6.8 6.8m0-6.8L2.6 9.4" fill="none" stroke="currentColor" strokeWidth="2" />,
  unreachable: (
    <path
      d="M3.8 4.4c0-3 4.6-3 4.6-.2C8.4 6 6 5.8 6 7.6M6 9v1.6"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.6"
    />
  ),
  silent: (
    <path
      d="M3.8 4.4c0-3 4.6-3 4.6-.2C8.4 6 6 5.8 6 7.6M6 9v1.6"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.6"
    />
  ),
  close: <path d="M3 3l6 6m0-6L3 9" fill="none" stroke="currentColor" strokeWidth="1.4" />,
  chevron: <path d="M4.2 2.5 8 6 4.2 9.5" fill="none" stroke="currentColor" strokeWidth="1.4" />,
  warning: (
    <path
      d="M6 1.2 11.4 10.6H.6zM5.4 4.6v3h1.2v-3zm0 3.7v1.2h1.2V8.3z"
      fill="currentColor"
      fillRule="evenodd"
    />
  ),
  error: (
    <path
      d="M6 .8a5.2 5.2 0 1 0 0 10.4A5.2 5.2 0 0 0 6 .8zM5.4 3v3.8h1.2V3zm0 4.8V9h1.2V7.8z"
      fill="currentColor"
      fillRule="evenodd"
    />
  ),
  done: <path d="M2 6.4 4.8 9.2 10 3.4" fill="none" stroke="currentColor" strokeWidth="1.6" />,
  up: <path d="M2.5 8 6 4.2 9.5 8" fill="none" stroke="currentColor" strokeWidth="1.4" />,
  down: <path d="M2.5 4 6 7.8 9.5 4" fill="none" stroke="currentColor" strokeWidth="1.4" />
};

/** A shape that says a state; what it means is said in text beside it or in the name of what holds it. */
export const Mark = memo(function Mark({ shape }: { shape: Shape }) {
  return (
    <svg className="mnb-mark" data-shape={shape} viewBox="0 0 12 12" aria-hidden="true">
      {SHAPES[shape]}
    </svg>
  );
});

interface ButtonProps {
  children?: ReactNode;
  onClick: () => void;
  kind?: 'primary' | 'danger' | 'quiet' | 'icon';
  label?: string;
  title?: string;
  disabled?: boolean;
  /** Why it can not be pressed now: it says so, also to who comes to it by the keyboard. */
  refusal?: string;
  pressed?: boolean;
  expanded?: boolean;
}

export function Button(props: ButtonProps) {
  const { children, onClick, kind, label, title, disabled, refusal, pressed, expanded } = props;
  return (
    <button
      type="button"
      className={`mnb-button${kind ? ` mnb-button-${kind}` : ''}`}
      onClick={refusal ? undefined : onClick}
      aria-label={label}
      title={refusal ?? title ?? (kind === 'icon' ? label : undefined)}
      disabled={disabled}
      aria-disabled={refusal ? true : undefined}
      aria-pressed={pressed}
      aria-expanded={expanded}
    >
      {children}
    </button>
  );
}

/** A part of the panel that can be folded. */
export function Section(props: {
  title: string;
  aside?: ReactNode;
  open: boolean;
  onToggle: () => void;
  action?: ReactNode;
  children: ReactNode;
}) {
  const id = useId();
  return (
    <section className="mnb-section" aria-labelledby={id}>
      <div className="mnb-section-head">
        <button
          type="button"
          className="mnb-section-title"
          aria-expanded={props.open}
          onClick={props.onToggle}
        >
          <Mark shape="chevron" />
          <span id={id}>{props.title}</span>
        </button>
        {props.action}
        <span className="mnb-section-aside">{props.aside}</span>
      </div>
      {props.open && <div className="mnb-section-body">{props.children}</div>}
    </section>
  );
}

/** How long something has been going on. */
export function Elapsed({ since_s }: { since_s: number }) {
  const { store } = useSurroundings();
  useTick();
  return <span className="mnb-number">{duration(store.now_s() - since_s)}</span>;
}

/** How long something will go on. */
export function Left({ until_s }: { until_s: number }) {
  const { store } = useSurroundings();
  useTick();
  const left_s = until_s - store.now_s();
  return <span className="mnb-number">{left_s > 0 ? `${timeLeft(left_s)} left` : 'time is up'}</span>;
}

export function Progress({ label }: { label: string }) {
  return (
    <div className="mnb-progress" role="progressbar" aria-label={label}>
      <div />
    </div>
  );
}

/** Ask before something is lost. Escape keeps it. */
export function Question(props: {
  title: string;
  text: string | null;
  accept: string;
  keep: string;
  onAccept: () => void;
  onKeep: () => void;
}) {
  const id = useId();
  const box = useRef<HTMLDivElement>(null);
  useFocus(box, 'button');
  return (
    <div
      ref={box}
      className="mnb-question"
      role="alertdialog"
      aria-labelledby={`${id}-title`}
      aria-describedby={`${id}-text`}
      onKeyDown={event => {
        if (event.key === 'Escape') {
          event.stopPropagation();
          props.onKeep();
        }
      }}
    >
      <strong id={`${id}-title`}>{props.title}</strong>
      <p id={`${id}-text`} className="mnb-pre-line">
        {props.text ?? 'Looking what would be lost…'}
      </p>
      <div className="mnb-row mnb-row-end">
        <Button onClick={props.onKeep}>{props.keep}</Button>
        <Button kind="danger" onClick={props.onAccept} disabled={props.text === null}>
          {props.accept}
        </Button>
      </div>
    </div>
  );
}

/** What is inside, or why it can not be shown: a fault of ours in one place leaves the rest. */
export class Boundary extends Component<{ children: ReactNode }, { failure: string }> {
  override state = { failure: '' };

  static getDerivedStateFromError(reason: unknown): { failure: string } {
    return { failure: String(reason) };
  }

  override render(): ReactNode {
    const { failure } = this.state;
    if (!failure) {
      return this.props.children;
    }
    return (
      <div className="mnb-empty" role="alert">
        <p>This can not be shown: {failure}</p>
        <Button onClick={() => this.setState({ failure: '' })}>Try again</Button>
      </div>
    );
  }
}

/** Move the focus to what `selector` finds in a container while it is shown, and back when the focus goes with it. */
export function useFocus(container: RefObject<HTMLElement>, selector: string): void {
  useLayoutEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    const element = container.current;
    element?.querySelector<HTMLElement>(selector)?.focus();
    return () => {
      if (element?.contains(document.activeElement) && before?.isConnected) {
        before.focus();
      }
    };
  }, []);
}

/**
 * Let the arrow keys move among the elements with `data-cell` in a container, one of which Tab reaches.
 *
 * It works on the elements themselves: cells need not render again when the focus moves.
 */
export function useArrowKeys(container: RefObject<HTMLElement>): (event: React.KeyboardEvent) => void {
  const cells = useCallback(
    () => [...(container.current?.querySelectorAll<HTMLElement>('[data-cell]') ?? [])],
    [container]
  );
  const choose = (cell: HTMLElement): void => {
    cells().forEach(other => (other.tabIndex = other === cell ? 0 : -1));
  };
  useEffect(() => {
    const all = cells();
    if (all.length && !all.some(cell => cell.tabIndex === 0)) {
      all[0].tabIndex = 0;
    }
  });
  useEffect(() => {
    const onFocus = (event: FocusEvent): void => {
      const cell = (event.target as HTMLElement).closest<HTMLElement>('[data-cell]');
      if (cell) {
        choose(cell);
      }
    };
    const element = container.current;
    element?.addEventListener('focusin', onFocus);
    return () => element?.removeEventListener('focusin', onFocus);
  });
  return event => {
    const all = cells();
    const place = all.indexOf(document.activeElement as HTMLElement);
    if (place < 0) {
      return;
    }
    const next = neighbour(all, place, event.key);
    if (next !== undefined) {
      event.preventDefault();
      event.stopPropagation();
      all[next].focus();
    }
  };
}

function neighbour(cells: HTMLElement[], place: number, key: string): number | undefined {
  switch (key) {
    case 'ArrowRight':
      return Math.min(place + 1, cells.length - 1);
    case 'ArrowLeft':
      return Math.max(place - 1, 0);
    case 'Home':
      return 0;
    case 'End':
      return cells.length - 1;
    case 'ArrowUp':
    case 'ArrowDown': {
      const here = cells[place].getBoundingClientRect();
      const sign = key === 'ArrowDown' ? 1 : -1;
      let best: number | undefined;
      let bestDistance = Infinity;
      cells.forEach((cell, index) => {
        const box = cell.getBoundingClientRect();
        const rows = (box.top - here.top) * sign;
        const distance = rows * 1000 + Math.abs(box.left - here.left);
        if (rows > 1 && distance < bestDistance) {
          best = index;
          bestDistance = distance;
        }
      });
      return best ?? place;
    }
    default:
      return undefined;
  }
}
