import { FormEvent, useEffect, useId, useMemo, useRef, useState } from 'react';
import { useSurroundings } from '../context';
import { RequestError, explain } from '../transport';
import { Check, Field, Form, Job, Value, Values } from '../types';
import { Button, Mark, Progress, useFocus } from './basics';

const CHECK_AFTER_MS = 120;
/** An engine has others to serve, too. */
const ASK_AFTER_MS = 600;
const HERE = 'here';
/** What the person wanted is nothing to be alarmed at. */
const CANCELLED: Check = { ok: false, message: 'Cancelled.' };

/** A declared form. It says at once whether what is entered can be done, shows the progress, and can be cancelled. */
export function FormView(props: {
  form: Form;
  /** What the fields have at first, where the form does not know. */
  start?: Values;
  /** What the request says beside the values. */
  body?: object;
  /** What the answer depends on besides the values, as long as nodes come from here: asked for again when it changes. */
  premise?: unknown;
  /** Takes what was entered, to ask before it is done. Absent: it is done. */
  onSubmit?: (values: Values) => void;
  /** What is done goes on, or has come to its end: null. */
  onJob?: (id: string | null) => void;
  onDone: (job: Job | null) => void;
  onClose: () => void;
}) {
  const { store } = useSurroundings();
  const { form } = props;
  const [entered, setEntered] = useState<Values>(props.start ?? {});
  const fields = useMemo(() => fieldsOf(form, entered), [form, entered]);
  const values = useMemo(
    () => Object.fromEntries(fields.map(field => [field.name, valueOf(field, entered)])),
    [fields, entered]
  );
  const isElsewhere = (values.where ?? HERE) !== HERE;
  const [check, setCheck] = useState<Check | null>(null);
  const [job, setJob] = useState<Job | null>(null);
  const [refusal, setRefusal] = useState<Check | null>(null);
  const box = useRef<HTMLFormElement>(null);
  const isGone = useRef(false);
  const id = useId();
  useEffect(() => {
    isGone.current = false;
    return () => void (isGone.current = true);
  }, []);

  useEffect(() => {
    let isCurrent = true;
    const timer = setTimeout(
      () => {
        store.transport.request<Check>('check', { ...props.body, action: form.action, values }).then(
          answer => isCurrent && setCheck(answer),
          reason => isCurrent && setCheck(asCheck(reason))
        );
      },
      isElsewhere ? ASK_AFTER_MS : CHECK_AFTER_MS
    );
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
    // `body` is as constant as the form.
  }, [store, form.action, values, isElsewhere ? null : props.premise]);
  const { onJob } = props;
  useEffect(() => {
    onJob?.(job?.id ?? null);
    return () => onJob?.(null);
  }, [job?.id, onJob]);

  useFocus(box, 'input, select');

  const submit = async (event: FormEvent): Promise<void> => {
    event.preventDefault();
    if (props.onSubmit) {
      props.onSubmit(values);
      return;
    }
    setRefusal(null);
    try {
      const answer = await store.act<Job>(form.action, { ...props.body, values });
      if (!isJob(answer)) {
        props.onDone(null);
        return;
      }
      setJob(answer);
      const stop = store.subscribe(() => setJob(store.state.jobs[answer.id] ?? answer));
      const ended = await store.ended(answer);
      stop();
      if (isGone.current) {
        return; // it is shown elsewhere since
      }
      setJob(null);
      if (ended.state === 'done') {
        store.dismissJob(ended.id);
        props.onDone(ended);
      } else {
        store.dismissJob(ended.id);
        setRefusal(
          ended.state === 'cancelled' ? CANCELLED : { ok: false, message: ended.error ?? ended.message }
        );
      }
    } catch (reason) {
      setJob(null);
      setRefusal(asCheck(reason));
    }
  };

  const shown = refusal ?? check;
  const isVerdict = shown !== null && shown !== CANCELLED;
  // What a field says already is not said again below.
  const verdict = Object.keys(shown?.errors ?? {}).some(name => name in values) ? '' : shown?.message;
  const set = (name: string, value: Value | null): void => {
    setRefusal(null);
    setEntered({ ...entered, [name]: value });
  };
  return (
    <form
      ref={box}
      className="mnb-form"
      aria-label={form.title}
      noValidate
      onSubmit={event => void submit(event)}
      onKeyDown={event => {
        if (event.key === 'Escape') {
          event.stopPropagation();
          props.onClose();
        }
      }}
    >
      <div className="mnb-form-title">{form.title}</div>
      <div className="mnb-fields">
        {fields.map(field => (
          <FieldView
            key={`${field.where ?? ''} ${field.name}`}
            id={`${id}-${field.name}`}
            field={field}
            value={values[field.name]}
            error={shown?.errors?.[field.name]}
            disabled={job !== null}
            onChange={value => set(field.name, value)}
          />
        ))}
      </div>
      {job ? (
        <div className="mnb-form-job">
          <Progress label={job.title} />
          <p className="mnb-verdict">{job.message || job.title}</p>
        </div>
      ) : (
        <p className={`mnb-verdict${isVerdict ? (shown?.ok ? ' mnb-good' : ' mnb-bad') : ''}`} role="status">
          {verdict && isVerdict && <Mark shape={shown?.ok ? 'done' : 'error'} />}
          <span className="mnb-pre-line">{verdict}</span>
        </p>
      )}
      <div className="mnb-row mnb-row-end">
        {job ? (
          <>
            <Button onClick={props.onClose}>Close</Button>
            <Button onClick={() => void store.cancel(job)} disabled={!job.cancellable}>
              Cancel
            </Button>
          </>
        ) : (
          <>
            <Button onClick={props.onClose}>Close</Button>
            <button
              type="submit"
              className="mnb-button mnb-button-primary"
              disabled={shown?.ok === false && !refusal}
            >
              {form.submit}
            </button>
          </>
        )}
      </div>
    </form>
  );
}

/** The fields that are asked for at the place that is chosen. */
function fieldsOf(form: Form, entered: Values): Field[] {
  const where = form.fields.find(field => field.name === 'where');
  const chosen = where && valueOf(where, entered);
  return form.fields.filter(field => !field.where || field.where === chosen);
}

/** What was entered, at whatever place, if it can be chosen here; else what the field has at first. */
function valueOf(field: Field, entered: Values): Value | null {
  const value = entered[field.name];
  const can =
    value !== undefined && (field.type !== 'choice' || field.choices?.some(each => each.value === value));
  return can ? value : (field.default ?? null);
}

function FieldView(props: {
  id: string;
  field: Field;
  value: Value | null;
  error: string | undefined;
  disabled: boolean;
  onChange: (value: Value | null) => void;
}) {
  const { id, field, value, error } = props;
  const description = error ? `${id}-error` : field.help ? `${id}-help` : undefined;
  const common = {
    id,
    disabled: props.disabled,
    'aria-invalid': error ? true : undefined,
    'aria-describedby': description
  };
  let input: JSX.Element;
  if (field.type === 'choice') {
    const choices = field.choices ?? [];
    input = (
      <select
        {...common}
        value={String(value ?? '')}
        onChange={event =>
          props.onChange(choices.find(each => String(each.value) === event.target.value)?.value ?? null)
        }
      >
        {choices.map(choice => (
          <option key={String(choice.value)} value={String(choice.value)}>
            {choice.label}
          </option>
        ))}
      </select>
    );
  } else if (field.type === 'boolean') {
    input = (
      <input
        {...common}
        type="checkbox"
        checked={value === true}
        onChange={event => props.onChange(event.target.checked)}
      />
    );
  } else if (field.type === 'integer') {
    input = (
      <input
        {...common}
        type="number"
        step={1}
        min={field.minimum ?? undefined}
        max={field.maximum ?? undefined}
        required={field.required}
        value={value === null ? '' : String(value)}
        placeholder={field.placeholder ?? undefined}
        onChange={event => props.onChange(asInteger(event.target.value))}
      />
    );
  } else {
    input = (
      <input
        {...common}
        type="text"
        autoComplete="off"
        spellCheck={false}
        required={field.required}
        value={value === null ? '' : String(value)}
        placeholder={field.placeholder ?? undefined}
        onChange={event => props.onChange(event.target.value)}
      />
    );
  }
  return (
    <div className={`mnb-field${error ? ' mnb-field-bad' : ''}`}>
      <label htmlFor={id} title={field.help ?? undefined}>
        {field.label}
      </label>
      {input}
      {error ? (
        <span id={`${id}-error`} className="mnb-field-note mnb-bad">
          {error}
        </span>
      ) : (
        field.help && (
          <span id={`${id}-help`} className="mnb-hidden">
            {field.help}
          </span>
        )
      )}
    </div>
  );
}

/** A whole number, what else was typed, or null for nothing: the server says what is wrong with it. */
function asInteger(text: string): Value | null {
  if (text.trim() === '') {
    return null;
  }
  const number = Number(text);
  return Number.isInteger(number) ? number : text;
}

function asCheck(reason: unknown): Check {
  return { ok: false, message: explain(reason), errors: reason instanceof RequestError ? reason.errors : {} };
}

export function isJob(answer: unknown): answer is Job {
  return (
    typeof answer === 'object' && answer !== null && 'id' in answer && 'state' in answer && 'action' in answer
  );
}
