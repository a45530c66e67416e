// The page at /docs: Swagger UI with the API's description.

SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true });

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
