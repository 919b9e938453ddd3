import { useState } from 'react';
import { count, parseRanks, rankNames } from '../../format';
import { Actor, Actors, Doing } from '../../types';
import { Elapsed, Mark } from '../basics';

/** The actors of a reservation and what they do. A click on one chooses its ranks. */
export function ActorList(props: {
  actors: Actors;
  /** Whose they are. */
  label: string;
  isNamingMeshes: boolean;
  isChosen: (actor: Actor) => boolean;
  onChoose: (actor: Actor) => void;
}) {
  const { shown, more } = props.actors;
  const [open, setOpen] = useState(true);
  return (
    <section className="mnb-actors" aria-label={`Actors of ${props.label}`}>
      <button
        type="button"
        className="mnb-section-title"
        aria-expanded={open}
        onClick={() => setOpen(now => !now)}
      >
        <Mark shape="chevron" />
        <strong>Actors</strong>
        <span className="mnb-dim mnb-number">{summary(shown)}</span>
      </button>
      {open && (
        <ul>
          {shown.map(actor => (
            <li key={actor.id} className="mnb-actor" data-actor={actor.name}>
              <button
                type="button"
                className="mnb-actor-head"
                aria-pressed={props.isChosen(actor)}
                title={`${actor.name}: ${actor.class} on ${names(actor.ranks)} of ${actor.mesh}. A click chooses them.`}
                onClick={() => props.onChoose(actor)}
              >
                <strong>{actor.name}</strong>
                <span className="mnb-dim mnb-actor-class">{actor.class}</span>
                <span className="mnb-dim mnb-number mnb-nowrap">
                  {props.isNamingMeshes && `${actor.mesh} `}
                  {actor.actor_ranks}
                </span>
              </button>
              {actor.doings.map(doing => (
                <DoingLine
                  key={`${doing.state} ${doing.running} ${doing.ranks}`}
                  actor={actor}
                  doing={doing}
                />
              ))}
              {actor.more > 0 && <p className="mnb-actor-more mnb-dim">and {actor.more} more</p>}
            </li>
          ))}
          {more > 0 && (
            <li className="mnb-dim mnb-actor-more">and {count(more, 'actor')} more: see %mesh actors</li>
          )}
        </ul>
      )}
    </section>
  );
}

/** "2", "2 · 1 failed". */
function summary(shown: readonly Actor[]): string {
  const failed = shown.filter(actor => actor.doings.some(doing => doing.state === 'failed')).length;
  return failed ? `${shown.length} · ${failed} failed` : String(shown.length);
}

function names(ranks: string): string {
  return rankNames(parseRanks(ranks) ?? []);
}

/** "▶ ranks 0-1: runs step for the notebook · 12 s · 3 messages wait · at train.py:41". */
function DoingLine({ actor, doing }: { actor: Actor; doing: Doing }) {
  const whose = doing.ranks === actor.actor_ranks ? '' : `${names(doing.ranks)}: `;
  const more = [
    ...(doing.waiting ? [waiters(doing.waiting)] : []),
    ...(doing.state === 'running' && doing.where ? [`at ${doing.where}`] : [])
  ];
  const main = whose + does(doing);
  return (
    <p className="mnb-detail mnb-number" title={[main, ...more].join(' · ')} data-state={doing.state}>
      <span className={`mnb-state-${doing.state}`}>
        <Mark shape={doing.state} />
      </span>
      <span className="mnb-clamped">
        {main}
        {doing.running_s !== null && (
          <>
            {' · '}
            <Elapsed since_s={doing.at_s - doing.running_s} />
          </>
        )}
        {more.map(text => ` · ${text}`).join('')}
      </span>
    </p>
  );
}

function waiters(number: number): string {
  return `${count(number, 'message')} ${number === 1 ? 'waits' : 'wait'}`;
}

function does({ state, running, caller, where, failure }: Doing): string {
  switch (state) {
    case 'failed':
      return `failed: ${failure}`;
    case 'waiting':
      return `${running} waits in ${where}`;
    case 'running':
      return caller ? `runs ${running} for ${caller}` : `runs ${running}`;
    case 'idle':
      return 'idle';
  }
}
