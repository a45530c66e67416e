// What the page at /docs needs besides Swagger UI.

// The page names this preset, but its layout uses nothing of it.
window.SwaggerUIStandalonePreset = [];

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
