// Starts Swagger UI on our own document. Nothing is loaded from elsewhere, and the online validator stays off.
window.addEventListener("load", () => {
  window.SwaggerUIBundle({
    url: "/openapi.json",
    dom_id: "#swagger-ui",
    deepLinking: true,
    validatorUrl: null,
    persistAuthorization: false,
    tryItOutEnabled: true,
  });
});
