import { bytes, parseRanks, percent, rankNames, STATE_LABELS } from '../../format';
import { Hang, Mesh, Rank, RankState, Run, StackGroup } from '../../types';
import { Button, Elapsed, Mark } from '../basics';

export function MeshMemory({ mesh }: { mesh: Mesh }) {
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

export function waiters({ ranks }: Hang): string {
  return (parseRanks(ranks)?.length ?? 0) === 1 ? 'it' : 'them';
}

/** Where most of those wait that wait. It comes and goes: its line is always there. */
export function Waiting({ ranks }: { ranks: readonly Rank[] }) {
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
export function Trouble({ ranks }: { ranks: readonly Rank[] }) {
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

export function Runs({ mesh }: { mesh: Mesh }) {
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
export function RankDetail({ rank, isAlone }: { rank: Rank; isAlone: boolean }) {
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

export function Stacks({ groups, onClose }: { groups: StackGroup[]; onClose: () => void }) {
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
