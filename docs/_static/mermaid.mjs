// Mermaid as the module that sphinxcontrib-mermaid imports; the package has a classic script only.
const script = document.createElement('script');
script.src = new URL('mermaid.tiny.js', import.meta.url);
await new Promise((resolve, reject) => {
  script.onload = resolve;
  script.onerror = reject;
  document.head.append(script);
});
export default globalThis.mermaid;
