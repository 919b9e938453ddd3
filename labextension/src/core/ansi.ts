/** Text with ANSI colours, as pieces with CSS classes. Other escape sequences are left out. */

export interface Piece {
  text: string;
  className: string;
}

// eslint-disable-next-line no-control-regex
const ESCAPE =
  /\x1b\[([0-9;:]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;

const COLOURS = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

interface Style {
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  inverse: boolean;
  colour: string;
}

const PLAIN: Style = { bold: false, dim: false, italic: false, underline: false, inverse: false, colour: '' };

export function parseAnsi(text: string): Piece[] {
  if (!/[\x00-\x08\x0b-\x1f\x7f]/.test(text)) {
    // prettier-ignore
    return text ? [{ text, className: '' }] : [];
  }
  const pieces: Piece[] = [];
  let style = PLAIN;
  let start = 0;
  const take = (end: number): void => {
    if (end > start) {
      pieces.push({ text: text.slice(start, end), className: classes(style) });
    }
  };
  for (const match of text.matchAll(ESCAPE)) {
    take(match.index);
    start = match.index + match[0].length;
    if (match[2] === 'm') {
      style = apply(style, match[1]);
    }
  }
  take(text.length);
  return pieces;
}

export function plain(text: string): string {
  return text.replace(ESCAPE, '');
}

function apply(style: Style, parameters: string): Style {
  const next = { ...style };
  const codes = parameters.split(/[;:]/).map(Number);
  for (let place = 0; place < codes.length; place += 1) {
    const code = codes[place];
    if (code === 0) {
      Object.assign(next, PLAIN);
    } else if (code === 1) {
      next.bold = true;
    } else if (code === 2) {
      next.dim = true;
    } else if (code === 3) {
      next.italic = true;
    } else if (code === 4) {
      next.underline = true;
    } else if (code === 7) {
      next.inverse = true;
    } else if (code === 22) {
      next.bold = next.dim = false;
    } else if (code === 23) {
      next.italic = false;
    } else if (code === 24) {
      next.underline = false;
    } else if (code === 27) {
      next.inverse = false;
    } else if (code >= 30 && code <= 37) {
      next.colour = COLOURS[code - 30];
    } else if (code >= 90 && code <= 97) {
      next.colour = COLOURS[code - 90];
    } else if (code === 39) {
      next.colour = '';
    } else if (code === 38 || code === 48) {
      const isIndexed = codes[place + 1] === 5;
      if (code === 38) {
        next.colour = isIndexed
          ? (COLOURS[codes[place + 2] % 8] ?? '')
          : nearest(codes.slice(place + 2, place + 5));
      }
      place += isIndexed ? 2 : 4;
    }
  }
  return next;
}

/** The theme's colour that is next to a colour of 24 bits: themes know which of theirs can be read. */
function nearest([red = 0, green = 0, blue = 0]: number[]): string {
  const middle = (Math.max(red, green, blue) + Math.min(red, green, blue)) / 2;
  if (Math.max(red, green, blue) - Math.min(red, green, blue) < 32) {
    return '';
  }
  return COLOURS[(red > middle ? 1 : 0) + (green > middle ? 2 : 0) + (blue > middle ? 4 : 0)];
}

function classes(style: Style): string {
  const names: string[] = [];
  for (const name of ['bold', 'dim', 'italic', 'underline', 'inverse'] as const) {
    if (style[name]) {
      names.push(`mnb-ansi-${name}`);
    }
  }
  if (style.colour) {
    names.push(`mnb-ansi-${style.colour}`);
  }
  return names.join(' ');
}
