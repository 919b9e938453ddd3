import { useCallback, useEffect, useMemo, useRef, useState } from 'react';
import { Host, SurroundingsProvider, Surroundings, useSurroundings } from '../context';
import { MOST_NODES_UNFOLDED, troubled } from '../folds';
import { clock, shape } from '../format';
import { State, Store, useStore } from '../store';
import { explain } from '../transport';
import { LogTarget, PoolNode, Reservation, View } from '../types';
import { Boundary, Button, Mark, Section } from './basics';
import { CurvesViewer } from './CurvesViewer';
import { FormView } from './FormView';
import { Jobs, Notices } from './Jobs';
import { LogViewer } from './logs/LogViewer';
import { PoolView, poolSummary } from './PoolView';
import { TopViewer } from './TopViewer';
import { ReservationCard, TimeLeft } from './reservation/ReservationCard';

/** Jobs whose card says already how they go. */
const SHOWN_ELSEWHERE = new Set(['extend']);

const takeView = (state: State): View | null => state.view;
const takeConnection = (state: State): State['connection'] => state.connection;
const takeNotices = (state: State): State['notices'] => state.notices;
const takeJobs = (state: State): State['jobs'] => state.jobs;
const takeForms = (state: State): State['forms'] => state.forms;
const takeIntent = (state: State): State['intent'] => state.intent;

export interface PanelProps {
  store: Store;
  host: Host;
  /** Show only this reservation. */
  only?: string | null;
  /** The current notebook's path as the contents API has it. */
  notebook?: string | null;
}

type Viewer = typeof LogViewer | typeof CurvesViewer | typeof TopViewer;

/** The whole panel. */
export function Panel({ store, host, only = null, notebook = null }: PanelProps) {
  const [inner, setInner] = useState<{ Viewer: Viewer; target: LogTarget } | null>(null);
  const surroundings = useMemo<Surroundings>(() => {
    const openLog = host.openLog ?? (target => setInner({ Viewer: LogViewer, target }));
    const openCurves = host.openCurves ?? (target => setInner({ Viewer: CurvesViewer, target }));
    const openTop = host.openTop ?? (target => setInner({ Viewer: TopViewer, target }));
    return { store, host: { ...host, openLog, openCurves, openTop } };
  }, [store, host]);
  return (
    <SurroundingsProvider value={surroundings}>
      <div className="mnb-panel">
        <Boundary>
          <Content only={only} notebook={notebook} />
        </Boundary>
        {inner && (
          <div className="mnb-inner-log">
            <inner.Viewer
              key={`${inner.target.mesh} ${inner.target.ranks} ${inner.target.run}`}
              target={inner.target}
              onClose={() => setInner(null)}
            />
          </div>
        )}
      </div>
    </SurroundingsProvider>
  );
}

function Content({ only, notebook }: { only: string | null; notebook: string | null }) {
  const { store, host } = useSurroundings();
  const view = useStore(store, takeView);
  const connection = useStore(store, takeConnection);
  const forms = useStore(store, takeForms);
  const intent = useStore(store, takeIntent);
  const [form, setForm] = useState<'reserve' | 'up' | null>(null);
  const [formError, setFormError] = useState('');
  const [formJob, setFormJob] = useState<string | null>(null);
  const [folded, setFolded] = useState<ReadonlySet<string>>(new Set<string>());
  const box = useRef<HTMLDivElement>(null);

  const toggle = useCallback(
    (name: string) =>
      setFolded(before => {
        const after = new Set(before);
        if (!after.delete(name)) {
          after.add(name);
        }
        return after;
      }),
    []
  );
  const openForm = useCallback(
    async (name: 'reserve' | 'up'): Promise<void> => {
      setFormError('');
      try {
        await store.loadForms(); // what can be asked for changes with the pool
        setForm(name);
      } catch (reason) {
        setFormError(explain(reason));
      }
    },
    [store]
  );
  const startAgain = useCallback(() => void openForm('up'), [openForm]);
  const choose = useCallback((reservation: string) => {
    box.current
      ?.querySelector(`[data-reservation="${CSS.escape(reservation)}"]`)
      ?.scrollIntoView({ block: 'nearest' });
  }, []);

  const isLive = connection === 'live' || connection === 'busy';
  const isUp = view?.pool.state === 'up';
  useEffect(() => {
    if (view && !store.state.forms) {
      store.loadForms().catch(() => undefined); // asked for again when one is opened
    }
  }, [store, view === null, isUp]);
  useEffect(() => {
    if (intent?.action === 'reserve' || intent?.action === 'up') {
      void openForm(intent.action);
    } else if (intent?.reservation) {
      choose(intent.reservation);
    }
  }, [intent, openForm, choose]);

  const reservations = view?.reservations;
  const [ours, others] = useMemo(() => {
    const all = Object.values(reservations ?? {}).sort((a, b) => a.created_at - b.created_at);
    return [
      all.filter(each => each.right && (only === null || each.id === only)),
      all.filter(each => !each.right)
    ];
  }, [reservations, only]);

  if (!view) {
    return (
      <div className="mnb-empty" role="status">
        {connection === 'lost'
          ? (host.away ?? 'The Jupyter server does not answer. Trying again…')
          : 'Looking for the pool…'}
      </div>
    );
  }
  const { pool } = view;
  const isKnown = isUp || (pool.state === 'silent' && Object.keys(view.nodes).length > 0); // how it was is shown
  const current = form && forms?.[form];
  const end = view.ended.find(each => each.id === only)?.text; // also told of by who can not be asked
  return (
    <div ref={box} className={`mnb-content${isLive ? '' : ' mnb-stale'}`}>
      {only === null && (
        <div className="mnb-toolbar">
          <span className="mnb-toolbar-title">
            {host.showPool && view.pools.length > 1 ? (
              <PoolChooser view={view} onChoose={host.showPool} />
            ) : (
              <strong>{pool.name}</strong>
            )}
            <span className="mnb-dim mnb-number">
              {isUp ? poolSummary(view.nodes) : POOL_STATES[pool.state]}
            </span>
          </span>
          <Button
            kind={isUp ? 'primary' : undefined} // engines have nodes where no pool is up, too
            onClick={() => void openForm('reserve')}
            expanded={form === 'reserve'}
          >
            Reserve…
          </Button>
        </div>
      )}
      {!isLive && (
        <p className="mnb-note mnb-soon" role="status">
          <Mark shape="warning" />{' '}
          {connection === 'silent'
            ? 'Nothing is heard of the kernel: this is how it was.'
            : (host.away ?? 'The Jupyter server does not answer: this is how it was. Trying again…')}
        </p>
      )}
      {connection === 'busy' && (
        <p className="mnb-note" role="status">
          <Mark shape="waiting" /> The kernel runs a cell: what you ask for is done after it. What is shown
          stays live.
        </p>
      )}
      {isUp && pool.message && <p className="mnb-note mnb-soon">{pool.message}</p>}
      {formError && (
        <p className="mnb-note mnb-bad" role="alert">
          {formError}
        </p>
      )}
      {current && (
        <FormView
          key={current.action}
          form={current}
          body={current.action === 'reserve' ? { notebook: host.notebook?.() ?? null } : undefined}
          premise={pool.state === 'up' ? free(view) : pool.state}
          onJob={setFormJob}
          onDone={job => {
            setForm(null);
            const there = (job?.result as { pool?: string } | null)?.pool;
            if (there && there !== pool.name) {
              host.showPool?.(there);
            }
          }}
          onClose={() => setForm(null)}
        />
      )}
      {!isUp && !form && !end && (
        <div className="mnb-empty">
          <p className="mnb-pre-line">{pool.message ?? 'No pool is up.'}</p>
          {pool.state === 'down' && (
            <Button kind="primary" onClick={() => void openForm('up')}>
              Start a local pool…
            </Button>
          )}
        </div>
      )}
      {isKnown && (
        <>
          {ours.map(reservation => (
            <ReservationCard
              key={reservation.id}
              reservation={reservation}
              open={!folded.has(reservation.id)}
              onToggle={toggle}
              intent={intent?.reservation === reservation.id ? intent : null}
              isCurrent={notebook !== null && reservation.used_by.includes(notebook)}
            />
          ))}
          {(isUp || end) && !ours.length && !form && (
            <div className="mnb-empty">
              {only === null ? (
                <>
                  <p>
                    You hold nothing yet. Reserve nodes, then run cells on all of their ranks with %%mesh.
                  </p>
                  <EndedList view={view} />
                </>
              ) : (
                <p>{end ?? 'This reservation has been released.'}</p>
              )}
            </div>
          )}
          {only === null && others.length > 0 && (
            <Section
              title="Held by others"
              aside={String(others.length)}
              open={!folded.has('others')}
              onToggle={() => toggle('others')}
            >
              <ul className="mnb-others">
                {others.map(each => (
                  <Other key={each.id} reservation={each} />
                ))}
              </ul>
            </Section>
          )}
          {only === null && (
            <Section
              title="Nodes"
              aside={nodesAside(Object.values(view.nodes))}
              open={!folded.has('nodes')}
              onToggle={() => toggle('nodes')}
              action={
                forms?.up && (
                  <Button kind="quiet" onClick={() => void openForm('up')} expanded={form === 'up'}>
                    Add nodes…
                  </Button>
                )
              }
            >
              <PoolView
                nodes={view.nodes}
                reservations={view.reservations}
                onChoose={choose}
                onStart={forms?.up && startAgain}
              />
            </Section>
          )}
        </>
      )}
      <NoticesAndJobs only={only} formJob={formJob} />
    </div>
  );
}

/** "2", "256 · 3 in trouble". */
function nodesAside(nodes: PoolNode[]): string {
  const bad = nodes.length > MOST_NODES_UNFOLDED ? troubled(nodes) : 0;
  return `${nodes.length.toLocaleString('en')}${bad ? ` · ${bad.toLocaleString('en')} in trouble` : ''}`;
}

/** What is free at each node: what can be reserved depends on it, and on no figure of a busy rank. */
function free({ nodes }: View): string {
  return Object.values(nodes)
    .map(({ id, state, procs, gpus }) => `${id} ${state} ${procs.free} ${gpus.free}`)
    .join();
}

const POOL_STATES = { up: 'up', down: 'not up', silent: 'does not answer' };

/** What comes by itself stands at the foot, always in sight: nobody's button moves. */
function NoticesAndJobs({ only, formJob }: { only: string | null; formJob: string | null }) {
  const { store } = useSurroundings();
  const notices = useStore(store, takeNotices);
  const jobs = useStore(store, takeJobs);
  const shown = Object.values(jobs).filter(
    job =>
      job.id !== formJob &&
      (job.state === 'failed' || (job.state === 'running' && !SHOWN_ELSEWHERE.has(job.action)))
  );
  const heard = only === null ? notices : notices.filter(notice => notice.reservation === only);
  return heard.length || shown.length ? (
    <div className="mnb-news">
      {heard.length > 0 && <Notices notices={heard} />}
      {shown.length > 0 && <Jobs jobs={shown} />}
    </div>
  ) : null;
}

/** Which pool is shown. */
function PoolChooser({ view, onChoose }: { view: View; onChoose: (name: string) => void }) {
  return (
    <select
      className="mnb-pools"
      aria-label="Pool"
      value={view.pool.name}
      onChange={event => onChoose(event.target.value)}
    >
      {view.pools.map(({ name, what }) => (
        <option key={name} value={name}>
          {name} ({what})
        </option>
      ))}
    </select>
  );
}

function Other({ reservation }: { reservation: Reservation }) {
  return (
    <li data-reservation={reservation.id}>
      <strong>{reservation.name}</strong> <span>{reservation.owner}</span>{' '}
      <span className="mnb-dim">{shape(reservation)}</span>
      <span className="mnb-grow" />
      <TimeLeft reservation={reservation} />
    </li>
  );
}

function EndedList({ view }: { view: View }) {
  const newest = view.ended
    .filter(each => !each.by)
    .slice(-3)
    .reverse(); // what a person did is no news
  return newest.length ? (
    <ul className="mnb-ended">
      {newest.map(each => (
        <li key={each.id} title={each.text}>
          <span className="mnb-dim mnb-number">{clock(each.ended_at, view.now)}</span> {each.name}: {each.why}
        </li>
      ))}
    </ul>
  ) : null;
}
