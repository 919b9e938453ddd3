import { useEffect, useState } from 'react';
import { mainMesh, parseRanks } from '../format';
import { Reservation } from '../types';

/** Which ranks of a mesh: as in 0-3,6; all when it is empty. */
export function RanksField(props: {
  reservation: Reservation | undefined;
  mesh: string;
  value: string | null;
  onChange: (ranks: string | null) => void;
}) {
  const [text, setText] = useState(props.value ?? '');
  useEffect(() => setText(props.value ?? ''), [props.value]);
  const mesh =
    props.reservation &&
    (props.reservation.meshes.find(each => each.id === props.mesh) ?? mainMesh(props.reservation));
  const parsed = text.trim() === '' ? [] : parseRanks(text);
  const outside = mesh && parsed?.find(rank => !mesh.ranks.some(each => each.rank === rank));
  const error =
    parsed === null ? 'Ranks are like 0-3,6' : outside !== undefined ? `There is no rank ${outside}` : '';
  const commit = (): void => {
    const ranks = text.trim() || null;
    if (!error && ranks !== props.value) {
      props.onChange(ranks);
    }
  };
  return (
    <input
      className="mnb-log-ranks"
      type="text"
      aria-label="Ranks"
      title={error || 'Ranks, like 0-3,6; empty: all'}
      placeholder="all ranks"
      aria-invalid={error ? true : undefined}
      value={text}
      onChange={event => setText(event.target.value)}
      onBlur={commit}
      onKeyDown={event => event.key === 'Enter' && commit()}
    />
  );
}
