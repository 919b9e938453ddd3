import { Fragment, useState } from 'react';
import { count, parseRanks, rankNames } from '../format';
import { Actor, Actors, Doing } from '../types';
import { Elapsed, Mark } from './basics';

/** The actors of a reservation and what they do. A click on one chooses its ranks. */
export function ActorList(props: {
  actors: Actors;
  /** Whose they are. */
  label: string;
  /** The server's clock when these figures were true. */
  at_s: number;
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
                  {actor.ranks}
                </span>
              </button>
              {actor.doings.map(doing => (
                <DoingLine
                  key={`${doing.state} ${doing.running} ${doing.ranks}`}
                  actor={actor}
                  doing={doing}
                  at_s={props.at_s}
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

/** "▶ ranks 0-1: step for the notebook · 12 s · at train.py:41 · 3 messages wait". */
function DoingLine({ actor, doing, at_s }: { actor: Actor; doing: Doing; at_s: number }) {
  const whose = doing.ranks === actor.ranks ? '' : `${names(doing.ranks)}: `;
  const parts = [
    <span key="does">
      {whose}
      {does(doing)}
    </span>
  ];
  if (doing.running_s !== null) {
    parts.push(<Elapsed key="since" since_s={at_s - doing.running_s} />);
  }
  if (doing.state === 'running' && doing.where) {
    parts.push(<span key="where">at {doing.where}</span>);
  }
  if (doing.waiting) {
    parts.push(
      <span key="waiting">
        {count(doing.waiting, 'message')} {doing.waiting === 1 ? 'waits' : 'wait'}
      </span>
    );
  }
  return (
    <p className="mnb-detail mnb-number" title={whose + does(doing)} data-state={doing.state}>
      <span className={`mnb-state-${doing.state}`}>
        <Mark shape={doing.state} />
      </span>
      <span className="mnb-clamped">
        {parts.map((part, index) => (
          <Fragment key={part.key}>
            {index > 0 && ' · '}
            {part}
          </Fragment>
        ))}
      </span>
    </p>
  );
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
