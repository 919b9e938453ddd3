import { useEffect, useMemo, useReducer, useRef, useState } from 'react';
import { useSurroundings } from '../context';
import { watchSeen } from '../seen';
import { useReservation } from '../store';
import { TopSource } from '../topSource';
import { LogTarget, TopRow } from '../types';
import { RanksField } from './RanksField';
import { Button, Mark } from './basics';

/** Where the ranks of a mesh spend their time, live while somebody sees it, and who is waited for. */
export function TopViewer({ target, onClose }: { target: LogTarget; onClose?: () => void }) {
  const { store } = useSurroundings();
  const reservation = useReservation(store, target.reservation);
  const [ranks, setRanks] = useState(target.ranks);
  const [, render] = useReducer((renders: number) => renders + 1, 0);
  const source = useMemo(() => new TopSource(store, render), [store]);
  const box = useRef<HTMLDivElement>(null);

  useEffect(() => source.open(target.mesh, ranks), [source, target.mesh, ranks]);
  useEffect(() => {
    const stop = watchSeen(box.current!, seen => source.look(seen));
    return () => {
      stop();
      source.look(false);
    };
  }, [source]);

  const { top, error } = source;
  return (
    <div className="mnb-log mnb-top" ref={box}>
      <div className="mnb-log-bar" role="toolbar" aria-label="Top">
        <RanksField reservation={reservation} mesh={target.mesh} value={ranks} onChange={setRanks} />
        <span className="mnb-grow" />
        {onClose && (
          <Button kind="icon" label="Close top" onClick={onClose}>
            <Mark shape="close" />
          </Button>
        )}
      </div>
      {error && (
        <p className="mnb-top-error" role="alert">
          {error}
        </p>
      )}
      <p className={`mnb-top-sentence${top?.is_late ? ' mnb-top-late' : ''}`} role="status">
        {top?.sentence ?? (error ? '' : 'Looking where the ranks are…')}
      </p>
      <div className="mnb-top-body">{top && <Table rows={top.rows} />}</div>
    </div>
  );
}

const FIGURES = [
  ['steps_per_s', 'steps/s'],
  ['memory', 'memory'],
  ['cpu', 'CPU'],
  ['gpu', 'GPU']
] as const;

function Table({ rows }: { rows: readonly TopRow[] }) {
  const figures = FIGURES.filter(([key]) => rows.some(row => row[key]));
  return (
    <table>
      <thead>
        <tr>
          <th>rank</th>
          <th>node</th>
          <th className="mnb-top-wide">the last seconds</th>
          {figures.map(([key, name]) => (
            <th key={key} className="mnb-top-figure">
              {name}
            </th>
          ))}
          <th>where mostly</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(row => (
          <tr key={row.ranks} className={row.is_late ? 'mnb-top-late' : undefined}>
            <th scope="row" title={row.is_late ? 'The others wait for it' : undefined}>
              {row.ranks}
              {row.is_late && ' ←'}
            </th>
            <td>{row.node}</td>
            <td>
              <Shares row={row} />
            </td>
            {figures.map(([key]) => (
              <td key={key} className="mnb-top-figure">
                {row[key]}
              </td>
            ))}
            <td className="mnb-top-where">{row.where}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** A bar of what ranks did, and the same in words. */
function Shares({ row }: { row: TopRow }) {
  return (
    <>
      <span className="mnb-top-bar" aria-hidden>
        {row.parts.map(({ kind, share }) => (
          <i key={kind} data-kind={kind} style={{ width: `${share * 100}%` }} />
        ))}
      </span>
      <span className="mnb-top-words">
        {row.parts.map(({ kind, words }) => (
          <span key={kind}>
            <i data-kind={kind} />
            {words}
          </span>
        ))}
      </span>
    </>
  );
}
