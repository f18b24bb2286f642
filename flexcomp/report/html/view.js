// The part of an inference that both canvases show, and the ways to move it: pointer, wheel, keys, buttons.
class View {
  constructor(canvases, redraw, point) {
    this.canvases = canvases;
    this.redraw = redraw;
    this.point = point;
    this.left = 56; // pixels before the axis begins
    this.right = 8;
    this.pointers = new Map();
    this.reset(1);
    for (const canvas of canvases) this.listen(canvas);
  }

  reset(length) {
    this.length = length;
    this.low = 0;
    this.high = length;
  }

  get width() {
    return Math.max(1, this.canvases[0].clientWidth - this.left - this.right);
  }

  x(at) {
    return this.left + ((at - this.low) / (this.high - this.low)) * this.width;
  }

  at(x) {
    return this.low + ((x - this.left) / this.width) * (this.high - this.low);
  }

  show(low, high) {
    const span = Math.min(this.length, Math.max(high - low, this.length / 5000));
    this.low = Math.min(Math.max(0, low), this.length - span);
    this.high = this.low + span;
    this.redraw();
  }

  move(part) {
    const by = part * (this.high - this.low);
    this.show(this.low + by, this.high + by);
  }

  zoom(factor, at = (this.low + this.high) / 2) {
    this.show(at - (at - this.low) / factor, at + (this.high - at) / factor);
  }

  all() {
    this.show(0, this.length);
  }

  listen(canvas) {
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, place(event));
      this.point(canvas, place(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = this.pointers.get(event.pointerId), now = place(event);
      if (!before) return this.point(canvas, now);
      const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
      this.pointers.set(event.pointerId, now);
      if (!others.length) return this.show(this.low + this.at(before.x) - this.at(now.x), this.high + this.at(before.x) - this.at(now.x));
      const other = others[0][1].x, apart = Math.abs(before.x - other);
      if (apart > 4) this.zoom(Math.max(0.2, Math.abs(now.x - other) / apart), this.at((now.x + other) / 2));
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return; // the page scrolls
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 200), this.at(place(event).x));
      else this.move(event.deltaX / this.width);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const does = {
        ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2), "+": () => this.zoom(1.5), "=": () => this.zoom(1.5),
        "-": () => this.zoom(1 / 1.5), 0: () => this.all(), Home: () => this.move(-1e9), End: () => this.move(1e9),
      }[event.key];
      if (!does || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      does();
    });
  }
}
