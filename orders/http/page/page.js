// The page at /docs: Swagger UI with the API's description, or with a guide.

const guide = new URLSearchParams(location.search).get("guide");
document.body.classList.toggle("guide", guide !== null);
SwaggerUIBundle({
  url: guide ? `/docs/guides/${encodeURIComponent(guide)}` : "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: !guide,
  onComplete: () => {
    for (const link of document.querySelectorAll(".info .renderedMarkdown a")) {
      const url = new URL(link.href);
      if (url.origin === location.origin) link.removeAttribute("target");
    }
    if (guide) nameHeadings();
  },
});

/** Links to headings name them as GitHub does. */
function nameHeadings() {
  document.title = document.querySelector(".info .title").firstChild.textContent;
  for (const heading of document.querySelectorAll(".info .renderedMarkdown :is(h1, h2, h3, h4)")) {
    heading.id = heading.textContent.trim().toLowerCase().replace(/[^\p{L}\p{N}_ -]/gu, "").replaceAll(" ", "-");
  }
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
