import { LabIcon } from '@jupyterlab/ui-components';

/** Ranks in rows, some of them at work. */
export const meshIcon = new LabIcon({
  name: 'monarch-nb:mesh',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <rect x="3" y="3" width="8" height="8" rx="1.5"/>
    <rect x="13" y="13" width="8" height="8" rx="1.5"/>
    <path d="M14.5 3h5A1.5 1.5 0 0 1 21 4.500v5a1.500 1.500 0 0 1-1.500 1.500h-5A1.500 1.500 0 0 1 13 9.500v-5A1.500 1.500 0 0 1 14.500 3zm.3 1.800v4.400h4.400V4.800z" fill-rule="evenodd"/>
    <path d="M4.500 13h5a1.500 1.500 0 0 1 1.500 1.500v5A1.500 1.500 0 0 1 9.500 21h-5A1.500 1.500 0 0 1 3 19.500v-5A1.500 1.500 0 0 1 4.500 13zm.3 1.800v4.400h4.400v-4.400z" fill-rule="evenodd"/>
  </g>
</svg>`
});
