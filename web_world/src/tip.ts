// What a light says when it is pointed at.
import { type Lens } from "./camera";
import { type Spot } from "./lights";
import { type Country, Kind } from "./snapshot";
import { countryName, tenths, text } from "./texts";

export function fillTip(tip: HTMLElement, spot: Spot, country: Country | undefined, lens: Lens): void {
  const { place } = spot;
  const kind = place.kind === Kind.Country ? "macs-country" : "macs-area";
  const lines = [place.kind === Kind.Alone ? text("at-least-one") : text(kind, { count: place.lights })];
  if (place.busyTenths !== null) lines.push(text("share-working", { share: tenths(place.busyTenths) }));
  if (place.ultraSeats) lines.push(text("ultra-count", { count: place.ultraSeats }));
  if (place.podMacs) lines.push(text("pod-count", { count: place.podMacs }));
  const title = document.createElement("strong");
  title.textContent = country ? countryName(country.code) : "";
  const told = lines.map((line) => Object.assign(document.createElement("span"), { textContent: line }));
  tip.replaceChildren(title, ...told);
  const side = spot.x > lens.width * 0.6 ? -1 : 1;
  tip.style.left = `${spot.x + side * (Math.min(spot.radius, 60) + 12)}px`;
  tip.style.top = `${Math.max(50, Math.min(lens.height - 60, spot.y))}px`;
  tip.style.transform = `translate(${side < 0 ? "-100%" : "0"}, -50%)`;
}
