/** Say when a person begins and ends to see an element: it is scrolled into view, in a page that is shown. */
export function watchSeen(element: HTMLElement, onSeen: (seen: boolean) => void): () => void {
  let isNear = true;
  const tell = (): void => onSeen(isNear && !document.hidden);
  const observer = new IntersectionObserver(
    entries => {
      isNear = entries[entries.length - 1].isIntersecting;
      tell();
    },
    { rootMargin: '200px' }
  );
  observer.observe(element);
  document.addEventListener('visibilitychange', tell);
  tell();
  return () => {
    observer.disconnect();
    document.removeEventListener('visibilitychange', tell);
  };
}
