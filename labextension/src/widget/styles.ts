import uplot from 'uplot/dist/uPlot.min.css';
import actors from '../../style/actors.css';
import controls from '../../style/controls.css';
import curves from '../../style/curves.css';
import groups from '../../style/groups.css';
import log from '../../style/log.css';
import panel from '../../style/panel.css';
import pool from '../../style/pool.css';
import reservations from '../../style/reservations.css';
import tokens from '../../style/tokens.css';
import top from '../../style/top.css';
import widget from '../../style/widget.css';

/** All styles as text: the widget brings its own. */
export const css = [
  uplot,
  tokens,
  panel,
  controls,
  reservations,
  groups,
  actors,
  pool,
  log,
  curves,
  top,
  widget
].join('\n');
