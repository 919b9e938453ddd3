// Bundles the widget into one file that a notebook loads without a build: monarch_nb/notebook/static/panel.js
import { build } from 'esbuild';

await build({
  entryPoints: ['src/widget/index.tsx'],
  outfile: '../monarch_nb/notebook/static/panel.js',
  bundle: true,
  format: 'esm',
  target: 'es2022',
  jsx: 'automatic',
  loader: { '.css': 'text' },
  define: { 'process.env.NODE_ENV': '"production"' },
  minify: true,
  legalComments: 'none',
  logLevel: 'warning'
});
