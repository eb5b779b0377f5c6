// A picture on the page: its canvas, what is under the pointer or the keyboard's cell in words, its numbers as a table, and what can be
// taken away of it. Who makes one gives `draw(width)`, which returns the scene and where its cells are.

const POINTER = { hover: null };

// spec: { id, title, note, draw(width, picked) -> { scene, cells: { columns, rows, box(c, r), at(x, y) -> [c, r] | null } },
//         words(c, r), pick(c, r, more), table() -> { head, rows, form }, take: { name, python(), command() } }
class Picture {
  constructor(spec) {
    this.spec = spec;
    this.cell = null;
    this.canvas = make('canvas', {
      tabIndex: 0, role: 'application', 'aria-roledescription': 'picture', 'aria-label': `${spec.title}. Arrow keys move, Enter selects, T shows the numbers.`,
    });
    this.mark = make('div.mark', { 'aria-hidden': 'true', hidden: true });
    this.told = make('p.told.quiet', { text: spec.hint ?? 'Point at a cell, or move with the arrow keys.' });
    this.stage = make('div.stage', {}, this.canvas, this.mark);
    this.numbers = make('details.numbers', { ontoggle: () => { if (this.numbers.open) this.fill(); } }, make('summary', { text: 'Numbers' }), make('div.scroll', { tabIndex: 0, role: 'region', 'aria-label': `Numbers of: ${spec.title}` }));
    this.root = make('figure.picture', { id: spec.id },
      make('figcaption.line.spread', {}, make('h3', { text: spec.title }), make('div.line.tools', {}, ...(spec.tools ?? []), takeButtons(spec, () => this.drawn.scene, () => spec.table()))),
      spec.note ? make('p.quiet', { text: spec.note }) : null, this.stage, this.told, this.numbers);
    this.listen();
  }
  listen() {
    const { canvas } = this;
    canvas.addEventListener('pointermove', (event) => {
      const cell = this.under(event);
      canvas.style.cursor = cell && this.spec.pick ? 'pointer' : 'default';
      this.show(cell, false);
    });
    canvas.addEventListener('pointerleave', () => { if (document.activeElement !== canvas) this.show(null, false); });
    canvas.addEventListener('click', (event) => {
      const cell = this.under(event);
      if (!cell) return;
      this.show(cell, false);
      this.spec.pick?.(...cell, event.shiftKey || event.ctrlKey || event.metaKey);
    });
    canvas.addEventListener('focus', () => { if (canvas.matches(':focus-visible')) this.show(this.cell ?? [0, 0], true); });
    canvas.addEventListener('blur', () => this.show(null, false));
    canvas.addEventListener('keydown', (event) => this.key(event));
  }
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.drawn.cells.at(event.clientX - box.left, event.clientY - box.top);
  }
  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const { columns, rows } = this.drawn.cells;
    const [c, r] = this.cell ?? [0, 0];
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-columns, 0], End: [columns, 0], PageUp: [0, -rows], PageDown: [0, rows] };
    if (event.key in moves) {
      const [dx, dy] = moves[event.key];
      this.show([clamp(c + dx, 0, columns - 1), clamp(r + dy, 0, rows - 1)], true);
    } else if (event.key === 'Enter' || event.key === ' ') this.spec.pick?.(c, r, event.shiftKey || event.key === ' ');
    else if (event.key === 't') { this.numbers.open = !this.numbers.open; } else return;
    event.preventDefault();
    event.stopPropagation();
  }
  show(cell, aloud) {
    this.cell = cell ?? this.cell;
    this.mark.hidden = !cell;
    if (!cell) { this.told.textContent = this.spec.rest?.() ?? this.spec.hint ?? 'Point at a cell, or move with the arrow keys.'; return; }
    const [x, y, w, h] = this.drawn.cells.box(...cell);
    this.mark.style.transform = `translate(${x}px, ${y}px)`;
    this.mark.style.width = `${w}px`;
    this.mark.style.height = `${h}px`;
    const words = this.spec.words(...cell);
    this.told.textContent = words;
    if (aloud) {
      say(words);
      this.stage.scrollLeft = clamp(this.stage.scrollLeft, x + w - this.stage.clientWidth + 40, Math.max(0, x - 40));
    }
  }
  // Draws for the width there is; called again when that or the selection changes.
  draw() {
    const width = Math.floor(this.stage.clientWidth || this.root.clientWidth || 0);
    if (width < 40) return;
    this.width = width;
    this.drawn = this.spec.draw(width);
    this.drawn.scene.paint(this.canvas);
    if (this.cell) {
      const { columns, rows } = this.drawn.cells;
      this.cell = [clamp(this.cell[0], 0, columns - 1), clamp(this.cell[1], 0, rows - 1)];
      if (!this.mark.hidden) this.show(this.cell, false);
    }
    if (this.numbers.open) this.fill();
  }
  fill() {
    const holder = this.numbers.lastElementChild;
    holder.replaceChildren(tableOf(this.spec.table(), this.spec.title));
  }
}

// Numbers as a table. `form` says how each column is written; the CSV has all digits.
function tableOf({ head, rows, form = [] }, caption) {
  const body = make('tbody');
  for (const row of rows) {
    body.append(make('tr', {}, ...row.map((value, i) => make(i === 0 ? 'th' : 'td', { scope: i === 0 ? 'row' : null, text: (form[i] ?? (typeof value === 'number' ? plain : (x) => x ?? NONE))(value) }))));
  }
  return make('table.of-numbers', {}, make('caption.away', { text: caption }), make('thead', {}, make('tr', {}, ...head.map((text) => make('th', { scope: 'col', text })))), body);
}

// Buttons that take a picture away.
function takeButtons(spec, scene, table) {
  const { take } = spec;
  if (!take) return null;
  const name = () => safeName(typeof take.name === 'function' ? take.name() : take.name);
  const of = ` of: ${spec.title}`;
  const list = [
    scene && button('SVG', () => download(`${name()}.svg`, 'image/svg+xml', scene().svg()), { 'aria-label': `SVG${of}`, title: 'The picture as a file' }),
    table && button('CSV', () => { const { head, rows } = table(); download(`${name()}.csv`, 'text/csv', csv(head, rows)); }, { 'aria-label': `CSV${of}`, title: 'Its numbers, with all digits' }),
    take.python && button('Python', (event) => copy(take.python(), event.currentTarget), { 'aria-label': `Copy the Python${of}`, title: 'Copies lines of Python that give these numbers' }),
    take.command && button('Command', (event) => copy(take.command(), event.currentTarget), { 'aria-label': `Copy the command${of}`, title: 'Copies the palimpsest command' }),
  ];
  return make('span.take', { role: 'group', 'aria-label': `Take away${of}` }, ...list.filter(Boolean));
}
