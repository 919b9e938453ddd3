import { ReactNode, memo, useEffect, useMemo, useRef, useState } from 'react';
import { NODE_STATES, hasLost, nodeGroups } from '../folds';
import { percent } from '../format';
import { PoolNode, Reservation } from '../types';
import { GoTo, Groups, Opened, placeOf } from './Groups';

const PAGE = 8;
/** So many have names in a row. */
const MAX_NAMED = 3;

/** The nodes of a large pool: a map of all, and those that are alike as one row that opens to them. */
export function NodeGroups(props: {
  nodes: readonly PoolNode[];
  reservations: Record<string, Reservation>;
  /** What an open group shows. */
  children: (shown: readonly PoolNode[]) => ReactNode;
}) {
  const { nodes } = props;
  const box = useRef<HTMLDivElement>(null);
  const [opened, setOpened] = useState<Opened | null>(null);
  const [target, setTarget] = useState<string | null>(null);
  const groups = useMemo(() => nodeGroups(nodes), [nodes]);
  const open = (node: PoolNode): void => {
    setOpened(placeOf(groups, PAGE, ({ id }) => id === node.id));
    setTarget(node.id);
  };
  useEffect(() => {
    if (target !== null) {
      const row = box.current?.querySelector(`[data-node-row="${CSS.escape(target)}"]`);
      row?.scrollIntoView({ block: 'nearest' });
      setTarget(null);
    }
  }, [target]);
  const goTo = (text: string): string => {
    const found = nodes.find(({ id }) => id === text) ?? nodes.find(({ id }) => id.includes(text));
    if (!found) {
      return `there is no node ${text}`;
    }
    open(found);
    return '';
  };
  return (
    <div ref={box} className="mnb-folded">
      <div
        className="mnb-map"
        onClick={event => {
          const cell = (event.target as HTMLElement).closest<HTMLElement>('[data-node]');
          const node = nodes.find(({ id }) => id === cell?.dataset.node);
          if (node) {
            open(node);
          }
        }}
      >
        {nodes.map(node => (
          <MapCell key={node.id} {...cell(node, props.reservations)} />
        ))}
      </div>
      <GoTo label="Go to node" placeholder={nodes[0].id} onGo={goTo} />
      <Groups
        groups={groups}
        label="Nodes by how they are"
        pageSize={PAGE}
        opened={opened}
        onOpen={setOpened}
        name={names}
      >
        {props.children}
      </Groups>
    </div>
  );
}

interface Cell {
  id: string;
  look: string;
  level: number | null;
  label: string;
}

/** One node: what it shows are plain values, so that it renders only when they change. */
const MapCell = memo(function MapCell({ id, look, level, label }: Cell) {
  return (
    <button
      type="button"
      tabIndex={-1}
      data-cell="node"
      data-node={id}
      className={`mnb-map-node mnb-map-${look}`}
      style={level === null ? undefined : { backgroundSize: `100% ${level}%` }}
      aria-label={label}
    />
  );
});

function cell(node: PoolNode, reservations: Record<string, Reservation>): Cell {
  const held = node.slots.flatMap(slot => slot.reservation ?? []);
  const isMine = held.some(each => reservations[each]?.mine);
  const isTaken = held.length > 0 || node.slots.some(slot => slot.note);
  const holder = isMine ? 'mine' : isTaken ? 'other' : 'free';
  const known = node.slots.some(slot => slot.kind === 'gpu')
    ? node.slots.filter(slot => slot.kind === 'gpu')
    : node.slots;
  const levels = known.flatMap(slot => slot.utilisation ?? []);
  const level = levels.length ? levels.reduce((sum, each) => sum + each, 0) / levels.length : null;
  const isOk = node.state === 'ok';
  const facts = [
    hasLost(node) ? 'a GPU can not be used' : NODE_STATES[node.state],
    { mine: 'yours', other: 'others’', free: 'free' }[holder],
    ...(level === null ? [] : [percent(level)])
  ];
  return {
    id: node.id,
    look: isOk ? (hasLost(node) ? 'lost' : holder) : node.state,
    level: isOk && level !== null ? Math.round(level * 100) : null,
    label: `${node.id}: ${facts.join(', ')}`
  };
}

/** "node3, node17 and 3 more". */
function names(nodes: readonly PoolNode[]): string {
  const named = nodes.slice(0, MAX_NAMED).map(({ id }) => id);
  const more = nodes.length - named.length;
  return more > 0 ? `${named.join(', ')} and ${more.toLocaleString('en')} more` : named.join(', ');
}
