const { packages, egress, run } = require("./lib.cjs");
const { default: Anthropic } = packages("@anthropic-ai/sdk");
const client = new Anthropic(egress ? { apiKey: "unused", baseURL: process.env.RESOURCES, maxRetries: 0 } : { maxRetries: 0 });
run(async () => {
  const message = await client.messages.create({ model: "claude-" + process.env.TARGET, max_tokens: 10, messages: [{ role: "user", content: "hello" }] });
  return message.content[0].text;
});
