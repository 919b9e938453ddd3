import { useMemo } from 'react';
import { Form, Reservation, Values } from '../../types';
import { FormView } from '../FormView';

/** Asks how many nodes a reservation is to have and, of more, which mesh is to be over all of them. */
export function ResizeForm(props: {
  form: Form;
  reservation: Reservation;
  /** Takes what was entered, and whether ranks that there are start anew, or end. */
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
      onSubmit={values => {
        const isThere = reservation.meshes.some(each => each.name === values.mesh);
        props.onEntered(values, isThere || Number(values.nodes) < reservation.nodes);
      }}
      onDone={onClose}
      onClose={onClose}
    />
  );
}

/** The form with the meshes that can be chosen: a new one, and those that there are. */
function withMeshes(form: Form, { meshes }: Reservation): Form {
  return {
    ...form,
    fields: form.fields.map(field => {
      if (field.name !== 'mesh') {
        return field;
      }
      const name = unused(
        String(field.default),
        meshes.map(each => each.name)
      );
      const others = meshes.map(each => ({ value: each.name, label: `${each.name} (starts anew)` }));
      return {
        ...field,
        type: 'choice',
        default: name,
        choices: [{ value: name, label: `${name} (new)` }, ...others]
      };
    })
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
