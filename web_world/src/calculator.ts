// The calculator, live: the server reckons, as without a script, and its answer takes the old one's place.

const PAUSE_MS = 350;

class Calculator extends HTMLElement {
  private timer: number | undefined;
  private running: AbortController | undefined;

  connectedCallback(): void {
    const form = this.querySelector("form");
    if (!form) return;
    form.addEventListener("input", () => this.later(form));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.reckon(form).then(() => this.querySelector("#result")?.scrollIntoView());
    });
  }

  private later(form: HTMLFormElement): void {
    clearTimeout(this.timer);
    // What is not filled in yet is no fault while somebody types.
    if (form.checkValidity()) this.timer = setTimeout(() => void this.reckon(form), PAUSE_MS);
  }

  private async reckon(form: HTMLFormElement): Promise<void> {
    clearTimeout(this.timer);
    this.running?.abort();
    const running = (this.running = new AbortController());
    const address = new URL(form.action);
    const typed = [...new FormData(form)].map(([name, value]) => [name, String(value)]);
    address.search = String(new URLSearchParams(typed));
    try {
      const answer = await fetch(address, { signal: running.signal });
      if (!answer.ok) throw new Error(String(answer.status));
      this.show(new DOMParser().parseFromString(await answer.text(), "text/html"));
      history.replaceState(null, "", address);
    } catch {
      // Without an answer the form still works as a form.
      if (!running.signal.aborted) location.assign(address);
    }
  }

  // Fields stay as they are, so that nobody loses their place; what is wrong with them is renewed.
  private show(page: Document): void {
    const [old, made] = [this.querySelector("#result"), page.querySelector("#result")];
    if (!old || !made) return;
    old.replaceChildren(...made.childNodes);
    for (const element of this.querySelectorAll<HTMLElement>("input, select")) {
      const twin = page.getElementById(element.id);
      this.querySelector(`#${element.id}-fault`)?.remove();
      for (const name of ["aria-invalid", "aria-describedby"]) {
        const value = twin?.getAttribute(name);
        if (value) element.setAttribute(name, value);
        else element.removeAttribute(name);
      }
      const fault = page.getElementById(`${element.id}-fault`);
      if (fault) element.parentElement?.append(fault);
    }
  }
}

customElements.define("mlx-calculator", Calculator);
export {};
