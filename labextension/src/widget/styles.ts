import log from '../../style/log.css';
import panel from '../../style/panel.css';
import tokens from '../../style/tokens.css';
import widget from '../../style/widget.css';

/** All styles as text: the widget brings its own. */
export const css = [tokens, panel, log, widget].join('\n');
