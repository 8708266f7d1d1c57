const { packages, egress, run } = require("./lib.cjs");
const { default: OpenAI } = packages("openai");
const options = { baseURL: process.env.RESOURCES + "/openai/v1", maxRetries: 0, apiKey: "unused" };
if (!egress) {
  // The SDK takes the token from a file in its constructor. Its token endpoint is fixed, and leads to the far side here.
  const { k8sServiceAccountTokenProvider } = packages("openai/auth/index");
  delete options.apiKey;
  options.workloadIdentity = { identityProviderId: "idp_1", serviceAccountId: "sa-1", provider: k8sServiceAccountTokenProvider(process.env.TOKEN_FILE) };
  options.fetch = (url, init) => fetch(String(url).replace("https://auth.openai.com", process.env.EXCHANGES), init);
}
run(async () => (await new OpenAI(options).models.retrieve(process.env.TARGET)).owned_by);
