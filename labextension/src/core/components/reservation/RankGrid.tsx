import { CSSProperties, memo, useRef } from 'react';
import { STATE_LABELS, tally } from '../../format';
import { Rank, RankState } from '../../types';
import { Mark, useArrowKeys } from '../basics';

/** Ranks of a mesh: a shape, a colour and a number each. Any of them can be chosen. */
export const RankGrid = memo(function RankGrid(props: {
  ranks: readonly Rank[];
  /** All ranks of the mesh, also those that are not shown: what Ctrl+A chooses. */
  all: readonly Rank[];
  chosen: ReadonlySet<number>;
  onChoose: (ranks: Set<number>) => void;
  onOpen: (rank: number) => void;
  label: string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const anchor = useRef(0);
  const onArrow = useArrowKeys(box);
  const nodes = byNode(props.ranks);

  const choose = (rank: number, extend: boolean, toggle: boolean): void => {
    const { chosen } = props;
    if (extend) {
      const [first, last] = [Math.min(anchor.current, rank), Math.max(anchor.current, rank)];
      props.onChoose(
        new Set(props.ranks.map(each => each.rank).filter(each => each >= first && each <= last))
      );
      return;
    }
    anchor.current = rank;
    if (toggle) {
      const next = new Set(chosen);
      if (!next.delete(rank)) {
        next.add(rank);
      }
      props.onChoose(next);
    } else {
      props.onChoose(chosen.size === 1 && chosen.has(rank) ? new Set() : new Set([rank]));
    }
  };
  const rankOf = (target: EventTarget): number | null => {
    const cell = (target as HTMLElement).closest<HTMLElement>('[data-cell]');
    return cell ? Number(cell.dataset.cell) : null;
  };
  return (
    <div
      ref={box}
      className="mnb-ranks"
      role="listbox"
      aria-multiselectable="true"
      aria-label={props.label}
      onClick={event => {
        const rank = rankOf(event.target);
        if (rank !== null) {
          choose(rank, event.shiftKey, event.ctrlKey || event.metaKey);
        }
      }}
      onDoubleClick={event => {
        const rank = rankOf(event.target);
        if (rank !== null) {
          props.onOpen(rank);
        }
      }}
      onKeyDown={event => {
        const rank = rankOf(event.target);
        if (rank !== null && event.key === ' ') {
          event.preventDefault();
          choose(rank, event.shiftKey, !event.shiftKey);
        } else if (rank !== null && event.key === 'Enter') {
          event.preventDefault();
          props.onOpen(rank);
        } else if (event.key === 'Escape' && props.chosen.size) {
          event.stopPropagation();
          props.onChoose(new Set());
        } else if (event.key === 'a' && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          props.onChoose(new Set(props.all.map(each => each.rank)));
        } else {
          onArrow(event);
        }
      }}
    >
      {nodes.map(({ node, ranks }) => (
        <div
          key={ranks[0].rank}
          role="group"
          aria-label={node || 'unknown node'}
          className="mnb-ranks-node"
          style={
            {
              '--mnb-narrow': Math.min(ranks.length, 8),
              '--mnb-wide': Math.min(ranks.length, 16)
            } as CSSProperties
          }
        >
          {ranks.map(rank => (
            <RankCell
              key={rank.rank}
              rank={rank.rank}
              state={rank.state}
              detail={rank.detail}
              chosen={props.chosen.has(rank.rank)}
            />
          ))}
          {nodes.length > 1 && (
            <div className="mnb-bracket" title={node} aria-hidden="true">
              {node || '?'}
            </div>
          )}
        </div>
      ))}
    </div>
  );
});

/** Ranks of one node beside each other. */
function byNode(ranks: readonly Rank[]): { node: string; ranks: Rank[] }[] {
  const nodes: { node: string; ranks: Rank[] }[] = [];
  for (const rank of ranks) {
    const last = nodes[nodes.length - 1];
    if (last?.node === rank.node) {
      last.ranks.push(rank);
    } else {
      nodes.push({ node: rank.node, ranks: [rank] });
    }
  }
  return nodes;
}

const RankCell = memo(function RankCell(props: {
  rank: number;
  state: RankState;
  detail: string;
  chosen: boolean;
}) {
  const label = `rank ${props.rank}: ${STATE_LABELS[props.state]}${props.detail ? `, ${props.detail}` : ''}`;
  return (
    <div
      role="option"
      tabIndex={-1}
      data-cell={props.rank}
      className={`mnb-rank mnb-state-${props.state}`}
      aria-selected={props.chosen}
      aria-label={label}
      title={label}
    >
      <Mark shape={props.state} />
      <span>{props.rank}</span>
    </div>
  );
});

/** "✕ 1 dead  ▶ 3 running  ○ 4 idle": the states that there are, with the shapes they have in the grid. */
export const Tally = memo(function Tally({ ranks }: { ranks: readonly Rank[] }) {
  const shown = tally(ranks);
  return (
    <span className="mnb-tally">
      {shown.map(({ state, number, label }) => (
        <span key={state} className={`mnb-state-${state}`} title={`${number} ${label}`}>
          <Mark shape={state} />
          {number}
          {/* Always one line: many states go without their names, which the shapes in the grid have too. */}
          <span className={shown.length > 3 ? 'mnb-hidden' : undefined}> {label}</span>
        </span>
      ))}
    </span>
  );
});
