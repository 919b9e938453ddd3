import { ReactNode, useId, useState } from 'react';
import { Group } from '../folds';
import { Button, Mark } from './basics';

/** The group that is open, and which of its pages is shown. */
export interface Opened {
  key: string;
  page: number;
}

/** Where one of the members is: what to open so that it is shown. */
export function placeOf<T>(
  groups: readonly Group<T>[],
  pageSize: number,
  isIt: (one: T) => boolean
): Opened | null {
  for (const { key, members } of groups) {
    const place = members.findIndex(isIt);
    if (place >= 0) {
      return { key, page: Math.floor(place / pageSize) };
    }
  }
  return null;
}

/** A row a group. One at a time opens to its members, a page of them: however many there are, the page stays small. */
export function Groups<T>(props: {
  groups: readonly Group<T>[];
  label: string;
  pageSize: number;
  opened: Opened | null;
  onOpen: (opened: Opened | null) => void;
  /** Who they are, in short. */
  name: (members: readonly T[]) => string;
  /** What can be done with all of an open group. */
  action?: (members: readonly T[]) => ReactNode;
  children: (shown: readonly T[]) => ReactNode;
}) {
  const { opened, pageSize, onOpen } = props;
  return (
    <ul className="mnb-groups" aria-label={props.label}>
      {props.groups.map(({ key, state, label, reason, members }) => {
        const isOpen = opened?.key === key;
        const pages = Math.ceil(members.length / pageSize);
        const page = isOpen ? Math.min(opened.page, pages - 1) : 0;
        const shown = members.slice(page * pageSize, (page + 1) * pageSize);
        const names = props.name(members);
        return (
          <li key={key} className="mnb-group" data-state={state}>
            <button
              type="button"
              className="mnb-group-head"
              aria-expanded={isOpen}
              title={[reason, names].filter(Boolean).join('\n')}
              onClick={() => onOpen(isOpen ? null : { key, page: 0 })}
            >
              <Mark shape="chevron" />
              <span className={`mnb-state-${state}`}>
                <Mark shape={state} />
              </span>
              <span className="mnb-nowrap">
                <strong className="mnb-number">{members.length.toLocaleString('en')}</strong> {label}
              </span>
              <span className="mnb-group-names mnb-dim mnb-number">{names}</span>
              {reason && <span className="mnb-group-reason mnb-number">{reason}</span>}
            </button>
            {isOpen && (
              <div className="mnb-group-body">
                {(pages > 1 || props.action) && (
                  <div className="mnb-row">
                    {props.action?.(members)}
                    <span className="mnb-grow" />
                    {pages > 1 && (
                      <Pager
                        first={page * pageSize + 1}
                        last={page * pageSize + shown.length}
                        total={members.length}
                        onTurn={by => onOpen({ key, page: page + by })}
                      />
                    )}
                  </div>
                )}
                {props.children(shown)}
              </div>
            )}
          </li>
        );
      })}
    </ul>
  );
}

function Pager(props: { first: number; last: number; total: number; onTurn: (by: number) => void }) {
  const { first, last, total } = props;
  return (
    <>
      <span className="mnb-dim mnb-number mnb-nowrap" role="status">
        {first.toLocaleString('en')}–{last.toLocaleString('en')} of {total.toLocaleString('en')}
      </span>
      <Button kind="icon" label="Page before" disabled={first === 1} onClick={() => props.onTurn(-1)}>
        <span className="mnb-back">
          <Mark shape="chevron" />
        </span>
      </Button>
      <Button kind="icon" label="Next page" disabled={last === total} onClick={() => props.onTurn(1)}>
        <Mark shape="chevron" />
      </Button>
    </>
  );
}

/** A field that leads to one of many. */
export function GoTo(props: {
  label: string;
  placeholder: string;
  /** Go there; returns why not, or "". */
  onGo: (text: string) => string;
}) {
  const id = useId();
  const [text, setText] = useState('');
  const [error, setError] = useState('');
  return (
    <form
      className="mnb-goto"
      onSubmit={event => {
        event.preventDefault();
        setError(text.trim() && props.onGo(text.trim()));
      }}
    >
      <label htmlFor={id}>{props.label}</label>
      <input
        id={id}
        type="text"
        value={text}
        placeholder={props.placeholder}
        aria-invalid={error !== ''}
        aria-describedby={error ? `${id}-error` : undefined}
        onChange={event => {
          setText(event.target.value);
          setError('');
        }}
      />
      {error && (
        <span id={`${id}-error`} className="mnb-bad" role="alert">
          {error}
        </span>
      )}
    </form>
  );
}
