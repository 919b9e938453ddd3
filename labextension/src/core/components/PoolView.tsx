import { memo, useMemo, useRef, useState } from 'react';
import { MOST_NODES_UNFOLDED, nodeWord } from '../folds';
import { bytes, bytesOf, percent } from '../format';
import { Memory, PoolNode, Reservation, Slot } from '../types';
import { Button, Mark, useArrowKeys } from './basics';
import { NodeGroups } from './NodeGroups';

/** The pool's nodes: how each is, and a heat map of its slots, with who holds them. */
export const PoolView = memo(function PoolView(props: {
  nodes: Record<string, PoolNode>;
  reservations: Record<string, Reservation>;
  onChoose: (reservation: string, rank: number | null) => void;
  /** Start what has died again. Absent: that is not done here. */
  onStart?: () => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const onKeyDown = useArrowKeys(box);
  const [inspected, setInspected] = useState<{ node: string; slot: number } | null>(null);
  const inspect = (target: EventTarget): void => {
    const cell = (target as HTMLElement).closest<HTMLElement>('[data-cell]');
    setInspected(cell ? { node: cell.dataset.node ?? '', slot: Number(cell.dataset.cell) } : null);
  };
  const choose = (target: EventTarget): void => {
    const cell = (target as HTMLElement).closest<HTMLElement>('[data-cell]');
    const slot = cell && props.nodes[cell.dataset.node ?? '']?.slots[Number(cell.dataset.cell)];
    if (slot?.reservation) {
      props.onChoose(slot.reservation, slot.rank);
    }
  };
  const node = inspected && props.nodes[inspected.node];
  const slot = inspected && node?.slots[inspected.slot];
  const nodes = useMemo(() => inOrder(props.nodes), [props.nodes]);
  const rows = (shown: readonly PoolNode[]): JSX.Element[] =>
    shown.map(each => (
      <NodeRow key={each.id} node={each} reservations={props.reservations} onStart={props.onStart} />
    ));
  return (
    <div className="mnb-pool">
      <div
        ref={box}
        role="group"
        aria-label="Slots of all nodes; arrow keys move"
        onKeyDown={onKeyDown}
        onFocus={event => inspect(event.target)}
        onBlur={() => setInspected(null)}
        onMouseOver={event => inspect(event.target)}
        onMouseLeave={() => setInspected(null)}
        onClick={event => choose(event.target)}
      >
        {nodes.length > MOST_NODES_UNFOLDED ? (
          <NodeGroups nodes={nodes} reservations={props.reservations}>
            {rows}
          </NodeGroups>
        ) : (
          rows(nodes)
        )}
      </div>
      <div className="mnb-inspector" aria-hidden="true">
        {node ? (
          <>
            <strong>{slot ? slotName(node, slot) : node.id}</strong>
            <span>{slot ? slotFacts(slot, props.reservations) : facts(node)}</span>
          </>
        ) : (
          <>
            <span className="mnb-legend">
              <i className="mnb-legend-level" /> yours
              <i className="mnb-legend-other" /> others’
              <i className="mnb-legend-free" /> free
            </span>
            <span className="mnb-legend">Filled: utilisation, %; line at the foot: memory</span>
          </>
        )}
      </div>
    </div>
  );
});

const MOST_NOTES = 3;
const ORDER = new Intl.Collator(undefined, { numeric: true });

/** node2 before node10. */
function inOrder(nodes: Record<string, PoolNode>): PoolNode[] {
  return Object.values(nodes).sort((one, other) => ORDER.compare(one.id, other.id));
}

const NodeRow = memo(function NodeRow(props: {
  node: PoolNode;
  reservations: Record<string, Reservation>;
  onStart?: () => void;
}) {
  const { node, reservations } = props;
  return (
    <div className="mnb-node" data-node-row={node.id} data-node-state={node.state}>
      <div className="mnb-node-head">
        <span className="mnb-node-name" title={`${node.id} on ${node.hostname}: ${nodeWord(node)}`}>
          <span className={`mnb-node-state mnb-node-${node.state}`}>
            <Mark shape={node.state} />
          </span>
          {node.id}
          {node.state !== 'ok' && <span className="mnb-node-word">{nodeWord(node)}</span>}
        </span>
        <span className="mnb-node-facts mnb-number">{nodeFacts(node)}</span>
      </div>
      {node.message && (
        <div className="mnb-row">
          <p className="mnb-note mnb-grow">{node.message}</p>
          {node.startable && props.onStart && <Button onClick={props.onStart}>Start again…</Button>}
        </div>
      )}
      {(node.state === 'ok' ? notes(node.slots) : []).map(note => (
        <p key={note} className="mnb-note">
          {note}
        </p>
      ))}
      {slotRows(node.slots).map(({ first, columns, slots }) => (
        <div
          key={first}
          className="mnb-slots"
          data-kind={slots[0].kind}
          style={{ gridTemplateColumns: `repeat(${columns}, 1fr)` }}
        >
          {slots.map((slot, column) => (
            <SlotCell
              key={`${slot.kind}${slot.index}`}
              node={node.id}
              place={first + column}
              dense={columns > 8}
              level={slot.utilisation === null ? null : Math.round(slot.utilisation * 100)}
              memory={share(slot.memory)}
              holder={holderKind(slot, reservations)}
              isLost={Boolean(slot.error)}
              label={`${slotName(node, slot)}: ${slotFacts(slot, reservations)}`}
            />
          ))}
          {brackets(slots).map(({ start, end, reservation }) => (
            <div
              key={`b${start}`}
              className={`mnb-bracket${reservations[reservation]?.mine ? ' mnb-bracket-mine' : ''}`}
              style={{ gridColumn: `${start + 1} / ${end + 1}` }}
              title={holderName(reservations[reservation])}
            >
              <span>{holderName(reservations[reservation])}</span>
            </div>
          ))}
        </div>
      ))}
    </div>
  );
});

/** One slot: what it shows are plain values, so that it renders only when they change. */
const SlotCell = memo(function SlotCell(props: {
  node: string;
  place: number;
  dense: boolean;
  level: number | null;
  memory: number | null;
  holder: 'free' | 'mine' | 'other';
  isLost: boolean;
  label: string;
}) {
  return (
    <button
      type="button"
      tabIndex={-1}
      data-cell={props.place}
      data-node={props.node}
      className={`mnb-slot mnb-slot-${props.holder}`}
      aria-label={props.label}
    >
      {props.level !== null && <i className="mnb-slot-level" style={{ height: `${props.level}%` }} />}
      {props.isLost ? (
        <span className="mnb-bad">
          <Mark shape="dead" />
        </span>
      ) : (
        !props.dense && <span>{props.level}</span>
      )}
      {props.memory !== null && <i className="mnb-slot-memory" style={{ width: `${props.memory}%` }} />}
    </button>
  );
});

interface Row {
  first: number;
  columns: number;
  slots: Slot[];
}

/** GPUs and CPU slots in rows of their own, of eight or, where there are many, of sixteen. */
function slotRows(slots: readonly Slot[]): Row[] {
  const rows: Row[] = [];
  for (let first = 0; first < slots.length;) {
    const { kind } = slots[first];
    const columns = slots.filter(slot => slot.kind === kind).length <= 8 ? 8 : 16;
    let end = first + 1;
    while (end < first + columns && slots[end]?.kind === kind) {
      end += 1;
    }
    rows.push({ first, columns, slots: slots.slice(first, end) });
    first = end;
  }
  return rows;
}

/** Why slots that none of the reservations has are not free: others' programs and allocators. */
function notes(slots: readonly Slot[]): string[] {
  const all = slots.flatMap(slot => (slot.reservation === null && slot.note) || []);
  const more = all.length - MOST_NOTES;
  return more > 1 ? [...all.slice(0, MOST_NOTES), `${more} more GPUs are not free`] : all;
}

function share(memory: Memory | null): number | null {
  return memory && memory.used !== null && memory.total > 0
    ? Math.min(100, Math.round((memory.used / memory.total) * 100))
    : null;
}

function brackets(slots: readonly Slot[]): { start: number; end: number; reservation: string }[] {
  const found: { start: number; end: number; reservation: string }[] = [];
  slots.forEach((slot, place) => {
    const last = found[found.length - 1];
    if (slot.reservation === null) {
      return;
    }
    if (last && last.end === place && last.reservation === slot.reservation) {
      last.end += 1;
    } else {
      found.push({ start: place, end: place + 1, reservation: slot.reservation });
    }
  });
  return found;
}

function holderName(reservation: Reservation | undefined): string {
  if (!reservation) {
    return 'held';
  }
  return reservation.mine ? reservation.name : `${reservation.name} (${reservation.owner})`;
}

function holderKind(slot: Slot, reservations: Record<string, Reservation>): 'free' | 'mine' | 'other' {
  if (slot.reservation === null) {
    return slot.note ? 'other' : 'free';
  }
  return reservations[slot.reservation]?.mine ? 'mine' : 'other';
}

function slotName(node: PoolNode, slot: Slot): string {
  return `${node.id} ${slot.kind === 'gpu' ? 'GPU' : 'slot'} ${slot.index}`;
}

function slotFacts(slot: Slot, reservations: Record<string, Reservation>): string {
  const facts: string[] = [];
  if (slot.reservation === null) {
    facts.push(slot.note || 'free');
  } else {
    const rank = slot.rank === null ? '' : ` rank ${slot.rank}`;
    facts.push(holderName(reservations[slot.reservation]) + rank);
  }
  if (slot.error) {
    facts.push(slot.error);
  }
  if (slot.utilisation !== null) {
    facts.push(percent(slot.utilisation));
  }
  if (slot.memory) {
    facts.push(memory(slot.memory));
  }
  if (slot.temperature_c !== null) {
    facts.push(`${Math.round(slot.temperature_c)} °C`);
  }
  if (slot.power_w !== null) {
    facts.push(
      slot.power_limit_w === null
        ? `${Math.round(slot.power_w)} W`
        : `${Math.round(slot.power_w)} of ${Math.round(slot.power_limit_w)} W`
    );
  }
  if (slot.name) {
    facts.push(slot.name);
  }
  return facts.join(' · ');
}

function memory({ used, total }: Memory): string {
  if (used === null) {
    return bytes(total);
  }
  return total > 0 ? `${bytes(used)} of ${bytes(total)}` : bytes(used);
}

/** How a node is, in one line. */
function facts(node: PoolNode): string {
  return node.message ?? [nodeWord(node), nodeFacts(node)].filter(Boolean).join(' · ');
}

function nodeFacts(node: PoolNode): string {
  const facts: string[] = [];
  const temperatures = node.slots.flatMap(slot => slot.temperature_c ?? []);
  const powers = node.slots.flatMap(slot => slot.power_w ?? []);
  if (temperatures.length) {
    facts.push(`${Math.round(Math.max(...temperatures))} °C`);
  }
  if (powers.length) {
    facts.push(`${(powers.reduce((sum, power) => sum + power, 0) / 1000).toFixed(1)} kW`);
  }
  if (node.cpu !== null) {
    facts.push(`CPU ${percent(node.cpu)}`);
  }
  if (node.memory?.used) {
    facts.push(bytesOf(node.memory.used, node.memory.total));
  }
  return facts.join(' · ');
}

/** "12/16 GPUs · 8/16 procs free". */
export function poolSummary(nodes: Record<string, PoolNode>): string {
  const all = Object.values(nodes);
  const parts: string[] = [];
  for (const kind of ['gpus', 'procs'] as const) {
    const total = all.reduce((sum, node) => sum + node[kind].total, 0);
    const free = all.reduce((sum, node) => sum + node[kind].free, 0);
    if (total) {
      parts.push(`${free}/${total} ${kind === 'gpus' ? 'GPUs' : 'procs'}`);
    }
  }
  return `${parts.join(' · ')} free`;
}
