import uPlot from 'uplot';

/** Curves of runs, as the kernel or the server tells them. */
export interface Curves {
  runs: { title: string; colour: string; notes: string[] }[];
  charts: Chart[];
}

export interface Chart {
  name: string;
  unit: string;
  /** What stands below. */
  x: string;
  lines: Line[];
}

interface Line {
  /** Place of its run among `runs`. */
  run: number;
  xs: number[];
  ys: number[];
  /** x, least and greatest of all ranks, where they differ; null between parts. */
  band: [number[], (number | null)[], (number | null)[]];
  /** Where there is nan or inf, and which. */
  marks: [number, string][];
}

const HEIGHT = 220;
const TOOTH = 7;
const KEYS = 'arrow keys show values, + and - zoom, Escape shows all';
/** An arrow key moves so much of what is in sight; with Shift ten times as much. */
const STEP = 1 / 100;
/** Between ticks of steps, which are whole numbers. */
const WHOLE = Array.from({ length: 15 }, (_, digits) => [1, 2, 5].map(first => first * 10 ** digits)).flat();

/**
 * Charts below each other in an element, drawn with uPlot: zoom by dragging, all of it again by a double click, and the
 * values under the mouse; the last ones while it is elsewhere.
 */
export class CurvesView {
  private _charts = new Map<string, { plot: uPlot; shape: string; chart: Chart }>();
  private readonly _heading = document.createElement('div');
  private readonly _body = document.createElement('div');
  private readonly _notes = document.createElement('div');
  private readonly _sizes: ResizeObserver;
  private readonly _theme: MutationObserver;

  constructor(private readonly _element: HTMLElement) {
    _element.classList.add('mnb-curves-view');
    this._heading.className = 'mnb-curves-runs';
    this._notes.className = 'mnb-curves-notes';
    this._notes.setAttribute('role', 'status');
    _element.append(this._heading, this._body, this._notes);
    this._sizes = new ResizeObserver(() => this._fit());
    this._sizes.observe(_element);
    this._theme = new MutationObserver(() => this._charts.forEach(({ plot }) => plot.redraw()));
    this._theme.observe(document.body, { attributeFilter: ['data-jp-theme-light', 'class'] });
  }

  /** Show these from now on; a chart that is zoomed stays so. */
  update(curves: Curves): void {
    const keys = curves.runs.map(run => {
      const key = document.createElement('span');
      const colour = document.createElement('i');
      colour.style.background = run.colour;
      key.append(colour, run.title);
      return key;
    });
    this._heading.replaceChildren(...keys);
    const many = curves.runs.length > 1;
    const notes = curves.runs.flatMap(run => run.notes.map(note => (many ? `${run.title}: ${note}` : note)));
    this._notes.textContent = notes.join('\n');
    for (const [name, { plot }] of this._charts) {
      if (!curves.charts.some(chart => chart.name === name)) {
        plot.destroy();
        this._charts.delete(name);
      }
    }
    curves.charts.forEach(chart => this._show(chart, curves));
  }

  destroy(): void {
    this._sizes.disconnect();
    this._theme.disconnect();
    this._charts.forEach(({ plot }) => plot.destroy());
    this._element.replaceChildren();
  }

  private _show(chart: Chart, curves: Curves): void {
    const data = dataOf(chart);
    const shape = JSON.stringify([
      chart.unit,
      chart.x,
      isWhole(chart),
      chart.lines.map(line => [line.run, line.band[0].length > 0])
    ]);
    const known = this._charts.get(chart.name);
    if (known?.shape === shape) {
      known.chart = chart;
      const xs = known.plot.data[0];
      const { min, max } = known.plot.scales.x;
      const isZoomed = xs.length > 0 && (min! > xs[0] || max! < xs[xs.length - 1]);
      known.plot.setData(data, !isZoomed);
      if (isZoomed) {
        known.plot.redraw();
      }
      return;
    }
    known?.plot.destroy();
    const made = { shape, chart } as { plot: uPlot; shape: string; chart: Chart };
    made.plot = new uPlot(
      this._options(chart, curves, () => made.chart),
      data,
      this._body
    );
    made.plot.root.setAttribute('role', 'img');
    made.plot.root.setAttribute('aria-label', `Curve of ${chart.name} against ${chart.x}: ${KEYS}`);
    made.plot.root.tabIndex = 0;
    made.plot.root.addEventListener('keydown', event => onKey(made.plot, event));
    this._charts.set(chart.name, made);
  }

  private _options(chart: Chart, curves: Curves, current: () => Chart): uPlot.Options {
    const many = curves.runs.length > 1;
    const value: uPlot.Series.Value = (plot, y, place, index) =>
      shown(index === null ? last(plot.data[place]) : y);
    const series: uPlot.Series[] = [{ label: chart.x, value }];
    const bands: uPlot.Band[] = [];
    for (const line of chart.lines) {
      const { colour, title } = curves.runs[line.run];
      const label = many ? title : chart.name;
      series.push({ label, stroke: colour, width: 1.6, spanGaps: true, points: { show: false }, value });
      if (!line.band[0].length) {
        continue;
      }
      const edge = { stroke: 'transparent', width: 0, points: { show: false }, value };
      series.push({ ...edge, label: 'least' }, { ...edge, label: 'greatest' });
      bands.push({ series: [series.length - 1, series.length - 2], fill: `${colour}38` });
    }
    const axis = { stroke: () => this._colour('--mnb-dim'), font: `11px ${this._colour('font-family')}` };
    const grid = { stroke: () => this._colour('--mnb-line'), width: 1 };
    return {
      title:
        chart.unit && !chart.name.includes(`(${chart.unit})`) ? `${chart.name} (${chart.unit})` : chart.name,
      width: this._width,
      height: HEIGHT,
      scales: { x: { time: false } },
      series,
      bands,
      axes: [
        {
          ...axis,
          grid: { show: false },
          ticks: grid,
          ...(isWhole(chart) ? { incrs: WHOLE } : {}),
          values: (_, ticks) => ticks.map(short),
          label: chart.x,
          labelSize: 16,
          labelFont: axis.font,
          size: 30
        },
        { ...axis, grid, ticks: { show: false }, values: (_, ticks) => ticks.map(short), size: 56 }
      ],
      cursor: { drag: { x: true, y: false }, sync: { key: `mnb-${chart.x}` }, points: { size: 6 } },
      legend: { live: true },
      hooks: { draw: [plot => this._mark(plot, current())] }
    };
  }

  /** Draw a tooth at the top wherever there is nan or inf. */
  private _mark(plot: uPlot, chart: Chart): void {
    const { ctx, bbox } = plot;
    const size = TOOTH * devicePixelRatio;
    ctx.save();
    ctx.fillStyle = this._colour('--mnb-bad');
    for (const [x] of chart.lines.flatMap(line => line.marks)) {
      const at = plot.valToPos(x, 'x', true);
      if (at >= bbox.left && at <= bbox.left + bbox.width) {
        ctx.beginPath();
        ctx.moveTo(at, bbox.top + size);
        ctx.lineTo(at - size / 2, bbox.top);
        ctx.lineTo(at + size / 2, bbox.top);
        ctx.fill();
      }
    }
    ctx.restore();
  }

  private get _width(): number {
    return Math.max(240, Math.min(900, this._element.clientWidth || 680));
  }

  private _fit(): void {
    this._charts.forEach(({ plot }) => {
      if (plot.width !== this._width) {
        plot.setSize({ width: this._width, height: HEIGHT });
      }
    });
  }

  /** A colour of the theme, as a canvas takes it. */
  private _colour(name: string): string {
    const style = getComputedStyle(this._heading);
    if (!name.startsWith('--')) {
      return style.getPropertyValue(name);
    }
    this._heading.style.setProperty('outline-color', `var(${name})`);
    return getComputedStyle(this._heading).outlineColor;
  }
}

/** What keys do in a chart: as the mouse, they move the cursor and zoom. */
function onKey(plot: uPlot, event: KeyboardEvent): void {
  const xs = plot.data[0];
  const { min, max } = plot.scales.x;
  if (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    !xs.length ||
    min === undefined ||
    max === undefined
  ) {
    return;
  }
  const [first, last] = [xs[0], xs[xs.length - 1]];
  const { idx } = plot.cursor;
  const at = idx === null || idx === undefined ? null : xs[idx];
  const step = (max - min) * STEP * (event.shiftKey ? 10 : 1);
  const show = (x: number): void => {
    const left = plot.valToPos(Math.min(Math.max(x, min, first), max, last), 'x');
    plot.setCursor({ left, top: plot.over.clientHeight / 2 });
  };
  const next = (by: number): number => {
    const near = xs[Math.min(Math.max((idx ?? 0) + by, 0), xs.length - 1)];
    return by > 0 ? Math.max(near, at! + step) : Math.min(near, at! - step); // at least one point further
  };
  const zoom = (by: number): void => {
    const middle = at ?? (min + max) / 2;
    const around = {
      min: Math.max(first, middle - (middle - min) * by),
      max: Math.min(last, middle + (max - middle) * by)
    };
    plot.setScale('x', around);
  };
  const actions: Record<string, () => void> = {
    ArrowLeft: () => show(at === null ? max : next(-1)),
    ArrowRight: () => show(at === null ? min : next(1)),
    Home: () => show(min),
    End: () => show(max),
    '+': () => zoom(1 / 2),
    '=': () => zoom(1 / 2),
    '-': () => zoom(2),
    Escape: () => plot.setScale('x', { min: first, max: last })
  };
  if (actions[event.key]) {
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
  }
}

/** All lines and bands over one x. */
function dataOf(chart: Chart): uPlot.AlignedData {
  const tables = chart.lines.flatMap((line): uPlot.AlignedData[] => [
    [line.xs, line.ys],
    ...(line.band[0].length ? [line.band as uPlot.AlignedData] : [])
  ]);
  return uPlot.join(tables);
}

function isWhole(chart: Chart): boolean {
  return chart.lines.every(line => line.xs.every(Number.isInteger));
}

function last(values: ArrayLike<number | null | undefined>): number | null {
  for (let at = values.length - 1; at >= 0; at -= 1) {
    const value = values[at];
    if (value !== null && value !== undefined) {
      return value;
    }
  }
  return null;
}

/** A number in few characters. */
export function short(value: number): string {
  const size = Math.abs(value);
  const [by, letter] =
    size >= 1e15 || size < 1e4
      ? [1, '']
      : size >= 1e12
        ? [1e12, 'T']
        : size >= 1e9
          ? [1e9, 'G']
          : size >= 1e6
            ? [1e6, 'M']
            : [1e3, 'k'];
  return `${Number((value / (by as number)).toPrecision(5))}${letter}`;
}

function shown(value: number | null | undefined): string {
  if (value === null || value === undefined) {
    return '–';
  }
  return Number.isInteger(value) ? value.toLocaleString('en') : String(Number(value.toPrecision(6)));
}
