import {
  KeyboardEvent,
  memo,
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState
} from 'react';
import { Piece, parseAnsi, plain } from '../ansi';
import { useSurroundings } from '../context';
import { bytes, count, mainMesh, parseRanks } from '../format';
import { Geometry, LogQuery, LogSource, finalText, pattern, queryOf } from '../logs';
import { State, useStore } from '../store';
import { explain } from '../transport';
import { LogRow, LogRun, LogTarget, Reservation, Streams } from '../types';
import { Button, Mark } from './basics';

const ROW_PX = 18;
const LONGEST = 4000;
const FILTER_AFTER_MS = 300;

/** The log of some ranks: any number of lines, of which those in sight are here. */
export function LogViewer({ target, onClose }: { target: LogTarget; onClose?: () => void }) {
  const { store, host } = useSurroundings();
  const reservation = useStore(
    store,
    useCallback((state: State) => state.view?.reservations[target.reservation], [target.reservation])
  );
  const [query, setQuery] = useState<LogQuery>(() => queryOf(target));
  const [, render] = useReducer((renders: number) => renders + 1, 0);
  const source = useMemo(() => new LogSource(store, render), [store]);
  const [search, setSearch] = useState({ text: '', regex: false });
  const [hit, setHit] = useState<number | null>(null);
  const [message, setMessage] = useState('');
  const [goal, setGoal] = useState<{ row: number } | null>(null);
  const [follow, setFollow] = useState(true);
  const top = useRef(0);
  const findField = useRef<HTMLInputElement>(null);

  useEffect(() => {
    void source.open(query);
    setHit(null);
    return () => source.close();
  }, [source, query]);

  const isFiltered = query.search !== '';
  useEffect(() => {
    if (!isFiltered || !search.text) {
      return;
    }
    const filter = (): void =>
      setQuery(now =>
        now.search && (now.search !== search.text || now.regex !== search.regex)
          ? { ...now, search: search.text, regex: search.regex }
          : now
      );
    const timer = setTimeout(filter, FILTER_AFTER_MS); // what is being typed is not asked for letter by letter
    return () => clearTimeout(timer);
  }, [search, isFiltered]);

  const find = async (backwards: boolean): Promise<void> => {
    if (!search.text) {
      return;
    }
    setMessage('');
    try {
      const from = hit === null ? Math.floor(top.current) : hit + (backwards ? -1 : 1);
      const row = await source.find(search.text, search.regex, from, backwards);
      setHit(row);
      if (row === null) {
        setMessage('not found');
      } else {
        setFollow(false);
        setGoal({ row });
      }
    } catch (reason) {
      setMessage(explain(reason));
    }
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === 'f' && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      event.stopPropagation();
      findField.current?.select();
    }
  };
  const reveal = async (run: LogRun): Promise<void> => {
    setMessage((await host.revealCell?.(run)) ?? '');
  };
  const [runInSight, setRunInSight] = useState<number | null>(null);
  const [chosenRun, setChosenRun] = useState<number | null>(null); // until the lines move
  const shownRun = chosenRun ?? runInSight;
  const run = source.runs.find(each => each.number === shownRun);
  const onSight = useCallback((first: number, seen: number | null): void => {
    top.current = first;
    setRunInSight(seen);
  }, []);
  const onFollow = useCallback((isFollowing: boolean): void => {
    setFollow(isFollowing);
    setChosenRun(null);
  }, []);
  useEffect(() => {
    if (follow) {
      setChosenRun(null);
    }
  }, [follow, source.total]);

  return (
    <div className="mnb-log" onKeyDown={onKeyDown}>
      <div className="mnb-log-bar" role="toolbar" aria-label="Log">
        <RanksField
          reservation={reservation}
          mesh={query.mesh}
          value={query.ranks}
          onChange={ranks => setQuery({ ...query, ranks })}
        />
        <select
          aria-label="Streams"
          value={query.streams}
          onChange={event => setQuery({ ...query, streams: event.target.value as Streams })}
        >
          <option value="both">stdout + stderr</option>
          <option value="stdout">stdout</option>
          <option value="stderr">stderr</option>
        </select>
        <label className="mnb-check" title="Show lines that are equal on several ranks once">
          <input
            type="checkbox"
            checked={query.fold}
            onChange={event => setQuery({ ...query, fold: event.target.checked })}
          />
          Fold
        </label>
        <span className="mnb-log-find">
          <input
            ref={findField}
            type="search"
            aria-label="Find in the log"
            placeholder="Find"
            value={search.text}
            onChange={event => {
              setSearch({ ...search, text: event.target.value });
              setHit(null);
              setMessage('');
              if (!event.target.value && query.search) {
                setQuery({ ...query, search: '' });
              }
            }}
            onKeyDown={event => {
              if (event.key === 'Enter') {
                void find(event.shiftKey);
              }
            }}
          />
          <Button kind="icon" label="Previous match" onClick={() => void find(true)} disabled={!search.text}>
            <Mark shape="up" />
          </Button>
          <Button kind="icon" label="Next match" onClick={() => void find(false)} disabled={!search.text}>
            <Mark shape="down" />
          </Button>
          <Button
            kind="quiet"
            label="Regular expression"
            title="Regular expression"
            pressed={search.regex}
            onClick={() => setSearch({ ...search, regex: !search.regex })}
          >
            .*
          </Button>
          <Button
            kind="quiet"
            label="Only matching lines"
            title="Only matching lines"
            pressed={isFiltered}
            disabled={!search.text}
            onClick={() =>
              setQuery(
                isFiltered ? { ...query, search: '' } : { ...query, search: search.text, regex: search.regex }
              )
            }
          >
            Filter
          </Button>
        </span>
        <span className="mnb-grow" />
        <Button
          kind="quiet"
          pressed={follow}
          onClick={() => onFollow(!follow)}
          title="Stay at the newest line"
        >
          Follow
        </Button>
        {onClose && (
          <Button kind="icon" label="Close log" onClick={onClose}>
            <Mark shape="close" />
          </Button>
        )}
      </div>
      <div className="mnb-log-head">
        {source.runs.length > 0 && (
          <select
            aria-label="Jump to run"
            value={shownRun ?? ''}
            onChange={event => {
              const chosen = source.runs.find(each => each.number === Number(event.target.value));
              if (chosen) {
                setFollow(false);
                setGoal({ row: chosen.first_row });
                setChosenRun(chosen.number);
              }
            }}
          >
            {shownRun === null && <option value="">Runs</option>}
            {source.runs.map(each => (
              <option key={each.number} value={each.number}>
                {source.nameOf(each)}
              </option>
            ))}
          </select>
        )}
        {run && run.cell_number > 0 && host.revealCell && (
          <Button kind="quiet" onClick={() => void reveal(run)} title="Show the cell that printed this">
            Show cell
          </Button>
        )}
        <span className="mnb-grow" />
        <span className="mnb-dim mnb-number" role="status">
          {message ||
            (source.isOpen
              ? `${count(source.lines, 'line')}${source.complete ? '' : ', counting…'}`
              : source.error
                ? ''
                : 'Opening…')}
        </span>
      </div>
      {source.missing && !source.error && (
        <p className="mnb-note mnb-soon mnb-log-missing" role="alert">
          <Mark shape="warning" /> Lines are missing of {source.missing}
        </p>
      )}
      {source.error ? (
        <div className="mnb-empty" role="alert">
          <p className="mnb-pre-line">{source.error}</p>
          <Button onClick={() => void source.open(query)}>Try again</Button>
        </div>
      ) : (
        <Lines
          source={source}
          total={source.total}
          isFiltered={isFiltered}
          search={search}
          hit={hit}
          goal={goal}
          follow={follow}
          onFollow={onFollow}
          onSight={onSight}
          onChoose={setChosenRun}
        />
      )}
    </div>
  );
}

/** The lines in sight. Whatever the scroll bar does, it shows lines: the former ones until the new ones are here. */
function Lines(props: {
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
  const shown = useRef<{ top: number; rows: LogRow[] }>({ top: 0, rows: [] });
  const geometry = useMemo(() => new Geometry(total, viewport, ROW_PX), [total, viewport]);
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
      move(goal.row - viewport / ROW_PX / 3);
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
  const rows = viewport > 0 ? source.rows(first, Math.ceil(viewport / ROW_PX) + 1) : null;
  if (rows) {
    shown.current = { top, rows };
  }
  const visible = shown.current;
  const read =
    visible.rows.find(row => row.row === hit) ?? visible.rows[follow ? visible.rows.length - 1 : 0];
  const runRead = read?.run ?? null;
  useEffect(() => onSight(top, runRead), [top, runRead, onSight]);
  const shift = -(visible.top - Math.floor(visible.top)) * ROW_PX;
  const expression = useMemo(() => pattern(props.search.text, props.search.regex), [props.search]);

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
          {visible.rows.map(row =>
            row.kind === 'run' ? (
              <Heading
                key={row.row}
                name={nameIn(source, row.run)}
                onChoose={() => props.onChoose(row.run)}
              />
            ) : (
              <Line
                key={row.row}
                row={row.row}
                run={row.run}
                ranks={row.ranks}
                stream={row.kind === 'end' ? 'end' : (row.stream ?? 'out')}
                text={row.text}
                size={row.size}
                isAway={row.away === true}
                isHit={row.row === hit}
                expression={expression}
                onChoose={props.onChoose}
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

const Line = memo(function Line(props: {
  row: number;
  run: number;
  ranks: string;
  /** Or, of a line that ranks have not printed, how their run ended. */
  stream: keyof typeof STREAMS;
  text: string;
  size: number | undefined;
  isAway: boolean;
  isHit: boolean;
  expression: RegExp | null;
  onChoose: (run: number) => void;
}) {
  const { expression } = props;
  const { className, mark, title } = STREAMS[props.stream];
  const pieces = useMemo(() => {
    const text = finalText(props.text);
    const shown = text.slice(0, LONGEST);
    const rest = Math.max(props.size ?? 0, text.length) - shown.length;
    return [
      ...parseAnsi(shown),
      ...(rest > 0 ? [{ text: ` … ${bytes(rest)} more`, className: 'mnb-dim' }] : [])
    ];
  }, [props.text, props.size]);
  return (
    <div
      className={`mnb-line${className}${props.isHit ? ' mnb-line-hit' : ''}`}
      data-row={props.row}
      onClick={() => props.onChoose(props.run)}
    >
      <span className="mnb-line-ranks" title={`rank ${props.ranks}${title ? `, ${title}` : ''}`}>
        {props.ranks}
      </span>
      <span className="mnb-line-stream" title={title}>
        {mark}
      </span>
      <span className="mnb-line-text">
        {props.isAway ? (
          <span className="mnb-dim">(not here: the node does not answer)</span>
        ) : expression && expression.test(plain(props.text)) ? (
          marked(pieces, expression)
        ) : (
          pieces.map(piece)
        )}
      </span>
    </div>
  );
});

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

function RanksField(props: {
  reservation: Reservation | undefined;
  mesh: string;
  value: string | null;
  onChange: (ranks: string | null) => void;
}) {
  const [text, setText] = useState(props.value ?? '');
  useEffect(() => setText(props.value ?? ''), [props.value]);
  const mesh =
    props.reservation &&
    (props.reservation.meshes.find(each => each.id === props.mesh) ?? mainMesh(props.reservation));
  const parsed = text.trim() === '' ? [] : parseRanks(text);
  const outside = mesh && parsed?.find(rank => !mesh.ranks.some(each => each.rank === rank));
  const error =
    parsed === null ? 'Ranks are like 0-3,6' : outside !== undefined ? `There is no rank ${outside}` : '';
  const commit = (): void => {
    const ranks = text.trim() || null;
    if (!error && ranks !== props.value) {
      props.onChange(ranks);
    }
  };
  return (
    <input
      className="mnb-log-ranks"
      type="text"
      aria-label="Ranks"
      title={error || 'Ranks, like 0-3,6; empty: all'}
      placeholder="all ranks"
      aria-invalid={error ? true : undefined}
      value={text}
      onChange={event => setText(event.target.value)}
      onBlur={commit}
      onKeyDown={event => event.key === 'Enter' && commit()}
    />
  );
}
