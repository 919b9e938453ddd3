import { useMemo } from 'react';
import { Form, Reservation, Values } from '../../types';
import { FormView } from '../FormView';

/** Asks how many nodes a reservation is to have and, of more, what the mesh over all of them is called. */
export function ResizeForm(props: {
  form: Form;
  reservation: Reservation;
  /** Takes what was entered, and whether nodes are given back. */
  onEntered: (values: Values, isCostly: boolean) => void;
  onClose: () => void;
}) {
  const { form, reservation, onClose } = props;
  const names = reservation.meshes.map(each => each.name).join(' ');
  // Made again only for other nodes and meshes: a form that changes asks anew whether it can be done.
  const asked = useMemo(() => withMeshes(form, reservation), [form, reservation.node_ids, names]);
  return (
    <FormView
      form={asked}
      start={{ nodes: reservation.nodes + 1 }}
      body={{ reservation: reservation.id }}
      premise={reservation.node_ids}
      onSubmit={values => props.onEntered(values, Number(values.nodes) < reservation.nodes)}
      onDone={onClose}
      onClose={onClose}
    />
  );
}

/** The form with a name that no mesh has. */
function withMeshes(form: Form, { meshes }: Reservation): Form {
  const taken = meshes.map(each => each.name);
  return {
    ...form,
    fields: form.fields.map(field =>
      field.name === 'mesh' ? { ...field, default: unused(String(field.default), taken) } : field
    )
  };
}

/** "grown", "grown-2", … */
function unused(name: string, taken: readonly string[]): string {
  let free = name;
  for (let number = 2; taken.includes(free); number += 1) {
    free = `${name}-${number}`;
  }
  return free;
}
