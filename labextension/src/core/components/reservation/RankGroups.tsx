import { useEffect, useMemo, useRef, useState } from 'react';
import { rankGroups } from '../../folds';
import { count, parseRanks, rankNames, shortRankSet } from '../../format';
import { Rank } from '../../types';
import { Button } from '../basics';
import { GoTo, Groups, Opened, placeOf } from '../Groups';
import { RankGrid } from './RankGrid';

const PAGE = 64;

/** The ranks of a large mesh, folded by what they do. An open group shows them as `RankGrid` does. */
export function RankGroups(props: {
  ranks: readonly Rank[];
  chosen: ReadonlySet<number>;
  onChoose: (ranks: Set<number>) => void;
  onOpen: (rank: number) => void;
  /** Whose they are. */
  label: string;
}) {
  const { ranks, chosen, onChoose } = props;
  const box = useRef<HTMLDivElement>(null);
  const [opened, setOpened] = useState<Opened | null>(null);
  const [target, setTarget] = useState<number | null>(null);
  const groups = useMemo(() => rankGroups(ranks), [ranks]);

  const goTo = (text: string): string => {
    const wanted = parseRanks(text.replace(/^ranks?\s+/, ''));
    if (!wanted) {
      return 'a rank, or ranks: 17 or 3,40-47';
    }
    const known = new Set(ranks.map(({ rank }) => rank));
    const unknown = wanted.filter(rank => !known.has(rank));
    if (unknown.length) {
      return `there is no rank ${shortRankSet(unknown)}`;
    }
    onChoose(new Set(wanted));
    setOpened(placeOf(groups, PAGE, ({ rank }) => rank === wanted[0]));
    setTarget(wanted[0]);
    return '';
  };
  useEffect(() => {
    if (target !== null) {
      box.current?.querySelector(`[data-cell="${target}"]`)?.scrollIntoView({ block: 'nearest' });
      setTarget(null);
    }
  }, [target]);

  return (
    <div ref={box} className="mnb-folded">
      <GoTo label="Go to rank" placeholder="17 or 3,40-47" onGo={goTo} />
      <Groups
        groups={groups}
        label={`Ranks of ${props.label} by what they do`}
        pageSize={PAGE}
        opened={opened}
        onOpen={setOpened}
        name={members => shortRankSet(members.map(({ rank }) => rank))}
        action={members => {
          const all = members.map(({ rank }) => rank);
          const isChosen = chosen.size === all.length && all.every(rank => chosen.has(rank));
          return (
            <Button
              kind="quiet"
              pressed={isChosen}
              title={`Choose ${rankNames(all)}`}
              onClick={() => onChoose(new Set(isChosen ? [] : all))}
            >
              {all.length === 1 ? 'Choose it' : `Choose all ${count(all.length, 'rank')}`}
            </Button>
          );
        }}
      >
        {shown => (
          <RankGrid
            ranks={shown}
            all={ranks}
            chosen={chosen}
            onChoose={onChoose}
            onOpen={props.onOpen}
            label={`Ranks of ${props.label}: Space chooses, Enter opens the log`}
          />
        )}
      </Groups>
    </div>
  );
}
