// The table: as many rows as are in sight, a few more, and no others, so that ten thousand scroll as ten do. For screen readers it is a
// grid of all rows; the keyboard's row is named by aria-activedescendant and always among those that exist.

const SPARE = 12;                  // Rows above and below those in sight.

class Grid {
  constructor(spec) {
    this.spec = spec;              // { label, cells(row, make) -> nodes, heads() -> nodes, open(row), hold(row), held(row), idOf(row) }
    this.order = [];
    this.at = 0;                   // The keyboard's place in the order.
    this.pool = new Map();         // Place to its element.
    this.head = make('div.heads', { role: 'row', 'aria-rowindex': '1' });
    this.space = make('div.space', { role: 'presentation' });
    this.body = make('div.rows', { role: 'rowgroup' }, this.space);
    this.scroller = make('div.grid', { role: 'grid', tabIndex: 0, 'aria-label': spec.label, 'aria-describedby': 'grid-keys', 'aria-multiselectable': 'true' }, make('div', { role: 'rowgroup' }, this.head), this.body);
    this.scroller.addEventListener('scroll', () => { this.waiting ??= requestAnimationFrame(() => { this.waiting = null; this.lay(); }); }, { passive: true });
    this.scroller.addEventListener('keydown', (event) => this.key(event));
    this.body.addEventListener('click', (event) => this.click(event));
    new ResizeObserver(() => this.measure()).observe(this.scroller);
  }
  measure() {
    const height = Number.parseFloat(getComputedStyle(this.scroller).getPropertyValue('--row')) || 36;
    if (height !== this.height) { this.height = height; this.clear(); }
    this.lay();
  }
  clear() {
    for (const row of this.pool.values()) row.remove();
    this.pool.clear();
  }
  // New rows, or the same in another order. The row that the keyboard was on stays it, where it is still there.
  fill(order, keep) {
    const before = this.order[this.at];
    this.order = order;
    this.scroller.setAttribute('aria-rowcount', String(order.length + 1));
    this.scroller.setAttribute('aria-colcount', String(this.spec.columns()));
    const found = order.indexOf(before);
    this.at = found >= 0 ? found : clamp(this.at, 0, Math.max(0, order.length - 1));
    this.clear();
    if (!keep) this.scroller.scrollTop = 0;
    this.measure();
  }
  get headHeight() { return this.head.offsetHeight; }
  lay() {
    if (!this.height) return;
    const { scrollTop, clientHeight } = this.scroller;
    this.space.style.height = `${this.order.length * this.height}px`;
    const first = Math.max(0, Math.floor(scrollTop / this.height) - SPARE);
    const last = Math.min(this.order.length, Math.ceil((scrollTop + clientHeight) / this.height) + SPARE);
    const free = [];
    for (const [place, row] of this.pool) {
      if (place < first || place >= last) { this.pool.delete(place); free.push(row); }
    }
    for (let place = first; place < last; place += 1) {
      if (!this.pool.has(place)) this.put(place, free.pop());
    }
    for (const row of free) row.remove();
    this.point();
  }
  put(place, reused) {
    const row = reused ?? make('div.row', { role: 'row' });
    const of = this.order[place];
    row.style.transform = `translateY(${place * this.height}px)`;
    row.dataset.place = place;
    row.id = `row-${place}`;
    row.setAttribute('aria-rowindex', String(place + 2));
    this.spec.cells(of, row);
    this.mark(row, of);
    if (!reused) this.space.append(row);
    this.pool.set(place, row);
  }
  mark(row, of) {
    const held = this.spec.held(of);
    row.classList.toggle('held', held);
    row.setAttribute('aria-selected', String(held));
  }
  marks() { for (const [place, row] of this.pool) this.mark(row, this.order[place]); }
  point() {
    for (const row of this.body.querySelectorAll('.row.here')) row.classList.remove('here');
    const row = this.pool.get(this.at);
    row?.classList.add('here');
    if (row) this.scroller.setAttribute('aria-activedescendant', row.id);
    else this.scroller.removeAttribute('aria-activedescendant');
  }
  show(place) {
    this.at = clamp(place, 0, Math.max(0, this.order.length - 1));
    const top = this.at * this.height;
    const room = this.scroller.clientHeight - this.headHeight;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + this.height > this.scroller.scrollTop + room) this.scroller.scrollTop = top + this.height - room;
    this.lay();
  }
  key(event) {
    if (event.target !== this.scroller || event.altKey || event.ctrlKey || event.metaKey || this.order.length === 0) return;
    const page = Math.max(1, Math.floor((this.scroller.clientHeight - this.headHeight) / this.height) - 1);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.show(this.at + clamp(steps[event.key], -this.order.length, this.order.length));
    else if (event.key === 'ArrowRight' || event.key === 'ArrowLeft') { this.scroller.scrollLeft += event.key === 'ArrowRight' ? 80 : -80; } else if (event.key === 'Enter') this.spec.open(this.order[this.at]);
    else if (event.key === ' ') { this.spec.hold(this.order[this.at]); this.marks(); } else return;
    event.preventDefault();
  }
  click(event) {
    const row = event.target.closest('.row');
    if (!row) return;
    const place = Number(row.dataset.place);
    this.at = place;
    this.point();
    // A link does its own work, where it is to open beside.
    if (event.target.closest('a') && (event.ctrlKey || event.metaKey || event.shiftKey)) return;
    event.preventDefault();
    if (event.target.closest('.hold')) { this.spec.hold(this.order[place]); this.marks(); } else this.spec.open(this.order[place]);
  }
}
