// Pictures: a list of rectangles, lines and texts that is painted on a canvas for the screen and written as SVG to take away, so that both
// are the same picture. Colours have names; the screen's are those of its theme, a file's those of print, which are the figures'.

const PALETTES = {
  light: {
    ink: '#1a1a1a', quiet: '#5a544b', line: '#d9d2c5', paper: '#ffffff', select: '#7a3d00', bar: '#4a78a6', none: '#f3f0e9',
    new: '#0072b2', old: '#d55e00', right: '#009e73', wrong: '#cc79a7', baseline: '#767676', others: '#a8a8a8', query: '#1a1a1a', back: '#882255', group0: '#332288', group1: '#e69f00', group2: '#44aa99', group3: '#aa4499', group4: '#999933', group5: '#56b4e9',
    ramp: ['#ffffff', '#deebf7', '#9ecae1', '#4292c6', '#08519c', '#041c47'], below: '#d55e00', above: '#0072b2', middle: '#ffffff',
  },
  dark: {
    ink: '#ece6db', quiet: '#a89f92', line: '#443e35', paper: '#211e19', select: '#f3b15f', bar: '#6d9dcb', none: '#2c2822',
    new: '#56b4e9', old: '#ff8c3a', right: '#3cc79d', wrong: '#e39fc6', baseline: '#a3a3a3', others: '#858585', query: '#ece6db', back: '#d98ab3', group0: '#9a92ea', group1: '#e6a940', group2: '#5cc4b2', group3: '#cf7fcb', group4: '#b9b95a', group5: '#7cc6f0',
    ramp: ['#211e19', '#1d3350', '#20568c', '#3d87c4', '#8dbfe6', '#f2f8ff'], below: '#ff8c3a', above: '#56b4e9', middle: '#211e19',
  },
};
const darkness = matchMedia('(prefers-color-scheme: dark)');
const palette = () => PALETTES[darkness.matches ? 'dark' : 'light'];

const channels = (hex) => [1, 3, 5].map((i) => Number.parseInt(hex.slice(i, i + 2), 16));
function mixed(a, b, t) {
  const [from, to] = [channels(a), channels(b)];
  return `#${from.map((c, i) => Math.round(c + (to[i] - c) * t).toString(16).padStart(2, '0')).join('')}`;
}
// A named colour, a place from 0 to 1 on the ramp, or one from -1 to 1 between the two ends.
function ink(colour, of) {
  if (typeof colour === 'string') return of[colour] ?? colour;
  if ('ramp' in colour) {
    const place = clamp(colour.ramp, 0, 1) * (of.ramp.length - 1);
    const step = Math.min(Math.floor(place), of.ramp.length - 2);
    return mixed(of.ramp[step], of.ramp[step + 1], place - step);
  }
  const end = clamp(colour.between, -1, 1);
  return mixed(of.middle, end < 0 ? of.below : of.above, Math.abs(end));
}
const FONT = 'system-ui, -apple-system, "Segoe UI", Inter, Roboto, sans-serif';

class Scene {
  constructor(width, height, title = '') { Object.assign(this, { width, height, title, items: [] }); }
  rect(x, y, w, h, fill, more = {}) { this.items.push({ what: 'rect', x, y, w, h, fill, ...more }); return this; }
  line(x1, y1, x2, y2, stroke, more = {}) { this.items.push({ what: 'line', x1, y1, x2, y2, stroke, width: 1, ...more }); return this; }
  text(x, y, text, more = {}) { this.items.push({ what: 'text', x, y, text, size: 12, anchor: 'start', fill: 'ink', ...more }); return this; }

  // On the screen, at its density of pixels.
  paint(canvas) {
    const of = palette();
    const scale = Math.min(window.devicePixelRatio || 1, 3);
    canvas.width = Math.ceil(this.width * scale);
    canvas.height = Math.ceil(this.height * scale);
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${this.height}px`;
    const to = canvas.getContext('2d');
    to.scale(scale, scale);
    for (const item of this.items) Scene.draw[item.what](to, item, of);
  }
  static draw = {
    rect(to, { x, y, w, h, fill, stroke, width = 1 }, of) {
      if (fill) { to.fillStyle = ink(fill, of); to.fillRect(x, y, w, h); }
      if (stroke) { to.strokeStyle = ink(stroke, of); to.lineWidth = width; to.strokeRect(x, y, w, h); }
    },
    line(to, { x1, y1, x2, y2, stroke, width, dash }, of) {
      to.beginPath();
      to.setLineDash(dash ?? []);
      to.strokeStyle = ink(stroke, of);
      to.lineWidth = width;
      to.moveTo(x1, y1);
      to.lineTo(x2, y2);
      to.stroke();
      to.setLineDash([]);
    },
    text(to, { x, y, text, size, anchor, fill, weight = 400, turned }, of) {
      to.save();
      to.font = `${weight} ${size}px ${FONT}`;
      to.fillStyle = ink(fill, of);
      to.textAlign = anchor === 'middle' ? 'center' : anchor;
      to.translate(x, y);
      if (turned) to.rotate(-Math.PI / 2);
      to.fillText(text, 0, 0);
      to.restore();
    },
  };

  // As a file of its own, in the colours of print.
  svg() {
    const of = PALETTES.light;
    const space = 'http://www.w3.org/2000/svg';
    const root = document.createElementNS(space, 'svg');
    const put = (name, attributes, text) => {
      const node = document.createElementNS(space, name);
      for (const [key, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(key, typeof value === 'number' ? String(Number(value.toFixed(3))) : value);
      if (text !== undefined) node.textContent = text;
      root.append(node);
    };
    root.setAttribute('viewBox', `0 0 ${this.width} ${this.height}`);
    root.setAttribute('width', this.width);
    root.setAttribute('height', this.height);
    root.setAttribute('font-family', FONT);
    put('title', {}, this.title);
    put('rect', { width: this.width, height: this.height, fill: of.paper });
    for (const item of this.items) {
      if (item.what === 'rect') {
        put('rect', {
          x: item.x, y: item.y, width: Math.max(item.w, 0), height: Math.max(item.h, 0), fill: item.fill ? ink(item.fill, of) : 'none',
          stroke: item.stroke && ink(item.stroke, of), 'stroke-width': item.stroke ? item.width ?? 1 : undefined,
        });
      } else if (item.what === 'line') {
        put('line', { x1: item.x1, y1: item.y1, x2: item.x2, y2: item.y2, stroke: ink(item.stroke, of), 'stroke-width': item.width, 'stroke-dasharray': item.dash?.join(' ') });
      } else {
        put('text', {
          x: item.turned ? 0 : item.x, y: item.turned ? 0 : item.y, 'font-size': item.size, 'text-anchor': item.anchor, fill: ink(item.fill, of), 'font-weight': item.weight,
          transform: item.turned ? `translate(${item.x} ${item.y}) rotate(-90)` : undefined,
        }, item.text);
      }
    }
    return `${new XMLSerializer().serializeToString(root)}\n`;
  }
}

// Where values of a map lie between pale and dark: by the logarithm over three decades, as in the figures, since masses of layers differ by
// as much. Values at and below the lowest are palest.
function ramp(values) {
  const most = values.reduce((high, value) => (value > high ? value : high), 0);
  const least = most / 1000;
  return { most, least, place: (x) => (!(x > 0) || most === 0 ? 0 : clamp(Math.log(x / least) / Math.log(1000), 0, 1)) };
}
// The same for values of both signs, linear.
function swing(values) {
  const most = values.reduce((high, value) => Math.max(high, Math.abs(value) || 0), 0);
  return { most, place: (x) => (most === 0 ? 0 : clamp(x / most, -1, 1)) };
}
// A round number at or above x, for the end of an axis.
function roundUp(x) {
  if (!(x > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(x));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((n) => n * unit).find((n) => n >= x * 0.999999);
}
