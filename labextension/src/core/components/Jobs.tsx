import { useSurroundings } from '../context';
import { Job, Notice } from '../types';
import { Button, Mark, Progress } from './basics';

/** Long work: how far it is, and a button that ends it. */
export function Jobs({ jobs }: { jobs: Job[] }) {
  const { store } = useSurroundings();
  return (
    <ul className="mnb-jobs" aria-label="Work in progress">
      {jobs.map(job => (
        <li key={job.id} className="mnb-job" data-job-state={job.state}>
          <div className="mnb-row">
            <strong>{job.title}</strong>
            <span className="mnb-grow" />
            {job.state === 'running' ? (
              job.cancellable && <Button onClick={() => void store.cancel(job)}>Cancel</Button>
            ) : (
              <Button kind="icon" label={`Close: ${job.title}`} onClick={() => store.dismissJob(job.id)}>
                <Mark shape="close" />
              </Button>
            )}
          </div>
          {job.state === 'running' && <Progress label={job.title} />}
          <p className={job.state === 'failed' ? 'mnb-bad mnb-pre-line' : 'mnb-dim'} role="status">
            {job.state === 'failed' ? job.error : job.state === 'cancelled' ? 'cancelled' : job.message}
          </p>
        </li>
      ))}
    </ul>
  );
}

export function Notices({ notices }: { notices: Notice[] }) {
  const { store } = useSurroundings();
  return (
    <div className="mnb-notices" role="log" aria-label="Notices">
      {notices.map(notice => (
        <div key={notice.id} className={`mnb-notice mnb-notice-${notice.level}`}>
          <Mark shape={notice.level} />
          <span className="mnb-pre-line">{notice.text}</span>
          <Button kind="icon" label="Close notice" onClick={() => store.dismissNotice(notice.id)}>
            <Mark shape="close" />
          </Button>
        </div>
      ))}
    </div>
  );
}
