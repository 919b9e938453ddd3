import {
  KeyboardEvent,
  memo,
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState
} from 'react';
import { Piece, parseAnsi, plain } from '../../ansi';
import { bytes } from '../../format';
import { Geometry, LogSource, finalText, pattern } from '../../logs';
import { Item, Layout } from '../../openings';
import { LogRow } from '../../types';

const ROW_PX = 18;
const LONGEST = 4000;

/** The lines in sight. Whatever the scroll bar does, it shows lines: the former ones until the new ones are here. */
export function Lines(props: {
  source: LogSource;
  total: number;
  isFiltered: boolean;
  search: { text: string; regex: boolean };
  hit: number | null;
  goal: { row: number } | null;
  follow: boolean;
  onFollow: (follow: boolean) => void;
  /** The first row in sight, and the run that is read there. */
  onSight: (first: number, run: number | null) => void;
  onChoose: (run: number) => void;
}) {
  const { source, total, follow, onFollow, onSight, goal, hit } = props;
  const box = useRef<HTMLDivElement>(null);
  const [viewport, setViewport] = useState(0);
  const [place, setTop] = useState(0);
  const expected = useRef(-1);
  const widest = useRef(0);
  const shown = useRef<{ top: number; items: Item[] }>({ top: 0, items: [] });
  const { opened } = source;
  const layout = new Layout(total, opened);
  const places = layout.total;
  const geometry = useMemo(() => new Geometry(places, viewport, ROW_PX), [places, viewport]);
  const top = follow ? geometry.lastTop : geometry.clamp(place);

  useLayoutEffect(() => {
    const element = box.current!;
    const observer = new ResizeObserver(() => setViewport(element.clientHeight));
    observer.observe(element);
    setViewport(element.clientHeight);
    return () => observer.disconnect();
  }, []);

  const move = useCallback(
    (to: number): void => {
      const next = geometry.clamp(to);
      setTop(next);
      const element = box.current;
      if (element) {
        element.scrollTop = geometry.toScroll(next);
        expected.current = element.scrollTop;
      }
    },
    [geometry]
  );
  useLayoutEffect(() => {
    if (follow) {
      move(geometry.lastTop);
    }
  }, [follow, geometry, move]);
  useEffect(() => {
    if (goal) {
      move(layout.placeOf(goal.row) - viewport / ROW_PX / 3);
    }
    // Only a new goal counts.
  }, [goal]);
  const onScroll = (): void => {
    const element = box.current!;
    if (Math.abs(element.scrollTop - expected.current) < 1) {
      return;
    }
    expected.current = element.scrollTop;
    const next = geometry.toTop(element.scrollTop);
    setTop(next);
    onFollow(next >= geometry.lastTop - 0.5);
  };
  const go = (to: number): void => {
    move(to);
    onFollow(geometry.clamp(to) >= geometry.lastTop - 0.5);
  };
  useEffect(() => {
    const element = box.current!;
    const onWheel = (event: WheelEvent): void => {
      // With very many lines a pixel of the scroll bar is many lines: the wheel goes by lines all the same.
      if (!geometry.isExact && event.deltaY && !event.ctrlKey) {
        event.preventDefault();
        go(top + (event.deltaMode === 1 ? event.deltaY * 3 : event.deltaY / ROW_PX));
      }
    };
    element.addEventListener('wheel', onWheel, { passive: false });
    return () => element.removeEventListener('wheel', onWheel);
  });
  const onKeyDown = (event: KeyboardEvent): void => {
    const page = Math.max(1, Math.floor(viewport / ROW_PX) - 1);
    const steps: Record<string, number> = {
      ArrowUp: top - 1,
      ArrowDown: top + 1,
      PageUp: top - page,
      PageDown: top + page,
      ' ': top + page,
      Home: 0,
      End: geometry.lastTop
    };
    if (event.key in steps && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      event.stopPropagation();
      go(steps[event.key]);
    }
  };

  const first = Math.floor(top);
  const most = Math.ceil(viewport / ROW_PX) + 1;
  const firstRow = layout.rowAt(first);
  const rows = viewport > 0 ? source.rows(firstRow, layout.rowAt(first + most) - firstRow + 1) : null;
  if (rows) {
    shown.current = { top, items: layout.items(first, most, rows) };
  }
  const visible = shown.current;
  const read =
    visible.items.find(({ row }) => row.row === hit) ?? visible.items[follow ? visible.items.length - 1 : 0];
  const runRead = read?.row.run ?? null;
  useEffect(() => onSight(firstRow, runRead), [firstRow, runRead, onSight]);
  const shift = -(visible.top - Math.floor(visible.top)) * ROW_PX;
  const expression = useMemo(() => pattern(props.search.text, props.search.regex), [props.search]);

  const onToggle = useCallback(
    (row: LogRow): void => {
      onFollow(false);
      void source.toggle(row);
    },
    [source, onFollow]
  );
  const layer = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (layer.current && layer.current.scrollWidth > widest.current) {
      widest.current = layer.current.scrollWidth;
      layer.current.style.minWidth = `${widest.current}px`; // lines come and go, the horizontal scroll bar stays
    }
  });
  return (
    <div
      ref={box}
      className="mnb-lines"
      role="log"
      aria-live="off"
      aria-label="Lines of the log"
      tabIndex={0}
      onScroll={onScroll}
      onKeyDown={onKeyDown}
    >
      <div className="mnb-lines-window" style={{ height: viewport }}>
        <div ref={layer} className="mnb-lines-layer" style={{ transform: `translateY(${shift}px)` }}>
          {visible.items.map(({ row, own }) =>
            own ? (
              <OwnLine key={`${row.row}:${own.ranks}`} row={own} expression={expression} />
            ) : row.kind === 'run' ? (
              <Heading
                key={row.row}
                name={nameIn(source, row.run)}
                onChoose={() => props.onChoose(row.run)}
              />
            ) : (
              <Line
                key={row.row}
                row={row}
                isHit={row.row === hit}
                isOpen={opened.some(each => each.row === row.row)}
                expression={expression}
                onChoose={props.onChoose}
                onToggle={onToggle}
              />
            )
          )}
        </div>
        {total === 0 && source.isOpen && (!props.isFiltered || source.complete) && (
          <div className="mnb-empty">
            {props.isFiltered ? 'No line matches' : 'Nothing has been printed.'}
          </div>
        )}
      </div>
      <div style={{ height: Math.max(0, geometry.height - viewport) }} />
    </div>
  );
}

function nameIn(source: LogSource, run: number): string {
  const known = source.runs.find(each => each.number === run);
  return known ? source.nameOf(known) : `run ${run}`;
}

/** The rule above a run's lines. */
function Heading({ name, onChoose }: { name: string; onChoose: () => void }) {
  return (
    <div className="mnb-line mnb-line-run" onClick={onChoose}>
      <span>{name}</span>
    </div>
  );
}

const STREAMS = {
  out: { className: '', mark: '', title: undefined },
  err: { className: ' mnb-line-error', mark: 'E', title: 'stderr' },
  end: { className: ' mnb-line-end', mark: '', title: 'how the run ended' }
};

interface LineProps {
  row: LogRow;
  isHit: boolean;
  /** Whether each rank's own line is shown below it. */
  isOpen: boolean;
  expression: RegExp | null;
  onChoose: (run: number) => void;
  onToggle: (row: LogRow) => void;
}

const Line = memo(function Line({ row, isHit, isOpen, expression, onChoose, onToggle }: LineProps) {
  const { className, mark, title } = STREAMS[row.kind === 'end' ? 'end' : (row.stream ?? 'out')];
  const { apart = [] } = row;
  const toggle = (): void => {
    if (window.getSelection()?.isCollapsed !== false) {
      onToggle(row); // else somebody marks text
    }
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      event.stopPropagation();
      onToggle(row);
    }
  };
  const button = {
    role: 'button',
    tabIndex: 0,
    'aria-expanded': isOpen,
    title: isOpen ? 'Hide the lines of each rank' : 'Show the line of each rank',
    onKeyDown
  };
  return (
    <div
      className={
        `mnb-line${className}${isHit ? ' mnb-line-hit' : ''}` +
        `${row.folded ? ' mnb-line-folded' : ''}${apart.length ? ' mnb-line-marked' : ''}`
      }
      data-row={row.row}
      {...(row.folded ? button : {})}
      onClick={() => {
        onChoose(row.run);
        if (row.folded) {
          toggle();
        }
      }}
    >
      <span className="mnb-line-ranks" title={`rank ${row.ranks}${title ? `, ${title}` : ''}`}>
        {row.ranks}
      </span>
      <span className="mnb-line-stream" title={title}>
        {apart.length ? '!' : mark}
      </span>
      <span className="mnb-line-text">
        <Text row={row} expression={expression} />
      </span>
      {apart.length > 0 && (
        <span className="mnb-line-apart">
          {apart.map(each => (
            <span
              key={`${each.ranks} ${each.text}`}
              title="nan or inf, or far from the other ranks' numbers, and not in the range"
            >
              {`[${each.ranks}]! ${each.text.slice(0, LONGEST)}`}
            </span>
          ))}
        </span>
      )}
    </div>
  );
});

/** A rank's own line, below the row that stands for it. */
const OwnLine = memo(function OwnLine({ row, expression }: { row: LogRow; expression: RegExp | null }) {
  return (
    <div className="mnb-line mnb-line-own">
      <span className="mnb-line-ranks">{row.ranks}</span>
      <span className="mnb-line-stream" />
      <span className="mnb-line-text">
        <Text row={row} expression={expression} />
      </span>
    </div>
  );
});

function Text({ row, expression }: { row: LogRow; expression: RegExp | null }) {
  const pieces = useMemo(() => {
    const text = finalText(row.text);
    const shown = text.slice(0, LONGEST);
    const rest = Math.max(row.size ?? 0, text.length) - shown.length;
    return [
      ...parseAnsi(shown),
      ...(rest > 0 ? [{ text: ` … ${bytes(rest)} more`, className: 'mnb-dim' }] : [])
    ];
  }, [row.text, row.size]);
  if (row.away) {
    return <span className="mnb-dim">(not here: the node does not answer)</span>;
  }
  return (
    <>{expression && expression.test(plain(row.text)) ? marked(pieces, expression) : pieces.map(piece)}</>
  );
}

function piece({ text, className }: Piece, key: number): JSX.Element | string {
  return className ? (
    <span key={key} className={className}>
      {text}
    </span>
  ) : (
    text
  );
}

/** The pieces with what matches marked; matches may begin in one piece and end in another. */
function marked(pieces: Piece[], expression: RegExp): JSX.Element[] {
  const whole = pieces.map(each => each.text).join('');
  const spans: [number, number][] = [];
  expression.lastIndex = 0;
  for (let match = expression.exec(whole); match && spans.length < 100; match = expression.exec(whole)) {
    spans.push([match.index, match.index + match[0].length]);
    expression.lastIndex += match[0] ? 0 : 1;
  }
  const shown: JSX.Element[] = [];
  let start = 0;
  for (const { text, className } of pieces) {
    const end = start + text.length;
    let place = start;
    for (const [from, to] of spans) {
      if (from >= end || to <= place) {
        continue;
      }
      const begin = Math.max(from, place);
      if (begin > place) {
        shown.push(
          <span key={place} className={className}>
            {whole.slice(place, begin)}
          </span>
        );
      }
      place = Math.min(to, end);
      shown.push(
        <mark key={`m${begin}`} className={className}>
          {whole.slice(begin, place)}
        </mark>
      );
    }
    if (place < end) {
      shown.push(
        <span key={place} className={className}>
          {whole.slice(place, end)}
        </span>
      );
    }
    start = end;
  }
  expression.lastIndex = 0;
  return shown;
}
