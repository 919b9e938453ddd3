import { memo, useCallback, useEffect, useMemo, useRef, useState } from 'react';
import { useSurroundings } from '../../context';
import { MOST_RANKS_UNFOLDED } from '../../folds';
import { count, mainMesh, parseRanks, price, rankNames, rankSet, shape } from '../../format';
import { useStore } from '../../store';
import { explain } from '../../transport';
import { Intent, State } from '../../store';
import { Actor, Job, Reservation, StackGroup, Values } from '../../types';
import { ActorList } from './ActorList';
import { Button, Left, Mark, Question } from '../basics';
import { FormView, isJob } from '../FormView';
import { MeshMemory, RankDetail, Runs, Stacks, Trouble, Waiting, waiters } from './MeshState';
import { RankGrid, Tally } from './RankGrid';
import { RankGroups } from './RankGroups';
import { ResizeForm } from './ResizeForm';

/** What an action is about, besides the reservation: ranks (null: all), or what was entered. */
interface About {
  ranks: string | null;
  values?: Values;
}

const ALL: About = { ranks: null };

/** What is asked before it is done: it costs variables. */
type Costly = 'release' | 'restart' | 'replace' | 'resize';

type Aside =
  | { kind: 'question'; action: Costly; about: About; text: string | null }
  | { kind: 'form'; action: 'extend' | 'resize' }
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
  const { refusals } = reservation;
  const [meshId, setMeshId] = useState<string | null>(null);
  const [picked, setChosen] = useState<ReadonlySet<number>>(new Set<number>());
  const [aside, setAside] = useState<Aside | null>(null);
  const [pending, setPending] = useState('');
  const forms = useStore(store, takeForms);
  const mesh = reservation.meshes.find(each => each.id === meshId) ?? mainMesh(reservation);
  const size = mesh?.ranks.length ?? 0;
  const chosen = useMemo(() => new Set([...picked].filter(rank => rank < size)), [picked, size]);

  const latest = useRef(reservation);
  useEffect(() => {
    latest.current = reservation;
    setAside(now => (now?.kind === 'message' && now.holds?.(reservation) === false ? null : now));
  }, [reservation, aside]);

  const fail = (reason: unknown): void => setAside({ kind: 'message', text: explain(reason), isBad: true });
  /** Say how something ended; a question or a form that was opened meanwhile stays. */
  const tell = (ended: Aside): void =>
    setAside(now => (now?.kind === 'question' || now?.kind === 'form' ? now : ended));
  const ranks = chosen.size ? rankSet(chosen) : null;
  const bare = useMemo(() => nodesWithoutRanks(reservation), [reservation]);

  const ask = useCallback(
    async (action: Costly, about: About): Promise<void> => {
      setAside({ kind: 'question', action, about, text: null });
      let text: string;
      try {
        const body = { action, reservation: reservation.id, mesh: mesh?.id, ...about };
        text = (await store.transport.request<{ text: string }>('lost', body)).text;
      } catch (reason) {
        text = `What would be lost is not known: ${explain(reason)}`;
      }
      setAside(now => (now?.kind === 'question' && now.action === action ? { ...now, text } : now));
    },
    [store, reservation.id, mesh?.id]
  );

  const perform = async (action: string, about: About): Promise<void> => {
    setAside(null);
    setPending(action);
    try {
      const answer = await store.act<Job>(action, {
        reservation: reservation.id,
        mesh: mesh?.id,
        ...about
      });
      if (!isJob(answer)) {
        return;
      }
      const ended = await store.ended(answer);
      if (ended.state === 'done') {
        store.dismissJob(ended.id);
        if (action === 'stacks') {
          tell({ kind: 'stacks', groups: (ended.result as { groups: StackGroup[] }).groups });
        } else {
          const text = (ended.result as { text?: string } | null)?.text;
          if (action === 'release' && text) {
            store.say('warning', `${reservation.name} is released\n${text}`); // the card goes
          }
          if (text) {
            tell({ kind: 'message', text, isBad: false, holds: untilNextRun(latest.current) });
          }
        }
      }
    } catch (reason) {
      fail(reason);
    } finally {
      setPending('');
    }
  };

  useEffect(() => {
    const refused = intent?.action as keyof typeof refusals;
    if (refusals[refused]) {
      const holds: Holds = now => refusals[refused] === now.refusals[refused];
      setAside({ kind: 'message', text: refusals[refused], isBad: true, holds });
    } else if (intent?.action === 'release' || intent?.action === 'restart') {
      void ask(intent.action, ALL);
    } else if (intent?.action === 'extend' && reservation.time_s === null) {
      setAside({ kind: 'message', text: NO_LIMIT, isBad: false });
    } else if (intent?.action === 'extend' || intent?.action === 'resize') {
      setAside({ kind: 'form', action: intent.action });
    } else if (intent?.action === 'stacks') {
      void perform('stacks', ALL);
    }
    // Only a new question counts.
  }, [intent]);

  const attach = async (): Promise<void> => {
    setPending('attach');
    try {
      const notebook = host.notebook?.();
      const text = await host.attach!(reservation);
      const holds = notebook ? whileUsedBy(notebook) : untilNextRun(latest.current);
      tell({ kind: 'message', text, isBad: false, holds });
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
  const openCurves = (): void => {
    if (mesh) {
      host.openCurves?.({ reservation: reservation.id, mesh: mesh.id, ranks, run: null });
    }
  };
  const openTop = (): void => {
    if (mesh) {
      host.openTop?.({ reservation: reservation.id, mesh: mesh.id, ranks, run: null });
    }
  };
  const openRank = useCallback((rank: number) => openLog(String(rank)), [openLog]);

  const isChosen = (actor: Actor): boolean => actor.mesh_id === mesh?.id && actor.ranks === ranks;
  const choose = (actor: Actor): void => {
    setMeshId(actor.mesh_id);
    setChosen(new Set(isChosen(actor) ? [] : parseRanks(actor.ranks)));
  };

  const isOwn = reservation.right === 'own';
  const mayInterrupt = isOwn || reservation.right === 'run'; // what runs of their own
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
            {reservation.price_per_hour !== null && ` · ${price(reservation.price_per_hour)}`}
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
              all={mesh.ranks}
              chosen={chosen}
              onChoose={setChosen}
              onOpen={openRank}
              label={`Ranks of ${reservation.name}: Space chooses, Enter opens the log`}
            />
          )}
          {bare.length > 0 && <div className="mnb-dim">{bare.join(', ')}: held, no ranks</div>}
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
                refusal={refusals.attach}
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
            {host.openCurves && (
              <Button
                label={`Curves${of}`}
                title="Curves of the numbers that ranks print"
                onClick={openCurves}
              >
                Curves
              </Button>
            )}
            {host.openTop && (
              <Button
                label={`Top${of}`}
                title="Where ranks spend their time, and who is waited for"
                onClick={openTop}
              >
                Top
              </Button>
            )}
            <Button
              label={`Stacks${of}`}
              onClick={() => void perform('stacks', { ranks })}
              disabled={pending === 'stacks'}
            >
              Stacks
            </Button>
            {mayInterrupt && (
              <Button
                label={`Interrupt${of}`}
                onClick={() => void perform('interrupt', { ranks })}
                disabled={pending === 'interrupt'}
              >
                Interrupt
              </Button>
            )}
            {/* Also where they are refused: then they say why. */}
            <Button
              label={`Restart…${of}`}
              onClick={() => void ask('restart', { ranks })}
              refusal={refusals.restart}
              disabled={pending === 'restart'}
            >
              Restart…
            </Button>
            {forms?.resize && (
              <Button
                onClick={() => setAside({ kind: 'form', action: 'resize' })}
                disabled={pending === 'resize'}
                refusal={refusals.resize}
                title="More nodes, or fewer"
              >
                Resize…
              </Button>
            )}
            {isOwn && (
              <>
                {forms?.extend && (
                  <Button
                    onClick={() => setAside({ kind: 'form', action: 'extend' })}
                    disabled={reservation.time_s === null}
                    title={reservation.time_s === null ? NO_LIMIT : undefined}
                  >
                    Extend…
                  </Button>
                )}
                <Button onClick={() => void ask('release', ALL)} disabled={pending === 'release'}>
                  Release…
                </Button>
              </>
            )}
          </div>
          {aside?.kind === 'question' && (
            <Question
              {...wordsOf(aside.action, aside.about, reservation)}
              text={aside.text}
              onAccept={() => void perform(aside.action, aside.about)}
              onKeep={() => setAside(null)}
            />
          )}
          {aside?.kind === 'form' && aside.action === 'extend' && forms?.extend && (
            <FormView
              form={forms.extend}
              body={{ reservation: reservation.id }}
              onDone={() => setAside(null)}
              onClose={() => setAside(null)}
            />
          )}
          {aside?.kind === 'form' && aside.action === 'resize' && forms?.resize && (
            <ResizeForm
              form={forms.resize}
              reservation={reservation}
              onEntered={(values, isCostly) => void (isCostly ? ask : perform)('resize', { ...ALL, values })}
              onClose={() => setAside(null)}
            />
          )}
          {aside?.kind === 'stacks' && <Stacks groups={aside.groups} onClose={() => setAside(null)} />}
          {aside?.kind === 'message' && (
            <div className={`mnb-message${aside.isBad ? ' mnb-bad' : ''}`} role="status">
              <span className="mnb-pre-line">{aside.text}</span>
              <Button kind="icon" label="Close message" onClick={() => setAside(null)}>
                <Mark shape="close" />
              </Button>
            </div>
          )}
          {reservation.nodes_answering < reservation.nodes && (
            <p className="mnb-note mnb-soon">
              <Mark shape="warning" /> {reservation.nodes_answering} of {count(reservation.nodes, 'node')}{' '}
              answer{' '}
              {isOwn && reservation.nodes_answering > 0 && (
                <Button onClick={() => void ask('replace', ALL)} disabled={pending === 'replace'}>
                  Replace nodes…
                </Button>
              )}
            </p>
          )}
          <div>
            <Runs mesh={mesh} />
            {!mesh.hang && !isFolded && <Waiting ranks={mesh.ranks} />}
          </div>
          {mesh.saves && (
            <p className="mnb-dim" title={`Into ${mesh.saves.directory}`}>
              Saves {mesh.saves.when}
            </p>
          )}
          {mesh.hang && (
            <div className="mnb-hang" role="alert">
              <Mark shape="warning" />
              <p className="mnb-number">
                {mesh.hang.text}. Interrupt frees {waiters(mesh.hang)}; nothing in memory is lost.
              </p>
              {mayInterrupt && (
                <Button
                  label={`Interrupt the hung ${rankNames(parseRanks(mesh.hang.ranks) ?? [])}`}
                  onClick={() => void perform('interrupt', { ranks: mesh.hang!.ranks })}
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

/** How a person is asked. */
function wordsOf(
  action: Costly,
  { ranks, values }: About,
  { name, nodes }: Reservation
): { title: string; accept: string; keep: string } {
  switch (action) {
    case 'release':
      return { title: `Release ${name}?`, accept: 'Release', keep: 'Keep' };
    case 'restart': {
      const which = ranks === null ? `all ranks of ${name}` : rankNames(parseRanks(ranks) ?? []);
      return { title: `Restart ${which}?`, accept: 'Restart', keep: 'Keep' };
    }
    case 'replace': {
      const title = `Put other nodes in the places of those of ${name} that do not answer?`;
      return { title, accept: 'Replace', keep: 'Wait' };
    }
    case 'resize': {
      const title = `Have ${name} on ${count(Number(values?.nodes), 'node')} instead of ${nodes}?`;
      return { title, accept: 'Shrink', keep: 'Keep' };
    }
  }
}

/** The nodes on which no mesh has ranks, once all have told. */
function nodesWithoutRanks({ node_ids, meshes }: Reservation): string[] {
  const used = new Set(meshes.flatMap(each => each.ranks.map(rank => rank.node)));
  return used.has('') ? [] : node_ids.filter(name => !used.has(name));
}

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
