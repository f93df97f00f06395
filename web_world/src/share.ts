// "Send the link to my Mac": the system's own sheet where there is one, else the link's mail.

class Share extends HTMLElement {
  connectedCallback(): void {
    const link = this.querySelector("a");
    if (link && typeof navigator.share === "function") link.addEventListener("click", (event) => void share(event, link));
  }
}

async function share(event: Event, link: HTMLAnchorElement): Promise<void> {
  event.preventDefault();
  const { title = "", text = "", url = "" } = link.dataset;
  try {
    await navigator.share({ title, text, url });
  } catch (fault) {
    const isCancelled = fault instanceof DOMException && fault.name === "AbortError";
    if (!isCancelled) location.assign(link.href);
  }
}

customElements.define("mlx-share", Share);
export {};
