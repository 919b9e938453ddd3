import { useEffect, useMemo, useReducer, useRef, useState } from 'react';
import { useSurroundings } from '../context';
import { CurvesQuery, CurvesSource, MOST_NAMES, curvesQueryOf } from '../curveSource';
import type { CurvesView } from '../curves';
import { watchSeen } from '../seen';
import { useReservation } from '../store';
import { CurvesFound, LogTarget } from '../types';
import { RanksField } from './RanksField';
import { Button, Mark } from './basics';

/** Curves of the numbers that the ranks of a mesh print, live while a run goes on. */
export function CurvesViewer({ target, onClose }: { target: LogTarget; onClose?: () => void }) {
  const { store } = useSurroundings();
  const reservation = useReservation(store, target.reservation);
  const [query, setQuery] = useState<CurvesQuery>(() => curvesQueryOf(target));
  const [, render] = useReducer((renders: number) => renders + 1, 0);
  const source = useMemo(() => new CurvesSource(store, render), [store]);
  const box = useRef<HTMLDivElement>(null);

  useEffect(() => source.open(query), [source, query]);
  useEffect(() => {
    const stop = watchSeen(box.current!, seen => source.look(seen));
    return () => {
      stop();
      source.look(false);
      source.close();
    };
  }, [source]);

  const { found, error } = source;
  const change = (part: Partial<CurvesQuery>): void => setQuery({ ...query, ...part });
  return (
    <div className="mnb-log mnb-curves" ref={box}>
      <div className="mnb-log-bar" role="toolbar" aria-label="Curves">
        <RanksField
          reservation={reservation}
          mesh={query.mesh}
          value={query.ranks}
          onChange={ranks => change({ ranks })}
        />
        <RunChoice
          label="Run"
          value={query.run}
          none="Newest run"
          found={found}
          onChange={run => change({ run, other: null })}
        />
        <RunChoice
          label="Compare with"
          value={query.other}
          none="Compare with…"
          found={found}
          except={found?.run}
          onChange={other => change({ other })}
        />
        <select
          aria-label="Against"
          title="What the horizontal axis shows"
          value={query.x}
          onChange={event => change({ x: event.target.value })}
        >
          <option value="">against step</option>
          {found?.names
            .filter(each => !each.is_step)
            .map(({ name }) => (
              <option key={name} value={name}>
                against {name}
              </option>
            ))}
        </select>
        <span className="mnb-grow" />
        {onClose && (
          <Button kind="icon" label="Close curves" onClick={onClose}>
            <Mark shape="close" />
          </Button>
        )}
      </div>
      <Names found={found} chosen={source.names} onChange={names => change({ names })} />
      {error ? (
        <div className="mnb-empty" role="alert">
          <p className="mnb-pre-line">{error}</p>
          <Button onClick={() => source.again()}>Try again</Button>
        </div>
      ) : (
        <p className="mnb-curves-state" role="status">
          {stateOf(source)}
        </p>
      )}
      <Charts source={source} />
    </div>
  );
}

/** What to say where no chart says anything. */
function stateOf({ found, names, curves }: CurvesSource): string {
  if (!found) {
    return 'Looking for numbers…';
  }
  if (!found.names.length) {
    return 'No line of this run has a number with a name beside it, as in loss: 2.31';
  }
  if (!names.length) {
    return 'Choose what to draw';
  }
  return curves ? '' : 'Reading…';
}

function RunChoice(props: {
  label: string;
  value: number | null;
  none: string;
  found: CurvesFound | null;
  except?: number;
  onChange: (run: number | null) => void;
}) {
  const { label, value, none, found, except, onChange } = props;
  const runs = (found?.runs ?? []).filter(run => run.number !== except);
  const isKnown = value === null || runs.some(run => run.number === value);
  return (
    <select
      aria-label={label}
      className="mnb-curves-run"
      value={value ?? ''}
      disabled={!runs.length}
      onChange={event => onChange(event.target.value ? Number(event.target.value) : null)}
    >
      <option value="">{none}</option>
      {!isKnown && <option value={value}>run {value}</option>}
      {runs.map(run => (
        <option key={run.number} value={run.number}>
          {[run.name, run.title].filter(Boolean).join(' · ')}
        </option>
      ))}
    </select>
  );
}

/** What can be drawn, and what is. */
function Names(props: {
  found: CurvesFound | null;
  chosen: readonly string[];
  onChange: (names: string[]) => void;
}) {
  const { found, chosen, onChange } = props;
  const names = (found?.names ?? []).filter(each => !each.is_step || chosen.includes(each.name));
  if (!names.length) {
    return null;
  }
  return (
    <div className="mnb-log-bar mnb-curves-names" role="group" aria-label="What is drawn">
      {names.map(({ name, unit, lines }) => {
        const isChosen = chosen.includes(name);
        const isFull = !isChosen && chosen.length >= MOST_NAMES;
        return (
          <Button
            key={name}
            kind="quiet"
            pressed={isChosen}
            refusal={isFull ? `At most ${MOST_NAMES} are drawn at once` : undefined}
            title={`${lines.toLocaleString('en')} lines${unit ? `, in ${unit}` : ''}`}
            onClick={() => onChange(isChosen ? chosen.filter(each => each !== name) : [...chosen, name])}
          >
            {name}
          </Button>
        );
      })}
    </div>
  );
}

/** The charts: drawn by what is loaded when the first are to be drawn. */
function Charts({ source }: { source: CurvesSource }) {
  const place = useRef<HTMLDivElement>(null);
  const view = useRef<CurvesView | null>(null);
  const [isLoaded, setLoaded] = useState(false);
  const { curves } = source;
  const isNeeded = curves !== null;

  useEffect(() => {
    let isGone = false;
    if (isNeeded) {
      void import('../curves').then(({ CurvesView }) => {
        if (!isGone && place.current) {
          view.current = new CurvesView(place.current);
          setLoaded(true);
        }
      });
    }
    return () => {
      isGone = true;
      view.current?.destroy();
      view.current = null;
      setLoaded(false);
    };
  }, [isNeeded]);
  useEffect(() => {
    if (curves && isLoaded) {
      view.current?.update(curves);
    }
  }, [curves, isLoaded]);

  return (
    <div className="mnb-curves-body">
      <div ref={place} />
    </div>
  );
}
