import { KeyboardEvent, useCallback, useEffect, useMemo, useReducer, useRef, useState } from 'react';
import { useSurroundings } from '../../context';
import { count } from '../../format';
import { LogQuery, LogSource, queryOf } from '../../logs';
import { useReservation } from '../../store';
import { explain } from '../../transport';
import { Fold, LogRun, LogTarget, Streams } from '../../types';
import { Lines } from './LogLines';
import { RanksField } from '../RanksField';
import { Button, Mark } from '../basics';

const FILTER_AFTER_MS = 300;

/** The log of some ranks: any number of lines, of which those in sight are here. */
export function LogViewer({ target, onClose }: { target: LogTarget; onClose?: () => void }) {
  const { store, host } = useSurroundings();
  const reservation = useReservation(store, target.reservation);
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
        <select
          aria-label="Fold"
          title="Which lines of several ranks are one row"
          value={query.fold ?? source.fold ?? ''}
          onChange={event => setQuery({ ...query, fold: event.target.value as Fold })}
        >
          {query.fold === null && source.fold === null && <option value="">fold</option>}
          <option value="numbers">fold numbers</option>
          <option value="times">fold times</option>
          <option value="equal">fold equal lines</option>
          <option value="off">fold nothing</option>
        </select>
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
        {run && host.openCurves && (
          <Button
            kind="quiet"
            onClick={() => host.openCurves!({ ...target, ranks: query.ranks, run: run.number })}
            title="Curves of the numbers that this run prints"
          >
            Curves
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
