// The globe: a picture with a camera that is moved by mouse, fingers, wheel, keys and buttons.
import { type Camera, Lens, moved, wrapped, zoomed } from "./camera";
import { type Land, loadLand, paintEarth, type Vectors, vectorsOf } from "./earth";
import { type Box, paintLabels } from "./labels";
import { circle, makeGlow, paintLights, type Spot, spotsOf } from "./lights";
import { paintSky } from "./sky";
import { type Country, onSnapshot, type Place, type Snapshot } from "./snapshot";
import { Sparks } from "./sparks";
import { number, text } from "./texts";
import { readTheme, type Theme } from "./theme";
import { fillTip } from "./tip";

const DENSITY_MAX = 2;
const FINE_LAND_ZOOM = 2.6;
const FINE_LAND_FLAT_ZOOM = 5; // there it is drawn by d3, which takes its time
const KEY_PIXELS = 70;
const KEY_ZOOM = 1.5;
const FLIGHT_MS = 700;
const NIGHT_MS = 60_000;
const SPARK_FRAME_MS = 80;

export class Globe extends HTMLElement {
  // How long the last picture took, for measuring.
  drawMs = 0;
  #camera: Camera = { longitude: new Date().getTimezoneOffset() / -4, latitude: 24, zoom: 1, isFlat: false };
  #snapshot: Snapshot | undefined;
  #land: Land | undefined;
  #fine: Land | "loading" | undefined;
  #near: Vectors | undefined;
  #theme!: Theme;
  #glow!: HTMLCanvasElement;
  #sky: { canvas: HTMLCanvasElement; key: string } | undefined;
  #lens!: Lens;
  #spots: Spot[] = [];
  #hovered: Spot | undefined;
  readonly #sparks = new Sparks();
  #sparkTimer: number | undefined;
  #isWaiting = false;
  readonly #base = document.createElement("canvas");
  readonly #over = document.createElement("canvas");
  readonly #tip = document.createElement("div");
  readonly #stars = document.createElement("p");
  readonly #flat = document.createElement("button");
  readonly #pointers = new Map<number, { x: number; y: number }>();
  readonly #isCalm = matchMedia("(prefers-reduced-motion: reduce)");
  readonly #version = new URL(import.meta.url).search;

  connectedCallback(): void {
    this.#build();
    this.#restyle();
    this.#listen();
    new ResizeObserver(() => this.#redraw()).observe(this);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
      matchMedia(query).addEventListener("change", () => this.#restyle());
    }
    document.fonts.ready.then(() => this.#redraw());
    setInterval(() => document.hidden || this.#redraw(), NIGHT_MS);
    loadLand("land", this.#version)
      .then((land) => {
        this.#land = land;
        this.#redraw();
      })
      .catch(() => undefined); // the lights are there without it
    onSnapshot((snapshot) => this.#take(snapshot));
    document.addEventListener("world-visit", (event) => this.#visit((event as CustomEvent<Country>).detail));
    document.addEventListener("world-work", (event) => this.#kindle((event as CustomEvent<number>).detail));
  }

  get lights(): number {
    return this.#snapshot
      ? this.#snapshot.totals.stars + this.#snapshot.places.reduce((sum, { lights }) => sum + lights, 0)
      : 0;
  }

  get camera(): Camera {
    return this.#camera;
  }

  set camera(camera: Camera) {
    this.#camera = camera;
    this.#settle();
  }

  // -- building --------------------------------------------------------------------------------

  #build(): void {
    this.#base.tabIndex = 0;
    this.#base.setAttribute("role", "img");
    this.#base.setAttribute("aria-label", text("globe-label", { lights: number(0) }));
    this.#base.setAttribute("aria-describedby", "countries-title");
    this.#over.setAttribute("aria-hidden", "true");
    this.#tip.className = "tip";
    this.#tip.hidden = true;
    this.#stars.className = "stars";
    const controls = document.createElement("div");
    controls.className = "controls";
    const button = (made: HTMLButtonElement, key: string, sign: string, act: () => void): HTMLButtonElement => {
      made.type = "button";
      made.textContent = sign || text(key);
      if (sign) made.setAttribute("aria-label", text(key));
      made.addEventListener("click", act);
      return made;
    };
    controls.append(
      button(document.createElement("button"), "zoom-in", "+", () => this.#fly(zoomed(this.#camera, 1.8))),
      button(document.createElement("button"), "zoom-out", "−", () => this.#fly(zoomed(this.#camera, 1 / 1.8))),
      button(this.#flat, "show-flat", "", () => this.#flip()),
    );
    this.append(this.#base, this.#over, this.#tip, this.#stars, controls);
  }

  #restyle(): void {
    this.#theme = readTheme(this);
    this.#glow = makeGlow(this.#theme);
    this.#sky = undefined;
    this.#redraw();
  }

  #take(snapshot: Snapshot): void {
    const isFirst = this.#snapshot === undefined;
    this.#snapshot = snapshot;
    this.#name();
    this.#stars.textContent = snapshot.totals.stars ? text("stars", { count: snapshot.totals.stars }) : "";
    if (isFirst && snapshot.places.length > 0 && snapshot.places.length < 40) this.#face(snapshot.places);
    this.#redraw();
  }

  #name(): void {
    const lights = number(this.lights);
    this.#base.setAttribute("aria-label", text(this.#camera.isFlat ? "flat-label" : "globe-label", { lights }));
    this.dataset.lights = String(this.lights);
  }

  // A network with few places is looked at where they are.
  #face(places: readonly Place[]): void {
    const sum = [0, 0, 0];
    for (const { longitude, latitude } of places) {
      const [lambda, phi] = [(longitude * Math.PI) / 180, (latitude * Math.PI) / 180];
      sum[0]! += Math.cos(phi) * Math.cos(lambda);
      sum[1]! += Math.cos(phi) * Math.sin(lambda);
      sum[2]! += Math.sin(phi);
    }
    const [x, y, z] = sum as [number, number, number];
    this.#camera = {
      ...this.#camera,
      longitude: (Math.atan2(y, x) * 180) / Math.PI,
      latitude: Math.max(-30, Math.min(38, (Math.atan2(z, Math.hypot(x, y)) * 180) / Math.PI)),
    };
  }

  // -- painting --------------------------------------------------------------------------------

  #redraw(): void {
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    requestAnimationFrame(() => {
      this.#isWaiting = false;
      this.paint();
    });
  }

  paint(): void {
    const { width, height } = this.getBoundingClientRect();
    if (width < 2 || height < 2) return;
    const start = performance.now();
    const density = Math.min(DENSITY_MAX, devicePixelRatio || 1);
    const canvas = fitted(this.#base, width, height, density);
    fitted(this.#over, width, height, density);
    const lens = new Lens(this.#camera, width, height, [0, this.#lift(height)]);
    this.#lens = lens;
    if (this.#snapshot) canvas.drawImage(this.#skyOf(lens, density), 0, 0, width, height);
    paintEarth(canvas, lens, this.#theme, this.#landFor(lens.camera.zoom), this.#near, Date.now());
    if (this.#snapshot) {
      this.#spots = spotsOf(lens, this.#snapshot.places);
      paintLights(canvas, this.#spots, this.#theme, this.#glow);
      paintLabels(canvas, lens, this.#snapshot.countries, this.#theme, this.#spots, this.#wordsOfPage());
    }
    this.drawMs = performance.now() - start;
  }

  // The headline stands above the globe, so its middle is a little below the stage's.
  #lift(height: number): number {
    return height * Number(getComputedStyle(this).getPropertyValue("--globe-lift") || 0);
  }

  #skyOf(lens: Lens, density: number): HTMLCanvasElement {
    const stars = this.#snapshot?.totals.stars ?? 0;
    const { width, height, centre, camera } = lens;
    const key = [width, height, density, stars, camera.isFlat].join();
    if (this.#sky?.key !== key) {
      const radius = Math.min(width, height) * 0.46;
      const [x, y] = centre;
      const clear = camera.isFlat
        ? { x, y, radiusX: Math.min(width / 2, height), radiusY: Math.min(width / 4, height / 2), isFlat: true }
        : { x, y, radiusX: radius, radiusY: radius, isFlat: false };
      this.#sky = { key, canvas: paintSky(width, height, density, stars, clear, this.#wordsOfPage(), this.#theme) };
    }
    return this.#sky.canvas;
  }

  #landFor(zoom: number): Land | undefined {
    if (zoom < (this.#camera.isFlat ? FINE_LAND_FLAT_ZOOM : FINE_LAND_ZOOM)) return this.#land;
    if (this.#fine === undefined) {
      this.#fine = "loading";
      loadLand("land-fine", this.#version)
        .then((land) => {
          this.#fine = land;
          this.#near = vectorsOf(land);
          this.#redraw();
        })
        .catch(() => (this.#fine = undefined));
    }
    return this.#fine === "loading" ? this.#land : this.#fine;
  }

  #wordsOfPage(): Box[] {
    const own = this.getBoundingClientRect();
    const words = this.parentElement?.querySelectorAll(".headline, .legend, .controls, .stars") ?? [];
    return [...words].map((element) => {
      const box = element.getBoundingClientRect();
      return {
        left: box.left - own.left - 8,
        right: box.right - own.left + 8,
        top: box.top - own.top - 4,
        bottom: box.bottom - own.top + 4,
      };
    });
  }

  // -- moving ----------------------------------------------------------------------------------

  #listen(): void {
    const canvas = this.#base;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 0) return;
      this.#pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      canvas.setPointerCapture(event.pointerId);
      this.#tip.hidden = true;
    });
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    for (const kind of ["pointerup", "pointercancel"] as const) {
      canvas.addEventListener(kind, (event) => {
        this.#pointers.delete(event.pointerId);
        if (kind === "pointerup" && event.pointerType !== "mouse") this.#hover(event);
      });
    }
    canvas.addEventListener("pointerleave", () => this.#hover(undefined));
    canvas.addEventListener("dblclick", () => this.#fly(zoomed(this.#camera, 2.2)));
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #point(event: PointerEvent): void {
    const held = this.#pointers.get(event.pointerId);
    if (!held) {
      this.#hover(event);
      return;
    }
    const others = [...this.#pointers.entries()].filter(([id]) => id !== event.pointerId);
    const other = others[0]?.[1];
    const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
    if (other) {
      const before = Math.hypot(held.x - other.x, held.y - other.y);
      const after = Math.hypot(event.clientX - other.x, event.clientY - other.y);
      if (before > 8) this.#camera = zoomed(this.#camera, after / before);
    } else {
      this.#camera = moved(this.#camera, dx, dy, this.#lens.radius);
    }
    this.#pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    this.#settle();
  }

  #wheel(event: WheelEvent): void {
    const isOut = event.deltaY > 0;
    const box = this.getBoundingClientRect();
    const isOn = this.#lens.isInside(event.clientX - box.left, event.clientY - box.top);
    // Beside the globe, and where it cannot get smaller, the wheel belongs to the page.
    if (!event.ctrlKey && (!isOn || (isOut && this.#camera.zoom <= 1))) return;
    event.preventDefault();
    const pixels = event.deltaY * (event.deltaMode === 1 ? 16 : 1) * (event.ctrlKey ? 4 : 1);
    this.#camera = zoomed(this.#camera, Math.exp(-Math.max(-160, Math.min(160, pixels)) * 0.0022));
    this.#settle();
  }

  #key(event: KeyboardEvent): void {
    const by = (dx: number, dy: number): Camera => moved(this.#camera, dx, dy, this.#lens.radius);
    const targets: Record<string, () => Camera> = {
      ArrowLeft: () => by(KEY_PIXELS, 0),
      ArrowRight: () => by(-KEY_PIXELS, 0),
      ArrowUp: () => by(0, KEY_PIXELS),
      ArrowDown: () => by(0, -KEY_PIXELS),
      "+": () => zoomed(this.#camera, KEY_ZOOM),
      "=": () => zoomed(this.#camera, KEY_ZOOM),
      "-": () => zoomed(this.#camera, 1 / KEY_ZOOM),
      "0": () => ({ ...this.#camera, zoom: 1 }),
    };
    const target = targets[event.key];
    if (!target || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.#camera = target();
    this.#settle();
  }

  #settle(): void {
    this.#tip.hidden = true;
    this.#hovered = undefined;
    this.classList.toggle("is-near", this.#camera.zoom > 1.3);
    this.#redraw();
  }

  #flip(): void {
    this.#camera = { ...this.#camera, isFlat: !this.#camera.isFlat, latitude: this.#camera.isFlat ? 24 : 0, zoom: 1 };
    this.#flat.textContent = text(this.#camera.isFlat ? "show-globe" : "show-flat");
    this.#name();
    this.#settle();
  }

  #visit(country: Country): void {
    const { longitude, latitude } = country;
    this.#fly({ ...this.#camera, longitude, latitude, zoom: Math.max(3, this.#camera.zoom) });
    this.scrollIntoView({ block: "nearest", behavior: this.#isCalm.matches ? "auto" : "smooth" });
  }

  #fly(target: Camera): void {
    const start = performance.now();
    const from = this.#camera;
    const turn = wrapped(target.longitude - from.longitude);
    const step = (now: number): void => {
      const share = this.#isCalm.matches ? 1 : Math.min(1, (now - start) / FLIGHT_MS);
      const eased = 1 - (1 - share) ** 3;
      this.#camera = {
        isFlat: target.isFlat,
        longitude: wrapped(from.longitude + turn * eased),
        latitude: from.latitude + (target.latitude - from.latitude) * eased,
        zoom: from.zoom * (target.zoom / from.zoom) ** eased,
      };
      this.#settle();
      if (share < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  // -- looking closer --------------------------------------------------------------------------

  #hover(event: PointerEvent | undefined): void {
    const box = this.getBoundingClientRect();
    const [x, y] = event ? [event.clientX - box.left, event.clientY - box.top] : [-1e6, -1e6];
    let found: Spot | undefined;
    let nearest = 14;
    for (const spot of this.#spots) {
      const distance = Math.max(0, Math.hypot(spot.x - x, spot.y - y) - spot.radius);
      if (distance < nearest || (distance === 0 && nearest === 0 && spot.radius < (found?.radius ?? 0))) {
        [nearest, found] = [distance, spot];
      }
    }
    if (found === this.#hovered) return;
    this.#hovered = found;
    this.#tip.hidden = !found;
    this.#base.style.cursor = found ? "pointer" : "";
    this.#paintOver();
    if (found) fillTip(this.#tip, found, this.#snapshot?.countries[found.place.country], this.#lens);
  }

  #kindle(jobs: number): void {
    if (this.#isCalm.matches || document.hidden) return;
    this.#sparks.kindle(jobs, this.#snapshot?.places ?? [], performance.now());
    this.#sparkTimer ??= window.setInterval(() => this.#paintOver(), SPARK_FRAME_MS);
  }

  #paintOver(): void {
    const density = Math.min(DENSITY_MAX, devicePixelRatio || 1);
    const canvas = fitted(this.#over, this.#lens.width, this.#lens.height, density);
    if (!this.#sparks.paint(canvas, this.#lens, this.#theme, performance.now())) {
      clearInterval(this.#sparkTimer);
      this.#sparkTimer = undefined;
    }
    if (!this.#hovered) return;
    circle(canvas, this.#hovered.x, this.#hovered.y, this.#hovered.radius + 4);
    canvas.strokeStyle = this.#theme.label;
    canvas.lineWidth = 1.4;
    canvas.stroke();
  }
}

// The canvas in the size of its box, cleared, one unit a CSS pixel.
function fitted(element: HTMLCanvasElement, width: number, height: number, density: number): CanvasRenderingContext2D {
  const [wide, high] = [Math.round(width * density), Math.round(height * density)];
  if (element.width !== wide) element.width = wide;
  if (element.height !== high) element.height = high;
  const canvas = element.getContext("2d")!;
  canvas.setTransform(density, 0, 0, density, 0, 0);
  canvas.clearRect(0, 0, width, height);
  return canvas;
}
