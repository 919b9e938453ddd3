import { memo, useCallback, useEffect, useRef, useState } from 'react';
import { useSurroundings } from '../context';
import { MOST_RANKS_UNFOLDED } from '../folds';
import {
  bytes,
  count,
  mainMesh,
  parseRanks,
  percent,
  rankNames,
  rankSet,
  shape,
  STATE_LABELS
} from '../format';
import { useStore } from '../store';
import { explain } from '../transport';
import { Intent, State } from '../store';
import { Actor, Hang, Job, Mesh, Rank, RankState, Reservation, Run, StackGroup } from '../types';
import { ActorList } from './ActorList';
import { Button, Elapsed, Left, Mark, Question } from './basics';
import { FormView, isJob } from './FormView';
import { RankGrid, Tally } from './RankGrid';
import { RankGroups } from './RankGroups';

type Aside =
  | { kind: 'release' | 'restart'; ranks: string | null; text: string | null }
  | { kind: 'extend' }
  | { kind: 'stacks'; groups: StackGroup[] }
  | { kind: 'message'; text: string; isBad: boolean; holds?: Holds };

/** A reservation of ours, or one that is shared with us: how its ranks are, what they run, and what can be done. */
export const ReservationCard = memo(function ReservationCard(props: {
  reservation: Reservation;
  open: boolean;
  onToggle: (id: string) => void;
  intent: Intent | null;
  isCurrent: boolean;
}) {
  const { reservation, intent } = props;
  const { store, host } = useSurroundings();
  const [meshId, setMeshId] = useState<string | null>(null);
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set<number>());
  const [aside, setAside] = useState<Aside | null>(null);
  const [pending, setPending] = useState('');
  const forms = useStore(store, takeForms);
  const mesh = reservation.meshes.find(each => each.id === meshId) ?? mainMesh(reservation);

  const latest = useRef(reservation);
  useEffect(() => {
    latest.current = reservation;
    setAside(now => (now?.kind === 'message' && now.holds?.(reservation) === false ? null : now));
  }, [reservation, aside]);

  const fail = (reason: unknown): void => setAside({ kind: 'message', text: explain(reason), isBad: true });
  const ranks = chosen.size ? rankSet(chosen) : null;

  const ask = useCallback(
    async (kind: 'release' | 'restart', only: string | null): Promise<void> => {
      setAside({ kind, ranks: only, text: null });
      let text: string;
      try {
        const body = { action: kind, reservation: reservation.id, mesh: mesh?.id, ranks: only };
        text = (await store.transport.request<{ text: string }>('lost', body)).text;
      } catch (reason) {
        text = `What would be lost is not known: ${explain(reason)}`;
      }
      setAside(now => (now?.kind === kind ? { ...now, text } : now));
    },
    [store, reservation.id, mesh?.id]
  );

  const perform = async (action: string, only: string | null): Promise<void> => {
    setAside(null);
    setPending(action);
    try {
      const answer = await store.act<Job>(action, {
        reservation: reservation.id,
        mesh: mesh?.id,
        ranks: only
      });
      if (!isJob(answer)) {
        return;
      }
      const ended = await store.ended(answer);
      if (ended.state === 'done') {
        store.dismissJob(ended.id);
        if (action === 'stacks') {
          setAside({ kind: 'stacks', groups: (ended.result as { groups: StackGroup[] }).groups });
        } else {
          const text = (ended.result as { text?: string } | null)?.text;
          setAside(
            text ? { kind: 'message', text, isBad: false, holds: untilNextRun(latest.current) } : null
          );
        }
      }
    } catch (reason) {
      fail(reason);
    } finally {
      setPending('');
    }
  };

  useEffect(() => {
    if (intent?.action === 'release' || intent?.action === 'restart') {
      void ask(intent.action, null);
    } else if (intent?.action === 'extend') {
      setAside(
        reservation.time_s === null ? { kind: 'message', text: NO_LIMIT, isBad: false } : { kind: 'extend' }
      );
    } else if (intent?.action === 'stacks') {
      void perform('stacks', null);
    }
    // Only a new question counts.
  }, [intent]);

  const attach = async (): Promise<void> => {
    setPending('attach');
    try {
      const notebook = host.notebook?.();
      const text = await host.attach!(reservation);
      const holds = notebook ? whileUsedBy(notebook) : untilNextRun(latest.current);
      setAside({ kind: 'message', text, isBad: false, holds });
    } catch (reason) {
      fail(reason);
    } finally {
      setPending('');
    }
  };

  const openLog = useCallback(
    (only: string | null): void => {
      if (mesh) {
        host.openLog?.({ reservation: reservation.id, mesh: mesh.id, ranks: only, run: null });
      }
    },
    [host, reservation.id, mesh?.id]
  );
  const openRank = useCallback((rank: number) => openLog(String(rank)), [openLog]);

  const isChosen = (actor: Actor): boolean => actor.mesh_id === mesh?.id && actor.ranks === ranks;
  const choose = (actor: Actor): void => {
    setMeshId(actor.mesh_id);
    setChosen(new Set(isChosen(actor) ? [] : parseRanks(actor.ranks)));
  };

  const isOwn = reservation.right === 'own';
  const isFolded = mesh !== undefined && mesh.ranks.length > MOST_RANKS_UNFOLDED;
  const of = ranks === null ? '' : ` ${rankNames(chosen)}`;
  const detail = mesh && chosen.size === 1 ? mesh.ranks.find(rank => chosen.has(rank.rank)) : undefined;
  return (
    <article
      className={`mnb-card${props.isCurrent ? ' mnb-card-current' : ''}`}
      aria-label={`Reservation ${reservation.name}`}
      data-reservation={reservation.id}
    >
      <header className="mnb-card-head">
        <button
          type="button"
          className="mnb-card-title"
          aria-expanded={props.open}
          onClick={() => props.onToggle(reservation.id)}
        >
          <Mark shape="chevron" />
          <strong>{reservation.name}</strong>
          <span className="mnb-dim">
            {isOwn ? '' : `${reservation.owner}’s, shared to ${reservation.right} · `}
            {shape(reservation)}
          </span>
        </button>
        <span className={`mnb-card-time${reservation.nearly_up ? ' mnb-soon' : ''}`}>
          <TimeLeft reservation={reservation} />
        </span>
      </header>
      {props.open && mesh && (
        <div className="mnb-card-body">
          {reservation.meshes.length > 1 && (
            <div className="mnb-row" role="group" aria-label="Meshes">
              {reservation.meshes.map(each => (
                <Button
                  key={each.id}
                  kind="quiet"
                  pressed={each === mesh}
                  onClick={() => {
                    setMeshId(each.id);
                    setChosen(new Set());
                  }}
                >
                  {each.name}
                </Button>
              ))}
            </div>
          )}
          {!isFolded && (
            <RankGrid
              ranks={mesh.ranks}
              chosen={chosen}
              onChoose={setChosen}
              onOpen={openRank}
              label={`Ranks of ${reservation.name}: Space chooses, Enter opens the log`}
            />
          )}
          <div className="mnb-card-status">
            <Tally ranks={mesh.ranks} />
            <MeshMemory mesh={mesh} />
          </div>
          {/* What comes and goes by itself is below the buttons: they stay where they are. */}
          <div className="mnb-actions" role="group" aria-label={`Actions on ${reservation.name}${of}`}>
            {host.attach && (
              <Button
                label="Attach notebook"
                title="Attach the current notebook"
                onClick={() => void attach()}
                disabled={pending === 'attach'}
              >
                Attach
              </Button>
            )}
            {host.openLog && (
              <Button label={`Log${of}`} onClick={() => openLog(ranks)}>
                Log
              </Button>
            )}
            <Button
              label={`Stacks${of}`}
              onClick={() => void perform('stacks', ranks)}
              disabled={pending === 'stacks'}
            >
              Stacks
            </Button>
            {isOwn && (
              <>
                <Button
                  label={`Interrupt${of}`}
                  onClick={() => void perform('interrupt', ranks)}
                  disabled={pending === 'interrupt'}
                >
                  Interrupt
                </Button>
                <Button
                  label={`Restart…${of}`}
                  onClick={() => void ask('restart', ranks)}
                  disabled={pending === 'restart'}
                >
                  Restart…
                </Button>
                {forms?.extend && (
                  <Button
                    onClick={() => setAside({ kind: 'extend' })}
                    disabled={reservation.time_s === null}
                    title={reservation.time_s === null ? NO_LIMIT : undefined}
                  >
                    Extend…
                  </Button>
                )}
                <Button onClick={() => void ask('release', null)} disabled={pending === 'release'}>
                  Release…
                </Button>
              </>
            )}
          </div>
          {aside?.kind === 'release' && (
            <Question
              title={`Release ${reservation.name}?`}
              text={aside.text}
              accept="Release"
              keep="Keep"
              onAccept={() => void perform('release', null)}
              onKeep={() => setAside(null)}
            />
          )}
          {aside?.kind === 'restart' && (
            <Question
              title={
                aside.ranks === null
                  ? `Restart all ranks of ${reservation.name}?`
                  : `Restart ${rankNames(parseRanks(aside.ranks) ?? [])}?`
              }
              text={aside.text}
              accept="Restart"
              keep="Keep"
              onAccept={() => void perform('restart', aside.ranks)}
              onKeep={() => setAside(null)}
            />
          )}
          {aside?.kind === 'extend' && forms?.extend && (
            <FormView
              form={forms.extend}
              body={{ reservation: reservation.id }}
              onDone={() => setAside(null)}
              onClose={() => setAside(null)}
            />
          )}
          {aside?.kind === 'stacks' && <Stacks groups={aside.groups} onClose={() => setAside(null)} />}
          {aside?.kind === 'message' && (
            <div className={`mnb-message${aside.isBad ? ' mnb-bad' : ''}`} role="status">
              <span>{aside.text}</span>
              <Button kind="icon" label="Close message" onClick={() => setAside(null)}>
                <Mark shape="close" />
              </Button>
            </div>
          )}
          {reservation.nodes_answering < reservation.nodes && (
            <p className="mnb-note mnb-soon">
              <Mark shape="warning" /> {reservation.nodes_answering} of {count(reservation.nodes, 'node')}{' '}
              answer
            </p>
          )}
          <div>
            <Runs mesh={mesh} />
            {!mesh.hang && !isFolded && <Waiting ranks={mesh.ranks} />}
          </div>
          {mesh.hang && (
            <div className="mnb-hang" role="alert">
              <Mark shape="warning" />
              <p className="mnb-number">
                {mesh.hang.text}. Interrupt frees {waiters(mesh.hang)}; nothing in memory is lost.
              </p>
              {isOwn && (
                <Button
                  label={`Interrupt the hung ${rankNames(parseRanks(mesh.hang.ranks) ?? [])}`}
                  onClick={() => void perform('interrupt', mesh.hang!.ranks)}
                  disabled={pending === 'interrupt'}
                >
                  Interrupt
                </Button>
              )}
            </div>
          )}
          {isFolded ? (
            <RankGroups
              key={mesh.id}
              ranks={mesh.ranks}
              chosen={chosen}
              onChoose={setChosen}
              onOpen={openRank}
              label={reservation.name}
            />
          ) : (
            <Trouble ranks={mesh.ranks} />
          )}
          {(reservation.actors.shown.length > 0 || reservation.actors.more > 0) && (
            <ActorList
              actors={reservation.actors}
              label={reservation.name}
              isNamingMeshes={reservation.meshes.length > 1}
              isChosen={isChosen}
              onChoose={choose}
            />
          )}
          {detail && <RankDetail rank={detail} isAlone={isFolded} />}
          {chosen.size > 1 && <div className="mnb-rank-detail">{rankNames(chosen)} chosen</div>}
        </div>
      )}
    </article>
  );
});

const NO_LIMIT = 'It has no time limit: there is nothing to extend.';

/** Whether something still holds, asked whenever the reservation changes. */
type Holds = (now: Reservation) => boolean;

/** Until something else runs. */
function untilNextRun(said: Reservation): Holds {
  const newest = ({ meshes }: Reservation): number =>
    Math.max(0, ...meshes.flatMap(mesh => mesh.runs.map(run => run.number)));
  const number = newest(said);
  return now => newest(now) <= number;
}

/** From when a notebook is seen to use it until it does not any more. */
function whileUsedBy(notebook: string): Holds {
  let isUsed = false;
  return now => {
    const before = isUsed;
    isUsed = now.used_by.includes(notebook);
    return isUsed || !before;
  };
}

const takeForms = (state: State): State['forms'] => state.forms;

export function TimeLeft({ reservation }: { reservation: Reservation }) {
  const { time_left_s, idle_left_s, idle_s, at_s } = reservation;
  const isIdling = idle_left_s !== null && idle_s !== null && idle_left_s < idle_s;
  if (isIdling && (time_left_s === null || idle_left_s < time_left_s)) {
    return (
      <>
        idle, <Left until_s={at_s + idle_left_s} />
      </>
    );
  }
  return time_left_s === null ? (
    <span className="mnb-dim">no limit</span>
  ) : (
    <Left until_s={at_s + time_left_s} />
  );
}

function MeshMemory({ mesh }: { mesh: Mesh }) {
  const known = mesh.ranks.flatMap(rank => rank.memory ?? []);
  return known.length ? (
    <span className="mnb-dim mnb-number mnb-nowrap" title="Memory of all ranks">
      {bytes(known.reduce((sum, size) => sum + size, 0))}
    </span>
  ) : null;
}

interface Group {
  ranks: Rank[];
  detail: string;
}

/** Ranks in these states with the same words together, largest first. */
function groups(ranks: readonly Rank[], states: readonly RankState[]): Group[] {
  const found = new Map<string, Group>();
  for (const rank of ranks) {
    if (rank.detail && states.includes(rank.state)) {
      const group = found.get(rank.detail) ?? { ranks: [], detail: rank.detail };
      group.ranks.push(rank);
      found.set(rank.detail, group);
    }
  }
  return [...found.values()].sort((one, other) => other.ranks.length - one.ranks.length);
}

/** "ranks 0-1 wait in barrier (train.py:5)". */
function sentence({ ranks, detail }: Group): string {
  const words = ranks.length > 1 ? detail.replace(/^waits /, 'wait ') : detail;
  return `${rankNames(ranks.map(rank => rank.rank))} ${words}`;
}

function waiters({ ranks }: Hang): string {
  return (parseRanks(ranks)?.length ?? 0) === 1 ? 'it' : 'them';
}

/** Where most of those wait that wait. It comes and goes: its line is always there. */
function Waiting({ ranks }: { ranks: readonly Rank[] }) {
  const waiting = groups(ranks, ['waiting']);
  const [largest] = waiting;
  const text = largest && sentence(largest);
  return (
    <p
      className="mnb-detail mnb-waits mnb-state-waiting"
      title={waiting.map(group => group.detail).join('\n')}
    >
      {largest && <Mark shape="waiting" />}
      <span className="mnb-number">{text}</span>
    </p>
  );
}

/** Why ranks failed, died or can not be reached, and whose GPU can not be used. */
function Trouble({ ranks }: { ranks: readonly Rank[] }) {
  const troubled = groups(ranks, ['dead', 'unreachable', 'failed']);
  const unlucky = ranks.filter(rank => rank.trouble);
  return troubled.length || unlucky.length ? (
    <ul className="mnb-troubles">
      {unlucky.map(rank => (
        <li key={rank.rank} className="mnb-detail" title={rank.trouble}>
          <span className="mnb-state-failed">
            <Mark shape="warning" />
          </span>
          <span className="mnb-clamped mnb-number">
            rank {rank.rank}: {rank.trouble}
          </span>
        </li>
      ))}
      {troubled.slice(0, 4).map(({ ranks: group, detail }) => (
        <li key={detail} className="mnb-detail" title={[detail, ...group[0].stderr_tail].join('\n')}>
          <span className={`mnb-state-${group[0].state}`}>
            <Mark shape={group[0].state} />
          </span>
          <span className="mnb-clamped mnb-number">{sentence({ ranks: group, detail })}</span>
        </li>
      ))}
      {troubled.length > 4 && <li className="mnb-dim">and {troubled.length - 4} more</li>}
    </ul>
  ) : null;
}

function Runs({ mesh }: { mesh: Mesh }) {
  const going = mesh.runs.filter(run => run.state !== 'finished');
  const last = mesh.runs[mesh.runs.length - 1];
  const shown = going.length ? going.slice(0, 3) : last ? [last] : [];
  if (!shown.length) {
    return <p className="mnb-run mnb-dim">No cell is running</p>;
  }
  return (
    <>
      {shown.map(run => (
        <p key={run.id} className="mnb-run" title={run.title}>
          <RunState run={run} />
          <span className="mnb-dim">
            {run.owner ? `${run.owner}’s ` : ''}
            {run.cell_number ? `[${run.cell_number}]` : `run ${run.number}`}
          </span>
          <code>{run.title}</code>
        </p>
      ))}
      {going.length > shown.length && (
        <p className="mnb-run mnb-dim">and {going.length - shown.length} more</p>
      )}
    </>
  );
}

function RunState({ run }: { run: Run }) {
  if (run.state === 'running') {
    return (
      <span className="mnb-run-state">
        {run.running_s === null ? 'running' : <Elapsed since_s={run.at_s - run.running_s} />}
      </span>
    );
  }
  if (run.state === 'queued') {
    return <span className="mnb-run-state mnb-dim">queued</span>;
  }
  return <span className={`mnb-run-state ${run.failed ? 'mnb-bad' : 'mnb-dim'}`}>{run.outcome}</span>;
}

function RankState({ rank }: { rank: Rank }) {
  return (
    <p className="mnb-detail">
      <span className={`mnb-state-${rank.state}`}>
        <Mark shape={rank.state} />
      </span>
      <span className="mnb-number">
        {[STATE_LABELS[rank.state], rank.detail, rank.trouble].filter(Boolean).join(' · ')}
      </span>
    </p>
  );
}

/** A rank that is chosen. isAlone: nothing else says why it is as it is. */
function RankDetail({ rank, isAlone }: { rank: Rank; isAlone: boolean }) {
  const facts = [rank.node];
  if (rank.gpu !== null) {
    facts.push(`GPU ${rank.gpu}`);
  }
  if (rank.pid) {
    facts.push(`pid ${rank.pid}`);
  }
  if (rank.cpu !== null) {
    facts.push(`CPU ${percent(rank.cpu)}`);
  }
  if (rank.memory !== null) {
    facts.push(bytes(rank.memory));
  }
  return (
    <div className="mnb-rank-detail">
      <strong>rank {rank.rank}</strong> <span className="mnb-number">{facts.join(' · ')}</span>
      {rank.running_s !== null && (
        <>
          {' · '}
          <Elapsed since_s={rank.at_s - rank.running_s} />
        </>
      )}
      {isAlone && <RankState rank={rank} />}
      {rank.stderr_tail.length > 0 && <pre>{rank.stderr_tail.join('\n')}</pre>}
    </div>
  );
}

function Stacks({ groups, onClose }: { groups: StackGroup[]; onClose: () => void }) {
  return (
    <div className="mnb-stacks" role="region" aria-label="Stacks">
      <div className="mnb-row">
        <strong>Stacks</strong>
        <span className="mnb-grow" />
        <Button kind="icon" label="Close stacks" onClick={onClose}>
          <Mark shape="close" />
        </Button>
      </div>
      {groups.map(group => (
        <div key={group.ranks}>
          <div className="mnb-dim">{rankNames(parseRanks(group.ranks) ?? [])}</div>
          <pre tabIndex={0}>{group.stack}</pre>
        </div>
      ))}
    </div>
  );
}
